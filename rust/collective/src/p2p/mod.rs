//! Point to point: messages with tags from one rank to another, through shared memory or TCP.
//!
//! - SEND-1 (in-order): messages from one rank with one tag are received in the order in which they were sent.
//! - SEND-2 (never-waits): sending never waits for the receiver to ask, so two ranks can send to each other first.
//! - SEND-3 (progress): a rank that waits in any operation of the group also moves messages.
//! - SEND-4 (beside): no message waits for an operation, and no operation for a message. A thread can send and receive
//!   while another is in a collective.

pub(crate) mod mailbox;
pub(crate) mod messenger;
pub(crate) mod pipe;
mod send_recv;
