//! One job's two ends: the driver's (`driver`) and a node's (`node`), composed of rendezvous and supervisor.
//!
//! Every language binding calls these two and holds no logic of its own.
#![forbid(unsafe_code)]

mod activity;
mod board;
mod control;
pub mod course;
pub mod driver;
pub mod environment;
mod facts;
mod folder;
mod gather;
mod guarding;
mod host;
mod link;
pub mod live;
mod log_queue;
mod meter;
pub mod node;
mod parting;
mod ranks;
mod recent;
mod relay;
mod results;
pub mod settings;

pub use driver::{DriverJob, DriverOptions, Event, StacksAnswer};
pub use guarding::prestart_pool;
pub use host::{NodeHost, Observation};
pub use log_queue::{collect_logs, take_logs};
pub use node::{NodeOptions, run_node};
pub use phalanx_supervisor::pool::{Usage as PoolUsage, end_pools, pool_usage};
pub use phalanx_supervisor::{serve_forked, use_huge_pages};
pub use settings::Settings;
