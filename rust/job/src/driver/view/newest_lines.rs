//! The newest lines that were shown of all ranks: pure, text in, lines out.
//!
//! - DRIVER-38 (cheap): of a text only its last lines are looked at, however long it is.

use std::collections::VecDeque;

use phalanx_types::run_snapshot::{MAX_LINE_BYTES, MAX_LINES};
use phalanx_types::text::cut;

/// The newest lines.
#[derive(Debug, Default)]
pub(super) struct NewestLines {
    whole: VecDeque<String>,
    /// A progress bar that stands at the end of what was shown.
    open: String,
}

impl NewestLines {
    /// Takes what was shown: whole lines, and perhaps a bar's states, which begin with carriage returns.
    pub(super) fn take(&mut self, text: &str) {
        let (lines, open) = match text.rsplit_once('\n') {
            Some((lines, open)) => (Some(lines), open),
            None => (None, text),
        };
        if let Some(lines) = lines {
            let newest: Vec<&str> = lines.rsplit('\n').take(MAX_LINES).collect();
            for line in newest.iter().rev() {
                if self.whole.len() == MAX_LINES {
                    self.whole.pop_front();
                }
                self.whole.push_back(last_state(line));
            }
            self.open.clear();
        }
        if !open.is_empty() {
            self.open = last_state(open);
        }
    }

    /// Oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        let bar = Some(&self.open).filter(|open| !open.is_empty());
        let all: Vec<String> = self.whole.iter().chain(bar).cloned().collect();
        all[all.len().saturating_sub(MAX_LINES)..].to_vec()
    }
}

fn last_state(line: &str) -> String {
    cut(line.rsplit('\r').next().unwrap_or_default().trim_end(), MAX_LINE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_lines_are_kept_and_of_a_bar_its_last_state() {
        let mut lines = NewestLines::default();
        lines.take("[rank 0] a\n[rank 1] b\n");
        lines.take("\r[rank 0] 10%\r[rank 0] 20%");
        assert_eq!(lines.lines(), ["[rank 0] a", "[rank 1] b", "[rank 0] 20%"]);
        lines.take("\r[rank 1] c     \n\r[rank 0] 20%");
        assert_eq!(lines.lines()[2..], ["[rank 1] c", "[rank 0] 20%"]);
        let flood: String = (0..100_000).map(|i| format!("{i}\n")).collect();
        lines.take(&flood);
        let expected: Vec<String> = (100_000 - MAX_LINES..100_000).map(|i| i.to_string()).collect();
        assert_eq!(lines.lines(), expected, "DRIVER-38");
        lines.take(&format!("{}\n", "x".repeat(1 << 20)));
        assert!(lines.lines()[MAX_LINES - 1].len() <= MAX_LINE_BYTES + 4, "TYPES-24");
    }
}
