//! What a node tells its host for metrics: at most twenty times a second, and once more at the end.

use std::time::Instant;

use crate::control::INTERRUPT_EVERY;
use crate::host::{NodeHost, Observation};

/// Observations of one node on their way to its host.
pub(crate) struct Meter {
    began: Instant,
    waiting: Vec<Observation>,
    /// Lines and bytes that the host knows of.
    told: (u64, u64),
    tell_output_at: Instant,
}

impl Meter {
    pub(crate) fn new() -> Meter {
        let now = Instant::now();
        Meter { began: now, waiting: Vec::new(), told: (0, 0), tell_output_at: now }
    }

    /// The node, which began an attempt at `began`, knows its place.
    pub(crate) fn placed(&mut self, began: Instant) {
        self.began = began;
        self.waiting.push(Observation::Joined(began.elapsed()));
    }

    pub(crate) fn rank_started(&mut self, at: Instant, attempt: u32) {
        if attempt > 0 {
            self.waiting.push(Observation::RankRestarted);
        }
        self.waiting.push(Observation::RankStarted(at.saturating_duration_since(self.began)));
    }

    pub(crate) fn rank_ended(&mut self, failed: bool) {
        self.waiting.push(Observation::RankEnded { failed });
    }

    /// Tells what is new; `written` counts the lines and bytes that all ranks have written so far.
    pub(crate) fn tell(&mut self, host: &mut dyn NodeHost, written: impl FnOnce() -> (u64, u64)) {
        for observation in self.waiting.drain(..) {
            host.observe(observation);
        }
        if Instant::now() >= self.tell_output_at {
            self.tell_output_at = Instant::now() + INTERRUPT_EVERY;
            self.tell_output(host, written());
        }
    }

    /// Tells what is new, and all of the output.
    pub(crate) fn tell_all(&mut self, host: &mut dyn NodeHost, written: (u64, u64)) {
        self.tell(host, || written);
        self.tell_output(host, written);
    }

    fn tell_output(&mut self, host: &mut dyn NodeHost, written: (u64, u64)) {
        if written != self.told {
            host.observe(Observation::Output {
                lines: written.0 - self.told.0,
                bytes: written.1 - self.told.1,
            });
            self.told = written;
        }
    }
}
