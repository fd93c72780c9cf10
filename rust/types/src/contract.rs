//! What a node and its ranks agree on by name: variables, files and notes.
//!
//! A node tells a rank what to do by variables of its environment. A rank answers by notes, which are JSON lines on a
//! socket, and leaves files in a folder of its own. To a rank that runs the node tells news, packets of JSON that come
//! out of the same socket. A rank may be any program, so the names are plain text on both sides.
//!
//! TYPES-1 (one-name): each of these names, and each number that both ends need, stands here and in its mirror
//! `python/phalanx/rank/contract.py`, and the two are the same.
//! TYPES-2 (any-note): a note that isn't one of these is ignored, and does no harm. Nor do news whose kind or
//! version a rank doesn't know.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::rank_exit::RankError;

/// Declares the names, and [`NAMES`] with all of them.
macro_rules! names {
    ($($(#[doc = $doc:literal])+ $name:ident = $value:literal;)+) => {
        $($(#[doc = $doc])+ pub const $name: &str = $value;)+

        /// Every name of the contract: how it is called here, and what it is.
        pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), $value)),+];
    };
}

names! {
    /// Variable: the file that says what the rank is to run. The language that wrote it reads it.
    ENV_PAYLOAD = "PHALANX_PAYLOAD";
    /// Variable: the rank's private folder, where it leaves the files below.
    ENV_RANK_DIR = "PHALANX_RANK_DIR";
    /// Variable: the number of the descriptor that takes the rank's notes, and gives it news.
    ENV_NOTES_FD = "PHALANX_NOTES_FD";
    /// Variable: the number of the signal on which the rank writes its stacks to [`FILE_STACKS`].
    ENV_STACKS_SIGNAL = "PHALANX_STACKS_SIGNAL";
    /// Variable: how large the result of a rank other than 0 may be, in bytes.
    ENV_MAX_RESULT_BYTES = "PHALANX_MAX_RESULT_BYTES";
    /// Variable: the folder of the files that Spark has shipped to this host.
    ENV_SPARK_FILES = "PHALANX_SPARK_FILES";
    /// Variable: the names of the Python packages in that folder, separated like the entries of `PATH`.
    ENV_PY_FILES = "PHALANX_PY_FILES";
    /// Variable: the file that says where the blocks of the task's partition are, in a run of `_train_on_dataframe`.
    ENV_PARTITION_INDEX = "PHALANX_PARTITION_INDEX";
    /// Variable: the folder for checkpoints, or the URI of one, where the user names one.
    ENV_CHECKPOINT_DIR = "PHALANX_CHECKPOINT_DIR";
    /// Variable: the name of the run's own checkpoints in that folder.
    ENV_CHECKPOINT_NAME = "PHALANX_CHECKPOINT_NAME";
    /// Variable: whose the run's own checkpoints are, an `Owner` as JSON; empty where whoever has the name shares them.
    ENV_CHECKPOINT_OWNER = "PHALANX_CHECKPOINT_OWNER";
    /// Variable: how many different folders the job's nodes have for its files.
    ENV_JOB_FOLDERS = "PHALANX_JOB_FOLDERS";
    /// Variable: the first and the last rank of the rank's host, which has all between them: `4-7`.
    ENV_HOST_RANKS = "PHALANX_HOST_RANKS";
    /// Variable: when the `phalanx` backend gives up a rank of another host that acknowledges nothing, in seconds.
    ENV_CUT_TIMEOUT = "PHALANX_CUT_TIMEOUT_SECONDS";
    /// Variable: `on` where ranks are to encrypt what they send to other hosts; `off` or unset where not.
    ENV_ENCRYPTION = "PHALANX_ENCRYPTION";
    /// Variable: `allowed` where groups of gloo and NCCL may cross hosts in spite of [`ENV_ENCRYPTION`].
    ENV_PLAIN_GRADIENTS = "PHALANX_PLAIN_GRADIENTS";
    /// Variable: the address of rank 0's host. On the way there a rank has the address at which the others reach it.
    ENV_RANK0_ADDRESS = "PHALANX_RANK0_ADDRESS";
    /// Variable: whose ranks log to the caller's MLflow run, `first` or `all`. Unset where it has none.
    ENV_MLFLOW = "PHALANX_MLFLOW";
    /// Variable of a warm pool: what it is to import and for how long it may be idle, as JSON.
    ENV_POOL = "PHALANX_POOL";
    /// Variable: the module whose `run` a fork of a warm pool runs; unset for a rank's.
    ENV_ENTRY = "PHALANX_ENTRY";
    /// Variable of a model's process: what it is told by who starts it, as JSON.
    ENV_MODEL = "PHALANX_MODEL";

    /// Variable of torchrun: the rank.
    ENV_RANK = "RANK";
    /// Variable of torchrun: the rank among those of its node, which is a task, or a host where the job says so.
    ENV_LOCAL_RANK = "LOCAL_RANK";
    /// Variable of torchrun: how many ranks there are.
    ENV_WORLD_SIZE = "WORLD_SIZE";
    /// Variable of torchrun: how many ranks the node has.
    ENV_LOCAL_WORLD_SIZE = "LOCAL_WORLD_SIZE";
    /// Variable of torchrun: the number of the node, from 0.
    ENV_GROUP_RANK = "GROUP_RANK";
    /// Variable of torchrun: how many nodes there are.
    ENV_GROUP_WORLD_SIZE = "GROUP_WORLD_SIZE";
    /// Variable that many programs read in the place of [`ENV_GROUP_RANK`].
    ENV_NODE_RANK = "NODE_RANK";
    /// Variable of torchrun: the name of the rank's role; there is one, `default`.
    ENV_ROLE_NAME = "ROLE_NAME";
    /// Variable of torchrun: the rank among those of its role.
    ENV_ROLE_RANK = "ROLE_RANK";
    /// Variable of torchrun: how many ranks have the role.
    ENV_ROLE_WORLD_SIZE = "ROLE_WORLD_SIZE";
    /// Variable of torchrun: the address of the store.
    ENV_MASTER_ADDR = "MASTER_ADDR";
    /// Variable of torchrun: the port of the store.
    ENV_MASTER_PORT = "MASTER_PORT";
    /// Variable of torchrun: the id of the job.
    ENV_RUN_ID = "TORCHELASTIC_RUN_ID";
    /// Variable of torchrun: how often the ranks were started again.
    ENV_RESTART_COUNT = "TORCHELASTIC_RESTART_COUNT";
    /// Variable of torchrun: how often they may be.
    ENV_MAX_RESTARTS = "TORCHELASTIC_MAX_RESTARTS";
    /// Variable of torchrun: `True` has rank 0 connect to the store, too, instead of serving one.
    ENV_USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE";
    /// Variable of torchrun: where torch's `@record` writes down an exception.
    ENV_TORCH_ERROR_FILE = "TORCHELASTIC_ERROR_FILE";
    /// Variable of torch: whether an error of NCCL ends the process.
    ENV_NCCL_ASYNC_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
    /// Variable of torch: where its flight recorder's dump goes, the rank's number behind it.
    ENV_FLIGHT_RECORDER = "TORCH_FR_DUMP_TEMP_FILE";
    /// Variable of older torch: what `ENV_FLIGHT_RECORDER` is in newer.
    ENV_NCCL_FLIGHT_RECORDER = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE";
    /// Variable of gloo: the network interface to use.
    ENV_GLOO_INTERFACE = "GLOO_SOCKET_IFNAME";
    /// Variable of NCCL: the network interface to use.
    ENV_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME";
    /// Variable of OpenMP: how many threads an operation has.
    ENV_OMP_THREADS = "OMP_NUM_THREADS";
    /// Variable of Accelerate: `true` where ranks have no GPUs. It trains each rank by itself there without.
    ENV_ACCELERATE_USE_CPU = "ACCELERATE_USE_CPU";
    /// Variable of CUDA: the GPUs that the rank sees.
    ENV_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES";

    /// File of a node, beside its ranks' folders: what the ranks run; [`ENV_PAYLOAD`] names it.
    FILE_PAYLOAD = "payload";
    /// File of a node, beside its ranks' logs: the newest dump of torch's flight recorder, the rank's number behind it;
    /// [`ENV_FLIGHT_RECORDER`] names it.
    FILE_FLIGHT_RECORDER = "flight-recorder-";
    /// File of a rank: 32 bytes, from which the process groups of the job's ranks have their keys. Only its user can
    /// read it.
    FILE_GROUPS_KEY = "groups-key";
    /// File of a rank whose run has data on several hosts: how it finds and convinces those who serve blocks there.
    /// Only its user can read it.
    FILE_BLOCKS = "blocks";
    /// Folder of a rank whose run has data, by a link: where the executor's ranks keep fetched blocks for each other.
    FILE_FETCHED = "fetched";
    /// File of a rank: its result, whole or absent.
    FILE_RESULT = "result";
    /// File of a rank: it has promised a result. Then exit code 0 without one is a failure, and no exit with one is.
    FILE_OWED = "owed";
    /// File of a rank: what it raised, a [`RankError`] as JSON, whole or absent.
    FILE_ERROR = "error.json";
    /// File of a rank: what torch's `@record` wrote down; [`ENV_TORCH_ERROR_FILE`] names it.
    FILE_TORCH_ERROR = "torch-error.json";
    /// File of a rank: its stacks, appended at each signal. It is there as soon as the rank takes the signal.
    FILE_STACKS = "stacks";

    /// File of a rank: the profile of this number, whole or absent. A line of JSON, and behind it torch's own trace.
    FILE_PROFILE = "profile-of-";

    /// Note: the rank has got to this phase.
    NOTE_PHASE = "phase";
    /// Note: the rank raised this [`RankError`] and could not write the file.
    NOTE_ERROR = "error";
    /// Note: the rank starts anew as a cold one, and why.
    NOTE_COLD = "cold";
    /// Note: what the rank's watchdog sees, a [`Beat`].
    NOTE_BEAT = "beat";
    /// Note: the rank has left the result that it had promised, and is on its way out.
    NOTE_RETURNED = "returned";
    /// Note: what the training code reports, a [`Report`].
    NOTE_REPORT = "report";
    /// Note: the rank has saved a checkpoint of this step.
    NOTE_SAVED = "saved";
    /// Key of a beat: whether the main thread has run Python since the beat before.
    BEAT_RAN = "ran";
    /// Key of a beat: how many collective operations have begun and ended, in all.
    BEAT_OPERATIONS = "operations";
    /// Key of a beat: for how long collective operations have run, in all, in microseconds.
    BEAT_COLLECTIVE_US = "collective_us";
    /// Key of a beat: the collective operation that runs, in words.
    BEAT_DOING = "doing";
    /// Key of a report: the step.
    REPORT_STEP = "step";
    /// Key of a report: how many steps there are.
    REPORT_OF = "of";
    /// Key of a report: how long a step took since the report before, in microseconds.
    REPORT_STEP_US = "step_us";
    /// Key of a report: numbers by name.
    REPORT_VALUES = "values";
    /// Key of a report: numbers by name that are of an earlier step. Displays show them beside the others.
    REPORT_EARLIER = "earlier";
    /// Key of a report: when it was made, in milliseconds since 1970.
    REPORT_AT_MS = "at_ms";
    /// Key of an error: the exception's class.
    ERROR_TYPE_NAME = "type_name";
    /// Key of an error: the exception's text.
    ERROR_MESSAGE = "message";
    /// Key of an error: the formatted traceback.
    ERROR_TRACEBACK = "traceback";
    /// Key of an error: whether it says that a peer went away.
    ERROR_PEER_LOST = "peer_lost";
    /// Key of an error: whether it says that blocks of a data set are gone.
    ERROR_BLOCKS_LOST = "blocks_lost";
    /// Key of an error: whether the training code never began.
    ERROR_BEFORE_START = "before_start";
    /// Key of an error: whether it is `phalanx.Preempted`.
    ERROR_PREEMPTED = "preempted";
    /// Key of an error: whether it says that the machine is to blame.
    ERROR_MACHINE = "machine";
    /// Key of an error: when it was raised, on the host's monotonic clock, in microseconds.
    ERROR_AT_US = "at_us";
    /// Key of an error: the pickled exception, base64.
    ERROR_PICKLE = "pickle";

    /// Key of a notice: from which step on it is told.
    NOTICE_STEP = "step";
    /// Key of a notice: the hosts that go.
    NOTICE_HOSTS = "hosts";
    /// Key of a notice: the ranks on them.
    NOTICE_RANKS = "ranks";
    /// Key of a notice: when the first of them goes, in milliseconds since 1970, or null.
    NOTICE_DEADLINE_MS = "deadline_ms";
    /// Key of a notice: why.
    NOTICE_REASON = "reason";

    /// Phase that each Python rank tells when it has begun.
    PHASE_READY = "rank ready";
    /// Phase that each Python rank tells when the training code begins.
    PHASE_USER_CODE = "user code";
    /// Phase that a Python rank tells when the training code has raised.
    PHASE_RAISED = "raised";

    /// Key of news: their version, [`NEWS_FORMAT`].
    NEWS_VERSION = "version";
    /// Key of news: their kind, one of the following.
    NEWS_KIND = "kind";
    /// News: the descriptor that comes with them is that of the rank's words. They are there when the rank starts.
    NEWS_WORDS = "words";
    /// News: the rank is to leave this profile, a [`ProfileRequest`].
    NEWS_PROFILE = "profile";
    /// Key of a profile: its number, which stands at the end of its file's name.
    PROFILE_NUMBER = "number";
    /// Key of a profile: how long it is, in milliseconds.
    PROFILE_MILLIS = "millis";

    /// First line of a result for a caller in the JVM: bytes follow.
    RESULT_BYTES = "bytes";
    /// First line of a result for a caller in the JVM: JSON follows.
    RESULT_JSON = "json";
    /// First line of a result for a caller in the JVM: the reason why there is none follows.
    RESULT_UNAVAILABLE = "unavailable";
}

/// The longest note, in bytes. Longer lines are passed over.
pub const MAX_NOTE_BYTES: usize = 4096;

/// The longest news, in bytes.
pub const MAX_NEWS_BYTES: usize = 4096;

/// The version of news.
pub const NEWS_FORMAT: u32 = 1;

/// The version of a rank's words.
pub const WORDS_FORMAT: u64 = 1;

/// How large their memory is.
pub const WORDS_BYTES: usize = 4096;

/// How large the memory of a rank's reports is, which lies behind its words.
pub const REPORTS_BYTES: usize = 1 << 20;

/// How large the memory of a rank's notices is, which lies behind that of its reports: a line of JSON for each, a
/// [`RankNotice`](crate::RankNotice).
pub const NOTICES_BYTES: usize = 256 << 10;

/// How large each of the blocks is that it is made of.
pub const REPORT_BLOCK_BYTES: usize = 64 << 10;

/// Every number of the contract that both ends need.
pub const NUMBERS: &[(&str, u64)] = &[
    ("MAX_NEWS_BYTES", MAX_NEWS_BYTES as u64),
    ("NEWS_FORMAT", NEWS_FORMAT as u64),
    ("WORDS_FORMAT", WORDS_FORMAT),
    ("WORDS_BYTES", WORDS_BYTES as u64),
    ("REPORTS_BYTES", REPORTS_BYTES as u64),
    ("NOTICES_BYTES", NOTICES_BYTES as u64),
    ("REPORT_BLOCK_BYTES", REPORT_BLOCK_BYTES as u64),
];

/// What a rank is asked for by [`NEWS_PROFILE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileRequest {
    /// [`PROFILE_NUMBER`].
    pub number: u32,
    /// [`PROFILE_MILLIS`].
    pub millis: u32,
}

/// What a node tells a rank that runs. News are state: of each kind the newest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RankNews {
    /// [`NEWS_WORDS`].
    Words,
    /// [`NEWS_PROFILE`].
    Profile(ProfileRequest),
}

impl RankNews {
    /// What [`NEWS_KIND`] says.
    pub fn kind(&self) -> &'static str {
        match self {
            RankNews::Words => NEWS_WORDS,
            RankNews::Profile(_) => NEWS_PROFILE,
        }
    }

    /// The packet that tells it: one object of JSON, at most [`MAX_NEWS_BYTES`].
    pub fn packet(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Packet<'a> {
            version: u32,
            #[serde(flatten)]
            news: &'a RankNews,
        }
        // Of numbers and names there is nothing that JSON can't say.
        serde_json::to_vec(&Packet { version: NEWS_FORMAT, news: self }).unwrap_or_default()
    }
}

/// A line of JSON from a rank: an object with one key, which says what it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankNote {
    /// [`NOTE_PHASE`].
    Phase(String),
    /// [`NOTE_ERROR`].
    Error(Box<RankError>),
    /// [`NOTE_COLD`].
    Cold(String),
    /// [`NOTE_BEAT`].
    Beat(Beat),
    /// [`NOTE_RETURNED`].
    Returned(bool),
    /// [`NOTE_REPORT`].
    Report(Report),
    /// [`NOTE_SAVED`].
    Saved(u64),
}

/// What a rank's watchdog sees, about once a second.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Beat {
    /// [`BEAT_RAN`].
    pub ran: bool,
    /// [`BEAT_OPERATIONS`].
    pub operations: u64,
    /// [`BEAT_COLLECTIVE_US`].
    pub collective_us: u64,
    /// [`BEAT_DOING`]; empty if none runs, or none that is known.
    pub doing: String,
}

/// What training code reports of itself.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// [`REPORT_STEP`].
    pub step: Option<u64>,
    /// [`REPORT_OF`]; `None` where the training code doesn't say.
    #[serde(rename = "of")]
    pub total_steps: Option<u64>,
    /// [`REPORT_STEP_US`]; `None` in the first report.
    pub step_us: Option<u64>,
    /// [`REPORT_VALUES`].
    pub values: Map<String, Value>,
    /// [`REPORT_EARLIER`].
    pub earlier: Map<String, Value>,
    /// [`REPORT_AT_MS`]; `None` in one that doesn't say.
    pub at_ms: Option<u64>,
}

impl RankNote {
    /// The note in a line; `None` if it is none (TYPES-2).
    pub fn parse(line: &[u8]) -> Option<RankNote> {
        serde_json::from_slice(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn keys(value: &Value) -> Vec<&str> {
        value.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn notes_have_the_keys_of_the_contract() {
        let notes = [
            (NOTE_PHASE, RankNote::Phase(String::new())),
            (NOTE_ERROR, RankNote::Error(Box::default())),
            (NOTE_COLD, RankNote::Cold(String::new())),
            (NOTE_BEAT, RankNote::Beat(Beat::default())),
            (NOTE_RETURNED, RankNote::Returned(true)),
            (NOTE_REPORT, RankNote::Report(Report::default())),
            (NOTE_SAVED, RankNote::Saved(7)),
        ];
        for (key, note) in notes {
            assert_eq!(keys(&serde_json::to_value(note).unwrap()), [key], "TYPES-1");
        }
        let beat = serde_json::to_value(Beat::default()).unwrap();
        assert_eq!(
            BTreeSet::from_iter(keys(&beat)),
            BTreeSet::from([BEAT_RAN, BEAT_OPERATIONS, BEAT_COLLECTIVE_US, BEAT_DOING])
        );
        let report = serde_json::to_value(Report::default()).unwrap();
        let expected = BTreeSet::from([
            REPORT_STEP,
            REPORT_OF,
            REPORT_STEP_US,
            REPORT_VALUES,
            REPORT_EARLIER,
            REPORT_AT_MS,
        ]);
        assert_eq!(BTreeSet::from_iter(keys(&report)), expected);
        let error = serde_json::to_value(RankError::default()).unwrap();
        let expected = [
            ERROR_TYPE_NAME,
            ERROR_MESSAGE,
            ERROR_TRACEBACK,
            ERROR_PEER_LOST,
            ERROR_BLOCKS_LOST,
            ERROR_BEFORE_START,
            ERROR_PREEMPTED,
            ERROR_MACHINE,
            ERROR_AT_US,
            ERROR_PICKLE,
        ];
        assert_eq!(BTreeSet::from_iter(keys(&error)), BTreeSet::from(expected));
    }

    #[test]
    fn news_have_the_keys_of_the_contract() {
        let profile = RankNews::Profile(ProfileRequest { number: 3, millis: 1500 });
        for news in [RankNews::Words, profile] {
            let packet: Value = serde_json::from_slice(&news.packet()).unwrap();
            assert_eq!((&packet[NEWS_VERSION], &packet[NEWS_KIND]), (&json!(1), &json!(news.kind())));
            assert!(news.packet().len() <= MAX_NEWS_BYTES);
        }
        let packet: Value = serde_json::from_slice(&profile.packet()).unwrap();
        let expected = [NEWS_VERSION, NEWS_KIND, PROFILE_NUMBER, PROFILE_MILLIS];
        assert_eq!(BTreeSet::from_iter(keys(&packet)), BTreeSet::from(expected), "TYPES-1");
    }

    #[test]
    fn a_note_may_leave_out_what_it_does_not_know() {
        let note = RankNote::parse(br#"{"beat": {"ran": true, "of_a_later_version": 1}}"#);
        assert_eq!(note, Some(RankNote::Beat(Beat { ran: true, ..Beat::default() })));
        let note = RankNote::parse(br#"{"report": {"step": 3, "values": {"loss": 0.5}}}"#).unwrap();
        let values = json!({"loss": 0.5}).as_object().unwrap().clone();
        assert_eq!(note, RankNote::Report(Report { step: Some(3), values, ..Report::default() }));
    }

    #[test]
    fn what_is_no_note_is_passed_over() {
        for line in ["", "null", "[1]", "{}", r#"{"later": 1}"#, r#"{"phase": 1}"#, "{\"phase\":"] {
            assert_eq!(RankNote::parse(line.as_bytes()), None, "TYPES-2: {line}");
        }
        assert_eq!(RankNote::parse(b"\xff\xfe"), None);
    }

    #[test]
    fn no_name_stands_for_two_things() {
        let names: BTreeSet<_> = NAMES.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), NAMES.len());
        for kind in ["ENV_", "FILE_", "NOTE_", "PHASE_"] {
            let values: Vec<_> = NAMES.iter().filter(|(name, _)| name.starts_with(kind)).collect();
            let unique: BTreeSet<_> = values.iter().map(|(_, value)| value).collect();
            assert_eq!(unique.len(), values.len(), "{kind}");
        }
    }
}
