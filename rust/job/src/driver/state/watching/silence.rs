//! Nodes that fell silent, did not come back, or were started again by Spark: they are lost, with their ranks.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::rank_exit::first_cause;
use phalanx_types::{Failure, FailureKind, RankExit, RankState};

use crate::driver::state::job_state::JobState;
use crate::driver::state::node::{Loss, Node};
use crate::driver::state::phase::JobPhase;

impl JobState {
    /// DRIVER-26: finds nodes of which nothing was heard for too long.
    pub(in crate::driver::state) fn lose_silent_nodes(&mut self, now: Instant, out: &mut Outbox) {
        let timeout = self.job.policy.node_timeout;
        let due = |(partition, node): (&u32, &Node)| Some((*partition, node.loss(timeout)?));
        let lost: Vec<(u32, Loss)> =
            self.nodes.iter().filter_map(due).filter(|(_, loss)| loss.due <= now).collect();
        for (partition, loss) in lost {
            if self.waits_for_place(partition) && !self.acts_on_loss_before_place() {
                self.may_be_replaced(now, partition);
                continue;
            }
            if self.outlives_stage(partition, now) {
                continue;
            }
            let why = format!(
                "the driver heard nothing from its task for {:.1} s; its executor or host probably ended",
                now.saturating_duration_since(loss.since).as_secs_f64()
            );
            self.lose(now, partition, loss.since, &why, out);
        }
    }

    /// A task that has joined is silent: another may have its seat.
    fn may_be_replaced(&mut self, now: Instant, partition: u32) {
        // Once: who waits for seats is asked about again with each change.
        if self.nodes.get(&partition).is_some_and(|node| node.waits().is_some()) {
            self.seats.disconnected(partition);
            self.step(partition, |node| (node.disconnected(now), ()));
        }
    }

    /// Spark has started the task of a node again that has or had its place.
    pub(in crate::driver::state) fn superseded(&mut self, now: Instant, partition: u32, out: &mut Outbox) {
        self.lose(now, partition, now, "Spark has started its task again", out);
    }

    fn lose(&mut self, now: Instant, partition: u32, since: Instant, why: &str, out: &mut Outbox) {
        // The others don't miss a node whose ranks have ended: only a restart would.
        let is_held = matches!(self.nodes.get(&partition), Some(Node::Held { .. } | Node::Done { .. }));
        let has_ended = is_held && self.ranks.running_on(partition).is_empty();
        if has_ended && matches!(self.phase, JobPhase::Running(_)) {
            self.reason(Level::Warn, format!("the task of partition {partition} is lost: {why}"));
            self.is_gone(partition);
        } else {
            self.node_lost(now, partition, since, why, out);
        }
    }

    /// Spark says that it lost an executor: nodes that went before the ranks were being ended don't come back, and this
    /// is why.
    pub(in crate::driver::state) fn lose_broken_nodes(&mut self, now: Instant, said: &str) {
        let before = self.phase.stopping().map_or(now, |stopping| stopping.since);
        let broken = |(partition, node): (&u32, &Node)| Some((*partition, node.broken_since()?));
        let gone: Vec<(u32, Instant)> =
            self.nodes.iter().filter_map(broken).filter(|(_, since)| *since <= before).collect();
        for (partition, since) in gone {
            self.is_gone(partition);
            self.cut_off(partition, since, said, RankState::Lost);
        }
    }

    /// Whether the loss of a node without a place is acted on at once: where another attempt may mend it. Else Spark
    /// may start the task again by itself, as it does with barrier stages, until joining has taken too long.
    fn acts_on_loss_before_place(&self) -> bool {
        !self.job.is_elastic()
            && self.budget_left()
            && self.job.policy.restart_on.contains(&FailureKind::LostNode)
    }

    /// A node is gone, and its ranks with it.
    pub(in crate::driver::state) fn node_lost(
        &mut self,
        now: Instant,
        partition: u32,
        since: Instant,
        why: &str,
        out: &mut Outbox,
    ) {
        let host = self.host(partition);
        self.is_gone(partition);
        let goes_on = self.phase.stop_reason().is_none();
        let is_lost = goes_on || self.went_before_its_victims(since);
        let state = if is_lost { RankState::Lost } else { RankState::Stopped };
        let cut = self.cut_off(partition, since, why, state);
        let message = format!("the task of partition {partition} ({host}) is lost: {why}");
        self.reason(Level::Warn, &message);
        if cut.is_empty() && goes_on {
            self.fail(now, Failure { host, ..Failure::without_rank(FailureKind::LostNode, message) }, out);
        } else {
            self.stop_all(now, &message, out);
        }
    }

    fn is_gone(&mut self, partition: u32) {
        self.notices.gone(partition);
        self.step(partition, |node| (node.lost(), ()));
    }

    /// Those of a node's ranks that ran end with it, in this state; which they are.
    fn cut_off(&mut self, partition: u32, since: Instant, why: &str, state: RankState) -> Vec<u32> {
        let cut = self.ranks.running_on(partition);
        for rank in &cut {
            self.ranks.end(RankExit {
                message: why.to_string(),
                at_us: self.since_open_us(since),
                ..RankExit::new(*rank, self.host(partition), state.clone())
            });
        }
        cut
    }

    /// Whether a node of which nothing is heard since then is why the job is being stopped: so far there are only ranks
    /// that missed a peer. Any other node that goes away meanwhile was told to.
    fn went_before_its_victims(&self, since: Instant) -> bool {
        let stopping = self.phase.stopping().filter(|stopping| since <= stopping.since);
        stopping.is_some_and(|stopping| !stopping.is_cancelled())
            && first_cause(self.ranks.exits()).is_some_and(|(exit, _)| exit.is_echo())
    }
}
