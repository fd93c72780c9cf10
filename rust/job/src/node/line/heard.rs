//! What a line tells its node.

use std::net::IpAddr;

use phalanx_types::Error;
use phalanx_types::message::HubMessage;

/// One piece of it.
#[derive(Debug, Clone)]
pub(crate) enum Heard {
    /// It is up, for the first time. With this host's address on the way to the hub, where that is direct.
    Up(Option<IpAddr>),
    /// It never will be. The last thing that is heard.
    NotUp(Error),
    /// The hub orders this.
    Order(HubMessage),
    /// It is another one than before: the node's other connections may be dead.
    Renewed,
    /// The hub is gone for good, for this reason. The last thing that is heard.
    Gone(String),
}

/// Takes what is heard; waits for nothing.
pub(crate) type Ear = Box<dyn Fn(Heard) + Send>;
