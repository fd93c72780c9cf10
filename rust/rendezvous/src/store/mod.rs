//! The c10d store: what `torch.distributed.TCPStore` talks to, server and client.
//!
//! It owns one listening socket, one thread and the keys. It speaks the wire protocol of PyTorch's libuv TCPStore
//! server (`torch/csrc/distributed/c10d/TCPStore*.cpp`, checked against torch 2.13), all nineteen query types.
//!
//! - STORE-5 (no-names): no name look-up ever happens; a peer is its address.
//! - STORE-6 (isolation): no client can stop the others: not by silence, garbage, half a request, or by never reading.
//! - STORE-7 (one-answer): every wait gets at most one answer, and a waiter costs only the keys it waits for.
//! - STORE-8 (clean-stop): after `stop` returns, the thread has ended and the port is free.
//! - STORE-9 (refusal-told): a peer that may not connect is told the address that it comes from, which proxies and
//!   address translation change, before it is let go.
//! - STORE-10 (nodes-only): a store that encrypts is reached from other hosts by nodes that have proved that they know
//!   the generation's key, over TLS, and inside its own host by processes of its own user. Nobody else is served.
//!
//! The server answers as torch's does. This module's tests and `tests/contract/test_store.py` check it. It departs on
//! purpose where torch's server has a fault that a client can only suffer from:
//! - a connection that doesn't begin with the right magic is closed; torch's leaves it open and silent;
//! - a connection from elsewhere hears why it is closed; torch's server takes everybody;
//! - `COMPARE_SET` that stores nothing wakes nobody; torch's wakes waiters although the key is still missing;
//! - `WAIT` for several keys counts a non-empty queue among them as there; torch's waits for another push to it;
//! - a second `WAIT` before the first is answered is a wait of its own; torch's forgets the first.
//!
//! `protocol` turns bytes into requests, `state` holds keys and queues, `waits` holds who waits for them. `machine`
//! joins these for many clients without any I/O, and is driven by tests and the fuzzer. `server` adds sockets, of those
//! whom `admits` lets in; `entrance` leads ranks there from another host. What waits for a client is `replies`.

mod admits;
mod client;
mod entrance;
#[doc(hidden)]
pub mod fuzz;
mod machine;
#[cfg(test)]
mod model;
#[doc(hidden)]
pub mod protocol;
mod replies;
mod server;
mod state;
mod waits;

/// What nodes speak above TLS.
pub(crate) const PROTOCOL: &str = "phalanx-store/1";

pub use client::StoreClient;
pub use entrance::StoreEntrance;
pub use server::StoreServer;
