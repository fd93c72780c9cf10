//! What is made before ranks start: files, a guard, the store, what serves blocks.

pub(crate) mod blocks;
pub(crate) mod files;
pub(crate) mod prepared;
pub(crate) mod store;
pub(crate) mod warm;
