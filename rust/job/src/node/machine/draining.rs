//! A node whose ranks have ended, until what they left is where it belongs and nobody needs the node.

use std::time::{Duration, Instant};

use super::ranks::NodeRanks;
use super::told::Action;
use crate::node::output::executor_log;

/// What is left of the ranks.
#[derive(Debug)]
pub(super) struct Draining {
    pub(super) ranks: NodeRanks,
    /// When the ranks were told to end, if they were.
    stopped: Option<Instant>,
    output: Output,
}

/// How far the output is of ranks that write nothing more.
#[derive(Debug, Clone, Copy)]
enum Output {
    /// It waits for how the ranks ended.
    Open,
    /// What is in the pipes is taken.
    Closing,
    /// It goes to the hub and to the executor's log, for which there is time until then.
    Copied { relay_until: Instant, log_until: Instant },
}

impl Draining {
    pub(super) fn new(ranks: NodeRanks, stopped: Option<Instant>) -> Draining {
        Draining { ranks, stopped, output: Output::Open }
    }

    /// What was in the pipes is taken.
    pub(super) fn output_closed(&mut self, now: Instant, drain_timeout: Duration, out: &mut Vec<Action>) {
        let (relay_until, log_until) = (now + drain_timeout, now + executor_log::PATIENCE);
        self.output = Output::Copied { relay_until, log_until };
        out.push(Action::FinishCopies);
    }

    /// Goes on; once all that ranks left is out, and nobody needs the node, why it could not do its part, if so.
    #[allow(clippy::option_option, reason = "whether it is done, and whether well")]
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        is_interrupted: bool,
        out: &mut Vec<Action>,
    ) -> Option<Option<String>> {
        let Draining { ranks, stopped, output } = self;
        ranks.gather(now, *stopped, out);
        let (relay_until, log_until) = match *output {
            Output::Open => {
                if ranks.all_told() {
                    *output = Output::Closing;
                    out.push(Action::CloseOutput);
                }
                return None;
            }
            Output::Closing => return None,
            Output::Copied { relay_until, log_until } => (relay_until, log_until),
        };
        if !ranks.relayed && now >= relay_until {
            ranks.relayed = true;
            out.push(Action::StopRelay);
        }
        ranks.logged |= now >= log_until;
        // DRIVER-19
        let is_needed = ranks.serves
            && !ranks.may_stop_serving
            && !ranks.has_failed
            && ranks.problem.is_none()
            && stopped.is_none()
            && !is_interrupted;
        let is_out = ranks.all_told() && ranks.uploads == 0 && ranks.relayed && ranks.logged;
        (is_out && !is_needed).then(|| ranks.problem.take())
    }
}
