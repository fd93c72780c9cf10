//! The node's wing: a task joins the hub, starts its ranks through the guard, watches them, reports, and ends them.
//!
//! `run` is the loop, `machine` decides, `effects` acts. What these share lies below them: `options` (the node's
//! orders), `line` (to the hub), `helper` (threads for what takes time), `rank`, `evidence` (how a rank ended).

pub(crate) mod address;
mod blocks;
pub(crate) mod callbacks;
mod effects;
pub mod environment;
mod evidence;
mod executor_log;
mod files;
mod followed_log;
mod guardian;
mod helper;
pub(crate) mod home;
mod kept;
pub(crate) mod line;
mod log_directory;
mod machine;
mod mailbox;
mod metrics;
mod news;
pub(crate) mod options;
mod pieces;
mod prepared;
pub(crate) mod process;
mod program;
mod progress;
mod rank;
mod relay;
mod results;
mod run;
mod stacks;
mod store;
mod threads;
mod warm;

pub use callbacks::NodeCallbacks;
pub(crate) use environment::KEPT;
pub use home::Home;
pub use line::Way;
pub use log_directory::{logs_folder, logs_uri};
pub(crate) use options::own_variable;
pub use options::{Here, Payload};
pub use run::run_node;
pub use warm::prestart_pool;
