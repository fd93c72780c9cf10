//! The newest whole lines of each rank, as far as the driver has seen them.
//!
//! - JOB-13 (one-budget): all ranks together cost no more than [`BUDGET_BYTES`] and a sixteenth of it, whatever is
//!   written. Each rank has an equal share of it, and no more than [`MOST_BYTES`]: of up to 384 ranks each has that.
//! - JOB-14 (stays): what was kept is there for as long as somebody asks for it, also when the hub is closed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// How much of the output of all ranks is kept.
pub const BUDGET_BYTES: usize = 96 << 20;
/// How much of a rank's output is kept, at most.
pub const MOST_BYTES: usize = 256 << 10;
/// How much of it is kept of however many ranks: some lines. 24,576 ranks are within the budget.
const LEAST_BYTES: usize = 4 << 10;
/// Which part of a share may be there in addition before the oldest lines go: to drop each by itself costs a flood of
/// output time.
const SLACK: usize = 16;
/// Which part of a share a line without an end may have.
const LINE: usize = 4;

/// The newest lines of all ranks of a job.
#[derive(Debug)]
pub struct LogTails {
    share_bytes: usize,
    ranks: Mutex<BTreeMap<u32, LogTail>>,
}

#[derive(Debug, Default)]
struct LogTail {
    bytes: VecDeque<u8>,
}

impl LogTails {
    /// Those of a job of so many ranks.
    pub fn new(ranks: u32) -> LogTails {
        let share = BUDGET_BYTES / usize::try_from(ranks).unwrap_or(usize::MAX).max(1);
        LogTails { share_bytes: share.clamp(LEAST_BYTES, MOST_BYTES), ranks: Mutex::default() }
    }

    /// The newest whole lines of a rank that have come here; of a progress bar its last state. Empty for a rank that
    /// the job doesn't have.
    pub fn newest(&self, rank: u32) -> String {
        let ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.get(&rank).map(|tail| tail.text(self.share_bytes)).unwrap_or_default()
    }

    pub(crate) fn push(&self, rank: u32, line: &str) {
        let mut ranks = self.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        ranks.entry(rank).or_default().push(line, self.share_bytes);
    }

    /// How long a line may be that has no end yet.
    pub(crate) fn line_bytes(&self) -> usize {
        self.share_bytes / LINE
    }

    /// How much memory all of it takes.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        self.ranks.lock().unwrap().values().map(|tail| tail.bytes.capacity()).sum()
    }
}

impl LogTail {
    fn push(&mut self, line: &str, share_bytes: usize) {
        let most = share_bytes + share_bytes / SLACK;
        let mut needed = self.bytes.len() + line.len() + 1;
        if needed > most {
            let old = self.old_bytes(needed - share_bytes);
            self.bytes.drain(..old);
            needed -= old;
        }
        if needed > most {
            // The line alone is too long to be kept.
            return;
        }
        if needed > self.bytes.capacity() {
            let room = needed.max(2 * self.bytes.capacity()).min(most);
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        self.bytes.extend(line.as_bytes());
        self.bytes.push_back(b'\n');
    }

    fn text(&self, share_bytes: usize) -> String {
        let old = self.old_bytes(self.bytes.len().saturating_sub(share_bytes));
        let bytes: Vec<u8> = self.bytes.range(old..).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How many bytes the oldest lines have that have to go where so many bytes are too many.
    fn old_bytes(&self, too_many: usize) -> usize {
        if too_many == 0 || too_many > self.bytes.len() {
            return self.bytes.len().min(too_many);
        }
        let rest = self.bytes.range(too_many - 1..).position(|byte| *byte == b'\n');
        rest.map_or(self.bytes.len(), |rest| too_many + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_lines_go_whole() {
        let tails = LogTails::new(384);
        for i in 0..1000 {
            tails.push(7, &format!("{i} {}", "ä".repeat(500)));
        }
        let text = tails.newest(7);
        assert!(text.len() <= MOST_BYTES && text.len() > MOST_BYTES - 2000, "JOB-13");
        assert!(text.lines().all(|line| line.ends_with(&"ä".repeat(500))));
        assert!(text.lines().next_back().unwrap().starts_with("999 "));
        assert_eq!(tails.newest(8), "");
    }

    #[test]
    fn thousands_of_ranks_share_one_budget() {
        const RANKS: u32 = 8000;
        let tails = LogTails::new(RANKS);
        let line = "x".repeat(1000);
        for rank in 0..RANKS {
            (0..40).for_each(|i| tails.push(rank, &format!("{i} {line}")));
            tails.push(rank, &"y".repeat(1 << 20));
            tails.push(rank, "the last");
        }
        assert!(tails.held_bytes() <= BUDGET_BYTES + BUDGET_BYTES / SLACK, "JOB-13");
        let share = BUDGET_BYTES / RANKS as usize;
        let text = tails.newest(RANKS - 1);
        assert_eq!(
            text, "the last\n",
            "a line that is longer than the share leaves only what comes after it"
        );
        tails.push(0, &line);
        (0..40).for_each(|_| tails.push(0, &line));
        let kept = tails.newest(0).len();
        assert!(kept <= share && kept > share - 2 * line.len(), "JOB-13: {kept} of {share}");
    }
}
