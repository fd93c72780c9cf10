//! Who waits for a piece of a rank's file, and what comes of it.
//!
//! - DRIVER-9 (bounded): at most [`MAX_OPEN`] pieces are on their way at a time, of [`MAX_PIECE_BYTES`] each, so that a
//!   caller who reads output of any length costs the hub no memory beyond that.
//! - DRIVER-10 (no-wait-in-vain): who asks a node that can't answer, or doesn't any more, is told so at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use phalanx_types::rank_file::{MAX_PIECE_BYTES, Piece};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::driver::event_queue::next_of;

/// How many pieces are on their way at a time.
const MAX_OPEN: usize = 64;
/// How long a request is remembered: whoever waits longer has asked again.
const REMEMBERED: Duration = Duration::from_secs(30);

/// A piece on its way, its bytes as they travel.
pub(super) type Answer = Sender<Result<Piece<String>>>;

/// A piece of a rank's file, once it is there.
#[derive(Debug)]
pub struct PieceAnswer(pub(super) Receiver<Result<Piece<String>>>);

impl PieceAnswer {
    /// The piece; `None` at the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if nobody can be asked for it, or the file isn't there;
    /// [`ErrorKind::Closed`] if the hub was closed before it came; [`ErrorKind::Protocol`] for bytes that are none.
    pub fn wait(&self, deadline: Deadline) -> Result<Option<Piece<Vec<u8>>>> {
        let Some(piece) = next_of(&self.0, deadline)? else { return Ok(None) };
        let Piece { start, end, missing, clock_us, bytes } = piece?;
        match hex::decode(&bytes) {
            Ok(bytes) if bytes.len() as u64 <= MAX_PIECE_BYTES => {
                Ok(Some(Piece { start, end, missing, clock_us, bytes }))
            }
            _ => Err(Error::new(ErrorKind::Protocol, "a node sent an invalid piece of a file")),
        }
    }
}

#[derive(Debug)]
struct Open {
    partition: u32,
    asked: Instant,
    answer: Answer,
}

/// The requests of a job; they are numbered over all attempts.
#[derive(Debug, Default)]
pub(super) struct Reads {
    last: u32,
    open: BTreeMap<u32, Open>,
}

impl Reads {
    /// Begins a request to the node of `partition`; its number, or `None` where too many are under way.
    pub(super) fn ask(&mut self, now: Instant, partition: u32, answer: Answer) -> Option<u32> {
        self.open.retain(|_, open| now < open.asked + REMEMBERED);
        if self.open.len() >= MAX_OPEN {
            refuse(
                &answer,
                format!("{MAX_OPEN} reads of ranks' files are in progress already; ask again later"),
            );
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.open.insert(self.last, Open { partition, asked: now, answer });
        Some(self.last)
    }

    /// A node answers.
    pub(super) fn answered(
        &mut self,
        partition: u32,
        request: u32,
        piece: std::result::Result<Piece<String>, String>,
    ) {
        if self.open.get(&request).is_none_or(|open| open.partition != partition) {
            return;
        }
        if let Some(open) = self.open.remove(&request) {
            // One that has lost its patience hears nothing.
            let _ = open.answer.send(piece.map_err(|why| Error::new(ErrorKind::Unreachable, why)));
        }
    }

    /// DRIVER-10: the node of a partition answers nothing more.
    pub(super) fn gone(&mut self, partition: u32) {
        let gone: Vec<u32> = self
            .open
            .iter()
            .filter(|(_, open)| open.partition == partition)
            .map(|(request, _)| *request)
            .collect();
        for open in gone.iter().filter_map(|request| self.open.remove(request)) {
            refuse(&open.answer, "its task has ended, or the connection to it broke".into());
        }
    }
}

/// Tells an asker that nothing will come.
pub(super) fn refuse(answer: &Answer, why: String) {
    let _ = answer.send(Err(Error::new(ErrorKind::Unreachable, why)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(reads: &mut Reads, now: Instant, partition: u32) -> (Option<u32>, PieceAnswer) {
        let (answer, answered) = crossbeam_channel::bounded(1);
        (reads.ask(now, partition, answer), PieceAnswer(answered))
    }

    fn kind_of(answer: &PieceAnswer) -> ErrorKind {
        answer.wait(Deadline::after(Duration::ZERO)).unwrap_err().kind()
    }

    fn piece(bytes: String) -> Piece<String> {
        Piece { end: 9, bytes, ..Piece::default() }
    }

    #[test]
    fn a_piece_goes_to_who_asked_for_it_and_only_from_the_node_that_was_asked() {
        let (mut reads, now) = (Reads::default(), Instant::now());
        let (first, answer) = ask(&mut reads, now, 3);
        let (second, other) = ask(&mut reads, now, 4);
        reads.answered(4, first.unwrap(), Ok(piece(hex::encode("forged"))));
        reads.answered(3, first.unwrap(), Ok(piece(hex::encode("hello"))));
        reads.answered(4, second.unwrap(), Ok(piece("no digits".into())));
        let came = answer.wait(Deadline::after(Duration::ZERO)).unwrap().unwrap();
        assert_eq!((came.bytes.as_slice(), came.end), (&b"hello"[..], 9));
        assert_eq!(kind_of(&other), ErrorKind::Protocol);
    }

    #[test]
    fn too_many_requests_and_those_of_a_node_that_is_gone_are_told_at_once() {
        let (mut reads, now) = (Reads::default(), Instant::now());
        let open: Vec<_> = (0..MAX_OPEN).map(|_| ask(&mut reads, now, 3).1).collect();
        let (none, refused) = ask(&mut reads, now, 4);
        assert!(none.is_none() && kind_of(&refused) == ErrorKind::Unreachable, "DRIVER-9");
        assert!(ask(&mut reads, now + REMEMBERED, 4).0.is_some(), "DRIVER-9: forgotten requests make room");
        assert!(open.iter().all(|answer| kind_of(answer) == ErrorKind::Closed));
        let (_, waits) = ask(&mut reads, now, 3);
        reads.gone(3);
        assert_eq!(kind_of(&waits), ErrorKind::Unreachable, "DRIVER-10");
    }
}
