//! Who is here and where: the hub that the nodes of a job join, the c10d store that its ranks meet at, and the
//! interfaces that lead from one host to another.
//!
//! Owns sockets and one thread a server; starts no process and knows no training code.
#![forbid(unsafe_code)]

pub mod client;
mod clock;
pub mod connection;
pub mod handler;
pub mod hub;
pub mod interfaces;
mod listening;
pub mod store;
pub mod wire;

pub use client::{HubAddress, HubConnection, Sender};
pub use handler::{Handler, Outbox};
pub use hub::{Hub, HubOptions};
pub use wire::Token;
