//! What became of a rank: the exit that the guard saw, what the rank wrote down, and whether it was told to end.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_io::{instant_of, monotonic_us};
use phalanx_supervisor::{ExitStatus, OomWatch, PipeReader, RankLog};
use phalanx_types::contract::{FILE_ERROR, FILE_OWED, FILE_RESULT, FILE_TORCH_ERROR};
use phalanx_types::failure::LAST_LINES;
use phalanx_types::message::RankActivity;
use phalanx_types::{RankError, RankExit, RankState};

use crate::node::line::signed_us;
use crate::node::mailbox::Mailbox;
use crate::node::progress::{RankProgress, is_stopped};

/// The longest record of an exception that is read: of one that Phalanx's own entry writes it is 2 MiB.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// What is said of a rank that exits with code 0 and owes a result.
const NOT_AT_ITS_END: &str =
    "its training code had not returned, so something in it called os._exit, or exit in C";
/// What is said of a rank that the kernel killed for want of memory.
const WHOSE_MEMORY: &str = "ranks live in what spark.executor.memoryOverhead adds to an executor's own memory, \
     in local mode spark.driver.memoryOverhead";

/// One rank of a node, from its start to its report.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) dir: PathBuf,
    pub(crate) log: Arc<RankLog>,
    pub(crate) process: RankProcess,
    pub(crate) progress: RankProgress,
    pub(crate) output: Option<PipeReader>,
    /// Reads what it tells into `mailbox`, until it is reported.
    pub(crate) notes: Option<PipeReader>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// What it raised, where it could not leave a file that says so.
    pub(crate) noted_error: Option<RankError>,
    /// How many phases it has told.
    pub(crate) phases: u32,
}

/// Where a rank's process is.
#[derive(Debug, Clone)]
pub(crate) enum RankProcess {
    /// The guard was asked to start it.
    Launched,
    /// It runs.
    Running { pid: u32 },
    /// The guard could not start it.
    NotStarted { reason: String, at: Instant },
    /// It has ended.
    Ended(Exit),
    /// It is over, and the hub was told how.
    Reported,
}

impl RankProcess {
    /// Whether there is no such process any more.
    pub(crate) fn is_over(&self) -> bool {
        !matches!(self, RankProcess::Launched | RankProcess::Running { .. })
    }

    /// Its id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        if let RankProcess::Running { pid } = self { Some(*pid) } else { None }
    }
}

/// When a node began to stop its ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopped {
    at: Instant,
    /// The same moment as Python's clock tells it.
    at_us: u64,
}

impl Stopped {
    pub(crate) fn now() -> Stopped {
        Stopped { at: Instant::now(), at_us: monotonic_us() }
    }
}

impl Rank {
    /// When its process ended, or could not be started, if that has yet to be reported.
    pub(crate) fn unreported(&self) -> Option<Instant> {
        match &self.process {
            RankProcess::Ended(exit) => Some(exit.at),
            RankProcess::NotStarted { at, .. } => Some(*at),
            RankProcess::Launched | RankProcess::Running { .. } | RankProcess::Reported => None,
        }
    }

    /// What is told of it while it runs.
    pub(crate) fn activity(&self) -> RankActivity {
        let RankProgress { last, doing, step, total_steps, step_us, values, collectives, .. } =
            &self.progress;
        let last = self.log.last_output().map_or(*last, |output| output.max(*last));
        RankActivity {
            rank: self.rank,
            idle_ms: u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX),
            stopped: self.process.pid().is_some_and(is_stopped),
            doing: doing.clone(),
            step: *step,
            total_steps: *total_steps,
            step_us: *step_us,
            collective_permille: collectives.permille,
            values: values.clone(),
        }
    }

    /// How it ended, and when: what its process did, what it wrote down, and whether it was told to.
    pub(crate) fn end(&self, host: &str, stopped: Option<Stopped>, oom: &OomWatch) -> (RankExit, Instant) {
        let error = read_error(&self.dir.join(FILE_ERROR), &self.dir.join(FILE_TORCH_ERROR))
            .or_else(|| self.noted_error.clone())
            .map(RankError::bounded);
        let (state, message, mut at) = match &self.process {
            RankProcess::Ended(exit) => {
                let state = state_of(&ExitEvidence {
                    exit: *exit,
                    stopped,
                    error: error.as_ref(),
                    left_result: self.dir.join(FILE_RESULT).exists(),
                    owes_result: self.dir.join(FILE_OWED).exists(),
                    out_of_memory: oom.killed_before(exit.at),
                });
                let message = match state {
                    RankState::Exited(0) => NOT_AT_ITS_END,
                    RankState::OutOfMemory => WHOSE_MEMORY,
                    _ => "",
                };
                (state, message.to_string(), exit.at)
            }
            RankProcess::NotStarted { reason, at } => (RankState::NotStarted, reason.clone(), *at),
            RankProcess::Launched | RankProcess::Running { .. } | RankProcess::Reported => {
                (RankState::Lost, String::new(), Instant::now())
            }
        };
        if let (RankState::Raised, Some(error)) = (&state, &error) {
            at = instant_of(Duration::from_micros(error.at_us)).min(at);
        }
        let end = RankExit {
            rank: self.rank,
            host: host.to_string(),
            error: error.filter(|_| state == RankState::Raised),
            state,
            message,
            last_lines: self.log.last_lines(LAST_LINES),
            log_path: self.log.path().to_string_lossy().into_owned(),
            at_us: 0,
            last_output_us: self.log.last_output().map(|last| signed_us(last, at)),
        };
        (end, at)
    }
}

/// The end of a rank's process, as its guard saw it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit {
    pub(crate) how: ExitStatus,
    /// Whether it was over, or on its way out, when the guard came to end it.
    pub(crate) by_itself: bool,
    pub(crate) at: Instant,
}

/// How a rank's process ended, and what is known beside it.
pub(crate) struct ExitEvidence<'a> {
    pub(crate) exit: Exit,
    pub(crate) stopped: Option<Stopped>,
    pub(crate) error: Option<&'a RankError>,
    pub(crate) left_result: bool,
    /// The rank had promised a result, see RANK-1.
    pub(crate) owes_result: bool,
    pub(crate) out_of_memory: bool,
}

/// The state that an exit amounts to.
///
/// A rank that ended after it was told to end is `Stopped`, whatever its exit says, unless it had failed (its own
/// record is older than the stop, or it was leaving without any) or finished (its result is there) before.
pub(crate) fn state_of(evidence: &ExitEvidence<'_>) -> RankState {
    let stopped_first = evidence.stopped.is_some_and(|Stopped { at, at_us }| match evidence.error {
        Some(error) => error.at_us > at_us,
        None => evidence.exit.at > at && !evidence.exit.by_itself,
    });
    match (evidence.exit.how, evidence.error) {
        (ExitStatus::Code(0), _) if evidence.left_result || !(stopped_first || evidence.owes_result) => {
            RankState::Finished
        }
        _ if stopped_first => RankState::Stopped,
        (ExitStatus::Signal(9), _) if evidence.out_of_memory => RankState::OutOfMemory,
        (_, Some(_)) => RankState::Raised,
        (ExitStatus::Code(code), None) => RankState::Exited(code),
        (ExitStatus::Signal(signal), None) => RankState::Signaled(signal),
    }
}

/// What a rank wrote down about its exception: in Phalanx's own record, else in torch's (`@record` of
/// torch.distributed.elastic writes it to `TORCHELASTIC_ERROR_FILE`).
pub(crate) fn read_error(own: &Path, torch: &Path) -> Option<RankError> {
    if let Some(bytes) = read_record(own) {
        match serde_json::from_slice(&bytes) {
            Ok(error) => return Some(error),
            Err(e) => log::warn!("{} is no record of an exception: {e}", own.display()),
        }
    }
    let torch: serde_json::Value = serde_json::from_slice(&read_record(torch)?).ok()?;
    let message = &torch["message"];
    let text = message["message"].as_str().or(message.as_str())?;
    let (type_name, message_text) = text.split_once(": ").unwrap_or(("error", text));
    Some(RankError {
        type_name: type_name.to_string(),
        message: message_text.to_string(),
        traceback: message["extraInfo"]["py_callstack"].as_str().unwrap_or_default().to_string(),
        at_us: monotonic_us(),
        ..RankError::default()
    })
}

/// A file that a rank wrote, which may be anything; `None` for one that no node can take in.
fn read_record(path: &Path) -> Option<Vec<u8>> {
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_RECORD_BYTES + 1).read_to_end(&mut bytes).ok()?;
    if bytes.len() as u64 > MAX_RECORD_BYTES {
        log::warn!("{} is longer than {} MiB, and is not read", path.display(), MAX_RECORD_BYTES >> 20);
        return None;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(how: ExitStatus) -> ExitEvidence<'static> {
        let exit = Exit { how, by_itself: false, at: Instant::now() };
        let (left_result, owes_result, out_of_memory) = (false, false, false);
        ExitEvidence { exit, stopped: None, error: None, left_result, owes_result, out_of_memory }
    }

    fn exit(how: ExitStatus, error: Option<&RankError>, stopped: Option<Stopped>) -> RankState {
        state_of(&ExitEvidence { stopped, error, ..exited(how) })
    }

    #[test]
    fn an_exit_with_code_0_is_no_good_end_while_a_result_is_owed() {
        let mut exit = ExitEvidence { owes_result: true, ..exited(ExitStatus::Code(0)) };
        assert_eq!(state_of(&exit), RankState::Exited(0), "FAIL-1");
        exit.left_result = true;
        assert_eq!(state_of(&exit), RankState::Finished);
    }

    #[test]
    fn exits_are_told_apart() {
        let error = RankError { at_us: 5, ..RankError::default() };
        assert_eq!(exit(ExitStatus::Code(0), None, None), RankState::Finished);
        assert_eq!(exit(ExitStatus::Code(3), None, None), RankState::Exited(3));
        assert_eq!(exit(ExitStatus::Code(1), Some(&error), None), RankState::Raised);
        assert_eq!(exit(ExitStatus::Signal(11), None, None), RankState::Signaled(11));
    }

    #[test]
    fn what_happens_after_the_stop_is_the_stops_doing() {
        let before = Some(Stopped { at: Instant::now() - Duration::from_secs(1), at_us: 100 });
        assert_eq!(exit(ExitStatus::Signal(15), None, before), RankState::Stopped);
        assert_eq!(exit(ExitStatus::Code(0), None, before), RankState::Stopped);
        let mut leaving = ExitEvidence { stopped: before, ..exited(ExitStatus::Code(4)) };
        assert_eq!(state_of(&leaving), RankState::Stopped);
        leaving.exit.by_itself = true;
        assert_eq!(state_of(&leaving), RankState::Exited(4), "FAIL-2: its victim was heard of first");
        let echo = RankError { at_us: 101, ..RankError::default() };
        assert_eq!(exit(ExitStatus::Code(1), Some(&echo), before), RankState::Stopped);
    }

    #[test]
    fn a_rank_that_raised_before_the_stop_failed_although_the_stop_ended_it() {
        let before = Some(Stopped { at: Instant::now() - Duration::from_secs(1), at_us: 100 });
        let cause = RankError { at_us: 99, ..RankError::default() };
        assert_eq!(exit(ExitStatus::Signal(15), Some(&cause), before), RankState::Raised, "FAIL-1");
    }

    #[test]
    fn torchs_record_serves_where_phalanx_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let torch = dir.path().join("t.json");
        let record = r#"{"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": "tb"}}}"#;
        std::fs::write(&torch, record).unwrap();
        let error = read_error(&dir.path().join("none"), &torch).unwrap();
        assert_eq!((error.type_name.as_str(), error.message.as_str()), ("ValueError", "bad"));
        assert_eq!(error.traceback, "tb");
    }
}
