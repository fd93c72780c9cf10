//! What follows for a job from a host that is to go: its ranks are told, may save what they have, and start again
//! elsewhere.
//!
//! - DRIVER-55 (in-time): where another attempt may follow, ranks on a host that goes are ended so early that they have
//!   their grace before it goes, and at least half of the time.
//! - DRIVER-56 (others-finish): where a rank has raised `phalanx.Preempted`, the others are not ended before that time,
//!   or [`OTHERS_WAIT`] where nobody knows when the host goes: they may be saving.
//! - DRIVER-57 (own-budget): what follows a notice counts as no restart, but as a preemption. Without restarts those
//!   are followed by another attempt whose code asks whether it is preempted: other code may not be able to go on.
//! - DRIVER-58 (told-too-late): where a rank hadn't waited, and so was told of a notice later than others, all ranks
//!   start again from what they saved before.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::notice::MAX_REASON_BYTES;
use phalanx_types::run_snapshot::NoticeLine;
use phalanx_types::text::cut;
use phalanx_types::{Failure, FailureKind, Notice, RankExit};

use super::{Chosen, Going, Place};
use crate::driver::state::job_state::JobState;
use crate::driver::state::node::Node;
use crate::driver::state::phase::JobPhase;
use crate::driver::state::seating::Seats;

/// How long ranks have after another has left its work, where nobody knows when the host goes.
const OTHERS_WAIT: Duration = Duration::from_secs(120);
/// Why executors go that Spark decommissions. When they go it doesn't say.
const DECOMMISSIONED: &str = "decommissioned by Spark";

impl JobState {
    /// The host of the task of `partition` is to go. `unix_ms` is the time, in milliseconds since 1970.
    pub fn notice(&mut self, now: Instant, unix_ms: u64, partition: u32, notice: Notice, out: &mut Outbox) {
        let host = self.host(partition);
        if host.is_empty() || self.outcome().is_some() {
            return;
        }
        let plain = notice.reason.replace(char::is_control, " ");
        let notice = Notice { reason: cut(&plain, MAX_REASON_BYTES), ..notice };
        let when = notice.in_ms.map(|ms| format!(" in {} s", ms / 1000)).unwrap_or_default();
        let place = Place { host: &host, task: None };
        let line = format!("{place} is to go{when}: {}", notice.reason);
        if self.notices.announce(now, unix_ms, place, notice, self.job.policy.grace) {
            self.tell_of_notices(now, [line].into(), out);
        }
    }

    /// Spark decommissions the executors of these tasks, by their attempt ids. DRIVER-73
    pub fn decommissioned(&mut self, now: Instant, tasks: &[u64], out: &mut Outbox) {
        if self.outcome().is_some() {
            return;
        }
        let mut lines = BTreeSet::new();
        for task in tasks {
            let host = self.seats.partition_of(*task).map(|partition| self.host(partition));
            let Some(host) = host.filter(|host| !host.is_empty()) else { continue };
            let place = Place { host: &host, task: Some(*task) };
            let notice = Notice { in_ms: None, reason: DECOMMISSIONED.into() };
            if self.notices.announce(now, 0, place, notice, self.job.policy.grace) {
                lines.insert(format!("{place} is to go: {DECOMMISSIONED}"));
            }
        }
        self.tell_of_notices(now, lines, out);
    }

    fn tell_of_notices(&mut self, now: Instant, lines: BTreeSet<String>, out: &mut Outbox) {
        if lines.is_empty() {
            return;
        }
        for line in lines {
            self.reason(Level::Info, &line);
            self.announce(format!("[phalanx] {line}"));
        }
        self.conclude(now, out);
    }

    /// What is known of where a task is: of its host, and of its executor.
    pub(in crate::driver::state) fn going<'a>(
        &'a self,
        now: Instant,
        partition: u32,
        node: &'a Node,
    ) -> impl Iterator<Item = (Place<'a>, &'a Going)> {
        self.notices.at(now, place(&self.seats, partition, node))
    }

    /// A node has frozen its ranks.
    pub(in crate::driver::state) fn frozen(&mut self, partition: u32, number: u32, asked: Option<u64>) {
        self.notices.frozen(partition, number, asked);
    }

    /// What a node is told with each answer to its pings: an order may have gone with a connection.
    pub(in crate::driver::state) fn repeat_notice(&self, partition: u32, out: &mut Outbox) {
        self.tell_untold(partition, out);
        let is_told = self.notices.untold(partition).next().is_none();
        if is_told && self.notices.may_be_frozen(partition) {
            out.send(partition, HubMessage::Thaw { number: self.notices.number() });
        }
    }

    /// Tells a node, in their order, of all notices of which it hasn't said that its ranks know.
    fn tell_untold(&self, partition: u32, out: &mut Outbox) {
        for notice in self.notices.untold(partition) {
            out.send(partition, HubMessage::Notice(Box::new(notice.clone())));
        }
    }

    /// A node has told its ranks of a notice.
    pub(in crate::driver::state) fn noticed(
        &mut self,
        now: Instant,
        partition: u32,
        number: u32,
        late: bool,
        out: &mut Outbox,
    ) {
        self.notices.confirmed(partition, number);
        if late && matches!(self.phase, JobPhase::Running(_)) && self.preemption_budget_left() {
            let host = self.host(partition);
            let message = format!(
                "ranks on {host} were told later than others that a host is to go, so all begin again together"
            );
            self.fail(now, Failure { host, ..Failure::without_rank(FailureKind::Preempted, message) }, out);
        }
    }

    /// What is due of notices while the ranks run.
    pub(in crate::driver::state) fn go_on_with_notices(&mut self, now: Instant, out: &mut Outbox) {
        if !matches!(self.phase, JobPhase::Running(_)) {
            return;
        }
        self.end_preempted_in_time(now, out);
        if self.ranks.all_started() && self.notices.wants_choice(now) {
            let is_placed = |(_, node): &(&u32, &Node)| matches!(node, Node::Placed { .. });
            let nodes = || self.nodes.iter().filter(is_placed);
            let runs_there = |(partition, node): (&u32, &Node)| {
                let is_news = self.going(now, *partition, node).any(|(_, going)| !going.is_spent);
                is_news && !self.ranks.running_on(*partition).is_empty()
            };
            if nodes().any(runs_there) {
                let nodes: BTreeSet<u32> = nodes().map(|(partition, _)| *partition).collect();
                let number = self.notices.choose(now, nodes.clone());
                nodes.into_iter().for_each(|node| out.send(node, HubMessage::Freeze { number }));
            } else {
                self.notices.settle();
            }
        }
        match self.notices.conclude(now) {
            Some(Chosen::Step(step, nodes)) => {
                let number = self.notices.number();
                let on = |(partition, node): (&u32, _)| {
                    (place(&self.seats, *partition, node), self.ranks.running_on(*partition))
                };
                let running: Vec<(Place<'_>, Vec<u32>)> = self.nodes.iter().map(on).collect();
                let Some(notice) = self.notices.tell(step, nodes.clone(), &running) else {
                    // They have ended meanwhile.
                    return nodes.into_iter().for_each(|node| out.send(node, HubMessage::Thaw { number }));
                };
                self.reason(
                    Level::Info,
                    format!(
                        "ranks learn from step {step} on that those on {} are to go",
                        notice.hosts.join(", ")
                    ),
                );
                for node in nodes {
                    self.tell_untold(node, out);
                }
            }
            Some(Chosen::TakenBack(nodes)) => {
                self.reason(Level::Info, "not all tasks have answered in time; their ranks are told later");
                let number = self.notices.number();
                nodes.into_iter().for_each(|node| out.send(node, HubMessage::Thaw { number }));
            }
            None => {}
        }
    }

    /// DRIVER-55, DRIVER-56
    fn end_preempted_in_time(&mut self, now: Instant, out: &mut Outbox) {
        if self.notices.others_until.is_some_and(|until| until <= now) {
            return self.stop_all(now, "other ranks have left their work, since a host is to go", out);
        }
        let due = |going: &Going| going.ranks_until.is_some_and(|until| until <= now);
        if !self.notices.unspent().any(|(_, going)| due(going)) || !self.preemption_budget_left() {
            return;
        }
        // Else it may come to its end before, or the host stay. All ranks are looked at for that, so it comes last.
        let late = self.nodes.iter().find_map(|(partition, node)| {
            let runs = || !self.ranks.running_on(*partition).is_empty();
            let mut late =
                self.going(now, *partition, node).filter(|(_, going)| !going.is_spent && due(going));
            late.next().filter(|_| runs())
        });
        if let Some((place, going)) = late {
            let message =
                format!("{place} is to go ({}), and its ranks had not left their work in time", going.reason);
            let host = place.host.to_string();
            let failure = Failure { host, ..Failure::without_rank(FailureKind::Preempted, message) };
            self.fail(now, failure, out);
        }
    }

    /// A rank has ended, and how it failed if it did; `by_itself` says that no peer was missing.
    pub(in crate::driver::state) fn ends_others(
        &mut self,
        now: Instant,
        failed: Option<FailureKind>,
        by_itself: bool,
        why: &str,
        out: &mut Outbox,
    ) {
        if failed == Some(FailureKind::Preempted) && matches!(self.phase, JobPhase::Running(_)) {
            let known = self.notices.unspent().filter_map(|(_, going)| going.ranks_until).min();
            self.notices.others_until.get_or_insert(known.unwrap_or(now + OTHERS_WAIT));
        }
        let has_left = self.notices.others_until.is_some();
        let is_last = self.ranks.all_started() && self.ranks.running_count() == 0;
        if (failed.is_some() && !has_left) || by_itself || (has_left && is_last) {
            self.stop_all(now, why, out);
        }
    }

    /// The failure as what it is where it follows from a notice.
    pub(in crate::driver::state) fn as_preemption(&self, now: Instant, failure: Failure) -> Failure {
        if failure.kind != FailureKind::LostNode {
            return failure;
        }
        // Where Spark says that it lost an executor, it doesn't say of which of our hosts.
        let may_be = |node: &Node| match failure.host.is_empty() {
            true => !node.speaks(),
            false => node.host() == failure.host,
        };
        // An executor that is said to go, and is there, is not what was lost.
        let lost = |place: &Place<'_>, node: &Node| place.task.is_none() || node.is_gone();
        let going = self.nodes.iter().filter(|(_, node)| may_be(node)).find_map(|(partition, node)| {
            self.going(now, *partition, node).find(|(place, _)| lost(place, node))
        });
        match going {
            None => failure,
            Some((place, going)) => {
                let message = format!("{}; {place} was to go: {}", failure.message, going.reason);
                let host = place.host.to_string();
                Failure { kind: FailureKind::Preempted, message, host, ..failure }
            }
        }
    }

    /// Whether a rank has left its work, and another attempt may follow.
    pub(in crate::driver::state) fn may_be_preempted(&self) -> bool {
        self.notices.others_until.is_some() && self.preemption_budget_left()
    }

    /// Whether an attempt that was preempted may be followed by another. DRIVER-57
    pub(in crate::driver::state) fn preemption_budget_left(&self) -> bool {
        let cancelled = self.phase.stopping().is_some_and(|stopping| stopping.is_cancelled());
        let has_left = |exit: &RankExit| exit.failure() == Some(FailureKind::Preempted);
        let asks = self.notices.is_asked_for() || self.ranks.exits().any(has_left);
        let can_go_on = asks || self.job.policy.max_restarts > 0;
        let is_left = self.job.policy.max_preemptions.is_none_or(|most| self.attempts.preemptions < most);
        self.outcome().is_none() && !cancelled && can_go_on && is_left
    }

    /// So many of the hosts and executors that are to go, as they are shown: those that go first.
    pub fn going_hosts(&self, most: usize) -> Vec<NoticeLine> {
        let mut all: Vec<(Place<'_>, &Going)> = self.notices.all().collect();
        all.sort_by_key(|(place, going)| (going.due.is_none(), going.due, *place));
        let line = |(place, going): (Place<'_>, &Going)| NoticeLine {
            host: place.to_string(),
            deadline: going.deadline_ms.map(|ms| Duration::from_millis(ms).as_secs_f64()),
            reason: going.reason.clone(),
        };
        let mut lines: Vec<NoticeLine> = all.into_iter().map(line).collect();
        // Executors of a host are told in one line.
        lines.dedup();
        lines.truncate(most);
        lines
    }

    /// Whether a task is where ranks are to go.
    pub(in crate::driver::state) fn has_leaving(&self, now: Instant) -> bool {
        self.nodes.iter().any(|(partition, node)| self.going(now, *partition, node).next().is_some())
    }

    /// Another attempt begins, after a failure on this host. A host that has gone is announced no more: what is lost
    /// there later is not because of that.
    pub(in crate::driver::state) fn begin_attempt_of_notices(
        &mut self,
        now: Instant,
        host: &str,
        is_preemption: bool,
    ) {
        let is_lost = |node: &Node| node.host() == host && node.is_gone();
        if is_preemption && self.nodes.values().any(is_lost) {
            self.notices.has_gone(host);
        }
        self.notices.begin_attempt(now, is_preemption);
    }
}

/// Where the task of a partition is.
fn place<'a>(seats: &Seats, partition: u32, node: &'a Node) -> Place<'a> {
    Place { host: node.host(), task: seats.task_of(partition) }
}
