//! A node's control connection to the hub, and the thread that reads it.

use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Receiver;
use phalanx_rendezvous::Sender;
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Deadline, Error, Result};

use crate::node::line::limits::SEND_TIMEOUT;
use crate::node::line::ways::Ways;

/// One connection, from its handshake to its end.
pub(super) struct Control {
    sender: Sender,
    inbox: Receiver<HubMessage>,
    heard: Arc<Mutex<Instant>>,
    reader: Option<JoinHandle<()>>,
    /// This host's address on the way to the hub, where that is direct.
    pub(super) local_address: Option<IpAddr>,
}

impl Control {
    /// Connects by the way that is taken, unless `stop` is set.
    pub(super) fn open(ways: &Ways, role: Role, deadline: Deadline, stop: &AtomicBool) -> Result<Control> {
        let mut connection = ways.open(stop, role, deadline)?;
        let sender = connection.sender();
        let local_address = connection.local_address().filter(|_| ways.is_direct());
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
    pub(super) fn send(&mut self, message: &NodeMessage) {
        if let Err(e) = self.sender.send(message, Deadline::after(SEND_TIMEOUT)) {
            log::warn!("{e}");
            self.sender.close();
        }
    }

    /// The hub's orders; closed when the connection has ended.
    pub(super) fn orders(&self) -> &Receiver<HubMessage> {
        &self.inbox
    }

    /// When the hub last said something.
    pub(super) fn heard(&self) -> Instant {
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
