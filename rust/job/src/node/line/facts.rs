//! What a node has told the hub. It is kept so that it can be told again, with its age at that time.

use std::time::{Duration, Instant};

use phalanx_rendezvous::wire::MAX_FRAME_BYTES;
use phalanx_types::message::NodeMessage;

/// A fact and when it was first told, so that a later telling can age it.
pub(super) struct Fact {
    pub(super) at: Instant,
    pub(super) message: NodeMessage,
}

/// The message as it is told now of something that happened at `at`.
pub(super) fn aged(message: &NodeMessage, at: Instant) -> NodeMessage {
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

/// Whether the hub takes it in one frame, with whatever is around it. NODE-11
pub(super) fn fits(message: &NodeMessage) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| bytes.len() < MAX_FRAME_BYTES - 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_that_no_frame_takes_is_known() {
        let phase = |bytes| NodeMessage::Phase { rank: 0, name: "x".repeat(bytes), nth: 0, age_us: 0 };
        assert!(fits(&phase(MAX_FRAME_BYTES / 2)));
        assert!(!fits(&phase(MAX_FRAME_BYTES)), "NODE-11");
    }
}
