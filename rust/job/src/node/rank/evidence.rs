//! How a rank ended: from the exit that its guard saw, what it wrote down, and whether its node told it to end.
//!
//! NODE-55 (result-stands): a rank whose own process had promised a result and has left it whole has ended well,
//! however that process ended then, unless its node ended it. How that was is told where it was not with exit code 0.
//! Of a rank that has promised none, or for which a process that it had started did, the exit code is all that there
//! is.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_io::{instant_of, monotonic_us};
use phalanx_supervisor::{ExitStatus, RankLog};
use phalanx_types::contract::{FILE_ERROR, FILE_OWED, FILE_RESULT, FILE_TORCH_ERROR};
use phalanx_types::failure::LAST_LINES;
use phalanx_types::{RankError, RankExit, RankState};

use crate::node::line::signed_us;
use crate::node::machine::{Ended, Evidence, Exit, ProcessEnd};

/// The longest record of an exception that is read: of one that Phalanx's own entry writes it is 2 MiB.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// What is said of a rank that exits with code 0 and owes a result.
const NOT_AT_ITS_END: &str =
    "its training code had not returned, so something in it called os._exit, or exit in C";
/// What is said of a rank that the kernel killed for want of memory.
const WHOSE_MEMORY: &str = "ranks live in what spark.executor.memoryOverhead adds to an executor's own memory, \
     in local mode spark.driver.memoryOverhead";
/// What is said of a rank whose files can't be read.
const DISK_SILENT: &str = "its host's disk doesn't answer, so what it left there is not known";

/// A rank that has ended, and where it may have left what says why.
#[derive(Debug, Clone)]
pub(crate) struct Leftovers {
    pub(crate) ended: Ended,
    pub(crate) host: String,
    /// Its own folder.
    pub(crate) dir: PathBuf,
    pub(crate) log: Arc<RankLog>,
    /// What it raised, where it could not leave a file that says so.
    pub(crate) noted_error: Option<RankError>,
    /// Whether the kernel killed a process here for want of memory before it ended.
    pub(crate) out_of_memory: bool,
}

/// What a rank left on the disk.
#[derive(Debug, Default)]
struct OnDisk {
    error: Option<RankError>,
    has_result: bool,
    owes_result: bool,
    /// The process that has promised a result.
    promised_by: Option<u32>,
    last_lines: Vec<String>,
}

impl Leftovers {
    /// Reads what it left.
    pub(crate) fn read(self) -> Evidence {
        let on_disk = OnDisk {
            error: read_error(&self.dir.join(FILE_ERROR), &self.dir.join(FILE_TORCH_ERROR)),
            has_result: self.dir.join(FILE_RESULT).exists(),
            owes_result: self.dir.join(FILE_OWED).exists(),
            promised_by: read_pid(&self.dir.join(FILE_OWED)),
            last_lines: self.log.last_lines(LAST_LINES),
        };
        self.with(on_disk, "")
    }

    /// The same without the disk, which does not answer. That it left no result is the worst that can be.
    pub(crate) fn without_disk(self) -> Evidence {
        self.with(OnDisk { owes_result: true, ..OnDisk::default() }, DISK_SILENT)
    }

    fn with(self, on_disk: OnDisk, otherwise: &str) -> Evidence {
        let Leftovers { ended, host, log, noted_error, out_of_memory, .. } = self;
        let Ended { rank, pid, end, stopped } = ended;
        let error = on_disk.error.or(noted_error).map(RankError::bounded);
        let mut at = end.at();
        let killed = |at| Exit { how: ExitStatus::Signal(9), by_itself: false, at };
        let (exit, with_guard) = match end {
            ProcessEnd::Exited(exit) => (Some(exit), None),
            ProcessEnd::WithGuard { reason, at } => (Some(killed(at)), Some(reason)),
            ProcessEnd::NotStarted { reason, .. } => (None, Some(reason)),
        };
        let (state, message) = match exit {
            None => (RankState::NotStarted, with_guard.unwrap_or_default()),
            Some(exit) => {
                let evidence = ExitEvidence {
                    exit,
                    stopped,
                    error: error.as_ref(),
                    left_result: on_disk.has_result,
                    owes_result: on_disk.owes_result,
                    promised_itself: pid.is_some() && pid == on_disk.promised_by,
                    out_of_memory,
                };
                let state = state_of(&evidence);
                let message = match state {
                    _ if !otherwise.is_empty() => otherwise.to_string(),
                    RankState::Finished if exit.how != ExitStatus::Code(0) => {
                        state_without_result(&evidence).describe()
                    }
                    RankState::Exited(0) => NOT_AT_ITS_END.to_string(),
                    RankState::OutOfMemory => WHOSE_MEMORY.to_string(),
                    RankState::Signaled(_) => with_guard.unwrap_or_default(),
                    _ => String::new(),
                };
                (state, message)
            }
        };
        if let (RankState::Raised, Some(error)) = (&state, &error) {
            at = instant_of(Duration::from_micros(error.at_us)).min(at);
        }
        let exit = RankExit {
            rank,
            host,
            error: error.filter(|_| state == RankState::Raised),
            state,
            message,
            last_lines: on_disk.last_lines,
            log_path: log.path().to_string_lossy().into_owned(),
            at_us: 0,
            last_output_us: log.last_output().map(|last| signed_us(last, at)),
            asked: None,
        };
        Evidence { exit, at, has_result: on_disk.has_result }
    }
}

/// How a rank's process ended, and what is known beside it.
struct ExitEvidence<'a> {
    exit: Exit,
    /// When its node told its ranks to end.
    stopped: Option<Instant>,
    error: Option<&'a RankError>,
    left_result: bool,
    /// The rank has promised a result, as RANK-4 says.
    owes_result: bool,
    /// The process that promised it is the one whose end this is.
    promised_itself: bool,
    out_of_memory: bool,
}

/// The state that an exit amounts to.
///
/// A rank that ended after it was told to end is `Stopped`, whatever its exit says, unless it had failed (its own
/// record is older than the stop, or it was leaving without any) or finished (its result is there) before.
fn state_of(evidence: &ExitEvidence<'_>) -> RankState {
    let stopped_first = evidence.stopped_first();
    let kept_promise = evidence.left_result && evidence.promised_itself;
    match evidence.exit.how {
        ExitStatus::Code(0) if evidence.left_result || !(stopped_first || evidence.owes_result) => {
            RankState::Finished
        }
        _ if stopped_first => RankState::Stopped,
        _ if kept_promise => RankState::Finished,
        _ => state_without_result(evidence),
    }
}

/// What became of the process of a rank that ended by itself, whatever its result.
fn state_without_result(evidence: &ExitEvidence<'_>) -> RankState {
    match (evidence.exit.how, evidence.error) {
        (ExitStatus::Signal(9), _) if evidence.out_of_memory => RankState::OutOfMemory,
        (_, Some(_)) => RankState::Raised,
        (ExitStatus::Code(code), None) => RankState::Exited(code),
        (ExitStatus::Signal(signal), None) => RankState::Signaled(signal),
    }
}

impl ExitEvidence<'_> {
    /// Whether its node had told it to end before it failed or was leaving.
    fn stopped_first(&self) -> bool {
        self.stopped.is_some_and(|at| match self.error {
            Some(error) => instant_of(Duration::from_micros(error.at_us)) > at,
            None => self.exit.at > at && !self.exit.by_itself,
        })
    }
}

/// What a rank wrote down about its exception: in Phalanx's own record, else in torch's (`@record` of
/// torch.distributed.elastic writes it to `TORCHELASTIC_ERROR_FILE`).
fn read_error(own: &Path, torch: &Path) -> Option<RankError> {
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

/// The process that wrote its id into a file.
fn read_pid(path: &Path) -> Option<u32> {
    std::str::from_utf8(&read_record(path)?).ok()?.parse().ok()
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
        let (left_result, owes_result, promised_itself, out_of_memory) = (false, false, false, false);
        ExitEvidence {
            exit,
            stopped: None,
            error: None,
            left_result,
            owes_result,
            promised_itself,
            out_of_memory,
        }
    }

    fn exit(how: ExitStatus, error: Option<&RankError>, stopped: Option<Instant>) -> RankState {
        state_of(&ExitEvidence { stopped, error, ..exited(how) })
    }

    #[test]
    fn an_exit_with_code_0_is_no_good_end_while_a_result_is_owed() {
        let mut exit = ExitEvidence { owes_result: true, ..exited(ExitStatus::Code(0)) };
        assert_eq!(state_of(&exit), RankState::Exited(0), "TYPES-4");
        exit.left_result = true;
        assert_eq!(state_of(&exit), RankState::Finished);
    }

    #[test]
    fn how_a_process_ends_after_its_result_is_whole_is_no_failure() {
        let raised = RankError { at_us: 5, ..RankError::default() };
        for how in [ExitStatus::Code(3), ExitStatus::Signal(11), ExitStatus::Signal(6), ExitStatus::Signal(9)]
        {
            let exit = exited(how);
            let promised = ExitEvidence { owes_result: true, promised_itself: true, ..exit };
            let with = ExitEvidence { left_result: true, out_of_memory: true, ..promised };
            assert_eq!(state_of(&with), RankState::Finished, "NODE-55: {how:?}");
            let with = ExitEvidence { error: Some(&raised), ..with };
            assert_eq!(state_of(&with), RankState::Finished, "NODE-55: {how:?}");
            let without = ExitEvidence { left_result: false, error: None, out_of_memory: false, ..with };
            assert!(state_of(&without).failure().is_some(), "TYPES-4: {how:?}");
            let file =
                ExitEvidence { owes_result: false, promised_itself: false, left_result: true, ..without };
            assert!(state_of(&file).failure().is_some(), "NODE-55: a file's exit code is its own: {how:?}");
            let of_child = ExitEvidence { owes_result: true, ..file };
            assert!(state_of(&of_child).failure().is_some(), "NODE-55: a child promised it: {how:?}");
        }
    }

    #[test]
    fn a_rank_that_its_node_ends_after_its_result_is_whole_is_stopped() {
        let before = Some(instant_of(Duration::from_secs(100)));
        let exit = exited(ExitStatus::Signal(15));
        let promised = ExitEvidence { owes_result: true, promised_itself: true, ..exit };
        let mut killed = ExitEvidence { left_result: true, stopped: before, ..promised };
        assert_eq!(state_of(&killed), RankState::Stopped, "NODE-55");
        killed.exit.by_itself = true;
        assert_eq!(state_of(&killed), RankState::Finished, "it was leaving already");
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
        let before = Some(instant_of(Duration::from_secs(100)));
        assert_eq!(exit(ExitStatus::Signal(15), None, before), RankState::Stopped);
        assert_eq!(exit(ExitStatus::Code(0), None, before), RankState::Stopped);
        let mut leaving = ExitEvidence { stopped: before, ..exited(ExitStatus::Code(4)) };
        assert_eq!(state_of(&leaving), RankState::Stopped);
        leaving.exit.by_itself = true;
        assert_eq!(state_of(&leaving), RankState::Exited(4), "TYPES-20: its victim was heard of first");
        let echo = RankError { at_us: 101_000_000, ..RankError::default() };
        assert_eq!(exit(ExitStatus::Code(1), Some(&echo), before), RankState::Stopped);
    }

    #[test]
    fn a_rank_that_raised_before_the_stop_failed_although_the_stop_ended_it() {
        let before = Some(instant_of(Duration::from_secs(100)));
        let cause = RankError { at_us: 99_000_000, ..RankError::default() };
        assert_eq!(exit(ExitStatus::Signal(15), Some(&cause), before), RankState::Raised, "TYPES-4");
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
