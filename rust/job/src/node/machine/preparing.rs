//! A node before its ranks run: it reaches the hub, joins, gets its place, and prepares.

use std::time::Instant;

use phalanx_types::message::NodeMessage;
use phalanx_types::{Error, ErrorKind, Join, NodePlacement, Result};

use super::leaving::Leaving;
use super::ranks::NodeRanks;
use super::{Action, Machine, Preparing, State};

impl Machine {
    pub(super) fn reached(&mut self, now: Instant, out: &mut Vec<Action>) {
        if matches!(self.state, State::Reaching) {
            self.helpers.locating = true;
            self.state = State::Joining { until: Some(now + self.rules.place_within), has_joined: false };
            out.push(Action::Locate);
        }
    }

    pub(super) fn not_reached(&mut self, error: Error) {
        if matches!(self.state, State::Reaching) {
            self.state = State::Leaving(Leaving::failed(error));
        }
    }

    pub(super) fn located(&mut self, now: Instant, located: Result<Box<Join>>, out: &mut Vec<Action>) {
        self.helpers.locating = false;
        let State::Joining { has_joined, .. } = &mut self.state else { return };
        match located {
            Ok(join) => {
                *has_joined = true;
                out.push(Action::Tell(now, NodeMessage::Join(*join)));
                // The hub is to know of whom it hears that.
                if let Some(reason) = self.interrupted.clone() {
                    self.leaves(reason, out);
                }
            }
            Err(why) => self.fails(why, out),
        }
    }

    pub(super) fn placed(&mut self, now: Instant, placement: Box<NodePlacement>, out: &mut Vec<Action>) {
        // The hub says it again over a new line.
        if let State::Joining { has_joined: true, .. } = self.state {
            out.extend([Action::Forget, Action::Prepare(placement.clone())]);
            let helpers = &mut self.helpers;
            (helpers.files, helpers.guard, helpers.store) = (true, true, true);
            let files_until = now + self.rules.files_within;
            let (files, guard, store) = (true, true, true);
            self.state = State::Preparing(Preparing { placement, files, guard, store, files_until });
        }
    }

    /// One of three things that the ranks need is there, or can't be.
    pub(super) fn prepared(
        &mut self,
        now: Instant,
        result: Result<()>,
        is_there: impl FnOnce(&mut Preparing),
        out: &mut Vec<Action>,
    ) {
        let State::Preparing(preparing) = &mut self.state else { return };
        if let Err(why) = result {
            return self.fails(why, out);
        }
        is_there(preparing);
        if preparing.files || preparing.guard || preparing.store {
            return;
        }
        let placement = &preparing.placement;
        let is_alone = placement.world_size as usize == placement.ranks.len();
        let serves = !is_alone && (placement.serves_store || self.rules.has_data);
        out.push(Action::Launch);
        self.state = State::Running(NodeRanks::new(placement, serves, now));
    }

    /// The process wants the end before the node has its place.
    pub(super) fn leaves(&mut self, reason: String, out: &mut Vec<Action>) {
        out.push(Action::TellDone { problem: None, interrupted: Some(reason.clone()) });
        self.state = State::Leaving(Leaving::failed(Error::new(ErrorKind::Cancelled, reason)));
    }

    /// The node can't do its part. Spark would say so later, when the hub has long taken the silence for a lost node.
    pub(super) fn fails(&mut self, why: Error, out: &mut Vec<Action>) {
        out.push(Action::TellDone { problem: Some(why.to_string()), interrupted: None });
        self.leave(Leaving::failed(why), out);
    }

    /// No rank has started, and none will.
    pub(super) fn is_done(&mut self, now: Instant, out: &mut Vec<Action>) {
        let interrupted = self.interrupted.clone();
        out.push(Action::TellDone { problem: None, interrupted });
        self.leave(Leaving::done(now, None), out);
    }

    /// What was being prepared is not needed.
    pub(super) fn leave(&mut self, leaving: Leaving, out: &mut Vec<Action>) {
        out.push(Action::StopPreparing);
        self.state = State::Leaving(leaving);
        self.end_unused_guard(out);
    }

    /// A guard that comes when the node is to end, or had come before, has no ranks. NODE-18
    pub(super) fn end_unused_guard(&mut self, out: &mut Vec<Action>) {
        if self.helpers.guard_lives && matches!(self.state, State::Leaving(_)) {
            out.push(Action::EndGuard);
        }
    }
}
