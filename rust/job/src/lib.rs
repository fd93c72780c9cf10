//! The two ends of one job: the driver's (`driver`) and a node's (`node`), composed of rendezvous and supervisor.
//!
//! Every language binding calls these two, and holds no logic of its own.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod carrier;
pub mod console;
mod dedup;
pub mod driver;
#[doc(hidden)]
pub mod fuzz;
mod log_queue;
mod log_tail;
mod metric;
pub mod node;
pub mod page;
pub mod preflight;
mod rate_limit;
pub mod settings;
mod units;
mod variables;

pub use carrier::run_carrier;
pub use driver::{
    Endpoint, Event, Hub, HubOptions, PieceAnswer, Snapshots, StacksAnswer, StageLook, hosts_in_cooldown,
    is_own_host,
};
pub use log_queue::{collect_logs, take_logs};
pub use log_tail::LogTails;
pub use metric::{Metric, MetricChange, MetricKind, MetricSource};
pub use node::{Here, Home, NodeCallbacks, Payload, Way, logs_folder, logs_uri, prestart_pool, run_node};
pub use phalanx_supervisor::warm_pool::{Usage as PoolUsage, end_kept, end_pools, pool_usage};
pub use phalanx_supervisor::{RankWords, serve_forked, use_huge_pages};
pub use settings::Settings;
pub use variables::rank_variables;
