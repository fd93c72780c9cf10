//! The thread of a line: it connects, then writes and hears until the node is over or the hub is given up.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, select};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Result};

use crate::node::line::connecting::{Caller, is_final};
use crate::node::line::control::Control;
use crate::node::line::facts::{Fact, aged, fits};
use crate::node::line::limits::{HUB_GRACE, ping_every};
use crate::node::process::INTERRUPT_EVERY;

/// What the node wants of its line.
pub(super) enum Ask {
    /// Tell this, and again over each new connection.
    Tell { at: Instant, message: NodeMessage },
    /// Tell this once, if the line is up.
    Send(NodeMessage),
    /// Forget what was to be told again.
    Forget,
}

/// What the thread has.
pub(super) struct Keeper {
    pub(super) caller: Caller,
    pub(super) asks: Receiver<Ask>,
    pub(super) orders: Sender<HubMessage>,
    pub(super) renewals: Sender<()>,
    pub(super) given_up: Arc<OnceLock<String>>,
    pub(super) facts: Vec<Fact>,
    pub(super) ping_at: Instant,
}

/// A node whose line has panicked is told so: else it would wait for orders that nobody brings.
impl Drop for Keeper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.given_up.set("the thread of the line to the driver failed".into());
        }
    }
}

/// Why a connection is served no more.
enum Served {
    /// The node is over.
    Over,
    /// It is to be mended until then.
    Broken(Instant),
}

impl Keeper {
    /// Connects, says so to `connected` with this host's address on a direct way, and serves the line to its end.
    pub(super) fn run(mut self, connected: &Sender<Result<Option<IpAddr>>>) {
        let mut control = match self.caller.first_connection() {
            Ok(control) => control,
            // A node that was interrupted doesn't listen any more.
            Err(e) => return drop(connected.send(Err(e))),
        };
        let _ = connected.send(Ok(control.local_address));
        while let Served::Broken(until) = self.serve(&mut control) {
            match self.mend(until) {
                Ok(Some(mended)) => control = mended,
                Ok(None) => return,
                Err(why) => {
                    let _ = self.given_up.set(format!("the driver is gone: {why}"));
                    return;
                }
            }
            let facts = self.facts.iter().map(|fact| aged(&fact.message, fact.at));
            for message in facts.chain([NodeMessage::Ping]) {
                control.send(&message);
            }
            let _ = self.renewals.send(());
        }
    }

    fn serve(&mut self, control: &mut Control) -> Served {
        loop {
            let now = Instant::now();
            if now >= self.ping_at {
                self.ping_at = now + ping_every(&self.caller.policy);
                control.send(&NodeMessage::Ping);
            }
            let heard = control.heard();
            let silent_at = heard + self.caller.policy.node_timeout / 2;
            if now > silent_at {
                let until = now.max(heard + self.caller.policy.node_timeout) + HUB_GRACE;
                return self.broke("the driver doesn't answer", until);
            }
            let (asks, orders) = (&self.asks, control.orders());
            let due = self.ping_at.min(silent_at).saturating_duration_since(Instant::now());
            select! {
                recv(asks) -> ask => match ask {
                    Ok(ask) => self.take(ask, Some(control)),
                    Err(_) => return Served::Over,
                },
                recv(orders) -> order => match order {
                    // A node that is over takes none.
                    Ok(order) => drop(self.orders.send(order)),
                    Err(_) => {
                        return self.broke("the connection to the driver broke", Instant::now() + HUB_GRACE);
                    }
                },
                default(due.max(INTERRUPT_EVERY / 50)) => {}
            }
        }
    }

    fn broke(&self, how: &str, until: Instant) -> Served {
        log::warn!("job {}: {how}", self.caller.job);
        Served::Broken(until)
    }

    fn take(&mut self, ask: Ask, control: Option<&mut Control>) {
        let (at, message) = match ask {
            Ask::Forget => return self.facts.clear(),
            Ask::Send(message) => {
                if let Some(control) = control {
                    control.send(&message);
                }
                return;
            }
            Ask::Tell { at, message } => (at, message),
        };
        if !fits(&message) {
            return log::error!("job {}: a fact is too long for the hub: {message:.200?}", self.caller.job);
        }
        if let Some(control) = control {
            control.send(&aged(&message, at));
        }
        self.facts.push(Fact { at, message });
    }

    /// Another connection; none if the node is over meanwhile.
    ///
    /// # Errors
    /// If there is none by `until`, or never will be.
    fn mend(&mut self, until: Instant) -> Result<Option<Control>> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let deadline = Deadline::after(left.clamp(INTERRUPT_EVERY, HUB_GRACE));
            match self.caller.connection(deadline) {
                Ok(control) => return Ok(Some(control)),
                Err(e) if is_final(&e) || Instant::now() >= until => return Err(e),
                Err(e) => log::debug!("job {}: {e}", self.caller.job),
            }
            match self.asks.recv_timeout(INTERRUPT_EVERY) {
                Ok(ask) => self.take(ask, None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
            loop {
                match self.asks.try_recv() {
                    Ok(ask) => self.take(ask, None),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return Ok(None),
                }
            }
        }
    }
}
