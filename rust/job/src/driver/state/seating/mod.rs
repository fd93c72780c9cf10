//! Tasks come for the seats of partitions: who has one, and whose host failed so often that it waits.

mod arrivals;
mod bad_hosts;
mod cooldown;
mod seats;

pub use bad_hosts::BadHosts;
pub(super) use bad_hosts::Cooldown;
pub(super) use seats::Seats;
