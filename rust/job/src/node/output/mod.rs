//! What ranks write, on its way from their logs to the driver, the executor's log and a folder.

pub(crate) mod executor_log;
pub(crate) mod followed_log;
pub(crate) mod log_directory;
pub(crate) mod relay;
