//! What the driver watches while ranks run: that nodes speak, that ranks do something, and which of them are slow.

mod hang;
mod silence;
mod stacks;
mod straggler;

pub(super) use stacks::StackRequests;
pub(super) use straggler::Stragglers;
