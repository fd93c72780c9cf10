//! The node's wing: a task joins the hub, starts its ranks through the guard, watches them, reports, and ends them.
//!
//! `run` is the loop, `machine` decides, `effects` acts. What these share lies below them: `options` (the node's
//! orders), `line` (to the hub), `setup` (before ranks start), `rank`, `output`, `helpers` (for what takes time).

pub(crate) mod address;
pub(crate) mod callbacks;
mod effects;
mod helpers;
pub(crate) mod home;
mod kept;
pub(crate) mod line;
mod machine;
mod metrics;
mod news;
pub(crate) mod options;
mod output;
pub(crate) mod process;
mod rank;
mod run;
mod setup;

pub use callbacks::NodeCallbacks;
pub use home::Home;
pub use line::Way;
pub(crate) use options::own_variable;
pub use options::{Here, Payload};
pub use output::log_directory::{logs_folder, logs_uri};
pub(crate) use rank::environment::KEPT;
pub use run::run_node;
pub use setup::warm::prestart_pool;
