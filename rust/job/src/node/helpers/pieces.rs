//! Pieces of its ranks' files that the hub asks a node for, read in a thread of their own: the disk may be slow.
//!
//! A profile is asked for as a file is: the first question is news for the rank, which begins it, and there are no
//! bytes of it until it is whole. So a question that is lost with a connection is asked again.
//!
//! - NODE-1 (holds-nothing-up): the node's own thread waits for no disk. A thread that a disk keeps from ending is
//!   left behind, and the log says so.
//! - NODE-2 (gaps-are-told): a piece is whole. Where bytes are no longer there, it begins after them, and says why.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_supervisor::{RankLog, RankSocket, ReadAt};
use phalanx_types::contract::{FILE_PROFILE, FILE_STACKS, ProfileRequest};
use phalanx_types::message::NodeMessage;
use phalanx_types::rank_file::{Piece, PieceWanted, RankFile};
use phalanx_types::{Error, ErrorKind, RankNews, Result};

use crate::node::helpers::helper::Helper;

/// How many requests wait: the hub has no more on their way.
const WAITING: usize = 64;

/// The hub wants a piece of a rank's file.
pub(crate) struct Reading {
    pub(crate) request: u32,
    pub(crate) wanted: PieceWanted,
    pub(crate) of: FilesOf,
}

/// Where the files of a rank are.
pub(crate) struct FilesOf {
    pub(crate) log: Arc<RankLog>,
    /// Its own folder.
    pub(crate) dir: PathBuf,
    /// The way to the rank, if it runs.
    pub(crate) socket: Option<RankSocket>,
}

/// Starts the thread that reads pieces, and sends each to `answer`.
///
/// # Errors
/// [`ErrorKind::Io`] if the system gives no thread.
pub(crate) fn pieces(answer: impl Fn(NodeMessage) + Send + 'static) -> Result<Helper<Reading>> {
    Helper::start("phalanx-pieces", move |Reading { request, wanted, of }| {
        let piece = match wanted.file {
            RankFile::Output => output_piece(&of.log, wanted),
            RankFile::Profile { number, millis } => {
                profile_piece(&of, ProfileRequest { number, millis }, wanted)
            }
        };
        answer(NodeMessage::Piece { request, piece: piece.map_err(|e| e.to_string()) });
    })
}

/// Has a piece read; the answer where too many wait for that.
pub(crate) fn read(pieces: &Helper<Reading>, reading: Reading) -> Option<NodeMessage> {
    if pieces.waiting() >= WAITING {
        let why = "its host's disk is too slow for this many reads".to_string();
        return Some(NodeMessage::Piece { request: reading.request, piece: Err(why) });
    }
    pieces.give(reading);
    None
}

/// Microseconds since 1970, as this host has it.
#[allow(
    clippy::disallowed_methods,
    reason = "the driver compares it with its own clock: profiles have the wall's"
)]
fn clock_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Reads on in a profile that is there; else has the rank take it, once.
fn profile_piece(of: &FilesOf, asked: ProfileRequest, wanted: PieceWanted) -> Result<Piece<String>> {
    let path = of.dir.join(format!("{FILE_PROFILE}{}", asked.number));
    let reading = |e: &io::Error| Error::io("read the rank's profile", e);
    let mut piece = Piece { clock_us: clock_us(), ..Piece::default() };
    match File::open(&path) {
        Ok(file) => {
            piece.end = file.metadata().map_err(|e| reading(&e))?.len();
            piece.start = wanted.start_in(piece.end);
            let left = wanted.most_bytes().min(piece.end.saturating_sub(piece.start));
            let mut bytes = vec![0; usize::try_from(left).unwrap_or(0)];
            file.read_exact_at(&mut bytes, piece.start).map_err(|e| reading(&e))?;
            piece.bytes = hex::encode(bytes);
            Ok(piece)
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(reading(&e)),
        Err(_) => {
            let ended = || Error::new(ErrorKind::Closed, "the rank has ended");
            let socket = of.socket.as_ref().ok_or_else(ended)?;
            // The rank makes it when its watchdog begins.
            if !of.dir.join(FILE_STACKS).exists() {
                let why = "it doesn't run Phalanx's Python entry point, or has only just started";
                return Err(Error::new(ErrorKind::Unreachable, why));
            }
            socket.tell(&RankNews::Profile(asked));
            Ok(piece)
        }
    }
}

/// Reads until the piece is whole, or there is no more for now.
fn output_piece(log: &RankLog, wanted: PieceWanted) -> Result<Piece<String>> {
    let end = log.end();
    let start = wanted.start_in(end);
    let mut piece = Piece { start, end, clock_us: clock_us(), ..Piece::default() };
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
                    true => format!("could not be written: {}", why()),
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
    use phalanx_types::Generation;
    use phalanx_types::rank_file::MAX_PIECE_BYTES;
    use rustix::net::{RecvFlags, recv};

    use super::*;
    use crate::node::output::followed_log::tests::write_to;

    fn wanted(start: i64, bytes: u64) -> PieceWanted {
        PieceWanted { rank: 0, file: RankFile::Output, start, bytes }
    }

    fn output(log: &RankLog, start: i64, bytes: u64) -> (u64, Vec<u8>, String) {
        let piece = output_piece(log, wanted(start, bytes)).unwrap();
        assert_eq!(piece.end, log.end());
        (piece.start, hex::decode(piece.bytes).unwrap(), piece.missing)
    }

    #[test]
    fn a_piece_is_what_was_asked_for_and_no_longer_than_its_bound() {
        let folder = phalanx_testkit::temp_dir("pieces");
        let log = RankLog::create(&folder.path().join("rank.log"), 4 << 20).unwrap();
        let text: Vec<u8> = (0..400_000_u32).map(|i| (i % 251) as u8).collect();
        write_to(&log, &text);
        assert_eq!(output(&log, 1000, 10), (1000, text[1000..1010].to_vec(), String::new()));
        assert_eq!(output(&log, -5, 10), (399_995, text[399_995..].to_vec(), String::new()));
        assert_eq!(output(&log, 400_000, 10), (400_000, Vec::new(), String::new()));
        assert_eq!(output(&log, 0, u64::MAX).1.len() as u64, MAX_PIECE_BYTES, "TYPES-22");
    }

    #[test]
    fn what_is_no_longer_kept_is_told_before_the_bytes_that_are() {
        let folder = phalanx_testkit::temp_dir("pieces-dropped");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        (0..5).for_each(|i| write_to(&log, &[b'a' + i; 4096]));
        let (start, bytes, missing) = output(&log, 0, 100);
        let written: Vec<u8> = (start..start + 100).map(|at| b'a' + (at / 4096) as u8).collect();
        assert!(start > 8192 && bytes == written, "NODE-2: {start}");
        assert_eq!(missing, "are no longer kept", "NODE-2");
    }

    #[test]
    fn requests_are_answered_in_order_and_the_thread_ends_with_the_last() {
        let folder = phalanx_testkit::temp_dir("pieces-order");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        write_to(&log, b"hello");
        let (answer, answers) = crossbeam_channel::unbounded();
        let pieces = pieces(move |piece| answer.send(piece).unwrap()).unwrap();
        for request in 0..3 {
            let of = FilesOf { log: Arc::clone(&log), dir: folder.path().to_path_buf(), socket: None };
            assert!(read(&pieces, Reading { request, wanted: wanted(0, 5), of }).is_none());
        }
        drop(pieces);
        assert_eq!(Arc::strong_count(&log), 1, "NODE-1: the thread that had it has ended");
        for number in 0..3 {
            let NodeMessage::Piece { request, piece: Ok(piece) } = answers.recv().unwrap() else { panic!() };
            assert_eq!((request, hex::decode(piece.bytes).unwrap().as_slice()), (number, &b"hello"[..]));
        }
    }

    #[test]
    fn of_a_disk_that_holds_a_thread_no_more_is_asked_than_waits() {
        let (begun, begins) = crossbeam_channel::unbounded();
        let (go, goes) = crossbeam_channel::bounded::<()>(0);
        let folder = phalanx_testkit::temp_dir("pieces-hang");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        let pieces = pieces(move |_| {
            begun.send(()).unwrap();
            let _ = goes.recv();
        })
        .unwrap();
        let ask = |request| {
            let of = FilesOf { log: Arc::clone(&log), dir: folder.path().to_path_buf(), socket: None };
            super::read(&pieces, Reading { request, wanted: wanted(0, 5), of })
        };
        assert!(ask(0).is_none());
        begins.recv().unwrap();
        assert!((1..=WAITING as u32).all(|request| ask(request).is_none()));
        let NodeMessage::Piece { request: 99, piece: Err(why) } = ask(99).unwrap() else { panic!() };
        assert!(why.contains("too slow"), "{why}");
        drop(go);
    }

    #[test]
    fn a_profile_is_asked_for_once_and_read_when_the_rank_has_written_it() {
        let folder = phalanx_testkit::temp_dir("pieces-profile");
        let log = RankLog::create(&folder.path().join("rank.log"), 8192).unwrap();
        let (socket, end) = RankSocket::pair(Generation::new(7)).unwrap();
        let of = |socket| FilesOf { log: Arc::clone(&log), dir: folder.path().to_path_buf(), socket };
        let runs = || of(Some(socket.clone()));
        let asked = ProfileRequest { number: 3, millis: 1500 };
        let read = |of: &FilesOf| profile_piece(of, asked, wanted(2, 3));
        assert_eq!(read(&runs()).unwrap_err().kind(), ErrorKind::Unreachable, "Phalanx's Python entry point");
        std::fs::write(folder.path().join(FILE_STACKS), "").unwrap();
        for _ in 0..2 {
            let none = read(&runs()).unwrap();
            assert_eq!((none.end, none.bytes.as_str()), (0, ""));
        }
        assert_eq!(read(&of(None)).unwrap_err().kind(), ErrorKind::Closed, "the rank has ended");
        drop(socket);
        let news = std::iter::from_fn(|| {
            let mut packet = [0; 4096];
            let (bytes, _) = recv(&end, &mut packet[..], RecvFlags::empty()).unwrap();
            (bytes > 0).then(|| String::from_utf8(packet[..bytes].to_vec()).unwrap())
        });
        let profiles: Vec<_> = news.filter(|news| news.contains("profile")).collect();
        assert_eq!(profiles, [r#"{"version":1,"kind":"profile","number":3,"millis":1500}"#], "GUARD-15");
        std::fs::write(folder.path().join("profile-of-3"), "0123456789").unwrap();
        let piece = read(&of(None)).unwrap();
        assert_eq!((piece.start, piece.end, hex::decode(&piece.bytes).unwrap()), (2, 10, b"234".to_vec()));
        let beyond = profile_piece(&of(None), asked, wanted(11, 3)).unwrap();
        assert_eq!((beyond.end, beyond.bytes.as_str()), (10, ""));
    }
}
