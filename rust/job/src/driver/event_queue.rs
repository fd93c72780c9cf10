//! The events that wait for the caller, however slow it is.
//!
//! - DRIVER-2 (bounded): of the status and of each rank's progress only the newest waits. The others have bounds of
//!   their own: output and reports (DRIVER-47) in bytes, phases by rank, restarts by the job's budget.
//! - DRIVER-3 (in-order): the others come in the order in which they happened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::driver::event::Event;
use crate::driver::state::Progress;
use crate::driver::waiting_reports::WaitingReports;

/// A place in the queue.
enum Slot {
    Event(Box<Event>),
    Status,
    Progress(u32),
    Reports(u32),
}

#[derive(Default)]
struct Newest {
    status: Option<String>,
    progress: BTreeMap<u32, Progress>,
    reports: WaitingReports,
}

fn lock(newest: &Mutex<Newest>) -> MutexGuard<'_, Newest> {
    newest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where events go.
pub(super) struct EventSender {
    slots: Sender<Slot>,
    newest: Arc<Mutex<Newest>>,
}

/// Where they come.
pub(super) struct EventReceiver {
    slots: Receiver<Slot>,
    newest: Arc<Mutex<Newest>>,
}

pub(super) fn event_queue() -> (EventSender, EventReceiver) {
    let (sender, receiver) = crossbeam_channel::unbounded();
    let newest = Arc::<Mutex<Newest>>::default();
    (EventSender { slots: sender, newest: Arc::clone(&newest) }, EventReceiver { slots: receiver, newest })
}

impl EventSender {
    /// Puts an event behind those that wait, or in the place of one that it replaces.
    pub(super) fn send(&self, event: Event) {
        let slot = match event {
            Event::Status(status) => {
                lock(&self.newest).status.replace(status).is_none().then_some(Slot::Status)
            }
            Event::Progress(progress) => {
                let rank = progress.rank;
                let before = lock(&self.newest).progress.insert(rank, progress);
                before.is_none().then_some(Slot::Progress(rank))
            }
            Event::Reports(reports) => {
                let rank = reports.rank;
                lock(&self.newest).reports.put(reports).then_some(Slot::Reports(rank))
            }
            other => Some(Slot::Event(Box::new(other))),
        };
        // The receiver lives as long as the hub.
        slot.map(|slot| self.slots.send(slot));
    }
}

impl EventReceiver {
    /// The next event; `None` at the deadline.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Closed`] after the last event.
    pub(super) fn next(&self, deadline: Deadline) -> Result<Option<Event>> {
        loop {
            let Some(slot) = next_of(&self.slots, deadline)? else { return Ok(None) };
            let event = match slot {
                Slot::Event(event) => Some(*event),
                Slot::Status => lock(&self.newest).status.take().map(Event::Status),
                Slot::Progress(rank) => lock(&self.newest).progress.remove(&rank).map(Event::Progress),
                Slot::Reports(rank) => lock(&self.newest).reports.take(rank).map(Event::Reports),
            };
            if event.is_some() {
                return Ok(event);
            }
        }
    }
}

/// What comes next; `None` at the deadline.
pub(super) fn next_of<T>(channel: &Receiver<T>, deadline: Deadline) -> Result<Option<T>> {
    let next = match deadline.instant() {
        Some(at) => match channel.recv_deadline(at) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => return Ok(None),
            other => other.ok(),
        },
        None => channel.recv().ok(),
    };
    next.map(Some).ok_or_else(|| Error::new(ErrorKind::Closed, "the job is over"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rank: u32, step: u64) -> Event {
        Event::Progress(Progress { rank, step, values: String::new() })
    }

    #[test]
    fn of_status_and_progress_only_the_newest_waits_and_the_rest_is_in_order() {
        let (sender, receiver) = event_queue();
        for round in 0..1000 {
            sender.send(Event::Status(format!("training, step {round}")));
            sender.send(step(0, round));
            sender.send(step(1, round));
        }
        assert_eq!(receiver.slots.len(), 3, "DRIVER-2");
        sender.send(Event::Output("a".into()));
        let told: Vec<Event> = (0..4).map(|_| receiver.next(Deadline::never()).unwrap().unwrap()).collect();
        let expected = [
            Event::Status("training, step 999".into()),
            step(0, 999),
            step(1, 999),
            Event::Output("a".into()),
        ];
        assert_eq!(told, expected, "DRIVER-3");
        sender.send(step(0, 1000));
        assert_eq!(receiver.next(Deadline::never()).unwrap(), Some(step(0, 1000)));
    }
}
