//! What a machine is told, and what it has done.

use std::time::Instant;

use phalanx_supervisor::{ExitStatus, GuardEvent};
use phalanx_types::message::NodeMessage;
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::{Attempt, Carrier, Error, Join, NodePlacement, Notice, RankExit, RankNotice, Result};

use crate::node::line::Heard;

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// The line to the hub has something to say.
    Line(Heard),
    /// The process that the node runs in wants it to end, for this reason.
    Interrupted(String),
    /// After [`Action::Locate`]: what the hub is to know of this task.
    Located(Result<Box<Join>>),
    /// After [`Action::Prepare`]: the files that the ranks begin with are there.
    FilesMade(Result<()>),
    /// After [`Action::Prepare`]: the guard is there.
    Guarded(Result<()>),
    /// After [`Action::Prepare`]: the store takes this node's connections.
    StoreTried(Result<()>),
    /// After [`Action::Launch`]: not all ranks could be ordered from the guard.
    NotLaunched(Error),
    /// The guard saw this.
    Guard(GuardEvent),
    /// After [`Action::EndGuard`]: its process is gone.
    GuardEnded,
    /// All that a rank wrote is in its log, or can't be.
    OutputEnded {
        /// The rank.
        rank: u32,
    },
    /// A rank has reported something.
    Reported,
    /// After [`Action::Gather`].
    Gathered(Box<Evidence>),
    /// After [`Action::Upload`]: the hub has the result, or this is why not.
    Uploaded(Result<()>),
    /// After [`Action::CloseOutput`].
    OutputClosed,
    /// After [`Action::FinishCopies`]: the hub has all output.
    Relayed,
    /// After [`Action::FinishCopies`]: the executor's log has what goes there.
    LogCopied,
    /// This host is going to go.
    Noticed(Notice),
    /// A moment has passed.
    Tick,
}

/// How a rank ended, from what is known of its process and what it left on the disk.
#[derive(Debug, Clone)]
pub(crate) struct Evidence {
    pub(crate) exit: RankExit,
    /// When it ended, as far as it told that itself.
    pub(crate) at: Instant,
    /// Whether it left a result.
    pub(crate) has_result: bool,
}

/// The end of a rank's process.
#[derive(Debug, Clone)]
pub(crate) enum ProcessEnd {
    /// Its guard saw it end.
    Exited(Exit),
    /// It was killed with its guard, for that reason.
    WithGuard { reason: String, at: Instant },
    /// The guard could not start it.
    NotStarted { reason: String, at: Instant },
}

/// How a process ended, as its guard saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    pub(crate) how: ExitStatus,
    /// Whether it was over, or on its way out, when the guard came to end it.
    pub(crate) by_itself: bool,
    pub(crate) at: Instant,
}

impl ProcessEnd {
    pub(crate) fn at(&self) -> Instant {
        match self {
            ProcessEnd::Exited(exit) => exit.at,
            ProcessEnd::WithGuard { at, .. } | ProcessEnd::NotStarted { at, .. } => *at,
        }
    }
}

/// A rank whose process has ended, and when the node told its ranks to end, if it did.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) rank: u32,
    /// Its process, if that was known.
    pub(crate) pid: Option<u32>,
    pub(crate) end: ProcessEnd,
    pub(crate) stopped: Option<Instant>,
}

/// Something that is to be done. None of it is waited for: what takes time is a helper's, which sends an event.
#[derive(Debug)]
pub(crate) enum Action {
    /// Find out where other nodes reach this one, and listen there.
    Locate,
    /// Tell the hub a fact, which happened then.
    Tell(Instant, NodeMessage),
    /// Tell the hub what is only true now.
    Send(NodeMessage),
    /// Forget the facts that the hub was told: it has them.
    Forget,
    /// Make the files, get a guard, try the store.
    Prepare(Box<NodePlacement>),
    /// What is being prepared is not needed any more.
    StopPreparing,
    /// Have the guard start the ranks.
    Launch,
    /// Have the guard end all processes; for this reason, if they are not over.
    StopRanks { reason: Option<String> },
    /// Have the ranks that run write their stacks, and send them. With the process of each, once it is known.
    AskStacks { request: u32, ranks: Vec<(u32, Option<u32>)> },
    /// Send a piece of a rank's file.
    Read { request: u32, wanted: PieceWanted, runs: bool },
    /// Let the ranks begin no step, and tell the hub which they have asked for.
    Freeze { number: u32 },
    /// Let them go on, unless a later order has frozen them.
    Thaw { number: u32 },
    /// Tell them of a notice, let them go on as by [`Action::Thaw`], and tell the hub.
    Notify(Box<RankNotice>),
    /// Tell the ranks who serves the blocks of a host.
    TellCarrier(Carrier),
    /// Tell the hub what these ranks do, which run as these processes.
    TellActivity(Vec<(u32, u32)>),
    /// A rank's process runs since then.
    Started { rank: u32, at: Instant },
    /// Look at what a rank left behind.
    Gather(Ended),
    /// The same from memory: its disk does not answer. It is told at once.
    GatherWithoutDisk(Ended),
    /// Tell the hub how a rank ended.
    TellExit(Box<Evidence>),
    /// Send a rank's result.
    Upload { rank: u32 },
    /// Open the connections for results and output anew.
    Renew,
    /// The hub is gone: nothing more is sent to it.
    Abandon,
    /// Nothing of the ranks is left: end the guard's process.
    EndGuard,
    /// No rank writes any more: take what is in their pipes.
    CloseOutput,
    /// Have the relay and the executor's log take the rest.
    FinishCopies,
    /// Output that has not been relayed is not waited for any more.
    StopRelay,
    /// Tell the hub that nothing of the ranks is left, with how much each wrote.
    TellDone { problem: Option<String>, interrupted: Option<String> },
}

/// What follows an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AfterAttempt {
    /// Nothing.
    Over,
    /// Another one.
    Again {
        /// Its number.
        attempt: Attempt,
        /// Why.
        reason: String,
    },
}
