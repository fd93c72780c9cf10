//! The end of a node's attempt: what is left goes to the hub, which says whether that was all.
//!
//! NODE-4: a node that is done is there for another attempt until the hub lets it go, as long as the hub answers and
//! its host doesn't want it to end.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use phalanx_types::message::{HubMessage, NodeMessage, NodeReport, OutputEnd};
use phalanx_types::{Deadline, Error, ErrorKind, RankEnd, Result};

use crate::control::INTERRUPT_EVERY;
use crate::host::NodeHost;
use crate::node::Node;
use crate::results;

/// How long the hub may take to say that it has everything.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// What follows an attempt.
pub(crate) enum Ended {
    /// Nothing; this is the node's report for the hub, if it was not there to be told.
    Over(Vec<u8>),
    /// Another one.
    Again {
        /// Its number.
        attempt: u32,
        /// Why.
        reason: String,
    },
}

impl Node<'_> {
    /// Hands over what is left of the attempt, and waits for what the hub says to that.
    pub(crate) fn finish(mut self, host: &mut dyn NodeHost) -> Result<Ended> {
        let logs = &self.options.job.logs;
        for reader in self.ranks.iter_mut().flat_map(|rank| rank.readers.drain(..)) {
            reader.finish();
        }
        if let Some(relay) = self.relay.take() {
            // Nobody listens at a driver that is gone.
            let patience = if self.link.given_up().is_some() { Duration::ZERO } else { logs.drain_timeout };
            relay.finish(Deadline::after(patience), INTERRUPT_EVERY, || self.link.tend());
        }
        if self.link.reached() {
            self.finish_at_hub(host)
        } else {
            self.finish_through_spark().map(Ended::Over)
        }
    }

    fn finish_at_hub(&mut self, host: &mut dyn NodeHost) -> Result<Ended> {
        let output: Vec<OutputEnd> = self
            .ranks
            .iter()
            .filter(|_| self.options.job.logs.live)
            .map(|rank| OutputEnd {
                rank: rank.rank,
                bytes: rank.log.end(),
                log_path: rank.log.path().to_string_lossy().into_owned(),
            })
            .collect();
        self.tell_done(&output);
        // The hub may keep this node until all others are done, too; as long as it answers it is waited for.
        let mut deadline = Deadline::after(RELEASE_TIMEOUT);
        while !deadline.passed() && self.link.given_up().is_none() {
            self.tend_link();
            match self.link.orders().recv_timeout(INTERRUPT_EVERY) {
                Ok(HubMessage::Released) => return Ok(Ended::Over(Vec::new())),
                Ok(HubMessage::Again { attempt, reason }) => return Ok(Ended::Again { attempt, reason }),
                Ok(_) if self.interrupted.is_none() => deadline = Deadline::after(RELEASE_TIMEOUT),
                Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if self.interrupted.is_none()
                && let Some(reason) = host.interrupted()
            {
                self.interrupted = Some(reason);
                self.tell_done(&output);
            }
        }
        let why = self.problem.take().or(self.interrupted.take());
        let problem =
            why.unwrap_or_else(|| "the driver did not say that it had heard of the ranks' end".into());
        Err(Error::new(ErrorKind::Unreachable, problem))
    }

    fn tell_done(&mut self, output: &[OutputEnd]) {
        let (problem, interrupted) = (self.problem.clone(), self.interrupted.clone());
        self.link.tell(Instant::now(), NodeMessage::Done { problem, interrupted, output: output.to_vec() });
    }

    fn finish_through_spark(&mut self) -> Result<Vec<u8>> {
        let ends: Vec<RankEnd> = self
            .link
            .facts()
            .filter_map(|fact| match fact {
                NodeMessage::RankEnded { end } => Some(*end),
                _ => None,
            })
            .collect();
        let results: Vec<(u32, PathBuf)> = self
            .ranks
            .iter()
            .map(|rank| (rank.rank, rank.dir.join("result")))
            .filter(|(_, path)| path.exists())
            .collect();
        let report = NodeReport {
            partition: self.options.partition,
            attempt: self.attempt,
            ends,
            problem: self.problem.take(),
            interrupted: self.interrupted.take(),
        };
        results::pack_report(&report, &results)
    }
}
