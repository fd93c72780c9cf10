//! The first failure of a group: how the rank that noticed it tells the others, inside a host and between hosts.
//!
//! - GROUP-24 (first-failure): the first failure that is recorded on a host is the one that all its ranks report.
//! - GROUP-25 (no-hang): a rank that dies while it records leaves a record without a text, not a hang.

use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind};

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes of text that are passed on; longer ones are cut.
pub(crate) const TEXT_BYTES: usize = 1024;
/// How long the writer of a record may take for a few hundred stores.
const WRITER_PATIENCE: Duration = Duration::from_millis(20);

const EMPTY: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const COMPLETE: u32 = 2;

/// Why a group is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    /// One sentence that names the rank to blame.
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into() }
    }

    pub(crate) fn error(&self) -> Error {
        Error::new(self.kind, self.text.clone())
    }

    /// The text, at most [`TEXT_BYTES`] of it.
    fn text_bytes(&self) -> &[u8] {
        let mut end = self.text.len().min(TEXT_BYTES);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        &self.text.as_bytes()[..end]
    }

    /// As it crosses a socket: kind, length, text.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let text = self.text_bytes();
        into.push(kind_code(self.kind));
        into.extend_from_slice(&(text.len() as u16).to_le_bytes());
        into.extend_from_slice(text);
    }

    /// The failure at the beginning of `bytes` and how long it is; `None` if not all of it is there.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Failure, usize)> {
        let (kind, rest) = bytes.split_first()?;
        let (length, rest) = rest.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let text = String::from_utf8_lossy(rest.get(..length)?).into_owned();
        Some((Failure::new(kind_from_code(*kind), text), 3 + length))
    }
}

fn kind_code(kind: ErrorKind) -> u8 {
    ErrorKind::ALL.iter().position(|one| *one == kind).map_or(u8::MAX, |code| code as u8)
}

fn kind_from_code(code: u8) -> ErrorKind {
    ErrorKind::ALL.get(usize::from(code)).copied().unwrap_or(ErrorKind::Closed)
}

/// A host's failure, in its shared memory.
#[repr(C)]
pub(crate) struct FailureRecord {
    state: AtomicU32,
    kind: AtomicU32,
    bytes: AtomicU64,
    text: [AtomicU64; TEXT_BYTES / 8],
}

impl FailureRecord {
    /// Whether there is one, at the cost of one load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.load(Ordering::Relaxed) == EMPTY
    }

    /// Records a failure unless there is one (GROUP-24).
    pub(crate) fn record(&self, failure: &Failure) {
        let claim = self.state.compare_exchange(EMPTY, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_err() {
            return;
        }
        let text = failure.text_bytes();
        self.kind.store(u32::from(kind_code(failure.kind)), Ordering::Relaxed);
        self.bytes.store(text.len() as u64, Ordering::Relaxed);
        for (word, bytes) in self.text.iter().zip(text.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.state.store(COMPLETE, Ordering::Release);
    }

    /// The failure, if there is one.
    pub(crate) fn read(&self) -> Option<Failure> {
        let start = Instant::now();
        loop {
            match self.state.load(Ordering::Acquire) {
                EMPTY => return None,
                COMPLETE => break,
                _ if start.elapsed() > WRITER_PATIENCE => {
                    // GROUP-25
                    return Some(Failure::new(
                        ErrorKind::PeerLost,
                        "a rank of this host died while it reported a failure",
                    ));
                }
                _ => std::thread::yield_now(),
            }
        }
        let mut text: Vec<u8> =
            self.text.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        text.truncate(self.bytes.load(Ordering::Relaxed) as usize);
        let kind = kind_from_code(self.kind.load(Ordering::Relaxed) as u8);
        Some(Failure::new(kind, String::from_utf8_lossy(&text)))
    }

    #[cfg(test)]
    fn new() -> FailureRecord {
        FailureRecord {
            state: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
            text: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_kept() {
        // GROUP-24
        let record = FailureRecord::new();
        assert!(record.is_empty() && record.read().is_none());
        let first = Failure::new(ErrorKind::Timeout, "rank 3 is late");
        record.record(&first);
        record.record(&Failure::new(ErrorKind::Closed, "rank 4 left because of it"));
        assert!(!record.is_empty());
        assert_eq!(record.read(), Some(first));
    }

    #[test]
    fn a_record_without_an_end_is_reported_all_the_same() {
        // GROUP-25
        let record = FailureRecord::new();
        record.state.store(BEING_WRITTEN, Ordering::Relaxed);
        assert!(record.read().unwrap().text.contains("died while"));
    }

    #[test]
    fn a_failure_survives_the_wire_and_long_texts_are_cut() {
        let failure = Failure::new(ErrorKind::Refused, "€".repeat(TEXT_BYTES));
        let mut wire = Vec::new();
        failure.encode(&mut wire);
        for end in 0..wire.len() {
            assert_eq!(Failure::decode(&wire[..end]), None);
        }
        let (back, bytes) = Failure::decode(&wire).unwrap();
        assert_eq!((back.kind, bytes), (ErrorKind::Refused, wire.len()));
        assert_eq!(back.text, "€".repeat(TEXT_BYTES / 3));
        let record = FailureRecord::new();
        record.record(&failure);
        assert_eq!(record.read(), Some(back));
    }
}
