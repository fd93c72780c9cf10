//! A hub that could not be reached when its node began, looked for from time to time, beside the node, by each way to
//! it in turn.
//!
//! - SEARCH-1 (beside): nothing waits for it but its own end, which comes within [`TRY_FOR`].

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use phalanx_types::{Deadline, Error, Result};

use crate::node::control::Control;
use crate::node::route::HubRoute;

/// How long one try may take.
const TRY_FOR: Duration = Duration::from_secs(2);

/// A search that is under way; dropping it ends it.
pub(crate) struct Search {
    found: Receiver<Result<Control>>,
    /// Nothing is sent: it closes.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Search {
    /// Begins one, which tries `every` so often; `is_final` tells which errors end it.
    pub(crate) fn begin(
        hub: HubRoute,
        partition: u32,
        attempt: u32,
        every: Duration,
        is_final: fn(&Error) -> bool,
    ) -> Result<Search> {
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        let (tell, found) = crossbeam_channel::bounded(1);
        let thread = std::thread::Builder::new()
            .name("phalanx-search".into())
            .spawn(move || {
                while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    let control = Control::open(&hub, partition, attempt, Deadline::after(TRY_FOR));
                    if control.as_ref().err().is_none_or(is_final) {
                        // A node that is over wants it no more.
                        let _ = tell.send(control);
                        return;
                    }
                    hub.turn();
                }
            })
            .map_err(|e| Error::io("start a thread that looks for the driver", &e))?;
        Ok(Search { found, end: Some(end), thread: Some(thread) })
    }

    /// The hub, or why it will never be found; once.
    pub(crate) fn take(&self) -> Option<Result<Control>> {
        self.found.try_recv().ok()
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.end = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the search for the driver panicked");
        }
    }
}
