//! An elastic job: with which tasks an attempt begins, and when another one does because there are more.
//!
//! - DRIVER-67 (enough): an attempt begins when all tasks have joined. An elastic job's also begins with those that are
//!   there, if they are enough: at its start `patience` after the last arrival, later at once. Those that were called
//!   to join again are waited for as at the start, but [`RECONNECT_GRACE`] at most once they have left their
//!   connection. Tasks that were on a host when it was said to go don't count, nor those of an executor that is.
//! - DRIVER-68 (oldest-first): rank 0 is on the task that has been there longest.
//! - DRIVER-69 (grows-after-a-save): tasks that come while the ranks run wait until a checkpoint has been saved. Then
//!   all ranks start again with them, at most once in `cooldown`. Without a checkpoint the job never grows. While other
//!   tasks are missing, `patience` after the last arrival: what comes one after the other is one growth.
//! - DRIVER-70 (smaller-is-free): an elastic job that loses tasks, and has enough, goes on with those. That counts as
//!   no restart, nor does growing: a job can only lose so many, and grows only when it has got on.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;

use crate::driver::state::job_state::JobState;
use crate::driver::state::news::Restarted;
use crate::driver::state::node::{Node, RECONNECT_GRACE};
use crate::driver::state::phase::JobPhase;
use crate::driver::state::restart::Renewal;

impl JobState {
    /// The partitions of tasks that could have places now.
    pub(in crate::driver::state) fn candidates(&self, now: Instant) -> Vec<u32> {
        let is_one =
            |partition: u32, node: &Node| node.waits().is_some() && !self.is_leaving(now, partition, node);
        let nodes = self.nodes.iter().map(|(partition, node)| (*partition, node));
        nodes.filter(|(partition, node)| is_one(*partition, node)).map(|(partition, _)| partition).collect()
    }

    /// Whether an elastic job makes no use of this task any more, since its host or its executor is to go.
    pub(in crate::driver::state) fn is_leaving(&self, now: Instant, partition: u32, node: &Node) -> bool {
        let mut going = self.going(now, partition, node);
        self.job.is_elastic()
            && going.any(|(place, going)| place.task.is_some() || self.sizes.had_come(partition, going.since))
    }

    /// Whether the attempt may begin with so many tasks. DRIVER-67
    pub(in crate::driver::state) fn may_begin_with(&self, now: Instant, tasks: usize) -> bool {
        let count = u32::try_from(tasks).unwrap_or(u32::MAX);
        count == self.job.tasks
            || (count >= self.job.least_tasks() && self.enough_at().is_some_and(|at| at <= now))
    }

    /// From when on a job that is elastic begins with the tasks that are there, if they are enough.
    pub(in crate::driver::state) fn enough_at(&self) -> Option<Instant> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        let waits = self.nodes.values().filter(|node| node.waits().is_some()).count();
        let are_enough = waits >= usize::try_from(self.job.least_tasks()).unwrap_or(usize::MAX);
        let last_join = joining.last_join.filter(|_| self.job.is_elastic() && are_enough)?;
        let limit = last_join + self.job.policy.elastic.patience.max(RECONNECT_GRACE);
        let called = self.nodes.values().filter_map(|node| node.joins_until(limit));
        called.chain([last_join + joining.patience]).max()
    }

    /// Whether the present attempt runs, or is being ended, without this task.
    pub(in crate::driver::state) fn is_outside(&self, node: &Node) -> bool {
        let have_places = match &self.phase {
            JobPhase::Running(_) => true,
            JobPhase::Stopping(stopping) => stopping.had_places(),
            JobPhase::Joining(_) | JobPhase::Over(_) => false,
        };
        let has_none = matches!(node, Node::Absent | Node::Called { .. } | Node::Joined { .. });
        have_places && has_none && self.job.is_elastic()
    }

    /// Whether this task waits for the ranks to start again with it.
    pub(in crate::driver::state) fn is_newcomer(&self, node: &Node) -> bool {
        node.is_unplaced() && self.is_outside(node)
    }

    /// Whether another attempt may follow that counts as no restart.
    pub(in crate::driver::state) fn may_resize(&self) -> bool {
        let cancelled = self.phase.stopping().is_some_and(|stopping| stopping.is_cancelled());
        self.job.is_elastic() && self.outcome().is_none() && !cancelled
    }

    /// Whether those tasks are enough that stay where the ranks start again in place.
    pub(in crate::driver::state) fn are_enough(&self, now: Instant) -> bool {
        let stays = |(partition, node): &(&u32, &Node)| {
            node.stays_in_place() && !self.is_leaving(now, **partition, node)
        };
        let stay = self.nodes.iter().filter(stays);
        stay.count() >= usize::try_from(self.job.least_tasks()).unwrap_or(usize::MAX)
    }

    /// A rank has saved a checkpoint. DRIVER-69
    pub(in crate::driver::state) fn saved(&mut self, now: Instant, step: u64, out: &mut Outbox) {
        self.sizes.saved(step);
        let is_new = |(partition, node): &(&u32, &Node)| {
            node.waits().is_some() && self.is_newcomer(node) && !self.is_leaving(now, **partition, node)
        };
        let new: Vec<u32> = self.nodes.iter().filter(is_new).map(|(partition, _)| *partition).collect();
        let runs = matches!(self.phase, JobPhase::Running(_)) && self.ranks.running_count() > 0;
        let others_may_come = self.nodes.values().any(|node| node.is_away() || node.is_lost());
        if !runs || !self.sizes.may_grow(now, &new, others_may_come, &self.job.policy.elastic) {
            return;
        }
        self.sizes.grew(now);
        let more = match new.len() {
            1 => "1 task more is there".into(),
            count => format!("{count} tasks more are there"),
        };
        self.stop_all(now, &more, out);
        if let Some(stopping) = self.phase.stopping_mut() {
            stopping.grows = Some(more);
        }
    }

    /// Begins another attempt where the one before was ended only to have more tasks. Whether that is so.
    pub(in crate::driver::state) fn grow(&mut self, now: Instant, out: &mut Outbox) -> bool {
        let Some(stopping) = self.phase.stopping() else { return false };
        let Some(more) = stopping.grows.clone() else { return false };
        let is_undisturbed = stopping.problem().is_none()
            && stopping.interrupted().is_none()
            && self.stage_ended.is_none()
            && !self.attempts.has_lost_blocks
            && !self.ranks.any_failed()
            && self.are_enough(now)
            && self.nodes.values().all(|node| node.stays_in_place() || node.is_away());
        if is_undisturbed {
            self.restart(now, Renewal::grown(more), true, out);
        }
        is_undisturbed
    }

    /// A task has come while others run: it waits without a limit.
    pub(in crate::driver::state) fn welcome(&mut self, partition: u32, out: &mut Outbox) {
        self.reason(Level::Info, format!("the task of partition {partition} waits for the next checkpoint"));
        out.send(partition, HubMessage::Spare);
    }

    /// Tells the caller what a restart has cost, once all ranks run again.
    pub(in crate::driver::state) fn tell_cost(&mut self, now: Instant) {
        if !self.ranks.all_started() || !matches!(self.phase, JobPhase::Running(_)) {
            return;
        }
        let Some((kind, cost)) = self.sizes.runs_again(now) else { return };
        self.announce(format!("[phalanx] {}", cost.in_words()));
        self.news.restarted.push(Restarted { attempt: self.attempts.present, kind, cost });
    }
}
