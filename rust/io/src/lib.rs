//! I/O that several crates share, each thing once: passing descriptors between processes, frames with their length in
//! front, TLS, files that are whole or absent, connecting by a deadline, accepting what waits, connections that have
//! yet to prove themselves, whose process a peer is, what is said of those who are refused, limits of the system, and
//! the host's monotonic clock.
//!
//! It owns nothing that lasts: no thread, no socket, no state of a process.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod backlog;
mod clock;
mod descriptors;
mod files;
mod frames;
mod limits;
mod own_user;
mod refusals;
mod tls;
mod unproved;
mod waits;

pub use backlog::Backlog;
pub use clock::{instant_of, monotonic, monotonic_ns, monotonic_us};
pub use descriptors::{MAX_DESCRIPTORS, Received, receive_with_descriptors, send_with_descriptors};
pub use files::{copy_whole, write_whole};
pub use frames::{FrameBuffer, split_frame, write_frame};
pub use limits::{raise_descriptor_limit, widen_backlog};
pub use own_user::{check_own_user, check_owners_are_told};
pub use refusals::Refusals;
pub use tls::{Identity, PublicKey, TlsChannel, TlsServer};
pub use unproved::Unproved;
pub use waits::{connect, connect_unless, connect_unless_refused, pause};
