//! With how many tasks an elastic job runs, since when each is there, and what a change of their number costs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_types::run_snapshot::{RestartCost, RestartKind};
use phalanx_types::{ElasticPolicy, Generation};

/// What is known of a job's sizes.
#[derive(Debug, Default)]
pub(in crate::driver::state) struct Sizes {
    /// In which generation each task had its first place.
    since: BTreeMap<u32, Generation>,
    /// When each task came.
    came: BTreeMap<u32, Instant>,
    /// How many ranks the present attempt has, or the one before while tasks join.
    pub(in crate::driver::state) world_size: u32,
    /// When it grew last.
    grown: Option<Instant>,
    /// The newest step that is saved.
    saved: Option<u64>,
    /// What goes on until all ranks run again.
    pause: Option<Pause>,
}

/// A time in which not all ranks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pause {
    since: Instant,
    /// What the restart is for that ends it.
    kind: RestartKind,
    /// How many steps are lost.
    steps: Option<u64>,
}

impl Sizes {
    /// Which of these tasks has been there longest; of several that of the lowest partition.
    pub(in crate::driver::state) fn oldest(&self, tasks: impl Iterator<Item = u32>) -> Option<u32> {
        // None is the greatest here: who has had no place comes last.
        let age = |task: &u32| (!self.since.contains_key(task), self.since.get(task).copied(), *task);
        tasks.min_by_key(age)
    }

    /// A task has come.
    pub(in crate::driver::state) fn came(&mut self, now: Instant, task: u32) {
        self.came.insert(task, now);
    }

    /// Whether a task had come by then.
    pub(in crate::driver::state) fn had_come(&self, task: u32, by: Instant) -> bool {
        self.came.get(&task).is_none_or(|came| *came <= by)
    }

    /// These tasks have their places.
    pub(in crate::driver::state) fn placed(
        &mut self,
        generation: Generation,
        tasks: impl Iterator<Item = u32>,
        world_size: u32,
    ) {
        let before = std::mem::take(&mut self.since);
        self.since = tasks.map(|task| (task, before.get(&task).copied().unwrap_or(generation))).collect();
        self.world_size = world_size;
    }

    /// The ranks of an attempt are over that were to end at `since`; the newest step that they told is this. Another
    /// attempt follows.
    pub(in crate::driver::state) fn ended(
        &mut self,
        since: Instant,
        newest_step: Option<u64>,
        kind: RestartKind,
    ) {
        // Code that saves in a way of its own may have lost nothing: then nobody knows.
        let steps = newest_step.zip(self.saved).map(|(newest, saved)| newest.saturating_sub(saved));
        // Attempts that never began to work add nothing.
        let before = self.pause.filter(|_| steps.is_none());
        self.pause = Some(Pause { kind, ..before.unwrap_or(Pause { since, kind, steps }) });
    }

    /// All ranks run again; what for, and what that has cost.
    pub(in crate::driver::state) fn runs_again(
        &mut self,
        now: Instant,
    ) -> Option<(RestartKind, RestartCost)> {
        let Pause { since, kind, steps } = self.pause.take()?;
        let seconds = now.saturating_duration_since(since).as_secs_f64();
        Some((kind, RestartCost { ranks: self.world_size, seconds, steps }))
    }

    /// Only those tasks have stayed.
    pub(in crate::driver::state) fn keep(&mut self, stays: impl Fn(u32) -> bool) {
        self.since.retain(|task, _| stays(*task));
    }

    /// A checkpoint is there.
    pub(in crate::driver::state) fn saved(&mut self, step: u64) {
        self.saved = Some(self.saved.map_or(step, |before| before.max(step)));
    }

    /// Whether the job may grow by these tasks now, if there are any. DRIVER-69
    pub(in crate::driver::state) fn may_grow(
        &self,
        now: Instant,
        new: &[u32],
        others_may_come: bool,
        policy: &ElasticPolicy,
    ) -> bool {
        let Some(last) = new.iter().filter_map(|task| self.came.get(task)).max() else { return false };
        let patience = if others_may_come { policy.patience } else { Duration::ZERO };
        now >= *last + patience && self.grown.is_none_or(|at| now >= at + policy.cooldown)
    }

    pub(in crate::driver::state) fn grew(&mut self, now: Instant) {
        self.grown = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_oldest_task_is_the_one_that_had_a_place_first() {
        let (first, second) = (Generation::first(), Generation::first().next());
        let mut sizes = Sizes::default();
        assert_eq!(sizes.oldest([4, 2].into_iter()), Some(2), "DRIVER-68: nobody had a place");
        sizes.placed(first, [1, 2].into_iter(), 2);
        sizes.keep(|task| task != 1);
        sizes.placed(second, [1, 2, 0].into_iter(), 3);
        assert_eq!(sizes.oldest([0, 1, 2].into_iter()), Some(2), "DRIVER-68");
        assert_eq!(sizes.oldest([1, 0].into_iter()), Some(0), "DRIVER-68");
        assert_eq!(sizes.oldest([3, 1].into_iter()), Some(1), "DRIVER-68: 3 had none");
    }

    #[test]
    fn what_is_lost_is_counted_from_the_newest_checkpoint_on() {
        use RestartKind::{Preempted, Replaced, Resized};
        let now = Instant::now();
        let mut sizes = Sizes::default();
        let cost = |seconds, steps| RestartCost { ranks: 0, seconds, steps };
        assert_eq!(sizes.runs_again(now), None);
        sizes.ended(now, Some(5), Preempted);
        assert_eq!(
            sizes.runs_again(now + SECOND),
            Some((Preempted, cost(1.0, None))),
            "no checkpoint is known"
        );
        sizes.saved(20);
        sizes.saved(10);
        sizes.ended(now, Some(27), Replaced);
        sizes.ended(now + SECOND, None, Resized);
        assert_eq!(sizes.runs_again(now + 3 * SECOND), Some((Resized, cost(3.0, Some(7)))));
        assert_eq!(sizes.runs_again(now + 3 * SECOND), None, "once");
        sizes.ended(now, None, Replaced);
        assert_eq!(sizes.runs_again(now + SECOND), Some((Replaced, cost(1.0, None))), "nobody told a step");
    }
}
