//! One attempt of a node: its data from the launch of its ranks until the hub says what follows.
//!
//! `launch` makes it, `watch` takes it to the end of its ranks, `finish` hands over what is left of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use phalanx_supervisor::{Guard, OomWatch, RankLog};
use phalanx_types::RankExit;

use crate::node::blocks::NodeBlocks;
use crate::node::executor_log::ExecutorLogCopy;
use crate::node::files::NodeFiles;
use crate::node::line::Line;
use crate::node::metrics::Metrics;
use crate::node::options::Options;
use crate::node::pieces::Pieces;
use crate::node::ranks::{Rank, Stopped};
use crate::node::relay::Relay;
use crate::node::results::Uploads;
use crate::node::stacks::StacksRequest;

/// What a node keeps from one attempt to the next.
pub(crate) struct Kept {
    /// Outlives the attempts: the ranks' files are removed when nothing uses them any more, however this ends.
    pub(crate) files: NodeFiles,
    pub(crate) logs: BTreeMap<u32, Arc<RankLog>>,
    /// The log of the process that the node runs in, where the ranks' output goes there.
    pub(crate) executor_log: Option<OwnedFd>,
}

impl Kept {
    /// The ranks' logs, and beside them what torch's flight recorder left of them.
    pub(crate) fn logs_and_dumps(&self) -> Vec<PathBuf> {
        let dump = |rank: &u32| self.files.flight_recorder_of(*rank);
        let dumps = self.logs.keys().map(dump).filter(|file| file.exists());
        self.logs.values().flat_map(|log| log.files()).chain(dumps).collect()
    }
}

/// One attempt of a node.
pub(crate) struct Attempt<'a> {
    pub(crate) options: &'a Options<'a>,
    pub(crate) number: u32,
    pub(crate) guard: Guard,
    pub(crate) line: Line,
    /// What the ranks read of other hosts, where the run has data sets.
    pub(crate) blocks: Option<NodeBlocks>,
    /// Whether ranks of other nodes may need this one: it serves the store, or blocks.
    pub(crate) serves: bool,
    /// Whether the hub has said that nobody needs it any more.
    pub(crate) has_parted: bool,
    pub(crate) phase: Phase,
    pub(crate) ranks: Vec<Rank>,
    /// How ranks ended, as far as the hub was told.
    pub(crate) exits: Vec<RankExit>,
    pub(crate) relay: Option<Relay>,
    pub(crate) executor_log: Option<ExecutorLogCopy>,
    pub(crate) uploads: Uploads,
    /// Threads say here that there is something to look at: a rank's note, a log or an upload that has ended.
    pub(crate) wake: Sender<()>,
    pub(crate) woken: Receiver<()>,
    pub(crate) metrics: &'a mut Metrics,
    pub(crate) oom: OomWatch,
    /// Why this node could not do its part.
    pub(crate) problem: Option<String>,
    /// Why the process that it runs in wanted the end.
    pub(crate) interrupted: Option<String>,
    /// A request of the hub's for the ranks' stacks.
    pub(crate) stacks: Option<StacksRequest>,
    /// Requests of the hub's for pieces of the ranks' files.
    pub(crate) pieces: Pieces,
    /// A rank that was to be warm starts cold, and why has been said (WARM-1).
    pub(crate) said_cold: bool,
    pub(crate) tell_activity_at: Instant,
}

/// How far an attempt is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Phase {
    /// Its ranks run, those that have not ended by themselves.
    Running,
    /// They were told to end.
    Stopping(Stopped),
    /// Nothing of them is left; they may have been told to end before.
    Gone(Option<Stopped>),
}

impl Phase {
    /// When the ranks were told to end, if they were.
    pub(crate) fn stopped(self) -> Option<Stopped> {
        match self {
            Phase::Running => None,
            Phase::Stopping(stopped) => Some(stopped),
            Phase::Gone(stopped) => stopped,
        }
    }
}

impl Attempt<'_> {
    /// Whether nothing of the ranks is left.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.phase, Phase::Gone(_))
    }

    /// Has the ranks end, unless that is under way or done.
    pub(crate) fn stop(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Running) {
            let Options { spec, here, .. } = self.options;
            log::info!("job {}: partition {} ends its ranks: {reason}", spec.job.id, here.partition);
            self.phase = Phase::Stopping(Stopped::now());
            self.guard.stop();
        }
    }

    /// Renews what goes beside the line where that is another one; ends the ranks if it is past mending.
    pub(crate) fn look_at_line(&mut self) {
        if self.line.is_renewed() {
            self.relay.iter().for_each(Relay::renew);
            self.uploads.renew();
        }
        if let Some(why) = self.line.given_up().map(str::to_string) {
            self.problem.get_or_insert_with(|| why.clone());
            self.uploads.abandon();
            self.stop(&why);
        }
    }
}
