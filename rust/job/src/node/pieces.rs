//! Pieces of its ranks' files that the hub asks a node for, read in a thread of their own: the disk may be slow.
//!
//! - PIECES-1 (holds-nothing-up): the node's own thread waits for no disk. A thread that a disk keeps from ending is
//!   left behind after [`PATIENCE`], and the log says so.
//! - PIECES-2 (gaps-are-told): a piece is whole. Where bytes are no longer there, it begins after them, and says why.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError};
use phalanx_io::pause;
use phalanx_supervisor::{RankLog, ReadAt};
use phalanx_types::message::NodeMessage;
use phalanx_types::rank_file::{Piece, PieceWanted};
use phalanx_types::{Deadline, Error, Result};

use crate::node::control::INTERRUPT_EVERY;

/// How many requests wait: the hub has no more on their way.
const WAITING: usize = 64;
/// How long the end of a node waits for a disk.
const PATIENCE: Duration = Duration::from_secs(1);

struct Order {
    request: u32,
    wanted: PieceWanted,
    log: Arc<RankLog>,
}

/// What reads for one attempt of a node; it has a thread from the first request on.
pub(crate) struct Pieces {
    reader: Option<(Sender<Order>, JoinHandle<()>)>,
    answers: Receiver<NodeMessage>,
    answer: Sender<NodeMessage>,
}

impl Pieces {
    pub(crate) fn new() -> Pieces {
        let (answer, answers) = crossbeam_channel::bounded(1);
        Pieces { reader: None, answers, answer }
    }

    /// What is to be told to the hub.
    pub(crate) fn answers(&self) -> Receiver<NodeMessage> {
        self.answers.clone()
    }

    /// Has a piece of `log` read; the answer where that can't be.
    pub(crate) fn read(
        &mut self,
        request: u32,
        wanted: PieceWanted,
        log: Arc<RankLog>,
    ) -> Option<NodeMessage> {
        let no = |why: String| Some(NodeMessage::Piece { request, piece: Err(why) });
        let (orders, _) = match self.reader.take().map_or_else(|| self.start(), Ok) {
            Ok(reader) => self.reader.insert(reader),
            Err(e) => return no(e.to_string()),
        };
        match orders.try_send(Order { request, wanted, log }) {
            Ok(()) => None,
            Err(TrySendError::Full(_)) => no("its host's disk is too slow for all that is asked for".into()),
            Err(TrySendError::Disconnected(_)) => no("what reads it there has failed".into()),
        }
    }

    fn start(&self) -> Result<(Sender<Order>, JoinHandle<()>)> {
        let (orders, ordered) = crossbeam_channel::bounded::<Order>(WAITING);
        let answer = self.answer.clone();
        let thread = std::thread::Builder::new()
            .name("phalanx-pieces".into())
            .spawn(move || {
                for Order { request, wanted, log } in ordered {
                    let piece = piece_of(&log, wanted).map_err(|e| e.to_string());
                    if answer.send(NodeMessage::Piece { request, piece }).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("start a thread that reads output", &e))?;
        Ok((orders, thread))
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let Some((orders, thread)) = self.reader.take() else { return };
        drop(orders);
        // An answer that nobody takes any more.
        self.answers = crossbeam_channel::never();
        let deadline = Deadline::after(PATIENCE);
        while !thread.is_finished() && !deadline.passed() {
            pause(INTERRUPT_EVERY.min(Duration::from_millis(1)), deadline);
        }
        if !thread.is_finished() {
            log::warn!("the disk with the ranks' output doesn't answer; the thread that reads there is left");
        } else if thread.join().is_err() {
            log::error!("the thread that reads the ranks' output panicked");
        }
    }
}

/// Reads until the piece is whole, or there is no more for now.
fn piece_of(log: &RankLog, wanted: PieceWanted) -> Result<Piece<String>> {
    let end = log.end();
    let mut piece = Piece { start: wanted.start_in(end), end, ..Piece::default() };
    let mut bytes = vec![0; usize::try_from(wanted.most_bytes()).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match log.read_at(piece.start + filled as u64, &mut bytes[filled..])? {
            ReadAt::Bytes(0) => break,
            ReadAt::Bytes(read) => filled += read,
            // What follows a gap is another piece.
            ReadAt::Dropped { .. } if filled > 0 => break,
            ReadAt::Dropped { resume_at, lost } => {
                let why = || log.loss().map_or_else(|| "the disk".into(), |loss| loss.reason);
                piece.missing = match lost {
                    true => format!("could not be written down: {}", why()),
                    false => "are no longer kept".into(),
                };
                piece.start = resume_at;
            }
        }
    }
    piece.bytes = hex::encode(&bytes[..filled]);
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use phalanx_types::rank_file::{MAX_PIECE_BYTES, RankFile};

    use super::*;
    use crate::node::followed_log::tests::write_to;

    fn wanted(start: i64, bytes: u64) -> PieceWanted {
        PieceWanted { rank: 0, file: RankFile::Output, start, bytes }
    }

    fn read(log: &RankLog, start: i64, bytes: u64) -> (u64, Vec<u8>, String) {
        let piece = piece_of(log, wanted(start, bytes)).unwrap();
        assert_eq!(piece.end, log.end());
        (piece.start, hex::decode(piece.bytes).unwrap(), piece.missing)
    }

    #[test]
    fn a_piece_is_what_was_asked_for_and_no_longer_than_its_bound() {
        let folder = phalanx_testkit::temp_dir("pieces");
        let log = RankLog::create(&folder.path().join("rank.log"), 4 << 20).unwrap();
        let text: Vec<u8> = (0..400_000_u32).map(|i| (i % 251) as u8).collect();
        write_to(&log, &text);
        assert_eq!(read(&log, 1000, 10), (1000, text[1000..1010].to_vec(), String::new()));
        assert_eq!(read(&log, -5, 10), (399_995, text[399_995..].to_vec(), String::new()));
        assert_eq!(read(&log, 400_000, 10), (400_000, Vec::new(), String::new()));
        assert_eq!(read(&log, 0, u64::MAX).1.len() as u64, MAX_PIECE_BYTES, "PIECE-1");
    }

    #[test]
    fn what_is_no_longer_kept_is_told_before_the_bytes_that_are() {
        let folder = phalanx_testkit::temp_dir("pieces-dropped");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        (0..5).for_each(|i| write_to(&log, &[b'a' + i; 4096]));
        let (start, bytes, missing) = read(&log, 0, 100);
        let written: Vec<u8> = (start..start + 100).map(|at| b'a' + (at / 4096) as u8).collect();
        assert!(start > 8192 && bytes == written, "PIECES-2: {start}");
        assert_eq!(missing, "are no longer kept", "PIECES-2");
    }

    #[test]
    fn requests_are_answered_in_order_and_the_thread_ends_with_an_answer_that_nobody_took() {
        let folder = phalanx_testkit::temp_dir("pieces-order");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        write_to(&log, b"hello");
        let mut pieces = Pieces::new();
        for request in 0..3 {
            assert!(pieces.read(request, wanted(0, 5), Arc::clone(&log)).is_none());
        }
        let answer = pieces.answers().recv_timeout(Duration::from_secs(20)).unwrap();
        let NodeMessage::Piece { request: 0, piece: Ok(piece) } = answer else { panic!("{answer:?}") };
        assert_eq!(hex::decode(piece.bytes).unwrap(), b"hello");
        drop(pieces);
        assert_eq!(Arc::strong_count(&log), 1, "PIECES-1: the thread that had it has ended");
    }
}
