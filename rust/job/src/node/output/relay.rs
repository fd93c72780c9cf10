//! How the live view gets from the ranks' log files to the driver.
//!
//! It owns one thread and one connection.
//!
//! - NODE-27 (slow-reader): a reader that doesn't keep up slows nobody, because the log file is the buffer. If the view
//!   is further behind than the job allows, it skips ahead, and says how much it skipped.
//! - NODE-28 (reconnects): a broken connection is opened again, and output goes on where the hub stopped hearing it.
//!   The relay ends when the hub has confirmed all of it.
//! - NODE-29 (goes-on): so does the relay of the next attempt in place, since a rank's log goes on, too. What was sent
//!   before isn't sent again.
//!
//! Its memory is one chunk and one frame.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_rendezvous::Sender;
use phalanx_rendezvous::wire::{Frame, MAX_DATA_BYTES};
use phalanx_supervisor::RankLog;
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::node::helpers::helper::join_or_leave;
use crate::node::line::ways::Ways;
use crate::node::output::followed_log::{FollowedLog, Next};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait after the connection broke.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// News is left to gather for this long, so that a rank that writes line by line isn't relayed line by line.
const GATHER: Duration = Duration::from_millis(5);
/// How many chunks of one rank go before the others get their turn.
const CHUNKS_A_TURN: usize = 4;

/// The relay of one node.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// End now: also what is being connected.
    abandoned: AtomicBool,
}

#[derive(Default)]
struct State {
    news: bool,
    /// No more ranks will write; end when everything is sent.
    finishing: bool,
    connection: Option<Sender>,
}

impl Shared {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let result = f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
        result
    }

    /// Waits so long at the most; no longer once it is abandoned.
    fn wait(&self, timeout: Duration, until: impl Fn(&State) -> bool) {
        let guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut State| !until(state) && !self.is_abandoned();
        // Both a time-out and a poisoned lock mean: look again.
        drop(self.changed.wait_timeout_while(guard, timeout, waits));
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }
}

impl Relay {
    /// Relays `logs` (rank and log) to the hub, over connections of this role. `at_end` is called when it has ended.
    pub(crate) fn start(
        hub: Ways,
        role: Role,
        logs: Vec<(u32, Arc<RankLog>)>,
        max_lag_bytes: u64,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Result<Relay> {
        let shared = Arc::new(Shared::default());
        let logs = logs.into_iter().map(|(rank, log)| FollowedLog::new(rank, log)).collect();
        let worker = Worker { hub, role, logs, max_lag_bytes, told_loss: None, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new()
            .name("phalanx-relay".into())
            .spawn(move || {
                worker.run();
                at_end();
            })
            .map_err(|e| Error::io("start the relay of output", &e))?;
        Ok(Relay { shared, thread: Some(thread) })
    }

    /// What the pumps call when a rank wrote something.
    pub(crate) fn waker(&self) -> Box<dyn Fn() + Send> {
        let shared = Arc::clone(&self.shared);
        Box::new(move || shared.with(|state| state.news = true))
    }

    /// Has the connection opened anew: it may be dead without a word.
    pub(crate) fn renew(&self) {
        self.shared.with(|state| state.connection.iter().for_each(Sender::close));
    }

    /// No rank writes any more: it ends when the rest is sent.
    pub(crate) fn finish(&self) {
        self.shared.with(|state| state.finishing = true);
    }

    /// It ends now.
    pub(crate) fn abandon(&self) {
        self.shared.abandoned.store(true, Ordering::Release);
        self.renew();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.abandon();
        if let Some(thread) = self.thread.take() {
            join_or_leave(thread, "phalanx-relay");
        }
    }
}

struct Worker {
    hub: Ways,
    role: Role,
    logs: Vec<FollowedLog>,
    max_lag_bytes: u64,
    told_loss: Option<Instant>,
    shared: Arc<Shared>,
}

impl Worker {
    fn run(mut self) {
        while !self.shared.is_abandoned() {
            match self.relay() {
                Ok(()) => break,
                Err(e) => {
                    log::debug!("the live view of a node's ranks is interrupted: {e}");
                    self.shared.with(|state| state.connection = None);
                    self.shared.wait(RECONNECT_PAUSE, |_| false);
                }
            }
        }
        self.shared.with(|state| state.connection = None);
    }

    /// Connects and relays until everything is sent.
    fn relay(&mut self) -> Result<()> {
        let mut connection =
            self.hub.open(&self.shared.abandoned, self.role, Deadline::after(CONNECT_TIMEOUT))?;
        // What was on its way when an earlier connection broke is sent again; the hub knows what it has.
        let received = &connection.welcome().received;
        for log in &mut self.logs {
            log.position = received.iter().find(|(rank, _)| *rank == log.rank).map_or(0, |(_, bytes)| *bytes);
        }
        let mut sender = connection.sender();
        let closer = connection.sender();
        self.shared.with(|state| state.connection = Some(closer));
        if self.shared.is_abandoned() {
            return Ok(());
        }
        let mut chunk = vec![0; MAX_DATA_BYTES];
        loop {
            let finishing = self.shared.with(|state| {
                state.news = false;
                state.finishing
            });
            let mut progress = false;
            for i in 0..self.logs.len() {
                for _ in 0..CHUNKS_A_TURN {
                    if !self.send_some(i, finishing, &mut sender, &mut chunk)? {
                        break;
                    }
                    progress = true;
                }
            }
            if self.shared.is_abandoned() {
                return Ok(());
            }
            if !progress {
                if finishing {
                    // What was written may still be lost with the connection: only the hub knows that it arrived.
                    sender.send(&NodeMessage::Ping, Deadline::never())?;
                    let HubMessage::Pong = connection.receive(Deadline::never())? else {
                        return Err(Error::new(ErrorKind::Protocol, "an order on the connection for output"));
                    };
                    return Ok(());
                }
                self.shared.wait(Duration::from_secs(60), |s| s.news || s.finishing);
                self.shared.wait(GATHER, |s| s.finishing);
            }
        }
    }

    /// Sends the next chunk of a rank; false if there is none at the moment.
    fn send_some(
        &mut self,
        i: usize,
        finishing: bool,
        sender: &mut Sender,
        chunk: &mut [u8],
    ) -> Result<bool> {
        let followed = &mut self.logs[i];
        let rank = followed.rank;
        let next =
            followed.next(Instant::now(), self.max_lag_bytes, finishing, &mut self.told_loss, chunk)?;
        let frame = match &next {
            Next::Nothing => return Ok(false),
            Next::Bytes { offset, length } => {
                Frame::Output { rank, offset: *offset, bytes: &chunk[..*length] }
            }
            Next::Skip { resume_at, notice } => Frame::Skip { rank, resume_at: *resume_at, notice },
        };
        sender.send_frame(&frame, Deadline::never())?;
        Ok(true)
    }
}
