//! Threads for what takes time, so that the node's own thread waits for nothing. Each comes back with an event.

pub(crate) mod guardian;
pub(crate) mod helper;
pub(crate) mod notice_command;
pub(crate) mod pieces;
pub(crate) mod results;
pub(crate) mod stacks;
