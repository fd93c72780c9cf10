//! What is decided before a run's ranks start, and why a stage failed: once, for every language.
//!
//! A language asks Spark (settings, resources, slots) and passes on the answers. A function here returns a
//! decision and its reason. Nothing here does I/O, logs or waits: the time is an argument, and what is to be logged is
//! part of the answer. Only the leases of GPUs are kept, as one list in a process.
//!
//! JOB-15 (slots-by-deadline): a run that can't get its slots fails here, by a deadline, and not in Spark's silent
//! retries: Spark retries a barrier stage that lacks slots every 15 s for ten minutes.
//! JOB-16 (one-table): every language refuses the same, in the same words and by the same kind.
//! `tests/contract/checks.json` has the cases, and the tests of all languages run them.
//! JOB-17 (any-address): an address is whatever Spark's discovery gave: an index, or the UUID of a GPU or a MIG
//! instance.
//! JOB-18 (disjoint-runs): runs on the driver that are under way at the same time have no GPU in common.

mod arguments;
mod cluster;
mod conf;
mod encryption;
mod gang;
mod gpus;
mod lease;
mod profile;
mod slots;
mod stage_failure;
mod task_size;

pub use arguments::{Found, TrainObject, check_train_object, num_processes};
pub use cluster::may_start;
pub use conf::Conf;
pub use encryption::{ENCRYPTION_KEYS, EncryptionWish, SSL_OVERRIDE};
pub(crate) use encryption::{encryption, ignores_ssl};
pub use gang::GANG_KEYS;
pub(crate) use gang::{gang, has_executor_blocks};
pub use gpus::{PLAN_KEYS, Plan, Wish, plan};
pub use lease::{DriverGpus, Lease, TaskGpus, release};
pub use profile::{OwnExecutors, PROFILE_KEYS, Profile, ProfileNeed, profile};
pub use slots::{SLOT_KEYS, SlotNeed, Slots, look, look_before_restart, most_slots};
pub use stage_failure::{Said, StageFailure, explain, names_lost_executor};
pub use task_size::{CORES_KEYS, executor_cores};
