//! The node's wing: a task joins the hub, starts its ranks through the guard, watches them, reports, and ends them.
//!
//! `run` composes the rest. What several files share lies below them: `options` (the node's orders), `attempt` (the
//! data of one attempt), `line` (to the hub), `ranks` and `progress` (what became of a rank).

mod attempt;
mod blocks;
mod callbacks;
mod carrier;
mod disk;
pub mod environment;
mod executor_log;
mod files;
mod finish;
mod followed_log;
mod home;
mod join;
mod launch;
mod line;
mod log_directory;
mod mailbox;
mod metrics;
mod options;
mod pieces;
mod process;
mod program;
mod progress;
mod ranks;
mod relay;
mod results;
mod run;
mod stacks;
mod store;
mod threads;
mod warm;
mod watch;

pub use callbacks::NodeCallbacks;
pub use carrier::run_carrier;
pub(crate) use environment::KEPT;
pub use home::Home;
pub use line::Way;
pub use log_directory::{logs_folder, logs_uri};
pub(crate) use options::own_variable;
pub use options::{Here, Payload};
pub use run::run_node;
pub use warm::prestart_pool;
