//! The c10d store: what `torch.distributed.TCPStore` talks to, server and client.
//!
//! Owns one listening socket, one thread and the keys. Speaks the wire protocol of PyTorch's libuv TCPStore server
//! (`torch/csrc/distributed/c10d/TCPStore*.cpp`, checked against torch 2.13), all nineteen query types.
//!
//! STORE-1: no name look-up ever happens; a peer is its address.
//! STORE-2: no client can stop the others: not by silence, garbage, half a request, or by never reading.
//! STORE-3: every wait gets at most one answer, and a waiter costs only the keys it waits for.
//! STORE-4: after `stop` returns, the thread has ended and the port is free.
//!
//! The server answers as torch's does, which this module's tests and `tests/contract/test_store.py` check. It
//! deliberately departs where torch's server has a fault that a client can only suffer from:
//! - a connection that doesn't begin with the right magic is closed; torch's leaves it open and silent;
//! - `COMPARE_SET` that stores nothing wakes nobody; torch's wakes waiters although the key is still missing;
//! - `WAIT` for several keys counts a non-empty queue among them as there; torch's waits for another push to it;
//! - a second `WAIT` before the first is answered is a wait of its own; torch's forgets the first.
//!
//! `protocol` turns bytes into requests, `state` holds keys and queues, `waits` who waits for them, `machine` joins
//! these for many clients without any I/O (tests and the fuzzer drive it), `server` adds sockets.

mod client;
#[doc(hidden)]
pub mod fuzz;
mod machine;
#[cfg(test)]
mod model;
#[doc(hidden)]
pub mod protocol;
mod server;
mod state;
mod waits;

pub use client::StoreClient;
pub use server::StoreServer;
