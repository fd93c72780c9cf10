//! The entry for whatever makes up facts: the fuzzer, and its corpus in `cargo test`.
//!
//! A script is pieces of a header of five bytes and a JSON text: partition, attempt, milliseconds that pass before (two
//! bytes), and the text's length in units of eight bytes.

use std::time::{Duration, Instant};

use phalanx_rendezvous::{Outbox, wire};
use phalanx_types::message::NodeMessage;
use phalanx_types::{Attempt, Job};

use crate::driver::state::JobState;

/// Plays a script against the state of a job of three tasks, as nodes that know the token could.
pub fn facts(script: &[u8]) {
    let Ok(mut job) = Job::new("fuzz", "fuzz", 6, 3) else { return };
    job.policy.max_restarts = 1;
    job.policy.hang_timeout = Duration::from_secs(20);
    let mut now = Instant::now();
    let (mut state, mut out) = (JobState::new(job, now), Outbox::default());
    let mut rest = script;
    while let [partition, attempt, fast, slow, eighths, tail @ ..] = rest {
        let (text, others) = tail.split_at(tail.len().min(usize::from(*eighths) * 8));
        rest = others;
        now += Duration::from_millis(u64::from(*fast) + 256 * u64::from(*slow));
        let text = text.trim_ascii_end();
        if let Ok(message) = wire::message::<NodeMessage>(text) {
            state.message(
                now,
                u32::from(partition % 4),
                Attempt::new(u32::from(attempt % 3)),
                message,
                &mut out,
            );
        } else if text.is_empty() {
            state.disconnected(now, u32::from(partition % 4));
        }
        state.tick(now, &mut out);
        let _ = (out.take(), state.status(), state.take_progress(), state.take_reasons());
    }
}
