//! Where results go that arrive at a hub: a thread that writes them, so that a disk which hangs holds up nobody else.
//!
//! - HUB-16 (own-thread): the hub's thread opens, writes and names no file of a result.
//! - HUB-17 (bounded): [`MAX_WAITING_BYTES`] wait for the disk; beyond that results stay in their senders' sockets.
//! - HUB-18 (ends): the thread ends with the hub. A disk that hangs then is waited for [`CLOSE_TIMEOUT`].

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use mio::Waker;
use phalanx_types::{Deadline, Error, Result};

use crate::arrival::ResultKey;
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

/// The thread, for the hub's.
pub(crate) struct ResultWriter {
    /// How many results have begun to arrive.
    begun: u64,
    waker: Arc<Waker>,
    waiting: Arc<AtomicUsize>,
    running: Option<Running>,
}

struct Running {
    orders: Sender<(ResultKey, Order)>,
    outcomes: Receiver<(ResultKey, Result<()>)>,
    thread: JoinHandle<()>,
}

impl ResultWriter {
    /// One without a thread, until the first result arrives; `waker` is woken when there are outcomes, or room.
    pub(crate) fn new(waker: Arc<Waker>) -> ResultWriter {
        ResultWriter { begun: 0, waker, waiting: Arc::default(), running: None }
    }

    /// A rank's result begins to arrive; by what it is known here.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if there is no thread to be had.
    pub(crate) fn begin(&mut self, rank: u32, opening: Opening) -> Result<ResultKey> {
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
        self.begun += 1;
        let key = ResultKey { rank, number: self.begun };
        self.order(key, Order::Begin(opening));
        Ok(key)
    }

    /// More of a result has arrived.
    pub(crate) fn write(&self, key: ResultKey, bytes: &[u8]) {
        self.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        self.order(key, Order::Write(bytes.to_vec()));
    }

    /// All of a result has arrived: keeps it, and says so among the outcomes.
    pub(crate) fn keep(&self, key: ResultKey) {
        self.order(key, Order::Keep);
    }

    /// No more of a result will arrive.
    pub(crate) fn drop_result(&self, key: ResultKey) {
        self.order(key, Order::Drop);
    }

    /// Whether more may be written.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < MAX_WAITING_BYTES
    }

    /// What became of results since the last call: kept, or why not.
    pub(crate) fn outcomes(&self) -> Vec<(ResultKey, Result<()>)> {
        self.running.iter().flat_map(|running| running.outcomes.try_iter()).collect()
    }

    fn order(&self, key: ResultKey, order: Order) {
        if let Some(running) = &self.running {
            // The thread takes orders for as long as this is there.
            let _ = running.orders.send((key, order));
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
    orders: &Receiver<(ResultKey, Order)>,
    outcomes: &Sender<(ResultKey, Result<()>)>,
    waiting: &AtomicUsize,
    waker: &Waker,
) {
    let mut open: HashMap<ResultKey, Box<dyn Arriving>> = HashMap::new();
    for (key, order) in orders {
        let outcome = match order {
            Order::Begin(opening) => match opening() {
                Ok(arriving) => {
                    open.extend(arriving.map(|arriving| (key, arriving)));
                    None
                }
                Err(why) => Some(Err(why)),
            },
            Order::Write(bytes) => {
                let written = open.get_mut(&key).map_or(Ok(()), |arriving| arriving.write_all(&bytes));
                let before = waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
                if before >= MAX_WAITING_BYTES {
                    wake(waker);
                }
                written.err().map(|e| {
                    open.remove(&key);
                    Err(Error::io("write its file", &e))
                })
            }
            // What was passed over, or failed before, needs no more.
            Order::Keep => Some(open.remove(&key).map_or(Ok(()), Arriving::keep)),
            Order::Drop => {
                open.remove(&key);
                None
            }
        };
        if let Some(outcome) = outcome {
            // The hub may be closing.
            let _ = outcomes.send((key, outcome));
            wake(waker);
        }
    }
}

fn wake(waker: &Waker) {
    if let Err(e) = waker.wake() {
        log::warn!("can't wake the hub: {e}");
    }
}
