//! A node's control connection to the hub, the thread that reads it, and how often a node says that it is there.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use phalanx_rendezvous::Sender;
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Deadline, Error, Policy, Result};

use crate::node::route::HubRoute;

/// How long one message to the hub may take.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a node tells the hub that it is there, at the least.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How often a blocking call looks whether its caller wants to end it.
pub(crate) const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// How often a node tells the hub that it is there: several times before it would count as lost.
pub(crate) fn ping_every(policy: &Policy) -> Duration {
    (policy.node_timeout / 4).clamp(INTERRUPT_EVERY, PING_EVERY)
}

/// One connection, from its handshake to its end.
pub(crate) struct Control {
    sender: Sender,
    pub(crate) inbox: Receiver<HubMessage>,
    heard: Arc<Mutex<Instant>>,
    reader: Option<JoinHandle<()>>,
    /// This host's address on the way to the hub, where that is direct.
    pub(crate) local_address: Option<IpAddr>,
}

impl Control {
    pub(crate) fn open(hub: &HubRoute, partition: u32, attempt: u32, deadline: Deadline) -> Result<Control> {
        let mut connection = hub.open(Role::Control { partition, attempt }, deadline)?;
        let sender = connection.sender();
        let local_address = connection.local_address().filter(|_| !hub.is_through_tunnel());
        let (tx, inbox) = crossbeam_channel::unbounded();
        let heard = Arc::new(Mutex::new(Instant::now()));
        let hears = Arc::clone(&heard);
        let reader = std::thread::Builder::new()
            .name("phalanx-control".into())
            .spawn(move || {
                // The channel closes with the connection: that is how the node hears of it.
                while let Ok(message) = connection.receive(Deadline::never()) {
                    *hears.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                    if tx.send(message).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("start a thread for the hub's orders", &e))?;
        Ok(Control { sender, inbox, heard, reader: Some(reader), local_address })
    }

    /// Sends one message. What can't be sent ends the connection: part of it may be out.
    pub(crate) fn send(&mut self, message: &NodeMessage) {
        if let Err(e) = self.sender.send(message, Deadline::after(SEND_TIMEOUT)) {
            log::warn!("{e}");
            self.sender.close();
        }
    }

    /// Whether the connection has ended, and all that came over it was taken.
    pub(crate) fn is_over(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished) && self.inbox.is_empty()
    }

    /// When the hub last said something.
    pub(crate) fn heard(&self) -> Instant {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.sender.close();
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            log::error!("the thread that reads the hub's orders panicked");
        }
    }
}
