//! Which nodes are here and where: the hub that the nodes of a job join, the c10d store at which its ranks meet, the
//! blocks of data sets that they fetch from one another's hosts, and the interfaces that lead from one host to another.
//!
//! It owns sockets, and one thread for each server. It starts no process and knows no training code.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod arrival;
pub mod blocks;
pub mod client;
mod clock;
pub mod connection;
mod event_loop;
#[doc(hidden)]
pub mod fuzz;
pub mod handler;
pub mod hub_server;
pub mod interfaces;
mod listener;
mod result_writer;
mod secure;
mod spare;
pub mod store;
mod unsent;
pub mod wire;

pub use client::{HubAddress, HubConnection, Sender};
pub use handler::{Arriving, Handler, Opening, Outbox, Seat};
pub use hub_server::{HubServer, HubServerOptions};
pub use listener::listen_at;
pub use wire::Token;
