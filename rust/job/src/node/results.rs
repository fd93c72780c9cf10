//! A rank's result on its way to the driver, over a connection of its own.
//!
//! - RESULT-1 (sent-again): if a connection breaks, it is opened again and the result is sent again, until
//!   [`STALL_TIMEOUT`] after the first break, or until the hub is given up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Sender as ChannelSender;
use phalanx_io::pause;
use phalanx_rendezvous::Sender;
use phalanx_rendezvous::wire::{Frame, MAX_DATA_BYTES};
use phalanx_types::message::{HubMessage, Role};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::node::line::Ways;

/// How long the hub may take for one piece of a result: it stores pieces as they come.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the hub may take to answer a new connection, which may be half open: then another is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait after a connection broke.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// The results on their way from one node, a thread each.
pub(crate) struct Uploads {
    hub: Ways,
    attempt: u32,
    threads: Vec<(u32, JoinHandle<Result<()>>)>,
    lines: Arc<Mutex<Lines>>,
    ended: Arc<AtomicUsize>,
    wake: ChannelSender<()>,
}

/// The connections over which results go now, by rank.
#[derive(Default)]
struct Lines {
    open: BTreeMap<u32, Sender>,
    abandoned: bool,
}

/// Counts a thread that ends, however it ends.
struct End {
    ended: Arc<AtomicUsize>,
    wake: ChannelSender<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
        // Nobody may be waiting any more.
        let _ = self.wake.send(());
    }
}

impl Uploads {
    /// To `hub`, of an attempt; `wake` gets a message each time one ends.
    pub(crate) fn to(hub: Ways, attempt: u32, wake: ChannelSender<()>) -> Uploads {
        Uploads { hub, attempt, threads: Vec::new(), lines: Arc::default(), ended: Arc::default(), wake }
    }

    /// Begins to send the file at `path` as the result of `rank`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(&mut self, rank: u32, path: PathBuf) -> Result<()> {
        let upload = Upload {
            hub: self.hub.clone(),
            attempt: self.attempt,
            rank,
            path,
            lines: Arc::clone(&self.lines),
        };
        let end = End { ended: Arc::clone(&self.ended), wake: self.wake.clone() };
        let thread = std::thread::Builder::new()
            .name(format!("phalanx-result-{rank}"))
            .spawn(move || {
                let _end = end;
                upload.run()
            })
            .map_err(|e| Error::io(format!("send the result of rank {rank}"), &e))?;
        self.threads.push((rank, thread));
        Ok(())
    }

    /// Has each connection opened anew: it may be dead without a word.
    pub(crate) fn renew(&self) {
        lock(&self.lines).open.values().for_each(Sender::close);
    }

    /// The hub is gone: ends what is on its way.
    pub(crate) fn abandon(&self) {
        lock(&self.lines).abandoned = true;
        self.renew();
    }

    /// Whether any is still on its way.
    pub(crate) fn pending(&self) -> bool {
        self.ended.load(Ordering::Acquire) < self.threads.len()
    }

    /// Waits for all; why the first that failed did.
    pub(crate) fn finish(&mut self) -> Option<String> {
        let mut problem = None;
        for (rank, thread) in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => {
                    problem.get_or_insert(e.to_string());
                }
                Err(_) => {
                    problem.get_or_insert(format!("sending the result of rank {rank} panicked"));
                }
            }
        }
        self.ended.store(0, Ordering::Release);
        problem
    }
}

fn lock(lines: &Mutex<Lines>) -> std::sync::MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One result on its way.
struct Upload {
    hub: Ways,
    attempt: u32,
    rank: u32,
    path: PathBuf,
    lines: Arc<Mutex<Lines>>,
}

impl Upload {
    /// Returns once the hub has the result whole.
    ///
    /// # Errors
    /// If the hub can't be reached, or takes nothing for a minute.
    fn run(&self) -> Result<()> {
        let mut until = None;
        loop {
            let sent = self.send();
            let abandoned = {
                let mut lines = lock(&self.lines);
                lines.open.remove(&self.rank);
                lines.abandoned
            };
            let Err(e) = sent else { return Ok(()) };
            let may_pass =
                matches!(e.kind(), ErrorKind::Closed | ErrorKind::Unreachable | ErrorKind::Timeout);
            let until: &mut Deadline = until.get_or_insert_with(|| Deadline::after(STALL_TIMEOUT));
            if !may_pass || abandoned || until.passed() {
                return Err(e.context(format!("the result of rank {} did not reach the driver", self.rank)));
            }
            log::debug!("the result of rank {} is sent again: {e}", self.rank);
            pause(RECONNECT_PAUSE, *until);
        }
    }

    fn send(&self) -> Result<()> {
        let reading = |e: &std::io::Error| Error::io(format!("read {}", self.path.display()), e);
        let mut file = File::open(&self.path).map_err(|e| reading(&e))?;
        let mut left = file.metadata().map_err(|e| reading(&e))?.len();
        let role = Role::Result { rank: self.rank, attempt: self.attempt, bytes: left };
        let mut connection = self.hub.open(role, Deadline::after(CONNECT_TIMEOUT))?;
        let mut sender = connection.sender();
        {
            let mut lines = lock(&self.lines);
            if lines.abandoned {
                return Err(Error::new(ErrorKind::Closed, "the driver is gone"));
            }
            lines.open.insert(self.rank, connection.sender());
        }
        let mut chunk = vec![0; MAX_DATA_BYTES];
        while left > 0 {
            let n = file.read(&mut chunk).map_err(|e| reading(&e))?;
            if n == 0 {
                return Err(Error::new(ErrorKind::Io, format!("{} became shorter", self.path.display())));
            }
            let piece = &chunk[..n.min(usize::try_from(left).unwrap_or(usize::MAX))];
            sender.send_frame(&Frame::Data(piece), Deadline::after(STALL_TIMEOUT))?;
            left -= piece.len() as u64;
        }
        match connection.receive(Deadline::after(STALL_TIMEOUT))? {
            HubMessage::Released => Ok(()),
            other => Err(Error::new(ErrorKind::Protocol, format!("the hub answered {other:?}"))),
        }
    }
}
