//! What became of a rank: the exit that the guard saw, what the rank wrote down, and whether it was told to end.

use std::path::Path;
use std::time::Instant;

use phalanx_supervisor::ExitHow;
use phalanx_types::{RankError, RankState};
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in microseconds: the clock of [`Instant`] and of Python's `time.monotonic`.
pub(crate) fn monotonic_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000
}

/// How a rank's process ended, and what is known beside it.
pub(crate) struct Exit<'a> {
    pub(crate) how: ExitHow,
    pub(crate) at: Instant,
    /// When the node began to stop its ranks, by both clocks.
    pub(crate) stopped: Option<(Instant, u64)>,
    pub(crate) error: Option<&'a RankError>,
    pub(crate) left_result: bool,
    pub(crate) out_of_memory: bool,
}

/// The state that an exit amounts to.
///
/// A rank that ended after it was told to end is `Stopped`, whatever its exit says, unless it had failed (its own
/// record is older than the stop) or finished (its result is there) before.
pub(crate) fn state_of(exit: &Exit<'_>) -> RankState {
    let stopped_first = exit.stopped.is_some_and(|(at, at_us)| match exit.error {
        Some(error) => error.at_us > at_us,
        None => exit.at > at,
    });
    match (exit.how, exit.error) {
        (ExitHow::Code(0), _) if !stopped_first || exit.left_result => RankState::Finished,
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
    use std::time::Duration;

    use super::*;

    fn exit(how: ExitHow, error: Option<&RankError>, stopped: Option<(Instant, u64)>) -> RankState {
        let at = Instant::now();
        state_of(&Exit { how, at, stopped, error, left_result: false, out_of_memory: false })
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
        let before = Some((Instant::now() - Duration::from_secs(1), 100));
        assert_eq!(exit(ExitHow::Signal(15), None, before), RankState::Stopped);
        assert_eq!(exit(ExitHow::Code(0), None, before), RankState::Stopped);
        let echo = RankError { at_us: 101, ..RankError::default() };
        assert_eq!(exit(ExitHow::Code(1), Some(&echo), before), RankState::Stopped);
    }

    #[test]
    fn a_rank_that_raised_before_the_stop_failed_although_the_stop_ended_it() {
        let before = Some((Instant::now() - Duration::from_secs(1), 100));
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
