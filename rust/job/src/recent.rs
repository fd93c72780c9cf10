//! The newest whole lines of a rank, as far as the driver has seen them.
//!
//! RECENT-1: memory is bounded by [`KEPT_BYTES`] a rank, whatever is written.

use std::collections::VecDeque;

/// How much of a rank's output is kept.
pub const KEPT_BYTES: usize = 256 << 10;

#[derive(Debug, Default)]
pub(crate) struct Recent {
    bytes: VecDeque<u8>,
}

impl Recent {
    pub(crate) fn push(&mut self, line: &str) {
        self.bytes.extend(line.as_bytes());
        self.bytes.push_back(b'\n');
        while self.bytes.len() > KEPT_BYTES {
            let line_end = self.bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
            self.bytes.drain(..=line_end);
        }
    }

    pub(crate) fn text(&self) -> String {
        let (first, second) = self.bytes.as_slices();
        String::from_utf8_lossy(&[first, second].concat()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_whole() {
        let mut recent = Recent::default();
        for i in 0..1000 {
            recent.push(&format!("{i} {}", "ä".repeat(500)));
        }
        let text = recent.text();
        assert!(text.len() <= KEPT_BYTES && text.len() > KEPT_BYTES - 2000, "RECENT-1");
        assert!(text.lines().all(|line| line.ends_with(&"ä".repeat(500))));
        assert!(text.lines().next_back().unwrap().starts_with("999 "));
    }
}
