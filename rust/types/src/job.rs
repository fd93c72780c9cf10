//! What one `run()` is. It is immutable, made at the driver, and carried to every node as JSON.
//!
//! TYPES-5 (refuses-strangers): a job of another version, or with a field this version doesn't know, is refused with an
//! error that names it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cpu_policy::CpuPolicy;
use crate::elastic::ElasticPolicy;
use crate::encryption::Encryption;
use crate::error::{Error, ErrorKind, Result};
use crate::every_report::EveryReport;
use crate::failure_kind::FailureKind;
use crate::gang::Gang;
use crate::local_ranks::LocalRanks;
use crate::millis;
use crate::network::Network;
use crate::owner::Owner;
use crate::shown_output::ShownOutput;

/// The version of [`Job`] and of the messages between hub and nodes.
pub const VERSION: u32 = 1;

/// How long the name of a job's checkpoints can be: one that is given, and as much of the job's own as is in it.
pub const MAX_CHECKPOINT_NAME_BYTES: usize = 100;

/// One training run: how many ranks, over how many tasks, under which policy.
///
/// What the ranks execute is not in here: a node gets it as an opaque payload beside the job, and the language
/// binding that wrote it (a pickled function, a script and its arguments) is the one that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// Unique to the run; ranks see it as `TORCHELASTIC_RUN_ID`. 1-64 characters of `[A-Za-z0-9_-]`.
    pub id: String,
    /// For people: what is run, e.g. `train` or `train.py`.
    pub name: String,
    /// World size: how many ranks; in an elastic job how many at most.
    pub ranks: u32,
    /// How many tasks (nodes) the ranks are spread over; divides `ranks`.
    pub tasks: u32,
    /// Whether the ranks use GPUs; without, `CUDA_VISIBLE_DEVICES` is empty for them.
    pub use_gpu: bool,
    /// What counts as a node for the ranks' local numbers and their GPUs.
    pub local_ranks: LocalRanks,
    /// Deadlines and limits.
    pub policy: Policy,
    /// What is kept and shown of the ranks' output.
    pub logs: LogPolicy,
    /// Whether and from what ranks are forked.
    pub warm: WarmPolicy,
    /// Where the ranks' checkpoints are.
    pub checkpoint: CheckpointPolicy,
    /// What the number of a rank's threads follows from.
    pub cpus: CpuPolicy,
    /// What the folders are called that have the blocks of the run's data sets; empty for a run without.
    pub data_folder: String,
    /// Of which ranks the caller wants every report, beside what displays show.
    pub every_report: EveryReport,
}

/// Where the ranks' checkpoints are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPolicy {
    /// The folder, or the URI of one, that all hosts share; empty where none was named.
    pub directory: String,
    /// What tells this run's checkpoints there from those of others; empty for the name of what is run.
    pub name: String,
    /// Whose the checkpoints are; none where the name was given, since whoever gives it shares what has it.
    pub owner: Option<Owner>,
}

/// Deadlines and limits of a job. Durations are milliseconds on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How long tasks have to join, once Spark has started them.
    #[serde(with = "millis")]
    pub join_timeout: Duration,
    /// What the job's tasks are to Spark.
    pub gang: Gang,
    /// Whether executors have blocks of the run's data sets, which go with them.
    pub executor_blocks: bool,
    /// How the number of ranks may change.
    pub elastic: ElasticPolicy,
    /// How long a gang of tasks may take to gather, in place of `join_timeout`.
    #[serde(with = "millis")]
    pub gang_wait: Duration,
    /// How long the tasks of a host that failed twice wait as spares, in a gang of tasks; zero for never.
    #[serde(with = "millis")]
    pub host_cooldown: Duration,
    /// How long a stage may wait for slots that others hold; zero for ever.
    #[serde(with = "millis")]
    pub queue_timeout: Duration,
    /// How long a task tries to reach the hub directly.
    #[serde(with = "millis")]
    pub connect_timeout: Duration,
    /// The port at which the hub listens, or the first of some to try; 0 for any.
    pub hub_port: u32,
    /// Between SIGTERM and SIGKILL when ranks are ended.
    #[serde(with = "millis")]
    pub grace: Duration,
    /// A node that the hub hasn't heard of for this long is lost.
    #[serde(with = "millis")]
    pub node_timeout: Duration,
    /// A result of a rank other than 0 that is larger than this many bytes stays behind.
    pub max_other_result_bytes: u64,
    /// How often the ranks may be started again after a failure; the budget of the whole job, as torchrun's.
    pub max_restarts: u32,
    /// The kinds of failure after which they are.
    pub restart_on: Vec<FailureKind>,
    /// How often they may besides, since a host was to go; `None` for as often as that happens.
    pub max_preemptions: Option<u32>,
    /// The program that prints when the host of a node is to go; empty for none.
    pub notice_command: String,
    /// Ranks that make no progress for this long hang; zero for ever.
    #[serde(with = "millis")]
    pub hang_timeout: Duration,
    /// The port at which the store listens, or the first of some to try; 0 for any.
    pub store_port: u32,
    /// From where, besides the addresses of its hosts, the job's store takes connections.
    pub store_networks: Vec<Network>,
    /// Whether what nodes and ranks of different hosts send one another is encrypted.
    pub encryption: Encryption,
}

/// What is kept and shown of the ranks' output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPolicy {
    /// A rank's log keeps this much: beyond it, the older half is dropped, with a notice.
    pub max_file_bytes: u64,
    /// The live view skips ahead when it is this many bytes behind a rank's log file.
    pub max_live_lag_bytes: u64,
    /// How long a finished job waits for the live view to catch up.
    #[serde(with = "millis")]
    pub drain_timeout: Duration,
    /// Whether output is relayed to the driver at all.
    pub live: bool,
    /// Which of what is relayed is shown.
    pub shown: ShownOutput,
    /// What of it goes to the executor's own log.
    pub executor: ExecutorLog,
    /// The folder, or the URI of one, to which the logs are copied at the end; empty for none.
    pub directory: String,
}

/// What of the ranks' output goes to their executor's own log, which the platform collects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorLog {
    /// Nothing.
    Off,
    /// The last output of ranks that failed.
    Errors,
    /// The output of all ranks.
    All,
}

impl ExecutorLog {
    /// All of them, by name.
    pub const ALL: [(&'static str, ExecutorLog); 3] =
        [("off", ExecutorLog::Off), ("errors", ExecutorLog::Errors), ("all", ExecutorLog::All)];
}

/// Whether and from what ranks are forked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmPolicy {
    /// Whether ranks that are Python are forked from a process that has imported torch.
    pub enabled: bool,
    /// What that process imports besides torch, numpy and cloudpickle.
    pub imports: Vec<String>,
    /// It ends when it has had no job for so long.
    #[serde(with = "millis")]
    pub idle_timeout: Duration,
}

impl Default for WarmPolicy {
    fn default() -> Self {
        WarmPolicy { enabled: true, imports: Vec::new(), idle_timeout: Duration::from_secs(600) }
    }
}

impl Policy {
    /// How long tasks have to join, once Spark has started one of them.
    pub fn join_limit(&self) -> Duration {
        match self.gang {
            Gang::Barrier => self.join_timeout,
            Gang::Tasks => self.gang_wait,
        }
    }

    /// [`Policy::hub_port`] as a port.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such port.
    pub fn hub_port(&self) -> Result<u16> {
        port("spark.phalanx.hub.port", self.hub_port)
    }

    /// [`Policy::store_port`] as a port.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there is no such port.
    pub fn store_port(&self) -> Result<u16> {
        port("spark.phalanx.store.port", self.store_port)
    }
}

fn port(key: &str, number: u32) -> Result<u16> {
    let none =
        |_| Error::new(ErrorKind::Invalid, format!("{key} is {number}, but has to be a port, 0 to 65535"));
    u16::try_from(number).map_err(none)
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            join_timeout: Duration::from_secs(120),
            gang: Gang::default(),
            executor_blocks: false,
            elastic: ElasticPolicy::default(),
            gang_wait: Duration::from_secs(600),
            host_cooldown: Duration::from_secs(3600),
            queue_timeout: Duration::ZERO,
            connect_timeout: Duration::from_secs(3),
            hub_port: 0,
            grace: Duration::from_secs(30),
            node_timeout: Duration::from_secs(30),
            max_other_result_bytes: 64 << 20,
            max_restarts: 0,
            restart_on: vec![FailureKind::LostNode, FailureKind::Signal, FailureKind::Hang],
            max_preemptions: None,
            notice_command: String::new(),
            hang_timeout: Duration::ZERO,
            store_port: 0,
            store_networks: Vec::new(),
            encryption: Encryption::Off,
        }
    }
}

impl Default for LogPolicy {
    fn default() -> Self {
        LogPolicy {
            max_file_bytes: 1 << 30,
            max_live_lag_bytes: 64 << 20,
            drain_timeout: Duration::from_secs(10),
            live: true,
            shown: ShownOutput::Auto,
            executor: ExecutorLog::Errors,
            directory: String::new(),
        }
    }
}

impl Job {
    /// A job of `ranks` ranks over `tasks` tasks under the default policy.
    ///
    /// # Errors
    /// As [`Job::check`].
    pub fn new(id: impl Into<String>, name: impl Into<String>, ranks: u32, tasks: u32) -> Result<Job> {
        let job = Job {
            version: VERSION,
            id: id.into(),
            name: name.into(),
            ranks,
            tasks,
            use_gpu: false,
            local_ranks: LocalRanks::default(),
            policy: Policy::default(),
            logs: LogPolicy::default(),
            warm: WarmPolicy::default(),
            checkpoint: CheckpointPolicy::default(),
            cpus: CpuPolicy::default(),
            data_folder: String::new(),
            every_report: EveryReport::default(),
        };
        job.check()?;
        Ok(job)
    }

    /// How many ranks each task starts.
    pub fn ranks_per_task(&self) -> u32 {
        self.ranks / self.tasks.max(1)
    }

    /// The fewest tasks with which the job goes on; all of them unless it is elastic.
    pub fn least_tasks(&self) -> u32 {
        match self.policy.elastic.min_ranks {
            0 => self.tasks,
            ranks => ranks / self.ranks_per_task(),
        }
    }

    /// Whether the job may go on with fewer tasks than it asks for.
    pub fn is_elastic(&self) -> bool {
        self.least_tasks() < self.tasks
    }

    /// The name of the job's checkpoints: the one that was given, or what is run, as a folder can be called. Of a long
    /// one it is the beginning and a code of the whole, so that it differs from others that begin alike.
    pub fn checkpoint_name(&self) -> String {
        if !self.checkpoint.name.is_empty() {
            return self.checkpoint.name.clone();
        }
        let plain = |c: char| if c.is_alphanumeric() || "_-.".contains(c) { c } else { '_' };
        let name: String = self.name.chars().map(plain).collect();
        match name.trim_start_matches(['-', '.']) {
            "" => "run".into(),
            name if name.len() <= MAX_CHECKPOINT_NAME_BYTES => name.into(),
            name => {
                let code = Sha256::digest(&self.name);
                let code = format!("-{:02x}{:02x}{:02x}{:02x}", code[0], code[1], code[2], code[3]);
                let mut end = MAX_CHECKPOINT_NAME_BYTES - code.len();
                while !name.is_char_boundary(end) {
                    end -= 1;
                }
                format!("{}{code}", &name[..end])
            }
        }
    }

    /// The job as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`Job::to_json`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for another version, an unknown or missing field, or text that is no JSON;
    /// [`ErrorKind::Invalid`] as [`Job::check`].
    pub fn from_json(bytes: &[u8]) -> Result<Job> {
        let job: Job = serde_json::from_slice(bytes).map_err(|e| {
            Error::new(
                ErrorKind::Protocol,
                format!("can't decode the job (this Phalanx reads version {VERSION}): {e}"),
            )
        })?;
        job.check()?;
        Ok(job)
    }

    /// Whether the numbers fit together.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for another version, [`ErrorKind::Invalid`] for anything else.
    pub fn check(&self) -> Result<()> {
        let invalid = |why: String| Err(Error::new(ErrorKind::Invalid, why));
        check_version(self.version)?;
        let id_ok = (1..=64).contains(&self.id.len())
            && self.id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        if !id_ok {
            return invalid(format!("a job id is 1-64 letters, digits, '-' and '_', not {:?}", self.id));
        }
        if self.ranks == 0 || self.tasks == 0 {
            return invalid(format!("a job needs ranks and tasks, not {} and {}", self.ranks, self.tasks));
        }
        if !self.ranks.is_multiple_of(self.tasks) {
            return invalid(format!("{} ranks don't spread evenly over {} tasks", self.ranks, self.tasks));
        }
        self.check_elastic()?;
        self.policy.hub_port().and(self.policy.store_port()).map(drop)
    }
}

impl Job {
    /// Whether the fewest ranks fit to the others, and to the gang.
    fn check_elastic(&self) -> Result<()> {
        let (least, most, each) = (self.policy.elastic.min_ranks, self.ranks, self.ranks_per_task());
        let problem = if least > most {
            format!("the run can't go on with at least {least} ranks, since it has at most {most}")
        } else if !least.is_multiple_of(each) {
            format!("each task has {each} ranks, so the fewest ranks are a multiple of {each}, not {least}")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, problem))
    }
}

/// Whether this version reads what `version` wrote.
pub(crate) fn check_version(version: u32) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    let text = format!("the job has version {version}, but this Phalanx reads version {VERSION}");
    Err(Error::new(ErrorKind::Protocol, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_the_wire() {
        let job = Job::new("a1", "train", 8, 4).unwrap();
        assert_eq!(Job::from_json(&job.to_json()).unwrap(), job);
        assert_eq!(job.ranks_per_task(), 2);
    }

    #[test]
    fn every_report_is_of_no_rank_of_the_first_or_of_all() {
        let of = |told: &str| told.parse::<EveryReport>().map(|every| [every.is_of(0), every.is_of(7)]);
        assert_eq!(of("first").unwrap(), [true, false]);
        assert_eq!(of("all").unwrap(), [true, true]);
        assert_eq!([0, 7].map(|rank| EveryReport::None.is_of(rank)), [false, false]);
        assert_eq!(of("some").unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn an_unknown_field_is_an_error_that_names_it() {
        let mut json = serde_json::to_value(Job::new("a1", "t", 1, 1).unwrap()).unwrap();
        json["warp"] = 9.into();
        let error = Job::from_json(json.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("warp"), "TYPES-5: {error}");
    }

    #[test]
    fn another_version_is_refused_by_number() {
        let mut job = Job::new("a1", "t", 1, 1).unwrap();
        job.version = 7;
        let error = Job::from_json(&job.to_json()).unwrap_err();
        assert!(error.to_string().contains("version 7"), "TYPES-5: {error}");
    }

    #[test]
    fn checkpoints_of_long_names_that_begin_alike_are_told_apart() {
        let named = |name: &str| Job::new("a", name, 1, 1).unwrap().checkpoint_name();
        assert_eq!(named("train_digits"), "train_digits");
        assert_eq!(named("-.<lambda>"), "_lambda_");
        assert_eq!(named("--"), "run");
        assert_eq!(named(&"x".repeat(100)), "x".repeat(100));
        for letter in ["x", "ü", "語"] {
            let [one, other] = ["1", "2"].map(|end| named(&(letter.repeat(120) + end)));
            assert_ne!(one, other);
            assert!(one.starts_with(letter) && (98..=100).contains(&one.len()), "{one}");
        }
        let mut job = Job::new("a", "train", 1, 1).unwrap();
        job.checkpoint.name = "digits".into();
        assert_eq!(job.checkpoint_name(), "digits");
    }

    #[test]
    fn ranks_that_do_not_spread_evenly_are_refused() {
        assert_eq!(Job::new("a", "t", 5, 2).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Job::new("a", "t", 0, 1).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Job::new("a b", "t", 1, 1).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
