//! Ranks that stopped making progress, and what their threads were doing.
//!
//! DRIVER-20 (all-idle): a rank hangs when, as its node tells, for `hang_timeout` it has written nothing, its main
//! thread has run no Python, it has reported nothing, and no collective operation of the `phalanx` backend has begun or
//! ended. The job hangs when all ranks have started and every rank that still runs hangs. One that has left its result
//! ends in its own time, and is no part of this, unless its process is stopped.
//! DRIVER-48 (last-report): what a rank reported last is known of it also where it was ended.
//! DRIVER-21 (stacks-first): nothing is ended before the stacks were asked for, and have come or were waited for.

use std::collections::BTreeSet;
use std::time::Instant;

use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, RankActivity};
use phalanx_types::stacks::{RankStacks, group};
use phalanx_types::{Failure, FailureKind};

use super::straggler;
use crate::driver::state::job_state::JobState;
use crate::driver::state::news::Progress;
use crate::driver::state::phase::JobPhase;
use crate::driver::state::ranks::ends_by_itself;

impl JobState {
    /// Takes what a node says of its ranks.
    pub(in crate::driver::state) fn activity(
        &mut self,
        now: Instant,
        ranks: Vec<RankActivity>,
        out: &mut Outbox,
    ) {
        let are_ended = match self.phase {
            JobPhase::Joining(_) | JobPhase::Running(_) => false,
            JobPhase::Stopping(_) => true,
            JobPhase::Over(_) => return,
        };
        for told in ranks {
            let before = self.ranks.get(told.rank).and_then(|rank| rank.doing());
            if let Some(step) = told.step
                && before.is_none_or(|before| (before.step, &before.values) != (Some(step), &told.values))
            {
                let values = told.values.clone();
                self.news.progress.push(Progress { rank: told.rank, step, values });
            }
            // What ranks do once they are being ended is of no interest, but how far they got is (DRIVER-48).
            match are_ended {
                true => self.ranks.note_report(told),
                false => self.ranks.note(told),
            }
        }
        if are_ended {
            return;
        }
        self.stragglers.told(now);
        self.look_for_stragglers(now);
        self.look_for_hang(now, out);
    }

    pub(in crate::driver::state) fn look_for_stragglers(&mut self, now: Instant) {
        let is_due = self.stragglers.due().is_some_and(|due| due <= now);
        if !is_due || !matches!(self.phase, JobPhase::Joining(_) | JobPhase::Running(_)) {
            return;
        }
        let found = self.stragglers.look(now, self.ranks.running().filter_map(|(_, rank)| rank.doing()));
        for line in straggler::describe(&found, |rank| self.host_of(rank)) {
            self.announce(line);
        }
    }

    /// Has a line shown to the caller.
    pub(in crate::driver::state) fn announce(&mut self, line: String) {
        self.news.notices.push(line);
    }

    fn look_for_hang(&mut self, now: Instant, out: &mut Outbox) {
        let timeout = self.job.policy.hang_timeout;
        if timeout.is_zero() || !self.ranks.all_started() || self.stacks.is_about_hang() {
            return;
        }
        if !self.ranks.any_trains() || !self.ranks.all_running_are_idle() {
            return;
        }
        let longest = |told: &&RankActivity| (told.stopped, told.idle_ms);
        let train =
            self.ranks.running().filter_map(|(_, rank)| rank.doing()).filter(|told| !ends_by_itself(told));
        let Some(first) = train.max_by_key(longest) else { return };
        let host = self.host_of(first.rank);
        let doing = match (first.stopped, first.doing.as_str()) {
            (true, _) => "; its process is stopped".to_string(),
            (false, "") => self.left_alone_by(),
            (false, doing) => format!("; it was in {doing}{}", self.left_alone_by()),
        };
        let message = format!(
            "rank {} ({host}) hangs: no running rank has made progress for {:.1?}{doing}",
            first.rank, timeout
        );
        let rank = Some(first.rank);
        let failure = Failure { rank, host, ..Failure::without_rank(FailureKind::Hang, message) };
        self.ask(now, Some(Box::new(failure)), out);
    }

    /// Asks the nodes that have ranks for their stacks.
    pub(in crate::driver::state) fn ask(
        &mut self,
        now: Instant,
        hang: Option<Box<Failure>>,
        out: &mut Outbox,
    ) {
        let nodes = self
            .nodes
            .iter()
            .filter(|(partition, node)| !node.is_over() && self.ranks.any_ran_on(**partition));
        let waiting: BTreeSet<u32> = nodes.map(|(partition, _)| *partition).collect();
        let request = self.stacks.ask(now, waiting.clone(), hang);
        for partition in waiting {
            out.send(partition, HubMessage::Stacks { request });
        }
        self.conclude_stacks(now, out);
    }

    /// A node answers.
    pub(in crate::driver::state) fn stacks_told(
        &mut self,
        now: Instant,
        partition: u32,
        request: u32,
        ranks: Vec<RankStacks>,
        out: &mut Outbox,
    ) {
        self.stacks.answer(partition, request, ranks);
        self.conclude_stacks(now, out);
    }

    /// Concludes a request when all have answered, or time is up.
    pub(in crate::driver::state) fn conclude_stacks(&mut self, now: Instant, out: &mut Outbox) {
        let Some(mut answer) = self.stacks.conclude(now) else { return };
        let silent = |(rank, _)| RankStacks { rank, text: "(its host did not answer in time)".into() };
        let missing: Vec<RankStacks> =
            self.ranks.running().filter(|(rank, _)| !answer.stacks.contains_key(rank)).map(silent).collect();
        let told = std::mem::take(&mut answer.stacks).into_iter();
        let stacks: Vec<RankStacks> =
            told.map(|(rank, text)| RankStacks { rank, text }).chain(missing).collect();
        // The ranks that it was about may have ended meanwhile, and well.
        if let Some(failure) = answer.hang.filter(|_| self.ranks.any_trains()) {
            self.fail(now, Failure { stacks: group(&stacks), ..*failure }, out);
        }
        self.news.stacks.push(stacks);
    }
}
