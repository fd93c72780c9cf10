//! What comes to a node's own thread: events, and what helpers made.

use phalanx_supervisor::Guard;
use phalanx_types::{Join, Result};

use crate::node::kept::Kept;
use crate::node::machine::Event;
use crate::node::setup::blocks::NodeBlocks;
use crate::node::setup::prepared::Prepared;
use crate::node::setup::store::StoreSocket;

/// One piece of news.
pub(crate) enum News {
    /// This happened.
    Event(Event),
    /// The node listens for the store, and this is what the hub is to know of it.
    Located(Result<(Box<Join>, StoreSocket)>),
    /// The files that ranks begin with are made, or can't be. What the node keeps is back.
    Made(Option<Box<Kept>>, Result<Box<Made>>),
    /// The ranks' guard is there, or can't be.
    Guarded(Result<Guard>),
    /// This rank has told something.
    Noted(u32),
}

/// What is made before ranks start.
pub(crate) struct Made {
    pub(crate) prepared: Prepared,
    /// What the ranks read of other hosts, where the run has data sets.
    pub(crate) blocks: Option<NodeBlocks>,
}
