//! A node's line to the hub: what it tells, what it is told, and what happens when the line breaks.
//!
//! A thread of its own connects, writes, hears, and mends. The rest of the node tells it things, which waits for
//! nothing, and takes what the hub orders.
//!
//! - LINK-1 (told-again): every fact is told again after a reconnect, with its age (MSG-1).
//! - LINK-2 (mended-or-over): a line that is closed is mended within [`limits::HUB_GRACE`]. If not, the hub is given up
//!   for good.
//! - LINK-3 (each-way): a node takes the direct way first, within `connect_timeout`, and then each other one that it
//!   has. If it reaches the hub by none, its task fails in a sentence that says what to set.
//! - LINK-4 (silent-hub): if a hub says nothing for half of `node_timeout`, the node connects anew. If it has said
//!   nothing for all of `node_timeout` and [`limits::HUB_GRACE`], the node gives it up: by then the hub has given up
//!   this node.
//! - LINK-5 (closed-is-over): if the hub's host refuses connections, the hub is closed and the job is over, or a
//!   firewall refuses them. The sentence says so.
//! - LINK-6 (tried-twice): no try to connect takes more than two thirds of the time for its way: packets may be lost
//!   for good that were on their way when the network failed for a moment.
//! - LINK-7 (fits): a fact that the hub would not take is never told. It would break each line that is told it again.
//! - LINK-8 (nobody-waits): whoever tells something waits for no network. Who wants to go while the line connects goes
//!   at once; what was told over a line that is up is written first.

mod connecting;
mod control;
mod facts;
mod keeper;
mod limits;
pub(crate) mod ways;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Error, ErrorKind, Result};

pub(crate) use facts::signed_us;
pub(crate) use limits::SEND_TIMEOUT;
pub use ways::Way;

use crate::node::line::connecting::Caller;
use crate::node::line::keeper::{Ask, Keeper};
use crate::node::line::limits::ping_every;
use crate::node::options::Options;
use crate::node::process::{INTERRUPT_EVERY, Process};

/// The line of one attempt. Dropping it writes what was told, if the line is up, and ends it.
pub(crate) struct Line {
    asks: Option<Sender<Ask>>,
    orders: Receiver<HubMessage>,
    renewals: Receiver<()>,
    given_up: Arc<OnceLock<String>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    local_address: Option<IpAddr>,
}

impl Line {
    /// Connects for `attempt` (LINK-3), and hears `process` meanwhile.
    ///
    /// # Errors
    /// If the hub can't be reached, refuses this node, is none, or is closed; [`ErrorKind::Cancelled`] if the process
    /// wants the node to end.
    pub(crate) fn open(options: &Options<'_>, attempt: u32, process: &Process) -> Result<Line> {
        let (asks, asked) = crossbeam_channel::unbounded();
        let (tell, orders) = crossbeam_channel::unbounded();
        let (renew, renewals) = crossbeam_channel::unbounded();
        let (connect, connected) = crossbeam_channel::bounded(1);
        let (given_up, over) = (Arc::<OnceLock<String>>::default(), Arc::<AtomicBool>::default());
        let caller = Caller {
            ways: options.ways.clone(),
            job: options.spec.job.id.clone(),
            policy: options.spec.job.policy.clone(),
            partition: options.here.partition,
            host: options.here.host.clone(),
            attempt,
            over: Arc::clone(&over),
        };
        let keeper = Keeper {
            caller,
            asks: asked,
            orders: tell,
            renewals: renew,
            given_up: Arc::clone(&given_up),
            facts: Vec::new(),
            // What is told first says who this is.
            ping_at: Instant::now() + ping_every(&options.spec.job.policy),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-line".into())
            .spawn(move || keeper.run(&connect))
            .map_err(|e| Error::io("start a thread for the line to the hub", &e))?;
        let (asks, thread) = (Some(asks), Some(thread));
        let mut line = Line { asks, orders, renewals, given_up, over, thread, local_address: None };
        loop {
            match connected.recv_timeout(INTERRUPT_EVERY) {
                Ok(address) => {
                    line.local_address = address?;
                    return Ok(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(reason) = process.interrupted() {
                        return Err(Error::new(ErrorKind::Cancelled, reason));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ErrorKind::Io, "the thread of the line to the hub has ended"));
                }
            }
        }
    }

    /// Why the hub is gone for good, if it is.
    pub(crate) fn given_up(&self) -> Option<&str> {
        self.given_up.get().map(String::as_str)
    }

    /// The address of this host on the way to the hub, where that is direct.
    pub(crate) fn local_address(&self) -> Option<IpAddr> {
        self.local_address
    }

    /// The hub's orders; never ready where the hub is given up.
    pub(crate) fn orders(&self) -> Receiver<HubMessage> {
        // What came before that is taken all the same.
        let is_over = self.given_up().is_some() && self.orders.is_empty();
        if is_over { crossbeam_channel::never() } else { self.orders.clone() }
    }

    /// Whether the line is another one than at the last call: then the node's other connections may be dead.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewals.try_iter().count() > 0
    }

    /// Tells a fact that happened at `at`, and remembers it.
    pub(crate) fn tell(&self, at: Instant, message: NodeMessage) {
        self.ask(Ask::Tell { at, message });
    }

    /// Forgets what was told so far: nobody needs it any more.
    pub(crate) fn forget(&self) {
        self.ask(Ask::Forget);
    }

    /// Tells what is only true now: it isn't repeated.
    pub(crate) fn send(&self, message: NodeMessage) {
        self.ask(Ask::Send(message));
    }

    /// Tells the hub why this node can't do its part; the reason again. Spark would say so later, when the hub has long
    /// taken the silence for a lost node.
    pub(crate) fn fails(&self, why: Error) -> Error {
        let problem = Some(why.to_string());
        self.send(NodeMessage::Done { problem, interrupted: None, output: Vec::new() });
        why
    }

    fn ask(&self, ask: Ask) {
        if let Some(asks) = &self.asks {
            // A thread that has given up takes nothing more.
            let _ = asks.send(ask);
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.asks = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of the line to the hub panicked");
        }
    }
}
