//! The end of a node's attempt: the node sends what is left to the hub, which says whether another attempt follows.
//!
//! - NODE-4 (held-for-next): a node that is done stays for another attempt until the hub lets it go, as long as the hub
//!   answers and the process that the node runs in doesn't want it to end.

use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use phalanx_supervisor::PipeReader;
use phalanx_types::message::{HubMessage, NodeMessage, OutputTotal};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::node::attempt::Attempt;
use crate::node::line::Line;
use crate::node::process::{INTERRUPT_EVERY, Process};

/// How long the hub may take to say that it has everything.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// What follows an attempt.
pub(crate) enum AfterAttempt {
    /// Nothing.
    Over,
    /// Another one.
    Again {
        /// Its number.
        attempt: u32,
        /// Why.
        reason: String,
    },
}

impl Attempt<'_> {
    /// Hands over what is left of the attempt, and waits for what the hub says to that.
    pub(crate) fn finish(mut self, process: &Process) -> Result<AfterAttempt> {
        let logs = &self.options.spec.job.logs;
        for rank in &mut self.ranks {
            [rank.notes.take(), rank.output.take()].into_iter().flatten().for_each(PipeReader::finish);
        }
        if let Some(relay) = self.relay.take() {
            // Nobody listens at a driver that is gone.
            let is_gone = self.line.given_up().is_some();
            let patience = if is_gone { Duration::ZERO } else { logs.drain_timeout };
            relay.finish(Deadline::after(patience), INTERRUPT_EVERY, || self.line.is_renewed());
        }
        if let Some(copy) = self.executor_log.take() {
            let exits = self.exits.iter().filter(|exit| exit.failure().is_some());
            copy.finish(exits.map(|exit| (exit.rank, exit.describe())).collect());
        }
        if let Some(problem) = self.uploads.finish() {
            self.problem.get_or_insert(problem);
        }
        let output: Vec<OutputTotal> = self
            .ranks
            .iter()
            .filter(|_| self.options.spec.job.logs.live)
            .map(|rank| OutputTotal {
                rank: rank.rank,
                bytes: rank.log.end(),
                log_path: rank.log.path().to_string_lossy().into_owned(),
            })
            .collect();
        let (problem, interrupted) = (self.problem.take(), self.interrupted.take());
        let tell = |line: &Line, interrupted: Option<String>| {
            let done = NodeMessage::Done { problem: problem.clone(), interrupted, output: output.clone() };
            line.tell(Instant::now(), done);
        };
        tell(&self.line, interrupted.clone());
        after_done(&self.line, process, interrupted, || false, tell)
            .map_err(|e| problem.clone().map_or(e, |problem| Error::new(ErrorKind::Unreachable, problem)))
    }
}

/// Waits for what the hub says to a node that has told it that it is done, and for work that is still `busy`. If the
/// node's process wants to end only now, `tell` says so once more; `interrupted` is why it wanted to before.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if the hub says nothing.
pub(crate) fn after_done(
    line: &Line,
    process: &Process,
    mut interrupted: Option<String>,
    busy: impl Fn() -> bool,
    tell: impl Fn(&Line, Option<String>),
) -> Result<AfterAttempt> {
    let mut word = None;
    // The hub may keep this node until all others are done, too; as long as it answers it is waited for.
    let mut deadline = Deadline::after(RELEASE_TIMEOUT);
    while busy() || (word.is_none() && !deadline.passed() && line.given_up().is_none()) {
        match line.orders().recv_timeout(INTERRUPT_EVERY) {
            Ok(HubMessage::Released) => word = Some(AfterAttempt::Over),
            Ok(HubMessage::Again { attempt, reason }) => word = Some(AfterAttempt::Again { attempt, reason }),
            Ok(_) if interrupted.is_none() => deadline = Deadline::after(RELEASE_TIMEOUT),
            Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        if word.is_none()
            && interrupted.is_none()
            && let Some(reason) = process.interrupted()
        {
            interrupted = Some(reason.clone());
            tell(line, Some(reason));
        }
    }
    let unheard = "the driver did not say that it had heard of the ranks' end";
    let why = interrupted.as_deref().or(line.given_up()).unwrap_or(unheard);
    word.ok_or_else(|| Error::new(ErrorKind::Unreachable, why))
}
