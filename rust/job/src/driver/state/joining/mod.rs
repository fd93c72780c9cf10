//! Tasks join: when an attempt begins, with how many, and when an elastic job takes more.

mod join_clock;
mod joins;
mod resizing;
mod sizes;

pub(super) use join_clock::JoinClock;
pub use join_clock::StageLook;
pub(super) use sizes::Sizes;
