//! The live view: the bytes of many ranks become whole, prefixed lines of text for one reader.
//!
//! LIVE-1: a line of one rank is never broken by another's. LIVE-2: bytes are data: what is no UTF-8 is shown with
//! replacement characters. LIVE-3: rank 0's progress bars (text that ends in a carriage return) are shown as such and
//! drawn anew below other output; those of other ranks are left out, but for the state in which they end.
//! LIVE-4: memory is bounded by [`MAX_LINE_BYTES`] and what [`LiveView::newest`] gives a rank; a longer line is shown in
//! pieces, none lost.

use std::collections::BTreeMap;

use crate::recent::Recent;

/// A line without an end is shown once it is this long.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Which rank's progress bars are shown while they run.
const BAR_RANK: u32 = 0;

/// Turns output into text to show. Pure: bytes in, text out.
#[derive(Debug, Default)]
pub struct LiveView {
    ranks: BTreeMap<u32, Partial>,
    /// How many characters wide the bar is that stands on the reader's last line; 0 if none does.
    bar_width: usize,
    recent: BTreeMap<u32, Recent>,
}

#[derive(Debug, Default)]
struct Partial {
    line: Vec<u8>,
    /// Whether the last thing seen was a carriage return: what is in `line` is a bar's last state.
    at_return: bool,
}

impl LiveView {
    /// Takes output of `rank`; appends what can be shown of it to `out`.
    pub fn take(&mut self, rank: u32, mut bytes: &[u8], out: &mut String) {
        while let Some(at) = bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            self.extend(rank, &bytes[..at], out);
            if bytes[at] == b'\n' {
                self.end_line(rank, out);
            } else {
                self.end_bar(rank, out);
            }
            bytes = &bytes[at + 1..];
        }
        self.extend(rank, bytes, out);
        self.draw_open_bar(rank, out);
    }

    /// Shows what is left of `rank`, which writes no more.
    pub fn finish(&mut self, rank: u32, out: &mut String) {
        if self.ranks.get(&rank).is_some_and(|partial| !partial.line.is_empty()) {
            self.end_line(rank, out);
        }
        self.ranks.remove(&rank);
    }

    /// Shows a line about `rank` that the rank didn't write. What the rank had begun is shown before it.
    pub fn notice(&mut self, rank: u32, text: &str, out: &mut String) {
        self.finish(rank, out);
        self.show_line(rank, text, out);
    }

    /// The newest whole lines that were shown of `rank`; of a progress bar its last state.
    pub fn newest(&self, rank: u32) -> String {
        self.recent.get(&rank).map(Recent::text).unwrap_or_default()
    }

    /// Shows a line about the job.
    pub fn announce(&mut self, text: &str, out: &mut String) {
        let bar_width = std::mem::take(&mut self.bar_width);
        if bar_width > 0 {
            out.push('\n');
        }
        out.push_str(text);
        out.push('\n');
    }

    fn extend(&mut self, rank: u32, mut bytes: &[u8], out: &mut String) {
        while !bytes.is_empty() {
            let partial = self.ranks.entry(rank).or_default();
            if std::mem::take(&mut partial.at_return) {
                partial.line.clear();
            }
            let room = MAX_LINE_BYTES - partial.line.len();
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            partial.line.extend_from_slice(piece);
            if partial.line.len() == MAX_LINE_BYTES {
                self.end_line(rank, out);
            }
            bytes = rest;
        }
    }

    fn end_line(&mut self, rank: u32, out: &mut String) {
        let partial = self.ranks.entry(rank).or_default();
        partial.at_return = false;
        let line = std::mem::take(&mut partial.line);
        let text = String::from_utf8_lossy(&line);
        self.show_line(rank, &text, out);
        // Kept for its capacity: a rank's lines are of one kind.
        if let Some(partial) = self.ranks.get_mut(&rank) {
            partial.line = line;
            partial.line.clear();
        }
    }

    fn end_bar(&mut self, rank: u32, out: &mut String) {
        self.draw_bar(rank, out);
        let partial = self.ranks.entry(rank).or_default();
        // "\r\r\n" and "\r" before any text leave nothing to keep.
        partial.at_return = !partial.line.is_empty();
    }

    /// A bar that begins with its carriage return, as most do, is not ended by one yet.
    fn draw_open_bar(&mut self, rank: u32, out: &mut String) {
        let open = self.bar_width > 0 && rank == BAR_RANK;
        if open && self.ranks.get(&rank).is_some_and(|p| !p.at_return && !p.line.is_empty()) {
            self.draw_bar(rank, out);
        }
    }

    fn draw_bar(&mut self, rank: u32, out: &mut String) {
        if rank != BAR_RANK {
            return;
        }
        let line = self.ranks.get(&rank).map(|p| p.line.as_slice()).unwrap_or_default();
        let text = format!("[rank {rank}] {}", String::from_utf8_lossy(line));
        let width = text.chars().count();
        out.push('\r');
        out.push_str(&text);
        pad(self.bar_width.saturating_sub(width), out);
        self.bar_width = width;
    }

    fn show_line(&mut self, rank: u32, text: &str, out: &mut String) {
        use std::fmt::Write as _;
        self.recent.entry(rank).or_default().push(text);
        let bar_width = std::mem::take(&mut self.bar_width);
        if bar_width > 0 {
            out.push('\r');
        }
        let start = out.len();
        let _ = write!(out, "[rank {rank}] {text}");
        if bar_width > 0 {
            let width = out[start..].chars().count();
            pad(bar_width.saturating_sub(width), out);
        }
        out.push('\n');
        if bar_width > 0 && rank != BAR_RANK {
            self.draw_bar(BAR_RANK, out);
        }
    }
}

fn pad(blanks: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', blanks));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(chunks: &[(u32, &[u8])]) -> String {
        let (mut view, mut out) = (LiveView::default(), String::new());
        for (rank, bytes) in chunks {
            view.take(*rank, bytes, &mut out);
        }
        for rank in 0..8 {
            view.finish(rank, &mut out);
        }
        out
    }

    #[test]
    fn lines_of_two_ranks_stay_whole() {
        let shown = show(&[(0, b"ab"), (1, b"x\ny"), (0, b"c\n"), (1, b"z\n")]);
        assert_eq!(shown, "[rank 1] x\n[rank 0] abc\n[rank 1] yz\n", "LIVE-1");
    }

    #[test]
    fn a_character_cut_in_two_is_shown_whole_and_a_broken_one_replaced() {
        assert_eq!(show(&[(2, b"\xc3"), (2, b"\xa4\n\xff\n")]), "[rank 2] ä\n[rank 2] \u{fffd}\n", "LIVE-2");
    }

    #[test]
    fn windows_line_ends_are_lines() {
        assert_eq!(show(&[(1, b"a\r\nb\r\n")]), "[rank 1] a\n[rank 1] b\n");
    }

    #[test]
    fn a_bar_of_rank_0_is_drawn_in_place_and_ends_as_a_line() {
        let shown = show(&[(0, b"\r 10%"), (0, b"\r 20%"), (0, b"\r100%\n")]);
        assert_eq!(shown.split('\r').next_back().unwrap(), "[rank 0] 100%\n", "LIVE-3");
        assert!(shown.contains("\r[rank 0]  10%"), "{shown:?}");
        assert!(!shown.trim_end().contains('\n'), "{shown:?}");
    }

    #[test]
    fn a_line_of_another_rank_replaces_the_bar_which_is_drawn_below() {
        let shown = show(&[(0, b"\rlong bar 10%\r"), (1, b"hi\n")]);
        let lines: Vec<&str> = shown.split('\n').collect();
        assert_eq!(lines[0].rsplit('\r').next().unwrap().trim_end(), "[rank 1] hi");
        assert!(lines[1].contains("[rank 0] long bar 10%"), "LIVE-3: {shown:?}");
    }

    #[test]
    fn bars_of_other_ranks_show_only_their_end() {
        assert_eq!(show(&[(3, b"\r10%\r50%\r100%\n")]), "[rank 3] 100%\n", "LIVE-3");
    }

    #[test]
    fn the_newest_lines_of_each_rank_are_kept_and_of_a_bar_its_last_state() {
        let (mut view, mut out) = (LiveView::default(), String::new());
        view.take(0, b"a\n\r 10%\r100%\nc", &mut out);
        view.take(1, b"b\n", &mut out);
        view.announce("[phalanx] restart 1 of 1: x", &mut out);
        assert_eq!((view.newest(0), view.newest(1)), ("a\n100%\n".into(), "b\n".into()));
        view.finish(0, &mut out);
        assert_eq!((view.newest(0), view.newest(2)), ("a\n100%\nc\n".into(), String::new()));
    }

    #[test]
    fn an_endless_line_is_shown_in_pieces_without_loss() {
        let shown = show(&[(1, &vec![b'x'; 3 * MAX_LINE_BYTES + 5])]);
        assert_eq!(shown.matches('x').count(), 3 * MAX_LINE_BYTES + 5, "LIVE-4");
        assert_eq!(shown.lines().count(), 4);
    }
}
