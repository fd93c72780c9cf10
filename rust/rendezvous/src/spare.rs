//! A connection whose task has no seat.
//!
//! HUB-22 (spares-wait): a spare has answers to its pings, and to the word that it leaves. That it joins waits until it
//! gets its seat, and the handler hears it then. One that tells anything else has ranks, and so had the seat before: it
//! is to end them. One that is silent gets no seat.

use std::time::{Duration, Instant};

use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, SparkTask};

/// Nodes ping every five seconds at least.
const SILENCE: Duration = Duration::from_secs(15);

/// A connection whose task has no seat.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) partition: u32,
    pub(crate) attempt: Attempt,
    pub(crate) task: SparkTask,
    heard: Instant,
    /// That it joins, which the handler has yet to hear.
    pub(crate) told: Option<NodeMessage>,
    /// Whether it was told that there is nothing to wait for.
    pub(crate) is_over: bool,
}

impl Spare {
    pub(crate) fn new(now: Instant, partition: u32, attempt: Attempt, task: SparkTask) -> Spare {
        Spare { partition, attempt, task, heard: now, told: None, is_over: false }
    }

    /// Whether there is somebody who waits.
    pub(crate) fn may_be_seated(&self, now: Instant) -> bool {
        !self.is_over && now < self.heard + SILENCE
    }

    /// Takes what it says; the answer.
    pub(crate) fn hear(&mut self, now: Instant, message: NodeMessage) -> Option<HubMessage> {
        self.heard = now;
        match message {
            NodeMessage::Ping => Some(HubMessage::Pong),
            NodeMessage::Join(_) => {
                self.told = Some(message);
                None
            }
            NodeMessage::Done { .. } if self.is_over => Some(HubMessage::Released),
            // It was told of its end already.
            _ if self.is_over => None,
            NodeMessage::Done { .. } => {
                self.is_over = true;
                Some(HubMessage::Released)
            }
            _ => {
                self.is_over = true;
                Some(HubMessage::GivenUp { reason: "another task has its seat".into() })
            }
        }
    }
}
