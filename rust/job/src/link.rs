//! A node's line to the hub: what it tells, what it is told, and what happens when the line breaks.
//!
//! LINK-1: every fact is told again after a reconnect, with its age (MSG-1). LINK-2: a line that is closed is mended
//! within [`HUB_GRACE`], or the hub is given up, once and for all. LINK-3: without a hub at the start nothing is told:
//! the facts wait for the node's report through Spark. LINK-4: a hub that says nothing for half of `node_timeout` is
//! called anew, and given up when it has said nothing for all of it and [`HUB_GRACE`]: then it has given up this node.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::control::{Control, INTERRUPT_EVERY, ping_every};
use crate::facts::{Fact, aged};
use crate::node::NodeOptions;

/// How long a lost hub may take to come back before the node gives up.
const HUB_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Link<'a> {
    options: &'a NodeOptions,
    attempt: u32,
    line: Line,
    facts: Vec<Fact>,
    ping_at: Instant,
}

enum Line {
    /// The hub was not reached at the start: everything goes through Spark.
    None,
    Up(Control),
    /// To be mended until then.
    Broken(Instant),
    /// The hub is gone for good; why.
    GivenUp(String),
}

impl<'a> Link<'a> {
    /// Connects for an attempt; without a line if the hub can't be reached within the job's `connect_timeout`.
    ///
    /// # Errors
    /// If the hub refuses this node, or is none.
    pub(crate) fn open(options: &'a NodeOptions, attempt: u32) -> Result<Link<'a>> {
        let deadline = Deadline::after(options.job.policy.connect_timeout);
        let line = loop {
            match Control::open(&options.hub, options.partition, attempt, deadline) {
                Ok(control) => break Line::Up(control),
                Err(e) if is_final(&e) => return Err(e),
                Err(e) if deadline.passed() => {
                    log::warn!("{e}; the tasks meet through Spark instead");
                    break Line::None;
                }
                Err(_) => std::thread::sleep(INTERRUPT_EVERY),
            }
        };
        Ok(Link { options, attempt, line, facts: Vec::new(), ping_at: Instant::now() })
    }

    /// Whether the hub was reached at the start.
    pub(crate) fn reached(&self) -> bool {
        !matches!(self.line, Line::None)
    }

    /// Why the hub is gone for good, if it is.
    pub(crate) fn given_up(&self) -> Option<&str> {
        match &self.line {
            Line::GivenUp(why) => Some(why),
            _ => None,
        }
    }

    /// The address of this host on the way to the hub.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        match &self.line {
            Line::Up(control) => control.local_address,
            _ => None,
        }
    }

    /// The hub's orders; closed when the line has broken, never ready where there is none.
    pub(crate) fn orders(&self) -> Receiver<HubMessage> {
        match &self.line {
            Line::Up(control) => control.inbox.clone(),
            _ => crossbeam_channel::never(),
        }
    }

    /// Tells a fact that happened at `at`, and remembers it.
    pub(crate) fn tell(&mut self, at: Instant, message: NodeMessage) {
        self.send(&aged(&message, at));
        self.facts.push(Fact { at, message });
    }

    /// Forgets what was told so far: it is of no more use.
    pub(crate) fn forget(&mut self) {
        self.facts.clear();
    }

    /// What was told so far, with its age.
    pub(crate) fn facts(&self) -> impl Iterator<Item = NodeMessage> {
        self.facts.iter().map(|fact| aged(&fact.message, fact.at))
    }

    /// Tells what is only true now: it isn't repeated.
    pub(crate) fn send(&mut self, message: &NodeMessage) {
        if let Line::Up(control) = &mut self.line {
            control.send(message);
        }
    }

    /// Tells the hub why this node can't do its part; the reason again. Spark would say so later, when the hub has long
    /// taken the silence for a lost node.
    pub(crate) fn fails(&mut self, why: Error) -> Error {
        let problem = Some(why.to_string());
        self.send(&NodeMessage::Done { problem, interrupted: None, output: Vec::new() });
        why
    }

    /// Does what is due: tells the hub that this node is there, looks whether it answers, and mends the line. May take
    /// [`HUB_GRACE`] where that is broken. Whether it was mended: then the node's other connections may be as dead.
    pub(crate) fn tend(&mut self) -> bool {
        let (now, node_timeout) = (Instant::now(), self.options.job.policy.node_timeout);
        if let Line::Up(control) = &self.line {
            let heard = control.heard();
            if control.is_over() {
                self.broke("the connection to the driver broke", now + HUB_GRACE);
            } else if now > heard + node_timeout / 2 {
                self.broke("the driver doesn't answer", now.max(heard + node_timeout) + HUB_GRACE);
            }
        }
        let mended = match self.line {
            Line::Broken(until) => self.mend(until),
            _ => false,
        };
        if now >= self.ping_at {
            self.ping_at = now + ping_every(&self.options.job.policy);
            self.send(&NodeMessage::Ping);
        }
        mended
    }

    fn broke(&mut self, how: &str, until: Instant) {
        log::warn!("job {}: {how}", self.options.job.id);
        self.line = Line::Broken(until);
    }

    fn mend(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let deadline = Deadline::after(left.clamp(INTERRUPT_EVERY, HUB_GRACE));
        match Control::open(&self.options.hub, self.options.partition, self.attempt, deadline) {
            Ok(control) => {
                self.line = Line::Up(control);
                let facts: Vec<NodeMessage> = self.facts().collect();
                for fact in facts.iter().chain([&NodeMessage::Ping]) {
                    self.send(fact);
                }
            }
            Err(e) if is_final(&e) || Instant::now() >= until => {
                self.line = Line::GivenUp(format!("the driver is gone: {e}"));
            }
            Err(e) => log::debug!("job {}: {e}", self.options.job.id),
        }
        matches!(self.line, Line::Up(_))
    }
}

/// Whether trying again, or going round the hub, would not help.
fn is_final(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Refused | ErrorKind::Protocol | ErrorKind::Invalid)
}
