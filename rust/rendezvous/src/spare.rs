//! A connection whose task has no seat.
//!
//! HUB-22 (spares-wait): a spare has answers to its pings, and to the word that it leaves. What it tells besides waits
//! until it gets its seat, and the handler hears it then.

use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Error, ErrorKind, Result, SparkTask};

/// A node that waits tells that it joins, and perhaps that it leaves. One that tells more than this is none of ours.
const MAX_TOLD: usize = 16;

/// A connection whose task has no seat.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) partition: u32,
    pub(crate) attempt: Attempt,
    pub(crate) task: SparkTask,
    /// What the handler has yet to hear.
    pub(crate) told: Vec<NodeMessage>,
    /// Whether it was told that there is nothing to wait for.
    pub(crate) is_over: bool,
}

impl Spare {
    /// Takes what it says; the answer.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if it tells more than one that waits has to tell.
    pub(crate) fn hear(&mut self, message: NodeMessage) -> Result<Option<HubMessage>> {
        match message {
            NodeMessage::Ping => Ok(Some(HubMessage::Pong)),
            NodeMessage::Done { .. } => {
                self.is_over = true;
                Ok(Some(HubMessage::Released))
            }
            _ if self.told.len() == MAX_TOLD => {
                Err(Error::new(ErrorKind::Protocol, "a task without a seat tells too much"))
            }
            told => {
                self.told.push(told);
                Ok(None)
            }
        }
    }
}
