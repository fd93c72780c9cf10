//! How a rank's process ended, with the evidence, and which of several exits is the cause of the others.
//!
//! TYPES-20 (first-cause): the cause is the earliest failure that is not the echo of another one. A rank that died
//! because its peer vanished is a victim.
//! TYPES-21 (victims-by-kind): the record's kind says whether a rank is a victim, never its words.

use serde::{Deserialize, Serialize};

use crate::failure_kind::FailureKind;
use crate::text::{cut, cut_middle};

/// What became of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    /// Not started yet, as far as is known.
    Waiting,
    /// Running, as far as is known.
    Running,
    /// Ended well.
    Finished,
    /// Ended by Phalanx, because another rank failed or the caller asked.
    Stopped,
    /// Could not be started.
    NotStarted,
    /// Raised; the record of the exception is beside this.
    Raised,
    /// Exited with this code, not 0.
    Exited(i32),
    /// Ended by this signal.
    Signaled(i32),
    /// Ended by the kernel for want of memory.
    OutOfMemory,
    /// Its node is gone.
    Lost,
}

impl RankState {
    /// The kind of failure that this state is; `None` if it is none.
    pub fn failure(&self) -> Option<FailureKind> {
        match self {
            RankState::Waiting | RankState::Running | RankState::Finished | RankState::Stopped => None,
            RankState::NotStarted => Some(FailureKind::Start),
            RankState::Raised => Some(FailureKind::Exception),
            RankState::Exited(_) => Some(FailureKind::ExitCode),
            RankState::Signaled(_) => Some(FailureKind::Signal),
            RankState::OutOfMemory => Some(FailureKind::OutOfMemory),
            RankState::Lost => Some(FailureKind::LostNode),
        }
    }

    /// The state's name for programs, e.g. `out_of_memory`.
    pub fn name(&self) -> &'static str {
        match self {
            RankState::Waiting => "waiting",
            RankState::Running => "running",
            RankState::Finished => "finished",
            RankState::Stopped => "stopped",
            RankState::NotStarted => "not_started",
            RankState::Raised => "raised",
            RankState::Exited(_) => "exited",
            RankState::Signaled(_) => "signaled",
            RankState::OutOfMemory => "out_of_memory",
            RankState::Lost => "lost",
        }
    }

    /// The state in words, for tables and sentences: `exited with code 3`.
    pub fn describe(&self) -> String {
        match self {
            RankState::Waiting => "not started yet".into(),
            RankState::Running => "running".into(),
            RankState::Finished => "finished".into(),
            RankState::Stopped => "stopped".into(),
            RankState::NotStarted => "could not be started".into(),
            RankState::Raised => "raised".into(),
            RankState::Exited(code) => format!("exited with code {code}"),
            RankState::Signaled(signal) => format!("was ended by {}", signal_name(*signal)),
            RankState::OutOfMemory => "was killed by the kernel because memory ran out".into(),
            RankState::Lost => "is lost with its task".into(),
        }
    }
}

/// What raised, as far as the cause of a failure depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankErrorKind {
    /// The training code itself.
    #[default]
    TrainingCode,
    /// A call that missed a peer which went away: probably the echo of another rank's failure.
    PeerLost,
    /// Blocks of a data set that have gone with what had them: the rank reads what is not there any more.
    BlocksLost,
    /// The training code never began: the function could not be read back, the file not be opened.
    BeforeStart,
    /// `phalanx.Preempted`: the training code has saved what it has, since a host is going to go.
    Preempted,
    /// The machine: its disk is full or broken, a GPU has gone.
    Machine,
}

/// What a rank's entry point writes down when the training code raises.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "ErrorRecord", into = "ErrorRecord")]
pub struct RankError {
    /// The exception's class, e.g. `ValueError`.
    pub type_name: String,
    /// The exception's text.
    pub message: String,
    /// The formatted traceback, user code last.
    pub traceback: String,
    /// What raised it.
    pub kind: RankErrorKind,
    /// Monotonic clock (`CLOCK_MONOTONIC`) of the rank's host at the raise, in microseconds.
    pub at_us: u64,
    /// The pickled exception, base64; empty where it doesn't pickle.
    pub pickle: String,
}

/// [`RankError`] as it is written: the file `error.json` in a rank's folder, and in messages.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ErrorRecord {
    type_name: String,
    message: String,
    traceback: String,
    peer_lost: bool,
    blocks_lost: bool,
    before_start: bool,
    preempted: bool,
    machine: bool,
    at_us: u64,
    pickle: String,
}

impl From<ErrorRecord> for RankError {
    fn from(record: ErrorRecord) -> RankError {
        let ErrorRecord { type_name, message, traceback, at_us, pickle, .. } = record;
        // What never began has missed no peer of the training.
        let kind = match (record.before_start, record.preempted, record.blocks_lost, record.peer_lost) {
            (true, ..) => RankErrorKind::BeforeStart,
            (false, true, ..) => RankErrorKind::Preempted,
            (false, false, true, _) => RankErrorKind::BlocksLost,
            (false, false, false, true) => RankErrorKind::PeerLost,
            (false, false, false, false) if record.machine => RankErrorKind::Machine,
            (false, false, false, false) => RankErrorKind::TrainingCode,
        };
        RankError { type_name, message, traceback, kind, at_us, pickle }
    }
}

impl From<RankError> for ErrorRecord {
    fn from(error: RankError) -> ErrorRecord {
        let RankError { type_name, message, traceback, kind, at_us, pickle } = error;
        ErrorRecord {
            type_name,
            message,
            traceback,
            peer_lost: kind == RankErrorKind::PeerLost,
            blocks_lost: kind == RankErrorKind::BlocksLost,
            before_start: kind == RankErrorKind::BeforeStart,
            preempted: kind == RankErrorKind::Preempted,
            machine: kind == RankErrorKind::Machine,
            at_us,
            pickle,
        }
    }
}

/// The most of an exception's class, text, traceback and pickle that travels: all of it is in the rank's output. Even
/// where each byte is escaped, a rank's end is a message that the hub takes. What a rank of Python's has cut itself
/// (`rank/error_record.py`) is shorter, whatever its characters.
const MAX_TYPE_NAME_BYTES: usize = 1 << 10;
const MAX_MESSAGE_BYTES: usize = 160 << 10;
const MAX_TRACEBACK_BYTES: usize = 560 << 10;
/// What of the text is in the cause, which is one sentence.
const MAX_SENTENCE_BYTES: usize = 2 << 10;
/// 1 MiB in base64.
const MAX_PICKLE_BYTES: usize = (1 << 20) / 3 * 4 + 8;

impl RankError {
    /// The same with texts that are short enough to be told: of long ones the middle is left out, and a pickle that is
    /// too long, which is of no use in part, is left out whole.
    #[must_use]
    pub fn bounded(self) -> RankError {
        let RankError { type_name, message, traceback, kind, at_us, pickle } = self;
        RankError {
            type_name: cut(&type_name, MAX_TYPE_NAME_BYTES),
            message: cut_middle(&message, MAX_MESSAGE_BYTES),
            traceback: cut_middle(&traceback, MAX_TRACEBACK_BYTES),
            kind,
            at_us,
            pickle: if pickle.len() > MAX_PICKLE_BYTES { String::new() } else { pickle },
        }
    }

    /// The exception in a few words: its class and the first line of its text.
    pub fn describe(&self) -> String {
        let first = cut(self.message.lines().next().unwrap_or_default(), MAX_SENTENCE_BYTES);
        if first.is_empty() {
            format!("raised {}", self.type_name)
        } else {
            format!("raised {}: {first}", self.type_name)
        }
    }
}

/// How one rank's process ended: what its node saw and what the rank wrote down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankExit {
    /// The rank.
    pub rank: u32,
    /// Its host, for people.
    pub host: String,
    /// What became of it.
    pub state: RankState,
    /// More on the state, e.g. why it could not be started; may be empty.
    pub message: String,
    /// The exception, where the training code raised.
    pub error: Option<RankError>,
    /// Its last output lines, oldest first.
    pub last_lines: Vec<String>,
    /// The file on its host that has its whole output; empty if there is none.
    pub log_path: String,
    /// When it ended (or raised): microseconds since the hub opened, by the hub's clock.
    pub at_us: i64,
    /// When it last wrote output, likewise; `None` if never.
    pub last_output_us: Option<i64>,
    /// The last step for which it asked whether it is preempted; `None` if it never did.
    pub asked: Option<u64>,
}

impl RankExit {
    /// The end of a rank, now, of which nothing but the state is known.
    pub fn new(rank: u32, host: impl Into<String>, state: RankState) -> RankExit {
        RankExit {
            rank,
            host: host.into(),
            state,
            message: String::new(),
            error: None,
            last_lines: Vec::new(),
            log_path: String::new(),
            at_us: 0,
            last_output_us: None,
            asked: None,
        }
    }

    /// The kind of failure this exit is; `None` if it is none.
    pub fn failure(&self) -> Option<FailureKind> {
        match (self.state.failure(), &self.error) {
            (Some(FailureKind::Exception), Some(error)) => Some(match error.kind {
                RankErrorKind::BeforeStart => FailureKind::Start,
                RankErrorKind::Preempted => FailureKind::Preempted,
                RankErrorKind::BlocksLost => FailureKind::LostNode,
                RankErrorKind::TrainingCode | RankErrorKind::PeerLost | RankErrorKind::Machine => {
                    FailureKind::Exception
                }
            }),
            (kind, _) => kind,
        }
    }

    /// Whether the rank says of itself that blocks of a data set are gone.
    pub fn misses_blocks(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind == RankErrorKind::BlocksLost)
    }

    /// Whether the rank says of itself that a peer went away: most probably the echo of another rank's exit.
    pub fn is_echo(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind == RankErrorKind::PeerLost)
    }

    /// Whether the rank says of itself that its machine is to blame.
    pub fn blames_machine(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.kind == RankErrorKind::Machine)
    }

    /// Whether it left its work, since a host was to go.
    pub fn has_left(&self) -> bool {
        self.failure() == Some(FailureKind::Preempted)
    }

    /// Whether it failed, and not because a peer was missing.
    pub fn failed_by_itself(&self) -> bool {
        let own = [FailureKind::Exception, FailureKind::OutOfMemory, FailureKind::Start];
        self.failure().is_some_and(|kind| own.contains(&kind)) && !self.is_echo()
    }

    /// The exception that ended the rank.
    pub fn raised(&self) -> Option<&RankError> {
        self.error.as_ref().filter(|_| self.state == RankState::Raised)
    }

    /// What became of the rank, in words; of an exception its class and first line.
    pub fn describe(&self) -> String {
        self.raised().map_or_else(|| self.state.describe(), RankError::describe)
    }
}

/// Which of these exits is the cause of the job's failure, and why; `None` if no rank failed.
///
/// Exits that are an echo (the exception says that a peer went away) are causes only when there is nothing else. Ranks
/// that left their work, since a host was to go, come behind what failed by itself: an exception or want of memory, or
/// anything before the first of them left. What ended otherwise after that may have missed it. Among the rest the
/// earliest wins; ties go to the lower rank.
pub fn first_cause<'a>(
    exits: impl Iterator<Item = &'a RankExit> + Clone,
) -> Option<(&'a RankExit, &'static str)> {
    let failed = || exits.clone().filter(|exit| exit.failure().is_some());
    let earliest = |a: &&RankExit, b: &&RankExit| (a.at_us, a.rank).cmp(&(b.at_us, b.rank));
    let left = failed().filter(|exit| exit.has_left()).min_by(earliest);
    let is_own = |exit: &&RankExit| match left {
        _ if exit.is_echo() || exit.has_left() => false,
        Some(left) => exit.at_us < left.at_us || exit.failed_by_itself(),
        None => true,
    };
    failed()
        .filter(is_own)
        .min_by(earliest)
        .map(|exit| (exit, "it failed first"))
        .or(left.map(|exit| (exit, "it left its work first")))
        .or_else(|| failed().min_by(earliest).map(|exit| (exit, "it was the first to miss its peer")))
}

/// The name of a signal, e.g. `SIGKILL`, else `signal 42`.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        31 => "SIGSYS",
        _ => return format!("signal {signal}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(rank: u32, state: RankState, at_us: i64) -> RankExit {
        RankExit { at_us, ..RankExit::new(rank, "h", state) }
    }

    #[test]
    fn an_error_of_any_length_fits_into_a_message_with_all_that_is_told_of_a_rank() {
        let long = "\u{1}".repeat(10 << 20);
        let error = RankError {
            type_name: long.clone(),
            message: long.clone(),
            traceback: long.clone(),
            pickle: "x".repeat(MAX_PICKLE_BYTES),
            ..RankError::default()
        };
        let mut exit = raised(0, 1, RankErrorKind::TrainingCode);
        exit.error = Some(error.clone().bounded());
        exit.last_lines = vec!["\u{1}".repeat(4200); 21];
        let told = serde_json::to_vec(&exit).unwrap().len();
        assert!(told < 8 << 20, "{told} bytes");
        let bounded = error.bounded();
        assert_eq!(bounded.pickle.len(), MAX_PICKLE_BYTES, "a pickle stays whole");
        assert_eq!(RankError { pickle: long, ..bounded.clone() }.bounded().pickle, "", "or goes");
        let first = RankError { message: "y".repeat(5_000_000), ..RankError::default() }.describe();
        assert!(first.len() < 4 << 10, "the cause is a sentence");
    }

    fn raised(rank: u32, at_us: i64, kind: RankErrorKind) -> RankExit {
        let error = RankError { type_name: "RuntimeError".into(), kind, ..RankError::default() };
        RankExit { error: Some(error), ..exit(rank, RankState::Raised, at_us) }
    }

    #[test]
    fn the_earliest_failure_is_the_cause() {
        let own = raised(0, 900, RankErrorKind::TrainingCode);
        let exits = [own, exit(1, RankState::Exited(3), 500), exit(2, RankState::Stopped, 1)];
        assert_eq!(first_cause(exits.iter()).unwrap().0.rank, 1, "TYPES-20");
    }

    #[test]
    fn a_rank_whose_peer_vanished_is_a_victim_even_when_seen_first() {
        let victim = raised(0, 100, RankErrorKind::PeerLost);
        let exits = [victim.clone(), exit(1, RankState::Signaled(9), 101)];
        assert_eq!(first_cause(exits.iter()).unwrap().0.rank, 1, "TYPES-20");
        let only = [victim, exit(1, RankState::Stopped, 200)];
        let cause = first_cause(only.iter()).unwrap().0.rank;
        assert_eq!(cause, 0, "TYPES-4: with nothing else the victim is still a failure");
    }

    #[test]
    fn a_rank_that_left_its_work_is_the_cause_unless_another_failed_by_itself() {
        let left = raised(1, 100, RankErrorKind::Preempted);
        let cause = |other: RankExit| first_cause([left.clone(), other].iter()).unwrap().0.rank;
        for other in [
            raised(0, 500, RankErrorKind::PeerLost),
            raised(0, 50, RankErrorKind::PeerLost),
            exit(0, RankState::Signaled(6), 500),
            exit(0, RankState::Lost, 500),
            raised(2, 90, RankErrorKind::Preempted),
        ] {
            assert_eq!(cause(other.clone()), if other.rank == 2 { 2 } else { 1 }, "TYPES-20: {other:?}");
        }
        for other in [
            raised(0, 500, RankErrorKind::TrainingCode),
            exit(0, RankState::OutOfMemory, 500),
            exit(0, RankState::Signaled(6), 50),
        ] {
            assert_eq!(cause(other.clone()), 0, "TYPES-20: {other:?}");
        }
    }

    #[test]
    fn words_make_no_victim() {
        let mut own = raised(0, 100, RankErrorKind::TrainingCode);
        own.error.as_mut().unwrap().message = "Connection closed by peer".into();
        let exits = [own, exit(1, RankState::Signaled(9), 101)];
        assert_eq!(first_cause(exits.iter()).unwrap().0.rank, 0, "TYPES-21");
    }

    #[test]
    fn ranks_that_ended_well_or_were_stopped_are_no_failure() {
        let exits = [exit(0, RankState::Finished, 1), exit(1, RankState::Stopped, 2)];
        assert!(first_cause(exits.iter()).is_none());
    }

    #[test]
    fn the_record_of_an_exception_keeps_its_written_form() {
        for (kind, flags) in [
            (RankErrorKind::TrainingCode, [false, false, false, false, false]),
            (RankErrorKind::PeerLost, [true, false, false, false, false]),
            (RankErrorKind::BlocksLost, [false, true, false, false, false]),
            (RankErrorKind::BeforeStart, [false, false, true, false, false]),
            (RankErrorKind::Preempted, [false, false, false, true, false]),
            (RankErrorKind::Machine, [false, false, false, false, true]),
        ] {
            let error = RankError { kind, at_us: 7, ..RankError::default() };
            let written = serde_json::to_value(&error).unwrap();
            let told = ["peer_lost", "blocks_lost", "before_start", "preempted", "machine"];
            let told = told.map(|flag| &written[flag]);
            assert_eq!(told, flags);
            assert_eq!(serde_json::from_value::<RankError>(written).unwrap(), error);
        }
        let both: RankError = serde_json::from_str(r#"{"peer_lost": true, "before_start": true}"#).unwrap();
        assert_eq!(both.kind, RankErrorKind::BeforeStart);
        assert!(serde_json::from_str::<RankError>(r#"{"else": 1}"#).is_err());
    }
}
