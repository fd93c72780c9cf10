//! The thread of a line: it connects, then writes and hears until the node is over or the hub is given up.

use std::time::Instant;

use crossbeam_channel::{Receiver, select};
use phalanx_types::message::NodeMessage;
use phalanx_types::{Deadline, Result};

use crate::node::line::connecting::{Caller, is_final};
use crate::node::line::control::Control;
use crate::node::line::facts::{Facts, aged, fits};
use crate::node::line::heard::{Ear, Heard};
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
    /// The node is over.
    End,
}

/// What the thread has.
pub(super) struct Keeper {
    pub(super) caller: Caller,
    pub(super) asks: Receiver<Ask>,
    pub(super) ear: Ear,
    pub(super) facts: Facts,
    pub(super) ping_at: Instant,
}

/// A node whose line has panicked is told so: else it would wait for orders that nobody brings.
impl Drop for Keeper {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.ear)(Heard::Gone("the thread of the line to the driver failed".into()));
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
    /// Connects, and serves the line to its end.
    pub(super) fn run(mut self) {
        let mut control = match self.caller.first_connection() {
            Ok(control) => control,
            Err(e) => return (self.ear)(Heard::NotUp(e)),
        };
        (self.ear)(Heard::Up(control.local_address));
        while let Served::Broken(until) = self.serve(&mut control) {
            match self.mend(until) {
                Ok(Some(mended)) => control = mended,
                Ok(None) => return,
                Err(why) => return (self.ear)(Heard::Gone(format!("the driver is gone: {why}"))),
            }
            for message in self.facts.retold().chain([NodeMessage::Ping]) {
                control.send(&message);
            }
            (self.ear)(Heard::Renewed);
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
                recv(asks) -> ask => if !self.take(ask.unwrap_or(Ask::End), Some(control)) {
                    return Served::Over;
                },
                recv(orders) -> order => match order {
                    Ok(order) => (self.ear)(Heard::Order(order)),
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

    /// Does what the node wants; false once that is to end.
    fn take(&mut self, ask: Ask, control: Option<&mut Control>) -> bool {
        match ask {
            Ask::End => return false,
            Ask::Forget => self.facts.forget(),
            Ask::Send(message) => {
                if let Some(control) = control {
                    control.send(&message);
                }
            }
            Ask::Tell { message, .. } if !fits(&message) => {
                log::error!("job {}: a fact is too long for the hub: {message:.200?}", self.caller.job);
            }
            Ask::Tell { at, message } => {
                if let Some(control) = control {
                    control.send(&aged(&message, at));
                }
                self.facts.keep(at, message);
            }
        }
        true
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
            let mut ask = self.asks.recv_timeout(INTERRUPT_EVERY).ok();
            while let Some(asked) = ask {
                if !self.take(asked, None) {
                    return Ok(None);
                }
                ask = self.asks.try_recv().ok();
            }
        }
    }
}
