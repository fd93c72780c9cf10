//! Where results go that arrive at a hub: a thread that writes them, so that a disk which hangs holds up nobody else.
//!
//! - WRITER-1 (own-thread): the hub's thread opens, writes and names no file of a result.
//! - WRITER-2 (bounded): [`MAX_WAITING_BYTES`] wait for the disk; beyond that results stay in their senders' sockets.
//! - WRITER-3 (ends): the thread ends with the hub. A disk that hangs then is waited for [`CLOSE_TIMEOUT`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use mio::{Token as MioToken, Waker};
use phalanx_types::{Deadline, Error, Result};

use crate::handler::{Arriving, Opening};

/// How much waits for the disk at most.
const MAX_WAITING_BYTES: usize = 8 << 20;
/// How long the end of the hub waits for a disk.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

enum Order {
    Begin(Opening),
    Write(Vec<u8>),
    Keep,
    Drop,
}

/// The thread, for the hub's; results are told apart by their connections.
pub(crate) struct ResultWriter {
    waker: Arc<Waker>,
    waiting: Arc<AtomicUsize>,
    running: Option<Running>,
}

struct Running {
    orders: Sender<(MioToken, Order)>,
    outcomes: Receiver<(MioToken, Result<()>)>,
    thread: JoinHandle<()>,
}

impl ResultWriter {
    /// One without a thread, until the first result arrives; `waker` is woken when there are outcomes, or room.
    pub(crate) fn new(waker: Arc<Waker>) -> ResultWriter {
        ResultWriter { waker, waiting: Arc::default(), running: None }
    }

    /// A result begins to arrive.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if there is no thread to be had.
    pub(crate) fn begin(&mut self, token: MioToken, opening: Opening) -> Result<()> {
        if self.running.is_none() {
            let (orders, inbox) = crossbeam_channel::unbounded();
            let (tell, outcomes) = crossbeam_channel::unbounded();
            let (waker, waiting) = (Arc::clone(&self.waker), Arc::clone(&self.waiting));
            let thread = std::thread::Builder::new()
                .name("phalanx-results".into())
                .spawn(move || serve(&inbox, &tell, &waiting, &waker))
                .map_err(|e| Error::io("start the thread that keeps results", &e))?;
            self.running = Some(Running { orders, outcomes, thread });
        }
        self.order(token, Order::Begin(opening));
        Ok(())
    }

    /// More of a result has arrived.
    pub(crate) fn write(&self, token: MioToken, bytes: &[u8]) {
        self.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        self.order(token, Order::Write(bytes.to_vec()));
    }

    /// All of a result has arrived: keeps it, and says so among the outcomes.
    pub(crate) fn keep(&self, token: MioToken) {
        self.order(token, Order::Keep);
    }

    /// No more of a result will arrive.
    pub(crate) fn drop_result(&self, token: MioToken) {
        self.order(token, Order::Drop);
    }

    /// Whether more may be written.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < MAX_WAITING_BYTES
    }

    /// What became of results since the last call: kept, or why not.
    pub(crate) fn outcomes(&self) -> Vec<(MioToken, Result<()>)> {
        self.running.iter().flat_map(|running| running.outcomes.try_iter()).collect()
    }

    fn order(&self, token: MioToken, order: Order) {
        if let Some(running) = &self.running {
            // The thread takes orders for as long as this is there.
            let _ = running.orders.send((token, order));
        }
    }
}

impl Drop for ResultWriter {
    fn drop(&mut self) {
        let Some(Running { orders, outcomes, thread }) = self.running.take() else { return };
        drop(orders);
        let deadline = Deadline::after(CLOSE_TIMEOUT);
        loop {
            match outcomes.recv_timeout(deadline.left().unwrap_or(CLOSE_TIMEOUT)) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    return log::warn!("the driver's disk hangs, and with it the thread that keeps results");
                }
            }
        }
        if thread.join().is_err() {
            log::error!("the thread that keeps results panicked");
        }
    }
}

fn serve(
    orders: &Receiver<(MioToken, Order)>,
    outcomes: &Sender<(MioToken, Result<()>)>,
    waiting: &AtomicUsize,
    waker: &Waker,
) {
    let mut open: HashMap<MioToken, Box<dyn Arriving>> = HashMap::new();
    for (token, order) in orders {
        let outcome = match order {
            Order::Begin(opening) => match opening() {
                Ok(arriving) => {
                    open.extend(arriving.map(|arriving| (token, arriving)));
                    None
                }
                Err(why) => Some(Err(why)),
            },
            Order::Write(bytes) => {
                let written = open.get_mut(&token).map_or(Ok(()), |arriving| arriving.write_all(&bytes));
                let before = waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                if before >= MAX_WAITING_BYTES {
                    wake(waker);
                }
                written.err().map(|e| {
                    open.remove(&token);
                    Err(Error::io("write its file", &e))
                })
            }
            // What was passed over, or failed before, needs no more.
            Order::Keep => Some(open.remove(&token).map_or(Ok(()), Arriving::keep)),
            Order::Drop => {
                open.remove(&token);
                None
            }
        };
        if let Some(outcome) = outcome {
            // The hub may be closing.
            let _ = outcomes.send((token, outcome));
            wake(waker);
        }
    }
}

fn wake(waker: &Waker) {
    if let Err(e) = waker.wake() {
        log::warn!("can't wake the hub: {e}");
    }
}
