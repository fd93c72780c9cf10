//! What became of a rank: the exit that the guard saw, what the rank wrote down, and whether it was told to end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_supervisor::{ExitHow, OomWatch, PipeReader, RankLog};
use phalanx_types::failure::LAST_LINES;
use phalanx_types::{RankEnd, RankError, RankState};
use rustix::time::{ClockId, clock_gettime};

use crate::activity::Activity;
use crate::facts::signed_us;

/// What is said of a rank that exits with code 0 and owes a result.
const NOT_AT_ITS_END: &str =
    "its training code had not returned, so something in it called os._exit, or exit in C";

/// One rank of a node, from its start to its report.
pub(crate) struct Rank {
    pub(crate) rank: u32,
    pub(crate) dir: PathBuf,
    pub(crate) log: Arc<RankLog>,
    pub(crate) activity: Activity,
    pub(crate) readers: Vec<PipeReader>,
    pub(crate) exit: Option<Ending>,
    pub(crate) not_started: Option<(String, Instant)>,
    /// What it raised, where it could not leave a file that says so.
    pub(crate) noted_error: Option<RankError>,
    /// How many phases it has told.
    pub(crate) phases: u32,
    pub(crate) reported: bool,
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

/// `CLOCK_MONOTONIC` in microseconds: the clock of [`Instant`] and of Python's `time.monotonic`.
pub(crate) fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000
}

impl Rank {
    /// When its process ended, or could not be started; `None` while it runs.
    pub(crate) fn over_at(&self) -> Option<Instant> {
        self.exit.map(|ending| ending.at).or(self.not_started.as_ref().map(|(_, at)| *at))
    }

    /// How it ended, and when: what its process did, what it wrote down, and whether it was told to.
    pub(crate) fn end(&self, host: &str, stopped: Option<Stopped>, oom: &OomWatch) -> (RankEnd, Instant) {
        let error = read_error(&self.dir.join("error.json"), &self.dir.join("torch-error.json"))
            .or_else(|| self.noted_error.clone());
        let (state, message, mut at) = match (&self.exit, &self.not_started) {
            (Some(ending), _) => {
                let state = state_of(&Exit {
                    ending: *ending,
                    stopped,
                    error: error.as_ref(),
                    left_result: self.dir.join("result").exists(),
                    owes_result: self.dir.join("owed").exists(),
                    out_of_memory: oom.killed_since(),
                });
                let message = if state == RankState::Exited(0) { NOT_AT_ITS_END } else { "" };
                (state, message.to_string(), ending.at)
            }
            (None, Some((reason, at))) => (RankState::NotStarted, reason.clone(), *at),
            (None, None) => (RankState::Lost, String::new(), Instant::now()),
        };
        if let (RankState::Raised, Some(error)) = (&state, &error) {
            // The moment of the raise, on the clock that Instant reads.
            let age = Duration::from_micros(monotonic_us().saturating_sub(error.at_us));
            at = Instant::now().checked_sub(age).unwrap_or(at).min(at);
        }
        let end = RankEnd {
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
pub(crate) struct Ending {
    pub(crate) how: ExitHow,
    /// Whether it was over, or on its way out, when the guard came to end it.
    pub(crate) by_itself: bool,
    pub(crate) at: Instant,
}

/// How a rank's process ended, and what is known beside it.
pub(crate) struct Exit<'a> {
    pub(crate) ending: Ending,
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
pub(crate) fn state_of(exit: &Exit<'_>) -> RankState {
    let stopped_first = exit.stopped.is_some_and(|Stopped { at, at_us }| match exit.error {
        Some(error) => error.at_us > at_us,
        None => exit.ending.at > at && !exit.ending.by_itself,
    });
    match (exit.ending.how, exit.error) {
        (ExitHow::Code(0), _) if exit.left_result || !(stopped_first || exit.owes_result) => {
            RankState::Finished
        }
        _ if stopped_first => RankState::Stopped,
        (ExitHow::Signal(9), _) if exit.out_of_memory => RankState::OutOfMemory,
        (_, Some(_)) => RankState::Raised,
        (ExitHow::Code(code), None) => RankState::Exited(code),
        (ExitHow::Signal(signal), None) => RankState::Signaled(signal),
    }
}

/// What a rank wrote down about its exception: in Phalanx's own record, else in torch's (`@record` of
/// torch.distributed.elastic writes it to `TORCHELASTIC_ERROR_FILE`).
pub(crate) fn read_error(own: &Path, torch: &Path) -> Option<RankError> {
    if let Ok(bytes) = std::fs::read(own) {
        match serde_json::from_slice(&bytes) {
            Ok(error) => return Some(error),
            Err(e) => log::warn!("{} is no record of an exception: {e}", own.display()),
        }
    }
    let torch: serde_json::Value = serde_json::from_slice(&std::fs::read(torch).ok()?).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(how: ExitHow) -> Exit<'static> {
        let ending = Ending { how, by_itself: false, at: Instant::now() };
        let (left_result, owes_result, out_of_memory) = (false, false, false);
        Exit { ending, stopped: None, error: None, left_result, owes_result, out_of_memory }
    }

    fn exit(how: ExitHow, error: Option<&RankError>, stopped: Option<Stopped>) -> RankState {
        state_of(&Exit { stopped, error, ..exited(how) })
    }

    #[test]
    fn an_exit_with_code_0_is_no_good_end_while_a_result_is_owed() {
        let mut exit = Exit { owes_result: true, ..exited(ExitHow::Code(0)) };
        assert_eq!(state_of(&exit), RankState::Exited(0), "FAIL-1");
        exit.left_result = true;
        assert_eq!(state_of(&exit), RankState::Finished);
    }

    #[test]
    fn exits_are_told_apart() {
        let error = RankError { at_us: 5, ..RankError::default() };
        assert_eq!(exit(ExitHow::Code(0), None, None), RankState::Finished);
        assert_eq!(exit(ExitHow::Code(3), None, None), RankState::Exited(3));
        assert_eq!(exit(ExitHow::Code(1), Some(&error), None), RankState::Raised);
        assert_eq!(exit(ExitHow::Signal(11), None, None), RankState::Signaled(11));
    }

    #[test]
    fn what_happens_after_the_stop_is_the_stops_doing() {
        let before = Some(Stopped { at: Instant::now() - Duration::from_secs(1), at_us: 100 });
        assert_eq!(exit(ExitHow::Signal(15), None, before), RankState::Stopped);
        assert_eq!(exit(ExitHow::Code(0), None, before), RankState::Stopped);
        let mut leaving = Exit { stopped: before, ..exited(ExitHow::Code(4)) };
        assert_eq!(state_of(&leaving), RankState::Stopped);
        leaving.ending.by_itself = true;
        assert_eq!(state_of(&leaving), RankState::Exited(4), "FAIL-2: its victim was heard of first");
        let echo = RankError { at_us: 101, ..RankError::default() };
        assert_eq!(exit(ExitHow::Code(1), Some(&echo), before), RankState::Stopped);
    }

    #[test]
    fn a_rank_that_raised_before_the_stop_failed_although_the_stop_ended_it() {
        let before = Some(Stopped { at: Instant::now() - Duration::from_secs(1), at_us: 100 });
        let cause = RankError { at_us: 99, ..RankError::default() };
        assert_eq!(exit(ExitHow::Signal(15), Some(&cause), before), RankState::Raised, "FAIL-1");
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
