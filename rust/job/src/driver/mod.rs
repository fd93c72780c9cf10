//! The driver's wing: one job's hub, its state machine, and what the caller sees of the ranks' output.

mod endpoint;
mod event;
mod event_queue;
mod handler;
mod host_memory;
mod hub;
mod present;
mod reads;
mod results;
pub mod state;
mod view;
mod waiting_reports;

pub use endpoint::{Endpoint, is_own_host};
pub use event::{Event, MAX_WAITING_OUTPUT_BYTES};
pub use host_memory::hosts_in_cooldown;
pub use hub::{Hub, HubOptions, StacksAnswer};
pub use reads::PieceAnswer;
pub use state::StageLook;
pub use view::Snapshots;
