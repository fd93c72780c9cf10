//! A node's line to the hub: what it tells, what it is told, and what happens when the line breaks.
//!
//! A thread of its own connects, writes, hears, and mends. The rest of the node tells it things, which waits for
//! nothing, and is told what comes of them ([`Heard`]).
//!
//! - NODE-5 (told-again): every fact is told again after a reconnect, with its age (TYPES-9).
//! - NODE-6 (mended-or-over): a line that is closed is mended within [`limits::HUB_GRACE`]. If not, the hub is given up
//!   for good.
//! - NODE-7 (each-way): a node takes the direct way first, within `connect_timeout`, and then each other one that it
//!   has. If it reaches the hub by none, its task fails in a sentence that says what to set.
//! - NODE-8 (silent-hub): if a hub says nothing for half of `node_timeout`, the node connects anew. If it has said
//!   nothing for all of `node_timeout` and [`limits::HUB_GRACE`], the node gives it up: by then the hub has given up
//!   this node.
//! - NODE-9 (closed-is-over): if the hub's host refuses connections, the hub is closed and the job is over, or a
//!   firewall refuses them. The sentence says so.
//! - NODE-10 (tried-twice): no try to connect takes more than two thirds of the time for its way: packets may be lost
//!   for good that were on their way when the network failed for a moment.
//! - NODE-11 (fits): a fact that the hub would not take is never told. It would break each line that is told it again.
//! - NODE-54 (newest-reports): of the ranks' reports the newest are told again, up to a limit, before all else; the
//!   hub knows which it has by their numbers.
//! - NODE-12 (nobody-waits): whoever tells something waits for no network. Who wants to go while the line connects goes
//!   at once; what was told over a line that is up is written first.

mod connecting;
mod control;
mod facts;
mod heard;
mod keeper;
mod limits;
pub(crate) mod ways;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::Sender;
use phalanx_types::message::NodeMessage;
use phalanx_types::{Attempt, Error, Result};

pub(crate) use facts::signed_us;
pub(crate) use heard::{Ear, Heard};
pub(crate) use limits::SEND_TIMEOUT;
pub use ways::Way;

use crate::node::line::connecting::Caller;
use crate::node::line::facts::Facts;
use crate::node::line::keeper::{Ask, Keeper};
use crate::node::line::limits::ping_every;
use crate::node::options::Options;

/// The line of one attempt. Dropping it writes what was told, if the line is up, and ends it.
pub(crate) struct Line {
    teller: Teller,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Tells the hub things over a line, for as long as there is one.
#[derive(Clone)]
pub(crate) struct Teller(Sender<Ask>);

impl Line {
    /// Begins to connect for `attempt` (NODE-7); `ear` is told what comes of it.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn open(options: &Options<'_>, attempt: Attempt, ear: Ear) -> Result<Line> {
        let (asks, asked) = crossbeam_channel::unbounded();
        let over = Arc::<AtomicBool>::default();
        let caller = Caller {
            ways: options.ways.clone(),
            job: options.spec.job.id.clone(),
            policy: options.spec.job.policy.clone(),
            partition: options.here.partition,
            task: options.task,
            host: options.here.host.clone(),
            attempt,
            over: Arc::clone(&over),
        };
        let keeper = Keeper {
            caller,
            asks: asked,
            ear,
            facts: Facts::default(),
            // What is told first says who this is.
            ping_at: Instant::now() + ping_every(&options.spec.job.policy),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-line".into())
            .spawn(move || keeper.run())
            .map_err(|e| Error::io("start a thread for the line to the hub", &e))?;
        Ok(Line { teller: Teller(asks), over, thread: Some(thread) })
    }

    /// For whoever has something to tell.
    pub(crate) fn teller(&self) -> &Teller {
        &self.teller
    }
}

impl Teller {
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

    fn ask(&self, ask: Ask) {
        // A thread that has given up takes nothing more.
        let _ = self.0.send(ask);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.teller.ask(Ask::End);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread of the line to the hub panicked");
        }
    }
}
