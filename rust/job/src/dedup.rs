//! Equal lines of several ranks become one with their ranks: pure, lines and time in, groups out.
//!
//! - JOB-8 (in-order): the lines of a rank come out in the order in which it wrote them.
//! - JOB-9 (all-once): each line of each rank comes out exactly once.
//! - JOB-10 (bounded): a line waits for its like no longer than [`WAIT`], and no more than [`MOST_LINES`] or
//!   [`MOST_BYTES`] of them wait.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a line waits for the same of other ranks.
const WAIT: Duration = Duration::from_millis(300);
/// How many different lines wait.
const MOST_LINES: usize = 1000;
/// How long they are together.
const MOST_BYTES: usize = 256 << 10;

/// A line, and the ranks that wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) text: String,
    /// Ascending.
    pub(crate) ranks: Vec<u32>,
    /// Unknown until time is told.
    due: Option<Instant>,
}

/// The lines that wait.
#[derive(Debug)]
pub(crate) struct Dedup {
    /// How many ranks there are.
    ranks: usize,
    groups: VecDeque<Group>,
    /// How many groups have gone: the number of the first that waits.
    gone: u64,
    /// The numbers of the groups that have this text.
    by_text: HashMap<String, VecDeque<u64>>,
    /// The number of the group that has each rank's newest line.
    newest: BTreeMap<u32, u64>,
    bytes: usize,
}

impl Dedup {
    pub(crate) fn new(ranks: u32) -> Dedup {
        Dedup {
            ranks: usize::try_from(ranks).unwrap_or(usize::MAX),
            groups: VecDeque::new(),
            gone: 0,
            by_text: HashMap::new(),
            newest: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Takes a line. Returns what needs to wait no longer.
    pub(crate) fn push(&mut self, rank: u32, text: &str) -> Vec<Group> {
        // JOB-8: only a group behind that of the rank's line before.
        let after = self.newest.get(&rank).copied();
        let known = self.by_text.get(text);
        let number = known.and_then(|all| {
            // Ascending, and as many as lines wait where a rank writes one line again and again.
            let first = all.partition_point(|number| after.is_some_and(|after| *number <= after));
            all.get(first).copied()
        });
        let number = number.unwrap_or_else(|| {
            let number = self.gone + self.groups.len() as u64;
            self.by_text.entry(text.to_string()).or_default().push_back(number);
            self.groups.push_back(Group { text: text.to_string(), ranks: Vec::new(), due: None });
            self.bytes += text.len();
            number
        });
        self.newest.insert(rank, number);
        let at = usize::try_from(number - self.gone).unwrap_or(usize::MAX);
        if let Some(group) = self.groups.get_mut(at) {
            let place = group.ranks.partition_point(|other| *other < rank);
            group.ranks.insert(place, rank);
        }
        let mut out = Vec::new();
        while self.groups.len() > MOST_LINES || self.bytes > MOST_BYTES || self.first_is_whole() {
            out.extend(self.pop());
        }
        out
    }

    /// Time has come to `now`: what has waited long enough, and when that is so of the next.
    pub(crate) fn tick(&mut self, now: Instant) -> (Vec<Group>, Option<Instant>) {
        for group in self.groups.iter_mut().rev().take_while(|group| group.due.is_none()) {
            group.due = Some(now + WAIT);
        }
        let mut out = Vec::new();
        while self.groups.front().is_some_and(|group| group.due.is_some_and(|due| due <= now)) {
            out.extend(self.pop());
        }
        (out, self.groups.front().and_then(|group| group.due))
    }

    /// All that waits.
    pub(crate) fn take_all(&mut self) -> Vec<Group> {
        std::iter::from_fn(|| self.pop()).collect()
    }

    fn first_is_whole(&self) -> bool {
        self.groups.front().is_some_and(|group| group.ranks.len() >= self.ranks)
    }

    fn pop(&mut self) -> Option<Group> {
        let group = self.groups.pop_front()?;
        self.bytes -= group.text.len();
        self.gone += 1;
        if let Some(numbers) = self.by_text.get_mut(&group.text) {
            numbers.pop_front();
            if numbers.is_empty() {
                self.by_text.remove(&group.text);
            }
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(groups: Vec<Group>) -> Vec<(String, Vec<u32>)> {
        groups.into_iter().map(|group| (group.text, group.ranks)).collect()
    }

    #[test]
    fn a_line_that_all_ranks_have_written_does_not_wait() {
        let mut dedup = Dedup::new(3);
        assert_eq!(told(dedup.push(2, "a")), []);
        assert_eq!(told(dedup.push(0, "a")), []);
        assert_eq!(told(dedup.push(1, "a")), [("a".to_string(), vec![0, 1, 2])]);
        assert_eq!((dedup.by_text.len(), dedup.bytes), (0, 0));
    }

    #[test]
    fn a_line_waits_for_a_while_and_no_longer() {
        let (mut dedup, now) = (Dedup::new(3), Instant::now());
        dedup.push(0, "a");
        assert_eq!(dedup.tick(now), (Vec::new(), Some(now + WAIT)));
        dedup.push(1, "a");
        dedup.push(1, "b");
        let soon = now + WAIT / 2;
        assert_eq!(dedup.tick(soon), (Vec::new(), Some(now + WAIT)));
        let (out, next) = dedup.tick(now + WAIT);
        assert_eq!((told(out), next), (vec![("a".to_string(), vec![0, 1])], Some(soon + WAIT)), "JOB-10");
        assert_eq!(told(dedup.take_all()), [("b".to_string(), vec![1])]);
    }

    #[test]
    fn every_line_of_every_rank_comes_out_once_and_in_its_order() {
        let mut dedup = Dedup::new(5);
        let (mut written, mut out) = (vec![Vec::new(); 5], Vec::new());
        let (mut number, mut now) = (7_u64, Instant::now());
        for _ in 0..20_000 {
            // A linear congruential generator (Knuth, MMIX): any order of lines.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, text) = ((number >> 33) as u32 % 5, format!("line {}", (number >> 40) % 7));
            written[rank as usize].push(text.clone());
            out.extend(dedup.push(rank, &text));
            if number >> 60 == 0 {
                now += WAIT / 3;
                out.extend(dedup.tick(now).0);
            }
        }
        out.extend(dedup.take_all());
        let of = |rank: u32| out.iter().filter(move |group| group.ranks.contains(&rank));
        for (rank, lines) in (0..).zip(&written) {
            let seen: Vec<&String> = of(rank).map(|group| &group.text).collect();
            assert!(seen.iter().copied().eq(lines), "JOB-8, JOB-9: rank {rank}");
        }
        assert!(out.len() < 20_000, "some became one: {}", out.len());
    }

    #[test]
    fn a_line_that_a_rank_repeats_is_as_many_lines() {
        let mut dedup = Dedup::new(2);
        (0..3).for_each(|_| assert_eq!(told(dedup.push(0, "a")), []));
        let both = || ("a".to_string(), vec![0, 1]);
        assert_eq!([told(dedup.push(1, "a")), told(dedup.push(1, "a"))].concat(), [both(), both()], "JOB-9");
        assert_eq!(told(dedup.take_all()), [("a".to_string(), vec![0])], "JOB-9");
    }

    #[test]
    fn what_waits_is_bounded_in_lines_and_bytes() {
        let mut dedup = Dedup::new(2);
        let out: usize = (0..5000).map(|i| dedup.push(0, &format!("{i}")).len()).sum();
        assert_eq!((out, dedup.groups.len()), (4000, MOST_LINES), "JOB-10");
        dedup.push(0, &"x".repeat(MOST_BYTES));
        assert!(dedup.bytes <= MOST_BYTES, "JOB-10");
    }
}
