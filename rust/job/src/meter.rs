//! What a node tells its host for metrics: at most twenty times a second, and once more at the end.

use std::time::Instant;

use crate::gather::INTERRUPT_EVERY;
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
    /// For a node that began at `began` and knows its place by now.
    pub(crate) fn of_placed(began: Instant) -> Meter {
        let waiting = vec![Observation::Joined(began.elapsed())];
        Meter { began, waiting, told: (0, 0), tell_output_at: Instant::now() }
    }

    pub(crate) fn rank_started(&mut self, at: Instant) {
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
