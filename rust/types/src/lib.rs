//! The plain data that every other crate shares: what a job is, where its ranks go, how it ends, and what the
//! driver and the nodes say to each other.
//!
//! It owns no socket, thread, file or process. Everything that crosses a process boundary is a serde type that refuses
//! unknown fields, so two versions that meet say so instead of guessing.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod attempt;
pub mod carrier;
pub mod contract;
pub mod cpu_policy;
pub mod deadline;
pub mod elastic;
pub mod encryption;
pub mod error;
pub mod every_report;
pub mod failure;
pub mod failure_kind;
pub mod gang;
pub mod generation;
pub mod job;
pub mod keys;
pub mod local_ranks;
pub mod message;
mod millis;
pub mod network;
pub mod node_spec;
pub mod notice;
pub mod owner;
pub mod placement;
pub mod rank_exit;
pub mod rank_file;
pub mod rank_outcome;
pub mod run_snapshot;
pub mod shown_output;
pub mod spark_task;
pub mod stacks;
pub mod text;

pub use attempt::Attempt;
pub use carrier::Carrier;
pub use contract::{RankNews, RankNote};
pub use cpu_policy::CpuPolicy;
pub use deadline::Deadline;
pub use elastic::ElasticPolicy;
pub use encryption::Encryption;
pub use error::{Error, ErrorClass, ErrorKind, Result, panic_text};
pub use every_report::EveryReport;
pub use failure::Failure;
pub use failure_kind::FailureKind;
pub use gang::Gang;
pub use generation::Generation;
pub use job::{CheckpointPolicy, ExecutorLog, Job, LogPolicy, MAX_CHECKPOINT_NAME_BYTES, Policy, WarmPolicy};
pub use keys::Key;
pub use local_ranks::LocalRanks;
pub use network::Network;
pub use node_spec::{NodeSpec, RankProgram};
pub use notice::{Notice, RankNotice};
pub use owner::{Owner, OwnerKind};
pub use placement::{Join, NodePlacement, Placement, RankPlace, place};
pub use rank_exit::{RankError, RankErrorKind, RankExit, RankState};
pub use rank_outcome::RankOutcome;
pub use run_snapshot::RunSnapshot;
pub use shown_output::ShownOutput;
pub use spark_task::{SparkTask, host_digest};
