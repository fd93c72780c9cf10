//! What is shown of a run: its history so far, and snapshots of it.

mod history;
mod losses;
mod newest_lines;
mod restarts;
mod snapshots;
mod timeline;

pub(super) use history::History;
pub(super) use snapshots::PATIENCE;
pub use snapshots::Snapshots;
