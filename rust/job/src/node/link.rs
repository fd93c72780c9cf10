//! A node's line to the hub: what it tells, what it is told, and what happens when the line breaks.
//!
//! - LINK-1 (told-again): every fact is told again after a reconnect, with its age (MSG-1).
//! - LINK-2 (mended-or-over): a line that is closed is mended within [`HUB_GRACE`]. If not, the hub is given up for
//!   good.
//! - LINK-3 (each-way): a node takes the direct way first, within `connect_timeout`, and then the other one, where it has
//!   one. If it reaches the hub by none, its task fails in a sentence that says what to set.
//! - LINK-4 (silent-hub): if a hub says nothing for half of `node_timeout`, the node connects anew. If it has said
//!   nothing for all of `node_timeout` and [`HUB_GRACE`], the node gives it up: by then the hub has given up this node.
//! - LINK-5 (closed-is-over): if the hub's host refuses connections, the hub is closed and the job is over, or a
//!   firewall refuses them. The sentence says so.
//! - LINK-6 (tried-twice): no try to connect takes more than two thirds of the time for its way: packets may be lost for
//!   good that were on their way when the network failed for a moment.
//! - LINK-7 (fits): a fact that the hub would not take is never told. It would break each line that is told it again.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use phalanx_io::pause;
use phalanx_rendezvous::wire::MAX_FRAME_BYTES;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::node::control::{Control, INTERRUPT_EVERY, ping_every};
use crate::node::options::Options;
use crate::node::replay::{Fact, aged};

/// How long a lost hub may take to come back before the node gives up.
const HUB_GRACE: Duration = Duration::from_secs(2);
/// How long the first connection by the other way may take. That is there, so it answers, however busy its hosts are.
const OTHER_WAY_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) struct Link<'a> {
    options: &'a Options<'a>,
    attempt: u32,
    line: Line,
    facts: Vec<Fact>,
    ping_at: Instant,
}

enum Line {
    Up(Control),
    /// To be mended until then.
    Broken(Instant),
    /// The hub is gone for good; why.
    GivenUp(String),
}

impl<'a> Link<'a> {
    /// Connects for an attempt (LINK-3).
    ///
    /// # Errors
    /// If the hub can't be reached, refuses this node, is none, or is closed.
    pub(crate) fn open(options: &'a Options<'a>, attempt: u32) -> Result<Link<'a>> {
        let within = options.spec.job.policy.connect_timeout;
        let control = match Link::connect(options, attempt, within) {
            Err(e) if is_final(&e) => return Err(e),
            Err(barred) if options.hub.turn() => {
                let control = Link::connect(options, attempt, OTHER_WAY_TIMEOUT)
                    .map_err(|e| if is_final(&e) { e } else { not_reached(options, &barred, Some(&e)) })?;
                log::info!("job {}: {barred}; the driver is reached through Spark", options.spec.job.id);
                control
            }
            Err(barred) => return Err(not_reached(options, &barred, None)),
            Ok(control) => control,
        };
        Ok(Link { options, attempt, line: Line::Up(control), facts: Vec::new(), ping_at: Instant::now() })
    }

    /// Connects by the way that is taken. LINK-6
    fn connect(options: &Options<'_>, attempt: u32, within: Duration) -> Result<Control> {
        let deadline = Deadline::after(within);
        loop {
            let patience = deadline.min(Deadline::after(within * 2 / 3));
            match Control::open(&options.hub, options.here.partition, attempt, patience) {
                Err(e) if !is_final(&e) && deadline.left().is_some_and(|left| left > INTERRUPT_EVERY) => {
                    pause(INTERRUPT_EVERY, deadline);
                }
                tried => return tried,
            }
        }
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

    /// The hub's orders; closed when the line has broken, never ready until it is mended.
    pub(crate) fn orders(&self) -> Receiver<HubMessage> {
        match &self.line {
            Line::Up(control) => control.inbox.clone(),
            _ => crossbeam_channel::never(),
        }
    }

    /// Tells a fact that happened at `at`, and remembers it. LINK-7
    pub(crate) fn tell(&mut self, at: Instant, message: NodeMessage) {
        if !is_short(&message) {
            return log::error!(
                "job {}: a fact is too long for the hub: {message:.200?}",
                self.options.spec.job.id
            );
        }
        self.send(&aged(&message, at));
        self.facts.push(Fact { at, message });
    }

    /// Forgets what was told so far: nobody needs it any more.
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
    /// [`HUB_GRACE`] where that is broken. Whether there is a new one: then the node's other connections may be dead.
    pub(crate) fn tend(&mut self) -> bool {
        let (now, node_timeout) = (Instant::now(), self.options.spec.job.policy.node_timeout);
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
            self.ping_at = now + ping_every(&self.options.spec.job.policy);
            self.send(&NodeMessage::Ping);
        }
        mended
    }

    fn broke(&mut self, how: &str, until: Instant) {
        log::warn!("job {}: {how}", self.options.spec.job.id);
        self.line = Line::Broken(until);
    }

    fn mend(&mut self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let deadline = Deadline::after(left.clamp(INTERRUPT_EVERY, HUB_GRACE));
        match Control::open(&self.options.hub, self.options.here.partition, self.attempt, deadline) {
            Ok(control) => return self.comes_up(control),
            Err(e) if is_final(&e) || Instant::now() >= until => self.give_up(&e),
            Err(e) => log::debug!("job {}: {e}", self.options.spec.job.id),
        }
        false
    }

    fn comes_up(&mut self, control: Control) -> bool {
        self.line = Line::Up(control);
        let facts: Vec<NodeMessage> = self.facts().collect();
        for fact in facts.iter().chain([&NodeMessage::Ping]) {
            self.send(fact);
        }
        true
    }

    fn give_up(&mut self, why: &Error) {
        self.line = Line::GivenUp(format!("the driver is gone: {why}"));
    }
}

/// Whether the hub takes it in one frame, with whatever is around it.
fn is_short(message: &NodeMessage) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| bytes.len() < MAX_FRAME_BYTES - 1024)
}

/// Why a task fails that reaches the hub neither directly nor by another way, if it has one; and what to do about it.
fn not_reached(options: &Options<'_>, barred: &Error, other: Option<&Error>) -> Error {
    let (at, host) = (options.here.partition, &options.here.host);
    let who = format!("partition {at} on {host} can't reach the driver: {barred}");
    let said = match other {
        Some(other) => format!("{who}; nor through Spark: {other}"),
        None if barred.kind() == ErrorKind::Closed => {
            format!("{who}; the job is over, or a firewall refuses connections to its driver. {WHAT_TO_DO}")
        }
        None => format!("{who}, and it has no other way. {WHAT_TO_DO}"),
    };
    Error::new(
        if barred.kind() == ErrorKind::Closed { ErrorKind::Closed } else { ErrorKind::Unreachable },
        said,
    )
}

/// What opens a way.
const WHAT_TO_DO: &str = "Open the driver's port (spark.phalanx.hub.port says which) to the executors, or add \
     PhalanxPlugin to spark.plugins (on Spark Connect the server's plugin, from Spark 4.0 on)";

/// Whether trying again, or by another way, would not help.
fn is_final(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Refused | ErrorKind::Protocol | ErrorKind::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_that_no_frame_takes_is_known() {
        let phase = |bytes| NodeMessage::Phase { rank: 0, name: "x".repeat(bytes), nth: 0, age_us: 0 };
        assert!(is_short(&phase(MAX_FRAME_BYTES / 2)));
        assert!(!is_short(&phase(MAX_FRAME_BYTES)), "LINK-7");
    }
}
