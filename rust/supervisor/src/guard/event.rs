//! What a guard tells its client.

use std::time::{Duration, Instant};

use phalanx_io::instant_of;

use super::wire::{ExitStatus, GuardMessage};

/// What a guard tells. `at` is when the guard saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardEvent {
    /// A rank's program runs.
    Started {
        /// The rank.
        rank: u32,
        /// Its process id; only for looking, never for signals: it may be gone by now.
        pid: u32,
        /// When.
        at: Instant,
    },
    /// A rank could not be started.
    NotStarted {
        /// The rank.
        rank: u32,
        /// Why, in a sentence.
        reason: String,
        /// When.
        at: Instant,
    },
    /// A rank's process ended. What it started may still run.
    Ended {
        /// The rank.
        rank: u32,
        /// How.
        how: ExitStatus,
        /// Whether it had ended, or was about to exit, before the guard asked it to end or killed it.
        by_itself: bool,
        /// When.
        at: Instant,
    },
    /// After a stop: nothing is left. The last event.
    Empty,
    /// The guard is no more without having said `Empty`; ranks died with it. The last event.
    Gone {
        /// What became of it, or what it could not end.
        reason: String,
    },
}

impl GuardEvent {
    /// What a message of the guard tells; `None` for its last, of which the guard's exit is a part.
    pub(super) fn of(message: GuardMessage) -> Option<GuardEvent> {
        let at = |ns| instant_of(Duration::from_nanos(ns));
        Some(match message {
            GuardMessage::Started { rank, pid, at_ns } => GuardEvent::Started { rank, pid, at: at(at_ns) },
            GuardMessage::NotStarted { rank, reason, at_ns } => {
                GuardEvent::NotStarted { rank, reason, at: at(at_ns) }
            }
            GuardMessage::Ended { rank, how, by_itself, at_ns } => {
                GuardEvent::Ended { rank, how, by_itself, at: at(at_ns) }
            }
            GuardMessage::Over { .. } => return None,
        })
    }
}
