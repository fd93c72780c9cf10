//! The ranks of one attempt: each has not started, runs, or has ended, with the data that belongs to that.
//!
//! - DRIVER-28 (first-copy-counts): a rank starts once and ends once. What is told again changes nothing (TYPES-9).
//! - DRIVER-29 (counted): what is asked of all ranks at every word of one of them is counted as they change. It costs
//!   the same for eight ranks and for eight thousand.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_types::message::{MAX_PHASES, RankActivity};
use phalanx_types::{RankExit, RankState};

/// The phases of a rank.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Rank {
    #[default]
    NotStarted,
    Running {
        /// The partition whose node has it.
        on: u32,
        /// What it does, as far as was told.
        doing: Option<RankActivity>,
    },
    Ended {
        /// The partition whose node had it, if it ever ran.
        on: Option<u32>,
        exit: Box<RankExit>,
        /// What it did last, as far as was told before it was ended.
        doing: Option<RankActivity>,
    },
}

/// Whether a rank that runs has left its result, and needs nobody to end. One that is stopped does.
pub(super) fn ends_by_itself(told: &RankActivity) -> bool {
    told.returned && !told.stopped
}

impl Rank {
    fn started(self, on: u32) -> Rank {
        match self {
            Rank::NotStarted => Rank::Running { on, doing: None },
            other => other,
        }
    }

    fn ended(self, exit: RankExit) -> Rank {
        let exit = Box::new(exit);
        match self {
            Rank::NotStarted => Rank::Ended { on: None, exit, doing: None },
            Rank::Running { on, doing } => Rank::Ended { on: Some(on), exit, doing },
            ended @ Rank::Ended { .. } => ended,
        }
    }

    /// The partition whose node has, or had, its process.
    pub(super) fn on(&self) -> Option<u32> {
        match self {
            Rank::NotStarted => None,
            Rank::Running { on, .. } => Some(*on),
            Rank::Ended { on, .. } => *on,
        }
    }

    pub(super) fn doing(&self) -> Option<&RankActivity> {
        match self {
            Rank::NotStarted => None,
            Rank::Running { doing, .. } | Rank::Ended { doing, .. } => doing.as_ref(),
        }
    }

    fn has_returned(&self) -> bool {
        self.doing().is_some_and(ends_by_itself)
    }

    pub(super) fn exit(&self) -> Option<&RankExit> {
        match self {
            Rank::Ended { exit, .. } => Some(exit),
            Rank::NotStarted | Rank::Running { .. } => None,
        }
    }

    fn is_running(&self) -> bool {
        matches!(self, Rank::Running { .. })
    }
}

/// All ranks of an attempt. What is told of a rank that the job doesn't have is passed over.
#[derive(Debug)]
pub(super) struct Ranks {
    ranks: Vec<Rank>,
    /// How many phases of its timeline each rank has told.
    phases_told: Vec<u32>,
    /// From when on a rank is idle.
    idle_after: Duration,
    not_started: usize,
    running: usize,
    /// How many of those that run told that they are idle, or have left their results.
    idle: usize,
    /// How many of those that run have left their results.
    returned: usize,
    finished: usize,
    /// How many ranks are at each step that was told.
    steps: BTreeMap<u64, usize>,
    /// The ranks that have started on each node.
    of_node: BTreeMap<u32, Vec<u32>>,
}

fn index(rank: u32) -> usize {
    usize::try_from(rank).unwrap_or(usize::MAX)
}

impl Ranks {
    pub(super) fn new(count: u32, idle_after: Duration) -> Ranks {
        Ranks {
            ranks: vec![Rank::NotStarted; index(count)],
            phases_told: vec![0; index(count)],
            idle_after,
            not_started: index(count),
            running: 0,
            idle: 0,
            returned: 0,
            finished: 0,
            steps: BTreeMap::new(),
            of_node: BTreeMap::new(),
        }
    }

    /// Whether that is news.
    pub(super) fn start(&mut self, rank: u32, on: u32) -> bool {
        let news = self.change(rank, |before| before.started(on), |before| *before == Rank::NotStarted);
        if news {
            self.of_node.entry(on).or_default().push(rank);
        }
        news
    }

    /// Whether that is news.
    pub(super) fn end(&mut self, exit: RankExit) -> bool {
        self.change(exit.rank, |before| before.ended(exit), |before| before.exit().is_none())
    }

    fn change(
        &mut self,
        rank: u32,
        to: impl FnOnce(Rank) -> Rank,
        is_news: impl FnOnce(&Rank) -> bool,
    ) -> bool {
        let Some(before) = self.ranks.get_mut(index(rank)).map(std::mem::take) else { return false };
        let news = is_news(&before);
        self.tally(&before, |count, by| *count -= by);
        let after = to(before);
        self.tally(&after, |count, by| *count += by);
        self.ranks[index(rank)] = after;
        news
    }

    /// Counts a rank in, or out.
    fn tally(&mut self, rank: &Rank, add: impl Fn(&mut usize, usize)) {
        let is_idle = |told: &RankActivity| {
            ends_by_itself(told) || Duration::from_millis(told.idle_ms) >= self.idle_after
        };
        match rank {
            Rank::NotStarted => add(&mut self.not_started, 1),
            Rank::Running { doing, .. } => {
                let idle = doing.as_ref().is_some_and(is_idle);
                add(&mut self.running, 1);
                add(&mut self.idle, usize::from(idle));
                add(&mut self.returned, usize::from(rank.has_returned()));
            }
            Rank::Ended { exit, .. } => {
                add(&mut self.finished, usize::from(exit.state == RankState::Finished))
            }
        }
        if let Some(step) = rank.doing().and_then(|told| told.step) {
            let at_step = self.steps.entry(step).or_default();
            add(at_step, 1);
            if *at_step == 0 {
                self.steps.remove(&step);
            }
        }
    }

    /// Whether the `nth` phase of the rank's timeline is news, and one that is kept.
    pub(super) fn phase(&mut self, rank: u32, nth: u32) -> bool {
        match self.phases_told.get_mut(index(rank)) {
            Some(told) if nth >= *told && nth < MAX_PHASES => {
                *told = nth + 1;
                true
            }
            _ => false,
        }
    }

    /// Keeps what a rank does.
    pub(super) fn note(&mut self, activity: RankActivity) {
        let rank = activity.rank;
        let told = |before| match before {
            Rank::NotStarted => Rank::NotStarted,
            Rank::Running { on, .. } => Rank::Running { on, doing: Some(activity) },
            Rank::Ended { on, exit, .. } => Rank::Ended { on, exit, doing: Some(activity) },
        };
        self.change(rank, told, |_| true);
    }

    /// Keeps what a rank that is being ended has reported, and of what it did before that all else.
    pub(super) fn note_report(&mut self, activity: RankActivity) {
        let RankActivity { rank, step: Some(step), total_steps, step_us, values, .. } = activity else {
            return;
        };
        let before = self.get(rank).and_then(Rank::doing).cloned().unwrap_or_default();
        self.note(RankActivity { rank, step: Some(step), total_steps, step_us, values, ..before });
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.ranks.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, rank: u32) -> Option<&Rank> {
        self.ranks.get(index(rank))
    }

    /// All, by rank.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &Rank)> + Clone {
        (0..).zip(&self.ranks)
    }

    pub(super) fn running(&self) -> impl Iterator<Item = (u32, &Rank)> + Clone {
        self.all().filter(|(_, rank)| rank.is_running())
    }

    pub(super) fn running_count(&self) -> usize {
        self.running
    }

    /// Those that have started on the node of a partition.
    pub(super) fn of_node(&self, partition: u32) -> &[u32] {
        self.of_node.get(&partition).map_or(&[], Vec::as_slice)
    }

    /// Those of the node of a partition that run.
    pub(super) fn running_on(&self, partition: u32) -> Vec<u32> {
        let runs = |rank: &u32| self.get(*rank).is_some_and(Rank::is_running);
        self.of_node(partition).iter().copied().filter(runs).collect()
    }

    pub(super) fn exits(&self) -> impl Iterator<Item = &RankExit> + Clone {
        self.ranks.iter().filter_map(Rank::exit)
    }

    pub(super) fn missing(&self) -> Vec<u32> {
        self.all().filter(|(_, rank)| rank.exit().is_none()).map(|(rank, _)| rank).collect()
    }

    /// Those that ended well.
    pub(super) fn finished(&self) -> Vec<u32> {
        self.exits().filter(|exit| exit.state == RankState::Finished).map(|exit| exit.rank).collect()
    }

    pub(super) fn all_finished(&self) -> bool {
        self.finished == self.ranks.len()
    }

    /// Whether each runs, or has ended.
    pub(super) fn all_started(&self) -> bool {
        self.not_started == 0
    }

    /// Whether one runs that has not left its result.
    pub(super) fn any_trains(&self) -> bool {
        self.running > self.returned
    }

    /// Whether each that runs has told that it makes no progress, or has left its result. So it is if none runs, too.
    pub(super) fn all_running_are_idle(&self) -> bool {
        self.idle == self.running
    }

    /// The furthest step of those that the ranks told last.
    pub(super) fn newest_step(&self) -> Option<u64> {
        self.steps.last_key_value().map(|(step, _)| *step)
    }

    /// Whether a process of any rank was ever told of.
    pub(super) fn any_ran(&self) -> bool {
        !self.of_node.is_empty()
    }

    /// Whether a process of a rank of this node was ever told of.
    pub(super) fn any_ran_on(&self, partition: u32) -> bool {
        self.of_node.contains_key(&partition)
    }

    pub(super) fn any_failed(&self) -> bool {
        self.exits().any(|exit| exit.failure().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(rank: u32, state: RankState) -> RankExit {
        RankExit::new(rank, "h", state)
    }

    #[test]
    fn a_rank_starts_once_and_ends_once() {
        let mut ranks = Ranks::new(2, Duration::ZERO);
        assert!(ranks.start(0, 7) && !ranks.start(0, 8), "DRIVER-28");
        assert!(ranks.end(exit(0, RankState::Lost)) && !ranks.end(exit(0, RankState::Finished)), "DRIVER-28");
        assert!(!ranks.start(0, 8), "DRIVER-28: one that has ended doesn't run again");
        assert_eq!(ranks.get(0).unwrap().on(), Some(7));
        assert!(ranks.any_failed() && !ranks.all_finished());
        assert!(ranks.phase(1, 0) && !ranks.phase(1, 0) && ranks.phase(1, 1), "DRIVER-28");
        assert!(ranks.phase(1, MAX_PHASES - 1) && !ranks.phase(1, MAX_PHASES), "TYPES-11");
    }

    #[test]
    fn a_rank_that_the_job_does_not_have_is_passed_over() {
        let mut ranks = Ranks::new(1, Duration::ZERO);
        assert!(!ranks.start(1, 0) && !ranks.end(exit(u32::MAX, RankState::Finished)) && !ranks.phase(9, 0));
        assert_eq!((ranks.any_ran(), ranks.all_started()), (false, false));
    }

    #[test]
    fn what_is_counted_is_what_there_is() {
        let timeout = Duration::from_secs(10);
        let mut ranks = Ranks::new(4, timeout);
        let mut number = 7_u64;
        for _ in 0..2000 {
            // A linear congruential generator (Knuth, MMIX): any order of events.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, what) = ((number >> 33) as u32 % 5, (number >> 40) % 40);
            match what {
                0 => _ = ranks.end(exit(rank, RankState::Finished)),
                1 => _ = ranks.end(exit(rank, RankState::Lost)),
                2..6 => _ = ranks.start(rank, rank / 2),
                _ => {
                    let (idle_ms, step) = (what * 500, (what % 3 > 0).then_some(what));
                    let (returned, stopped) = (what % 7 == 0, what % 2 == 0);
                    let told =
                        RankActivity { rank, idle_ms, returned, stopped, step, ..RankActivity::default() };
                    ranks.note(told);
                }
            }
            let is_idle =
                |rank: &Rank| rank.doing().is_some_and(|told| ends_by_itself(told) || told.idle_ms >= 10_000);
            let is_started = |rank: &Rank| *rank != Rank::NotStarted;
            assert_eq!(ranks.all_started(), ranks.ranks.iter().all(is_started), "DRIVER-29");
            assert_eq!(
                ranks.all_running_are_idle(),
                ranks.running().all(|(_, rank)| is_idle(rank)),
                "DRIVER-29"
            );
            let trains = ranks.running().any(|(_, rank)| !rank.has_returned());
            assert_eq!(ranks.any_trains(), trains, "DRIVER-29");
            let steps = ranks.all().filter_map(|(_, rank)| rank.doing()?.step);
            assert_eq!(ranks.newest_step(), steps.max(), "DRIVER-29");
            assert_eq!(ranks.all_finished(), ranks.finished().len() == 4, "DRIVER-29");
            for node in 0..3 {
                let on = |rank: &(u32, &Rank)| rank.1.on() == Some(node);
                assert_eq!(ranks.any_ran_on(node), ranks.all().any(|rank| on(&rank)), "DRIVER-29");
                let mut running = ranks.running_on(node);
                running.sort_unstable();
                assert_eq!(running, ranks.running().filter(on).map(|(rank, _)| rank).collect::<Vec<_>>());
            }
            if ranks.missing().is_empty() {
                ranks = Ranks::new(4, timeout);
            }
        }
    }
}
