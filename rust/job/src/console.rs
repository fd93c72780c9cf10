//! The console: the bytes of many ranks become whole, prefixed lines of text for one reader.
//!
//! JOB-3 (whole-lines): a line of one rank is never broken by another's.
//! JOB-4 (bytes-are-data): bytes that are not UTF-8 are shown as replacement characters.
//! JOB-5 (bars-of-rank-0): rank 0's progress bars (text that ends in a carriage return) are shown as such, and
//! drawn anew below other output. Of the other ranks' bars only the last state is shown.
//! JOB-6 (chosen): of the ranks' lines those are shown that [`ShownOutput`] says; all are kept in [`LogTails`].
//! JOB-7 (bounded): memory is bounded by [`MAX_LINE_BYTES`] a rank, or, where ranks are many, by a quarter of a
//! rank's share of [`LogTails`]. A longer line is shown in pieces, and none is lost.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use memchr::memchr2;
use phalanx_types::ShownOutput;
use phalanx_types::stacks::ranges;

use crate::dedup::{Dedup, Group};
use crate::log_tail::LogTails;
use crate::rate_limit::RateLimit;

/// A line without an end is shown once it is this long.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// How many lines of a rank that failed are shown where nothing else of it is.
const ERROR_LINES: usize = 100;
/// Which rank's progress bars a reader who watches sees while they run.
const BAR_RANK: u32 = 0;

/// Turns output into text to show. Pure: bytes in, text out.
#[derive(Debug)]
pub struct Console {
    ranks: BTreeMap<u32, Partial>,
    /// How many characters wide the bar is that stands on the reader's last line; 0 if none does.
    bar_width: usize,
    /// Where the newest lines are kept; `None` if the reader is a file: no rank's bars are drawn, and nobody asks.
    tails: Option<Arc<LogTails>>,
    line_bytes: usize,
    shown: ShownOutput,
    /// Where equal lines are shown once.
    dedup: Option<Dedup>,
    /// Where lines are deduplicated, and ranks so many that not all that they write can be read.
    rate_limit: Option<RateLimit>,
}

#[derive(Debug, Default)]
struct Partial {
    line: Vec<u8>,
    /// Whether the last thing seen was a carriage return: what is in `line` is a bar's last state.
    at_return: bool,
}

impl Console {
    /// One whose reader watches `shown` of so many ranks; the newest lines are kept in `tails`.
    pub fn new(tails: Arc<LogTails>, ranks: u32, shown: &ShownOutput) -> Console {
        let line_bytes = tails.line_bytes().min(MAX_LINE_BYTES);
        let shown = shown.of_ranks(ranks);
        let dedup = (shown == ShownOutput::Dedup).then(|| Dedup::new(ranks));
        let rate_limit = dedup.as_ref().and_then(|_| RateLimit::of(ranks));
        Console { tails: Some(tails), line_bytes, shown, dedup, rate_limit, ..Console::to_file() }
    }

    /// One whose reader is a file: of progress bars only the last state is in it.
    pub fn to_file() -> Console {
        Console {
            ranks: BTreeMap::new(),
            bar_width: 0,
            tails: None,
            line_bytes: MAX_LINE_BYTES,
            shown: ShownOutput::All,
            dedup: None,
            rate_limit: None,
        }
    }

    /// Takes output of `rank`; appends what can be shown of it to `out`.
    pub fn take(&mut self, rank: u32, mut bytes: &[u8], out: &mut String) {
        while let Some(at) = memchr2(b'\n', b'\r', bytes) {
            let ends_line = bytes[at] == b'\n';
            if ends_line && at < self.line_bytes && self.begins_line(rank) {
                self.show_line(rank, &String::from_utf8_lossy(&bytes[..at]), out);
                bytes = &bytes[at + 1..];
                continue;
            }
            self.extend(rank, &bytes[..at], out);
            if ends_line {
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

    /// Shows a line about the job.
    pub fn announce(&mut self, text: &str, out: &mut String) {
        self.flush(out);
        self.show_announcement(Some(text), out);
    }

    /// Shows lines that have waited long enough for equal ones. Returns when that is so of the next.
    pub fn tick(&mut self, now: Instant, out: &mut String) -> Option<Instant> {
        let (groups, due) = self.dedup.as_mut()?.tick(now);
        self.show_groups(&groups, out);
        let (told, ends) = self.rate_limit.as_mut().map(|limit| limit.tick(now)).unwrap_or_default();
        self.show_announcement(told, out);
        due.into_iter().chain(ends).min()
    }

    /// Shows lines that wait for equal ones.
    pub fn flush(&mut self, out: &mut String) {
        let groups = self.dedup.as_mut().map(Dedup::take_all).unwrap_or_default();
        self.show_groups(&groups, out);
        let told = self.rate_limit.as_mut().and_then(RateLimit::told);
        self.show_announcement(told, out);
    }

    /// Shows the newest lines of a rank that has failed, where not all of its output was shown before.
    pub fn failed(&mut self, rank: u32, out: &mut String) {
        let was_left_out = self.rate_limit.as_ref().is_some_and(|limit| limit.has_left_out(rank));
        let Some(tails) = self.tails.as_ref().filter(|_| was_left_out || self.shown == ShownOutput::Errors)
        else {
            return;
        };
        let newest = tails.newest(rank);
        let lines: Vec<&str> = newest.lines().collect();
        for line in &lines[lines.len().saturating_sub(ERROR_LINES)..] {
            self.print(&format!("rank {rank}"), line, out);
        }
    }

    fn show_groups(&mut self, groups: &[Group], out: &mut String) {
        for group in groups {
            if self.rate_limit.as_mut().is_none_or(|limit| limit.shows(&group.ranks)) {
                self.print(&ranges(&group.ranks), &group.text, out);
            }
        }
    }

    /// Shows a line about the job, if there is one, where no line waits for its like.
    fn show_announcement(&mut self, text: Option<impl AsRef<str>>, out: &mut String) {
        if let Some(text) = text {
            let bar_width = std::mem::take(&mut self.bar_width);
            if bar_width > 0 {
                out.push('\n');
            }
            out.push_str(text.as_ref());
            out.push('\n');
        }
    }

    /// Whether nothing waits for the end of its line.
    fn begins_line(&self, rank: u32) -> bool {
        self.ranks.get(&rank).is_none_or(|partial| partial.line.is_empty())
    }

    fn extend(&mut self, rank: u32, mut bytes: &[u8], out: &mut String) {
        while !bytes.is_empty() {
            let partial = self.ranks.entry(rank).or_default();
            if std::mem::take(&mut partial.at_return) {
                partial.line.clear();
            }
            let room = self.line_bytes - partial.line.len();
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            partial.line.extend_from_slice(piece);
            if partial.line.len() == self.line_bytes {
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
        if rank != BAR_RANK || self.tails.is_none() || !self.shown.shows(rank) {
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
        if let Some(tails) = &self.tails {
            tails.push(rank, text);
        }
        if let Some(dedup) = &mut self.dedup {
            let groups = dedup.push(rank, text);
            self.show_groups(&groups, out);
        } else if self.shown.shows(rank) {
            self.print(&format_args!("rank {rank}"), text, out);
        }
    }

    fn print(&mut self, who: &dyn Display, text: &str, out: &mut String) {
        use std::fmt::Write as _;
        let bar_width = std::mem::take(&mut self.bar_width);
        if bar_width > 0 {
            out.push('\r');
        }
        let start = out.len();
        let _ = write!(out, "[{who}] ");
        out.push_str(text);
        if bar_width > 0 {
            let width = out[start..].chars().count();
            pad(bar_width.saturating_sub(width), out);
        }
        out.push('\n');
        // It stands below what is written meanwhile, as long as it hasn't become a line itself.
        if bar_width > 0 && !self.begins_line(BAR_RANK) {
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

    fn watched(ranks: u32, shown: &ShownOutput) -> Console {
        Console::new(Arc::new(LogTails::new(ranks)), ranks, shown)
    }

    #[test]
    fn equal_lines_of_many_ranks_are_one_line_with_their_ranks() {
        let (mut view, mut out) = (watched(64, &ShownOutput::Auto), String::new());
        for rank in 0..64 {
            view.take(rank, b"epoch 3\n", &mut out);
            view.take(rank, format!("my rank is {rank}\n").as_bytes(), &mut out);
        }
        let now = Instant::now();
        assert_eq!(out, "[ranks 0-63] epoch 3\n", "JOB-6");
        let due = view.tick(now, &mut out).unwrap();
        assert_eq!(view.tick(due, &mut out), None);
        assert_eq!(out.lines().count(), 65);
        assert!(out.contains("\n[rank 63] my rank is 63\n"), "JOB-6: {out}");
        view.take(5, b"last", &mut out);
        view.finish(5, &mut out);
        view.announce("[phalanx] over", &mut out);
        assert!(out.ends_with("[rank 5] last\n[phalanx] over\n"), "JOB-6: {out}");
    }

    #[test]
    fn a_thousand_ranks_that_greet_do_not_flood_the_reader_and_rank_0_and_one_that_fails_are_shown() {
        let (mut view, mut out) = (watched(1000, &ShownOutput::Auto), String::new());
        for rank in (0..1000).rev() {
            view.take(rank, format!("hello of {rank}\n").as_bytes(), &mut out);
        }
        view.flush(&mut out);
        assert!(out.contains("[rank 0] hello of 0\n") && !out.contains("hello of 7\n"), "{out}");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 252, "JOB-19");
        assert!(lines[251].starts_with("[phalanx] 749 more lines of 749 ranks are not shown"), "JOB-20");
        out.clear();
        view.failed(7, &mut out);
        view.failed(999, &mut out);
        assert_eq!(out, "[rank 7] hello of 7\n", "of the other one all has been shown");
        assert_eq!(view.tails.unwrap().newest(8), "hello of 8\n", "JOB-6");
    }

    #[test]
    fn a_bar_of_rank_0_among_deduplicated_lines_ends_as_a_line() {
        let (mut view, mut out) = (watched(9, &ShownOutput::Dedup), String::new());
        view.take(0, b"\r 10%", &mut out);
        view.take(1, b"hi\n", &mut out);
        view.take(0, b"\r100%\n", &mut out);
        view.flush(&mut out);
        let shown: Vec<&str> =
            out.split('\n').map(|line| line.rsplit('\r').next().unwrap().trim_end()).collect();
        assert_eq!(shown, ["[rank 1] hi", "[rank 0] 100%", ""], "JOB-5: {out:?}");
    }

    #[test]
    fn what_is_shown_is_what_was_chosen_and_all_is_kept() {
        for (shown, expected) in [
            (ShownOutput::All, "[rank 0] a\n[rank 1] b\n"),
            (ShownOutput::Ranks(vec![1]), "[rank 1] b\n"),
            (ShownOutput::Off, ""),
            (ShownOutput::Errors, "[rank 1] b\n"),
        ] {
            let (mut view, mut out) = (watched(2, &shown), String::new());
            view.take(0, b"a\n\r 10%", &mut out);
            view.take(1, b"b\n", &mut out);
            let out = out.split('\r').next().unwrap().to_string();
            let mut out = if shown == ShownOutput::All { expected.into() } else { out };
            view.failed(1, &mut out);
            assert_eq!(out, expected, "JOB-6: {shown}");
            assert_eq!(view.tails.unwrap().newest(0), "a\n", "JOB-6");
        }
    }

    fn show(chunks: &[(u32, &[u8])]) -> String {
        let (mut view, mut out) = (watched(8, &ShownOutput::All), String::new());
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
        assert_eq!(shown, "[rank 1] x\n[rank 0] abc\n[rank 1] yz\n", "JOB-3");
    }

    #[test]
    fn a_character_cut_in_two_is_shown_whole_and_a_broken_one_replaced() {
        assert_eq!(show(&[(2, b"\xc3"), (2, b"\xa4\n\xff\n")]), "[rank 2] ä\n[rank 2] \u{fffd}\n", "JOB-4");
    }

    #[test]
    fn windows_line_ends_are_lines() {
        assert_eq!(show(&[(1, b"a\r\nb\r\n")]), "[rank 1] a\n[rank 1] b\n");
    }

    #[test]
    fn a_bar_of_rank_0_is_drawn_in_place_and_ends_as_a_line() {
        let shown = show(&[(0, b"\r 10%"), (0, b"\r 20%"), (0, b"\r100%\n")]);
        assert_eq!(shown.split('\r').next_back().unwrap(), "[rank 0] 100%\n", "JOB-5");
        assert!(shown.contains("\r[rank 0]  10%"), "{shown:?}");
        assert!(!shown.trim_end().contains('\n'), "{shown:?}");
    }

    #[test]
    fn a_line_of_another_rank_replaces_the_bar_which_is_drawn_below() {
        let shown = show(&[(0, b"\rlong bar 10%\r"), (1, b"hi\n")]);
        let lines: Vec<&str> = shown.split('\n').collect();
        assert_eq!(lines[0].rsplit('\r').next().unwrap().trim_end(), "[rank 1] hi");
        assert!(lines[1].contains("[rank 0] long bar 10%"), "JOB-5: {shown:?}");
    }

    #[test]
    fn bars_of_other_ranks_show_only_their_end() {
        assert_eq!(show(&[(3, b"\r10%\r50%\r100%\n")]), "[rank 3] 100%\n", "JOB-5");
    }

    #[test]
    fn a_file_has_the_end_of_every_bar_and_no_more_of_it() {
        let (mut view, mut out) = (Console::to_file(), String::new());
        view.take(0, b"a\n\r 10%\r 50%", &mut out);
        view.take(1, b"b\n", &mut out);
        view.take(0, b"\r100%\n", &mut out);
        assert_eq!(out, "[rank 0] a\n[rank 1] b\n[rank 0] 100%\n", "JOB-5");
    }

    #[test]
    fn the_newest_lines_of_each_rank_are_kept_and_of_a_bar_its_last_state() {
        let tails = Arc::new(LogTails::new(2));
        let (mut view, mut out) = (Console::new(Arc::clone(&tails), 2, &ShownOutput::All), String::new());
        view.take(0, b"a\n\r 10%\r100%\nc", &mut out);
        view.take(1, b"b\n", &mut out);
        view.announce("[phalanx] restart 1 of 1: x", &mut out);
        assert_eq!((tails.newest(0), tails.newest(1)), ("a\n100%\n".into(), "b\n".into()));
        view.finish(0, &mut out);
        assert_eq!((tails.newest(0), tails.newest(2)), ("a\n100%\nc\n".into(), String::new()));
    }

    #[test]
    fn an_endless_line_is_shown_in_pieces_without_loss() {
        let shown = show(&[(1, &vec![b'x'; 3 * MAX_LINE_BYTES + 5])]);
        assert_eq!(shown.matches('x').count(), 3 * MAX_LINE_BYTES + 5, "JOB-7");
        assert_eq!(shown.lines().count(), 4);
    }

    #[test]
    fn of_many_ranks_each_has_less_of_a_line_without_an_end() {
        let (mut view, mut out) = (watched(8000, &ShownOutput::All), String::new());
        let line_bytes = (96 << 20) / 8000 / 4;
        for rank in 0..8000 {
            view.take(rank, &vec![b'x'; 2 * line_bytes + 5], &mut out);
        }
        let held: usize = view.ranks.values().map(|partial| partial.line.capacity()).sum();
        assert!(held <= 8000 * 2 * line_bytes, "JOB-7: {held}");
        (0..8000).for_each(|rank| view.finish(rank, &mut out));
        assert_eq!(out.matches('x').count(), 8000 * (2 * line_bytes + 5), "JOB-7");
        assert_eq!(out.lines().count(), 3 * 8000);
    }
}
