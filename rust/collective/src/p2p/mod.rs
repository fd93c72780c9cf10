//! Point to point: messages with tags from one rank to another, through shared memory or TCP.
//!
//! - GROUP-61 (in-order): messages from one rank with one tag are received in the order in which they were sent.
//! - GROUP-62 (never-waits): sending never waits for the receiver to ask, so two ranks can send to each other first.
//! - GROUP-63 (progress): a rank that waits in any operation of the group also moves messages.
//! - GROUP-64 (beside): no message waits for an operation, and no operation for a message. A thread can send and
//!   receive while another is in a collective.
//! - GROUP-65 (delivered): what a rank sent before it left is received, however late it is asked for (GROUP-41).
//! - GROUP-66 (not-awaited): from a rank that has left, and to it, no message is waited for: the call fails at once,
//!   also one that waits already, once all that it had sent was received. The group stays usable. Messages with the
//!   other ranks go on.
//! - GROUP-67 (asleep): who waits for a message sleeps until something happens ([`crate::bell`]).

pub(crate) mod mailbox;
pub(crate) mod messenger;
pub(crate) mod pipe;
mod send_recv;
pub(crate) mod unsent;
