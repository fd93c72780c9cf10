//! A node's line to the hub: what it tells, what it is told, and what happens when the line breaks.
//!
//! LINK-1: every fact is told again after a reconnect, with its age (MSG-1). LINK-2: a hub that is gone for
//! [`HUB_GRACE`] is given up, once and for all. LINK-3: without a hub at the start nothing is told: the facts wait for
//! the node's report through Spark.

use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use phalanx_types::Deadline;
use phalanx_types::message::{HubMessage, NodeMessage};

use crate::facts::{Fact, aged};
use crate::gather::{Control, INTERRUPT_EVERY, ping_every};
use crate::node::NodeOptions;

/// How long a lost hub may take to come back before the node gives up.
const HUB_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Link<'a> {
    options: &'a NodeOptions,
    attempt: u32,
    /// Whether the hub was reached at the start; else everything goes through Spark.
    reached: bool,
    control: Option<Control>,
    facts: Vec<Fact>,
    lost: Option<Instant>,
    given_up: bool,
    ping_at: Instant,
}

impl<'a> Link<'a> {
    pub(crate) fn new(options: &'a NodeOptions, attempt: u32, control: Option<Control>) -> Link<'a> {
        Link {
            options,
            attempt,
            reached: control.is_some(),
            control,
            facts: Vec::new(),
            lost: None,
            given_up: false,
            ping_at: Instant::now(),
        }
    }

    /// Whether the hub was reached at the start.
    pub(crate) fn reached(&self) -> bool {
        self.reached
    }

    /// Whether the hub is gone for good.
    pub(crate) fn given_up(&self) -> bool {
        self.given_up
    }

    /// The hub's orders; closed when the line has broken, never ready where there is none.
    pub(crate) fn orders(&self) -> Receiver<HubMessage> {
        self.control.as_ref().map_or_else(crossbeam_channel::never, |control| control.inbox.clone())
    }

    /// Tells a fact that happened at `at`, and remembers it.
    pub(crate) fn tell(&mut self, at: Instant, message: NodeMessage) {
        self.send(&aged(&message, at));
        self.facts.push(Fact { at, message });
    }

    /// What was told so far, with its age.
    pub(crate) fn facts(&self) -> impl Iterator<Item = NodeMessage> {
        self.facts.iter().map(|fact| aged(&fact.message, fact.at))
    }

    /// Tells the hub that this node is there, when it is time.
    pub(crate) fn ping_if_due(&mut self) {
        if Instant::now() >= self.ping_at {
            self.ping_at = Instant::now() + ping_every(&self.options.job.policy);
            self.send(&NodeMessage::Ping);
        }
    }

    /// Tells what is only true now: it isn't repeated.
    pub(crate) fn send(&mut self, message: &NodeMessage) {
        if let Some(control) = &mut self.control
            && self.lost.is_none()
            && let Err(e) = control.send(message)
        {
            log::warn!("{e}");
            self.broke();
        }
    }

    /// The line has broken.
    pub(crate) fn broke(&mut self) {
        if self.lost.is_none() {
            log::warn!("job {}: the connection to the driver broke", self.options.job.id);
            self.lost = Some(Instant::now());
        }
    }

    /// Tries to mend a broken line; why the hub is given up, if that is the end of it.
    pub(crate) fn mend(&mut self) -> Option<String> {
        let since = self.lost.filter(|_| !self.given_up)?;
        self.control = None;
        let deadline = Deadline::after(HUB_GRACE.saturating_sub(since.elapsed()).max(INTERRUPT_EVERY));
        match Control::open(&self.options.hub, self.options.partition, self.attempt, deadline) {
            Ok(control) => {
                self.control = Some(control);
                self.lost = None;
                let facts: Vec<NodeMessage> = self.facts().collect();
                for fact in facts.iter().chain([&NodeMessage::Ping]) {
                    self.send(fact);
                }
                None
            }
            Err(e) => {
                self.given_up = true;
                Some(format!("the driver is gone: {e}"))
            }
        }
    }
}
