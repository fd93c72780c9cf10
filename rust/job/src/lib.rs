//! One job's two ends: the driver's (`driver`) and a node's (`node`), composed of rendezvous and supervisor.
//!
//! Every language binding calls these two and holds no logic of its own.
#![forbid(unsafe_code)]

pub mod course;
pub mod driver;
pub mod environment;
mod facts;
mod folder;
mod gather;
pub mod live;
pub mod node;
mod ranks;
mod relay;
mod results;

pub use driver::{DriverJob, DriverOptions, Event};
pub use node::{NodeHost, NodeOptions, run_node};
