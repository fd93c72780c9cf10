//! What one `run()` is: immutable, made at the driver, carried to every node as JSON.
//!
//! JOB-1: a job of another version, or with a field this version doesn't know, is refused with an error that names it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::failure::FailureKind;

/// The version of [`Job`] and of the messages between hub and nodes.
pub const VERSION: u32 = 1;

/// One training run: how many ranks, over how many tasks, under which policy.
///
/// What the ranks execute is not in here: a node gets it as an opaque payload beside the job, and the language
/// binding that wrote it (a pickled function, a script and its arguments) is the one that reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// Unique to the run; ranks see it as `TORCHELASTIC_RUN_ID`. 1-64 characters of `[A-Za-z0-9_-]`.
    pub id: String,
    /// For people: what is run, e.g. `train` or `train.py`.
    pub name: String,
    /// World size: how many ranks.
    pub ranks: u32,
    /// How many tasks (supervisors) the ranks are spread over; divides `ranks`.
    pub tasks: u32,
    /// Whether the ranks use GPUs; without, `CUDA_VISIBLE_DEVICES` is empty for them.
    pub use_gpu: bool,
    /// Deadlines and limits.
    pub policy: Policy,
    /// What is kept and shown of the ranks' output.
    pub logs: LogPolicy,
    /// Whether and from what ranks are forked.
    pub warm: WarmPolicy,
}

/// Deadlines and limits of a job. Durations are milliseconds on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// How long after the hub opened every task must have joined.
    #[serde(with = "millis")]
    pub join_timeout: Duration,
    /// How long a task tries to reach the hub before it takes the fallback.
    #[serde(with = "millis")]
    pub connect_timeout: Duration,
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
    /// Ranks that make no progress for this long hang; zero for ever.
    #[serde(with = "millis")]
    pub hang_timeout: Duration,
}

/// What is kept and shown of the ranks' output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
}

/// Whether and from what ranks are forked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

impl Default for Policy {
    fn default() -> Self {
        Policy {
            join_timeout: Duration::from_secs(120),
            connect_timeout: Duration::from_secs(3),
            grace: Duration::from_secs(30),
            node_timeout: Duration::from_secs(30),
            max_other_result_bytes: 64 << 20,
            max_restarts: 0,
            restart_on: vec![FailureKind::LostNode, FailureKind::Signal, FailureKind::Hang],
            hang_timeout: Duration::ZERO,
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
            policy: Policy::default(),
            logs: LogPolicy::default(),
            warm: WarmPolicy::default(),
        };
        job.check()?;
        Ok(job)
    }

    /// How many ranks each task starts.
    pub fn ranks_per_task(&self) -> u32 {
        self.ranks / self.tasks.max(1)
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
            Error::new(ErrorKind::Protocol, format!("this is no job of version {VERSION}: {e}"))
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
        if self.version != VERSION {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("the job is of version {}, this Phalanx reads version {VERSION}", self.version),
            ));
        }
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
        Ok(())
    }
}

/// serde for durations as whole milliseconds.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(d: &Duration, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
        u64::deserialize(d).map(Duration::from_millis)
    }
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
    fn an_unknown_field_is_an_error_that_names_it() {
        let mut json: serde_json::Value =
            serde_json::from_slice(&Job::new("a1", "t", 1, 1).unwrap().to_json()).unwrap();
        json["warp"] = 9.into();
        let error = Job::from_json(json.to_string().as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("warp"), "{error}");
    }

    #[test]
    fn another_version_is_refused_by_number() {
        let mut job = Job::new("a1", "t", 1, 1).unwrap();
        job.version = 7;
        let error = Job::from_json(&job.to_json()).unwrap_err();
        assert!(error.to_string().contains("version 7"), "{error}");
    }

    #[test]
    fn ranks_that_do_not_spread_evenly_are_refused() {
        assert_eq!(Job::new("a", "t", 5, 2).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Job::new("a", "t", 0, 1).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(Job::new("a b", "t", 1, 1).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
