//! What the hub and its clients say to each other: JSON in length-prefixed frames under TLS. `rendezvous` carries them.
//!
//! - TYPES-9 (told-again): everything that a node tells is a fact that may be told again. After a reconnect the node
//!   repeats itself, and the hub takes the first copy.
//! - TYPES-10 (names-attempt): what belongs to an attempt says which, so that nothing of an earlier attempt is taken
//!   for the present one's. Connections do so.
//! - TYPES-11 (bounded): a rank tells at most [`MAX_PHASES`] phases in an attempt. The others are passed over.
//! - TYPES-29 (numbered): the reports of a rank are numbered in each attempt. Numbers that never come are reports that
//!   were left out on their way.

use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::carrier::Carrier;
use crate::notice::{Notice, RankNotice};
use crate::placement::{Join, NodePlacement};
use crate::rank_exit::RankExit;
use crate::rank_file::{Piece, PieceWanted};
use crate::spark_task::SparkTask;
use crate::stacks::RankStacks;

/// How many phases of a rank are told in one attempt, at most: they are kept until the run is over.
pub const MAX_PHASES: u32 = 1000;

/// What a connection to the hub is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Role {
    /// Joins, facts and orders of the task of this partition, for one attempt.
    Control {
        /// The task's partition; of a carrier, the number of tasks and its own number.
        partition: u32,
        /// Which start of the ranks this is, from 0.
        attempt: Attempt,
        /// Who wants the seat of this partition; of a carrier the default.
        task: SparkTask,
    },
    /// The live output of the ranks of this partition.
    Logs {
        /// The task's partition.
        partition: u32,
        /// The attempt that writes it.
        attempt: Attempt,
        /// [`SparkTask::instance`] of the node.
        instance: u64,
    },
    /// The result of one rank, in data frames from the byte on that the hub doesn't have.
    Result {
        /// The rank.
        rank: u32,
        /// The attempt that left it.
        attempt: Attempt,
        /// A random number of the node's own for this one result, by which the hub knows it over the next connection.
        upload: u64,
        /// How many bytes it has.
        bytes: u64,
    },
}

/// A client's first words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`crate::job::VERSION`] of the client.
    pub version: u32,
    /// The job's id.
    pub job: String,
    /// What the connection is for.
    pub role: Role,
    /// HMAC-SHA256 under the token over what binds it to its connection, the job's id and the role; hex.
    pub mac: String,
}

/// The hub's proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Welcome {
    /// HMAC-SHA256 under the token, for the other direction; hex.
    pub mac: String,
    /// For a connection of logs: how many bytes of this node's log of each rank the hub already has. For one of a
    /// result: how many of it.
    pub received: Vec<(u32, u64)>,
}

impl Welcome {
    /// What a hub says to a connection that it doesn't admit. It proves nothing.
    pub fn refusal() -> Welcome {
        Welcome { mac: String::new(), received: Vec::new() }
    }
}

/// A fact from a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NodeMessage {
    /// Here I am.
    Join(Join),
    /// A rank's process runs.
    RankStarted {
        /// The rank.
        rank: u32,
        /// Its process id.
        pid: u32,
        /// How long ago, in microseconds.
        age_us: u64,
    },
    /// A rank got to a phase, e.g. `user code`.
    Phase {
        /// The rank.
        rank: u32,
        /// The phase's name.
        name: String,
        /// How many phases of this rank, in this attempt, were told before.
        nth: u32,
        /// How long ago, in microseconds.
        age_us: u64,
    },
    /// A rank has saved a checkpoint. Not repeated.
    Saved {
        /// Its step.
        step: u64,
    },
    /// A rank ended. The times in `exit` are ages: microseconds before this message was sent, negated.
    RankEnded {
        /// How it ended.
        #[serde(rename = "end")]
        exit: Box<RankExit>,
    },
    /// All ranks of the node have ended and nothing of them is left.
    Done {
        /// Why the node could not do its part; `None` if it could.
        problem: Option<String>,
        /// Why the process that it runs in told it to end; `None` if it didn't.
        interrupted: Option<String>,
        /// How much each of its ranks wrote, so that the hub can tell what the live view missed.
        output: Vec<OutputTotal>,
    },
    /// What the ranks of the node that run are doing now, which isn't repeated after a reconnect; or what one that has
    /// ended did last.
    Activity {
        /// Each of them.
        ranks: Vec<RankActivity>,
    },
    /// What a rank has reported, where the run wants every report. The newest are told again after a reconnect.
    Reports {
        /// The rank.
        rank: u32,
        /// The number of the first of them: how many reports the rank had made before, in this attempt.
        first: u64,
        /// They, one after the other.
        reports: Vec<TimedReport>,
    },
    /// The stacks that were asked for. Not repeated, either.
    Stacks {
        /// The number of the request.
        request: u32,
        /// Those of the node's ranks that run.
        ranks: Vec<RankStacks>,
    },
    /// The piece of a file that was asked for. Not repeated, either.
    Piece {
        /// The number of the request.
        request: u32,
        /// The piece, its bytes in hexadecimal digits; or in a sentence why there is none.
        piece: std::result::Result<Piece<String>, String>,
    },
    /// My host is going to go.
    Notice(Notice),
    /// My ranks begin no step since I was told to freeze them. Not repeated.
    Frozen {
        /// The number of the order.
        number: u32,
        /// The last step that one of them asked for, and may have begun; `None` where none has asked.
        asked: Option<u64>,
    },
    /// My ranks are told of a notice. Not repeated.
    Noticed {
        /// [`RankNotice::number`].
        number: u32,
        /// Whether one of them had not waited for it, and has begun a step at which it was to be told of it.
        late: bool,
    },
    /// I am no node, and serve the blocks of my host to the ranks.
    Carries(Carrier),
    /// Still here.
    Ping,
}

/// What a rank that runs is doing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankActivity {
    /// The rank.
    pub rank: u32,
    /// For how long it has made no progress, in milliseconds.
    pub idle_ms: u64,
    /// Whether its process is stopped, as by SIGSTOP.
    pub stopped: bool,
    /// Whether it has left its result, and only its process has not ended.
    pub returned: bool,
    /// Its collective operation, in words; empty if there is none, or none that is known.
    pub doing: String,
    /// The step that it reported last.
    pub step: Option<u64>,
    /// How many steps it is going to take, as it says.
    #[serde(rename = "of")]
    pub total_steps: Option<u64>,
    /// How long its last steps took each, in microseconds.
    pub step_us: Option<u64>,
    /// Which share of its time it was in collective operations, in thousandths; `None` where nobody knows.
    pub collective_permille: Option<u32>,
    /// All that it reported last, as a JSON object; empty if nothing.
    pub values: String,
}

/// What a rank told by one call of `phalanx.report`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimedReport {
    /// Its step.
    pub step: u64,
    /// When, in milliseconds since 1970, by the clock of the rank's host.
    pub at_ms: u64,
    /// The values that belong to this step, as a JSON object.
    pub values: String,
}

/// How much a rank wrote in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTotal {
    /// The rank.
    pub rank: u32,
    /// Bytes that it wrote to stdout and stderr.
    pub bytes: u64,
    /// The file on its host that has them.
    pub log_path: String,
}

/// An order from the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HubMessage {
    /// Another task has your seat, or the others run already: wait, you may get a place.
    Spare,
    /// Another task has your seat, or is to have it: end your ranks, and fail. Then Spark may start your task again,
    /// and doesn't take it for one that has done its part.
    GivenUp {
        /// Why, for the log.
        reason: String,
    },
    /// All have joined, or enough; this is your place.
    Place(Box<NodePlacement>),
    /// End your ranks.
    Stop {
        /// Why, for the log.
        reason: String,
    },
    /// Tell what the threads of your ranks are doing.
    Stacks {
        /// The number of this request.
        request: u32,
    },
    /// Send a piece of a file of one of your ranks.
    Read {
        /// The number of this request.
        request: u32,
        /// Which piece.
        wanted: PieceWanted,
    },
    /// Let your ranks begin no step, and tell which they have asked for.
    Freeze {
        /// The number of this order.
        number: u32,
    },
    /// Let them go on, unless they were frozen later than by this order: there is no notice for them yet.
    Thaw {
        /// [`HubMessage::Freeze::number`].
        number: u32,
    },
    /// Tell your ranks, and let them go on, unless they were frozen later than for this notice. Told again until the
    /// node has said that they are told.
    Notice(Box<RankNotice>),
    /// The blocks of a host where the run has no node are served: tell the ranks. For the node that serves the store;
    /// told again and again.
    Carried(Carrier),
    /// All ranks have ended well: nobody needs what this node serves any more. Told again at each ping.
    StopServing,
    /// The hub has everything of this node, or needs this carrier no more; it may go.
    Released,
    /// The hub has everything of this attempt: join again, over a new connection, for this one.
    Again {
        /// The attempt to join.
        attempt: Attempt,
        /// Why, for the log.
        reason: String,
    },
    /// Answer to a ping.
    Pong,
}
