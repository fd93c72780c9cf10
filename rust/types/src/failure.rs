//! How a rank ended, how a job failed, and which of several failures is the cause.
//!
//! FAIL-1: a failed rank is never reported as success. FAIL-2: the cause is the earliest failure that is not the
//! echo of another one; a rank that died because its peer vanished is a victim.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// How many of a rank's last output lines a failure shows.
pub const LAST_LINES: usize = 20;

/// Why a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The training code raised.
    Exception,
    /// A rank was ended by a signal.
    Signal,
    /// A rank exited with a code other than 0.
    ExitCode,
    /// The kernel ended a rank for want of memory.
    OutOfMemory,
    /// Ranks stopped making progress.
    Hang,
    /// A node, its task or its executor is gone.
    LostNode,
    /// The job or a rank could not be started.
    Start,
    /// The caller asked for the end.
    Cancelled,
}

impl FailureKind {
    /// Every kind, in the order of the error table.
    pub const ALL: [FailureKind; 8] = [
        FailureKind::Exception,
        FailureKind::Signal,
        FailureKind::ExitCode,
        FailureKind::OutOfMemory,
        FailureKind::Hang,
        FailureKind::LostNode,
        FailureKind::Start,
        FailureKind::Cancelled,
    ];

    /// The kind's name on the wire and in the bindings, e.g. `out_of_memory`.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Exception => "exception",
            FailureKind::Signal => "signal",
            FailureKind::ExitCode => "exit_code",
            FailureKind::OutOfMemory => "out_of_memory",
            FailureKind::Hang => "hang",
            FailureKind::LostNode => "lost_node",
            FailureKind::Start => "start",
            FailureKind::Cancelled => "cancelled",
        }
    }
}

/// What became of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
            RankState::OutOfMemory => "was killed by the kernel for want of memory".into(),
            RankState::Lost => "is lost with its node".into(),
        }
    }
}

/// What a rank's entry point writes down when the training code raises.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RankError {
    /// The exception's class, e.g. `ValueError`.
    pub type_name: String,
    /// The exception's text.
    pub message: String,
    /// The formatted traceback, user code last.
    pub traceback: String,
    /// Whether the exception says that a peer went away, and so is probably the echo of another failure.
    pub peer_lost: bool,
    /// Whether the training code never began: the function could not be read back, the file not be opened.
    pub before_start: bool,
    /// Monotonic clock (`CLOCK_MONOTONIC`) of the rank's host at the raise, in microseconds.
    pub at_us: u64,
    /// The pickled exception, base64; empty where it doesn't pickle.
    pub pickle: String,
}

/// How one rank ended: what its supervisor saw and what the rank wrote down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankEnd {
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
}

impl RankEnd {
    /// The kind of failure this end is; `None` if it is none.
    pub fn failure(&self) -> Option<FailureKind> {
        match (self.state.failure(), &self.error) {
            (Some(FailureKind::Exception), Some(error)) if error.before_start => Some(FailureKind::Start),
            (kind, _) => kind,
        }
    }

    /// Whether the rank says of itself that a peer went away: most probably the echo of another rank's end.
    pub fn is_echo(&self) -> bool {
        self.error.as_ref().is_some_and(|error| error.peer_lost)
    }
}

/// One rank's line in a failure's table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankReport {
    /// The rank.
    pub rank: u32,
    /// Its host; empty while not known.
    pub host: String,
    /// Its state in words, e.g. `stopped`, or `raised RuntimeError: ...`.
    pub state: String,
    /// Seconds since it last wrote output; `None` if it never did.
    pub idle_seconds: Option<f64>,
    /// What it was doing before the ranks were ended, as far as is known, e.g. a collective operation; else empty.
    pub doing: String,
}

/// Why a job failed, told once for every language.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The kind of the cause.
    pub kind: FailureKind,
    /// The rank that failed first; `None` if no rank did (a cancel, a lost node before placement).
    pub rank: Option<u32>,
    /// Its host; empty if not known.
    pub host: String,
    /// The cause in one sentence.
    pub message: String,
    /// The exit code, where the rank exited.
    pub exit_code: Option<i32>,
    /// The signal's number, where one ended the rank.
    pub signal: Option<i32>,
    /// The exception's class; empty where none was raised.
    pub exception_type: String,
    /// The formatted traceback; empty where none was raised.
    pub traceback: String,
    /// The rank's last output lines, oldest first.
    pub last_lines: Vec<String>,
    /// The file on `host` that has the rank's whole output; empty if there is none.
    pub log_path: String,
    /// The pickled exception, base64; empty where there is none.
    pub pickle: String,
    /// What the ranks' threads were doing, where they hung; else empty.
    pub stacks: String,
    /// How often the ranks had been started again before this.
    pub restarts: u32,
    /// What every rank was doing, by rank.
    pub ranks: Vec<RankReport>,
}

impl Failure {
    /// A failure that no rank caused.
    pub fn without_rank(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure {
            kind,
            rank: None,
            host: String::new(),
            message: message.into(),
            exit_code: None,
            signal: None,
            exception_type: String::new(),
            traceback: String::new(),
            last_lines: Vec::new(),
            log_path: String::new(),
            pickle: String::new(),
            stacks: String::new(),
            restarts: 0,
            ranks: Vec::new(),
        }
    }

    /// The failure of the rank that ended like `end`; `ranks` is left empty.
    pub fn of_rank(end: &RankEnd) -> Failure {
        let error = end.error.clone().unwrap_or_default();
        let what = match (&end.state, end.error.is_some()) {
            (RankState::Raised, true) => raised(&error),
            _ if end.message.is_empty() => end.state.describe(),
            _ => format!("{}: {}", end.state.describe(), end.message),
        };
        Failure {
            kind: end.failure().unwrap_or(FailureKind::Cancelled),
            rank: Some(end.rank),
            host: end.host.clone(),
            message: format!("rank {} ({}) {what}", end.rank, end.host),
            exit_code: if let RankState::Exited(code) = end.state { Some(code) } else { None },
            signal: match end.state {
                RankState::Signaled(signal) => Some(signal),
                RankState::OutOfMemory => Some(9),
                _ => None,
            },
            exception_type: error.type_name,
            traceback: error.traceback,
            last_lines: end.last_lines.clone(),
            log_path: end.log_path.clone(),
            pickle: error.pickle,
            stacks: String::new(),
            restarts: 0,
            ranks: Vec::new(),
        }
    }

    /// The failure as a person reads it: the cause, the traceback, the last lines, where the rest is, the others.
    pub fn render(&self) -> String {
        let mut text = format!("{}\n", self.message);
        if !self.traceback.is_empty() {
            let _ = write!(text, "\n{}\n", self.traceback.trim_end());
        }
        if !self.stacks.is_empty() {
            let _ = write!(text, "\nWhat the ranks' threads were doing:\n\n{}\n", self.stacks.trim_end());
        }
        let last_lines = self.last_lines_before_traceback();
        if !last_lines.is_empty() {
            let _ = write!(text, "\nIts last output:\n");
            for line in last_lines {
                let _ = writeln!(text, "  {line}");
            }
        }
        if !self.log_path.is_empty() {
            let _ = write!(text, "\nIts whole output: {} on {}\n", self.log_path, self.host);
        }
        let others: Vec<&RankReport> = self.ranks.iter().filter(|r| Some(r.rank) != self.rank).collect();
        if !others.is_empty() {
            let _ = write!(text, "\nThe other ranks:\n");
            for report in others {
                let idle = report
                    .idle_seconds
                    .map_or("no output seen".to_string(), |s| format!("last output {s:.1} s before"));
                let doing =
                    if report.doing.is_empty() { String::new() } else { format!("; in {}", report.doing) };
                let _ = writeln!(
                    text,
                    "  rank {:<4} {:<20} {} ({idle}{doing})",
                    report.rank, report.host, report.state
                );
            }
        }
        if self.restarts > 0 {
            let times = if self.restarts == 1 { "once".into() } else { format!("{} times", self.restarts) };
            let _ = write!(text, "\nThe ranks had been restarted {times} before.\n");
        }
        text.truncate(text.trim_end().len());
        text
    }
}

impl Failure {
    /// The last lines without the traceback that the rank printed at its end, which is shown already.
    fn last_lines_before_traceback(&self) -> &[String] {
        let shown: Vec<&str> = self.traceback.lines().collect();
        let common = self
            .last_lines
            .iter()
            .rev()
            .zip(shown.iter().rev())
            .take_while(|(printed, shown)| printed.trim_end() == shown.trim_end())
            .count();
        let whole = common == shown.len() || common == self.last_lines.len();
        &self.last_lines[..self.last_lines.len() - if whole { common } else { 0 }]
    }
}

fn raised(error: &RankError) -> String {
    let first = error.message.lines().next().unwrap_or_default();
    if first.is_empty() {
        format!("raised {}", error.type_name)
    } else {
        format!("raised {}: {first}", error.type_name)
    }
}

/// A rank's line in the table of a failure at `at_us` (microseconds since the hub opened).
pub fn report(end: &RankEnd, at_us: i64) -> RankReport {
    let state = match &end.error {
        Some(error) if end.state == RankState::Raised => raised(error),
        _ => end.state.describe(),
    };
    let idle_seconds = end.last_output_us.map(|last| (at_us - last).max(0) as f64 / 1e6);
    RankReport { rank: end.rank, host: end.host.clone(), state, idle_seconds, doing: String::new() }
}

/// Which of these ends is the cause of the job's failure, and why; `None` if no rank failed.
///
/// Ends that are an echo (the exception says that a peer went away) are causes only when there is nothing else.
/// Among the rest the earliest wins; ties go to the lower rank.
pub fn first_cause(ends: &[RankEnd]) -> Option<(&RankEnd, &'static str)> {
    let failed = || ends.iter().filter(|end| end.failure().is_some());
    let earliest = |a: &&RankEnd, b: &&RankEnd| (a.at_us, a.rank).cmp(&(b.at_us, b.rank));
    failed()
        .filter(|end| !end.is_echo())
        .min_by(earliest)
        .map(|end| (end, "it failed first"))
        .or_else(|| failed().min_by(earliest).map(|end| (end, "it was the first to miss its peer")))
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

    fn end(rank: u32, state: RankState, at_us: i64) -> RankEnd {
        RankEnd {
            rank,
            host: "h".into(),
            state,
            message: String::new(),
            error: None,
            last_lines: Vec::new(),
            log_path: String::new(),
            at_us,
            last_output_us: None,
        }
    }

    fn raised(rank: u32, at_us: i64, peer_lost: bool) -> RankEnd {
        let error = RankError { type_name: "RuntimeError".into(), peer_lost, ..RankError::default() };
        RankEnd { error: Some(error), ..end(rank, RankState::Raised, at_us) }
    }

    #[test]
    fn the_earliest_failure_is_the_cause() {
        let ends = [raised(0, 900, false), end(1, RankState::Exited(3), 500), end(2, RankState::Stopped, 1)];
        assert_eq!(first_cause(&ends).unwrap().0.rank, 1, "FAIL-2");
    }

    #[test]
    fn a_rank_whose_peer_vanished_is_a_victim_even_when_seen_first() {
        let ends = [raised(0, 100, true), end(1, RankState::Signaled(9), 101)];
        assert_eq!(first_cause(&ends).unwrap().0.rank, 1, "FAIL-2");
        let only = [raised(0, 100, true), end(1, RankState::Stopped, 200)];
        assert_eq!(
            first_cause(&only).unwrap().0.rank,
            0,
            "FAIL-1: with nothing else the victim is still a failure"
        );
    }

    #[test]
    fn ranks_that_ended_well_or_were_stopped_are_no_failure() {
        assert!(first_cause(&[end(0, RankState::Finished, 1), end(1, RankState::Stopped, 2)]).is_none());
    }

    #[test]
    fn every_kind_has_the_name_it_has_on_the_wire() {
        for kind in FailureKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn the_rendered_failure_has_the_cause_first_and_the_others_last() {
        let mut bad = raised(1, 5, false);
        bad.error.as_mut().unwrap().traceback = "Traceback:\n  boom\n".into();
        bad.last_lines = vec!["step 7".into(), "Traceback:".into(), "  boom".into()];
        bad.log_path = "/tmp/r1.log".into();
        let mut failure = Failure::of_rank(&bad);
        failure.ranks = vec![report(&end(0, RankState::Stopped, 9), 9), report(&bad, 9)];
        let text = failure.render();
        let order = ["rank 1 (h) raised RuntimeError", "boom", "step 7", "/tmp/r1.log on h", "rank 0"];
        let at: Vec<usize> = order.iter().map(|part| text.find(part).unwrap()).collect();
        assert!(at.is_sorted(), "{text}");
        assert_eq!(text.matches("boom").count(), 1, "a traceback is shown once: {text}");
    }
}
