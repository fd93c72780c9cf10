//! The last lines of a stream of bytes, as a person would see them on a terminal, in bounded memory.

use std::collections::VecDeque;

use phalanx_types::failure::LAST_LINES;

/// Of a longer line the middle is left out.
const LINE_BYTES: usize = 4096;
const HALF: usize = LINE_BYTES / 2;

/// Takes bytes, keeps the last [`LAST_LINES`] lines. A carriage return begins the line anew, so that a progress bar is
/// one line: its last state.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<Line>,
    current: Line,
    /// A carriage return was the last byte: either the first half of a line's end, or the line begins anew.
    returned: bool,
}

#[derive(Debug, Default, Clone)]
struct Line {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Line {
    fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(HALF - self.head.len()));
        self.head.extend_from_slice(head);
        let too_many = (self.tail.len() + rest.len()).saturating_sub(HALF);
        self.left_out += u64::try_from(too_many).unwrap_or(0);
        self.tail.drain(..too_many.min(self.tail.len()));
        self.tail.extend(&rest[rest.len().saturating_sub(HALF)..]);
    }

    fn is_empty(&self) -> bool {
        self.head.is_empty()
    }

    fn text(&self) -> String {
        let mut bytes = self.head.clone();
        if self.left_out > 0 {
            bytes.extend(format!(" ...[{} bytes left out]... ", self.left_out).bytes());
        }
        bytes.extend(&self.tail);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Tail {
    /// Takes more of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut rest = self.skip_what_will_be_forgotten(bytes);
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.add(&rest[..at]);
            if rest[at] == b'\n' {
                self.end_line();
            } else {
                self.returned = true;
            }
            rest = &rest[at + 1..];
        }
        self.add(rest);
    }

    fn add(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if std::mem::take(&mut self.returned) {
            self.current = Line::default();
        }
        self.current.push(bytes);
    }

    fn end_line(&mut self) {
        self.returned = false;
        self.lines.push_back(std::mem::take(&mut self.current));
        if self.lines.len() > LAST_LINES {
            self.lines.pop_front();
        }
    }

    /// If `bytes` ends more lines than are kept, begins with those that are: makes a flood of output cheap.
    fn skip_what_will_be_forgotten<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let ends = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
        match { ends }.nth(LAST_LINES) {
            Some(at) => {
                self.lines.clear();
                self.current = Line::default();
                self.returned = false;
                &bytes[at + 1..]
            }
            None => bytes,
        }
    }

    /// The last `n` lines, oldest first; the line that is still being written is one, unless it is empty.
    pub(crate) fn last(&self, n: usize) -> Vec<String> {
        let current = (!self.current.is_empty()).then_some(&self.current);
        let all: Vec<&Line> = self.lines.iter().chain(current).collect();
        all[all.len().saturating_sub(n.min(LAST_LINES))..].iter().map(|line| line.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail_of(bytes: &[u8]) -> Vec<String> {
        let mut tail = Tail::default();
        tail.push(bytes);
        tail.last(LAST_LINES)
    }

    #[test]
    fn a_progress_bar_is_one_line_with_its_last_state() {
        assert_eq!(tail_of(b"start\n\r 1%\r 50%\r 99%"), ["start", " 99%"]);
        assert_eq!(tail_of(b" 1%\r100%\r\ndone\r\n"), ["100%", "done"]);
        assert_eq!(
            tail_of(b"100%\r"),
            ["100%"],
            "until something is written over it, it is there to be seen"
        );
    }

    #[test]
    fn the_last_line_needs_no_end() {
        assert_eq!(tail_of(b"a\nb"), ["a", "b"]);
        assert_eq!(tail_of(b"a\n\n"), ["a", ""]);
        assert!(tail_of(b"").is_empty());
    }

    #[test]
    fn a_long_line_loses_its_middle_and_says_how_much() {
        let mut line = vec![b'a'; HALF];
        line.extend([b'b'; 1000]);
        line.extend([b'c'; HALF]);
        let expected = format!("{} ...[1000 bytes left out]... {}", "a".repeat(HALF), "c".repeat(HALF));
        assert_eq!(tail_of(&line), [expected]);
        assert_eq!(tail_of(&vec![b'x'; LINE_BYTES]), ["x".repeat(LINE_BYTES)], "as long as may be");
    }

    #[test]
    fn bytes_that_are_no_text_are_marked_not_refused() {
        assert_eq!(tail_of(b"ok \xff\xfe ok\n"), ["ok \u{fffd}\u{fffd} ok"]);
    }

    proptest! {
        #[test]
        fn how_the_bytes_are_cut_changes_nothing(
            bytes in prop::collection::vec(
                prop_oneof![5 => Just(b'x'), 2 => Just(b'\n'), 2 => Just(b'\r'), 1 => any::<u8>()],
                0..400,
            ),
            piece in 1usize..50,
        ) {
            let mut tail = Tail::default();
            for part in bytes.chunks(piece) {
                tail.push(part);
            }
            prop_assert_eq!(tail.last(LAST_LINES), tail_of(&bytes));
        }

        #[test]
        fn the_last_lines_are_those_of_the_whole_text(text in "[a-z\n]{0,300}", n in 0usize..30) {
            let lines: Vec<&str> = text.split_terminator('\n').collect();
            let expected = &lines[lines.len().saturating_sub(n.min(LAST_LINES))..];
            let mut tail = Tail::default();
            tail.push(text.as_bytes());
            prop_assert_eq!(tail.last(n), expected);
        }
    }
}
