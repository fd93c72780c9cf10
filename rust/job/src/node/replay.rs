//! What a node has told the hub. It is kept so that it can be told again, with its age at that time.

use std::time::{Duration, Instant};

use phalanx_types::message::NodeMessage;

/// A fact and when it was first told, so that a later telling can age it.
pub(crate) struct Fact {
    pub(crate) at: Instant,
    pub(crate) message: NodeMessage,
}

/// The message as it is told now of something that happened at `at`.
pub(crate) fn aged(message: &NodeMessage, at: Instant) -> NodeMessage {
    let age = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut message = message.clone();
    match &mut message {
        NodeMessage::RankStarted { age_us, .. } | NodeMessage::Phase { age_us, .. } => *age_us = age,
        NodeMessage::RankEnded { exit } => {
            exit.at_us = -i64::try_from(age).unwrap_or(i64::MAX);
            exit.last_output_us = exit.last_output_us.map(|before| before + exit.at_us);
        }
        _ => {}
    }
    message
}

/// Microseconds from `reference` to `at`.
pub(crate) fn signed_us(at: Instant, reference: Instant) -> i64 {
    let us = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
    if at >= reference { us(at - reference) } else { -us(reference - at) }
}
