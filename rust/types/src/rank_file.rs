//! Files of a rank that lie on its host, which the driver reads piece by piece while the rank's node is there.
//!
//! TYPES-22 (bounded): a piece has at most [`MAX_PIECE_BYTES`], whatever is asked for and however long the file is.

use serde::{Deserialize, Serialize};

/// How long a piece is, at most. It travels as hexadecimal digits, in a message beside all others of its node.
pub const MAX_PIECE_BYTES: u64 = 128 << 10;

/// Which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RankFile {
    /// What the rank has written to stdout and stderr, in all attempts of its node.
    Output,
    /// What the rank does for so long, from when it is first asked for; it is there when the rank has written it.
    Profile {
        /// The number of the profile: another one is another profile.
        number: u32,
        /// For how long, in milliseconds.
        millis: u32,
    },
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceWanted {
    /// The rank.
    pub rank: u32,
    /// Which of its files.
    pub file: RankFile,
    /// The offset of the first byte; where it is negative, counted from the end of what there is.
    pub start: i64,
    /// How many bytes, at most.
    pub bytes: u64,
}

impl PieceWanted {
    /// The offset of the first byte in a file that ends at `end`.
    pub fn start_in(&self, end: u64) -> u64 {
        if self.start < 0 { end.saturating_sub(self.start.unsigned_abs()) } else { self.start.unsigned_abs() }
    }

    /// How many bytes come at most (TYPES-22).
    pub fn most_bytes(&self) -> u64 {
        self.bytes.min(MAX_PIECE_BYTES)
    }
}

/// A piece of a file. `B` is text of hexadecimal digits where it travels, and bytes where it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece<B> {
    /// The offset of its first byte. Later than what was asked for where bytes are not there any more.
    pub start: u64,
    /// Where the file ended when it was read.
    pub end: u64,
    /// Why bytes before `start` are missing; empty where none are.
    pub missing: String,
    /// What the clock of its host says, in microseconds since 1970.
    pub clock_us: u64,
    /// The bytes. None: there are no more by now.
    pub bytes: B,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_below_zero_counts_from_the_end_and_stops_at_the_beginning() {
        let starts = |start| {
            let wanted = PieceWanted { rank: 0, file: RankFile::Output, start, bytes: u64::MAX };
            assert_eq!(wanted.most_bytes(), MAX_PIECE_BYTES, "TYPES-22");
            wanted.start_in(100)
        };
        assert_eq!([0, 7, 200, -1, -100, -101, i64::MIN].map(starts), [0, 7, 200, 99, 0, 0, 0]);
    }
}
