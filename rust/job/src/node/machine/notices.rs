//! What a node does about notices: it tells the hub of its host's, and its ranks of what the hub tells.
//!
//! - NODE-61 (asked-when-running): a node whose ranks don't run yet answers no order to freeze them, so that none is
//!   left out. The hub orders it again.
//! - NODE-62 (hub-thaws): ranks that are frozen stay so until the hub says what follows. Each waits a second at most by
//!   itself, and its node knows which step it has begun then (`python/phalanx/rank/notices.py`, GUARD-22).

use std::time::Instant;

use phalanx_types::message::NodeMessage;
use phalanx_types::{Notice, RankNotice};

use super::{Action, Machine, State};

impl Machine {
    /// Its own host is going to go. The hub doesn't know the host before the node has its place.
    pub(super) fn noticed(&self, now: Instant, notice: Notice, out: &mut Vec<Action>) {
        match &self.state {
            State::Preparing(_) | State::Running(_) | State::Ending(..) | State::Draining(_) => {
                out.push(Action::Tell(now, NodeMessage::Notice(notice)));
            }
            State::Reaching | State::Joining { .. } | State::Leaving(_) | State::Over(_) => {}
        }
    }

    pub(super) fn freeze(&self, number: u32, out: &mut Vec<Action>) {
        self.if_ranks(Action::Freeze { number }, out); // NODE-61
    }

    pub(super) fn thaw(&self, number: u32, out: &mut Vec<Action>) {
        self.if_ranks(Action::Thaw { number }, out);
    }

    pub(super) fn notify(&self, notice: Box<RankNotice>, out: &mut Vec<Action>) {
        self.if_ranks(Action::Notify(notice), out);
    }

    fn if_ranks(&self, action: Action, out: &mut Vec<Action>) {
        match &self.state {
            State::Running(_) | State::Ending(..) | State::Draining(_) => out.push(action),
            State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Leaving(_)
            | State::Over(_) => {}
        }
    }
}
