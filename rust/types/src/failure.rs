//! How a job failed, told once for every language, with a line for each rank.
//!
//! TYPES-4 (never-success): a failed rank is never reported as success.

use std::fmt::Write as _;

use serde::Serialize;

use crate::failure_kind::FailureKind;
use crate::rank_exit::{RankExit, RankState};
use crate::rank_outcome::{RankOutcome, lines};

/// How many of a rank's last output lines a failure shows.
pub const LAST_LINES: usize = 20;

/// Why a job failed, told once for every language.
#[derive(Debug, Clone, PartialEq, Serialize)]
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
    pub ranks: Vec<RankOutcome>,
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

    /// The failure of the rank that ended like `exit`; `ranks` is left empty.
    pub fn of_rank(exit: &RankExit) -> Failure {
        let what = match exit.message.is_empty() {
            true => exit.describe(),
            false if exit.raised().is_some() => exit.describe(),
            false => format!("{}: {}", exit.state.describe(), exit.message),
        };
        let error = exit.error.clone().unwrap_or_default();
        Failure {
            kind: exit.failure().unwrap_or(FailureKind::Cancelled),
            rank: Some(exit.rank),
            host: exit.host.clone(),
            message: format!("rank {} ({}) {what}", exit.rank, exit.host),
            exit_code: if let RankState::Exited(code) = exit.state { Some(code) } else { None },
            signal: match exit.state {
                RankState::Signaled(signal) => Some(signal),
                RankState::OutOfMemory => Some(9),
                _ => None,
            },
            exception_type: error.type_name,
            traceback: error.traceback,
            last_lines: exit.last_lines.clone(),
            log_path: exit.log_path.clone(),
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
        let others: Vec<&RankOutcome> = self.ranks.iter().filter(|r| Some(r.rank) != self.rank).collect();
        if !others.is_empty() {
            let _ = write!(text, "\nThe other ranks:\n{}", lines(&others));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rank_exit::RankError;

    fn exit(rank: u32, state: RankState) -> RankExit {
        RankExit { at_us: 9, ..RankExit::new(rank, "h", state) }
    }

    #[test]
    fn the_rendered_failure_has_the_cause_first_and_the_others_last() {
        let mut bad = exit(1, RankState::Raised);
        let traceback = "Traceback:\n  boom\n".into();
        bad.error = Some(RankError { type_name: "RuntimeError".into(), traceback, ..RankError::default() });
        bad.last_lines = vec!["step 7".into(), "Traceback:".into(), "  boom".into()];
        bad.log_path = "/tmp/r1.log".into();
        let mut failure = Failure::of_rank(&bad);
        failure.ranks = vec![RankOutcome::of(&exit(0, RankState::Stopped), 9), RankOutcome::of(&bad, 9)];
        let text = failure.render();
        let order = ["rank 1 (h) raised RuntimeError", "boom", "step 7", "/tmp/r1.log on h", "rank 0"];
        let at: Vec<usize> = order.iter().map(|part| text.find(part).unwrap()).collect();
        assert!(at.is_sorted(), "{text}");
        assert_eq!(text.matches("boom").count(), 1, "a traceback is shown once: {text}");
    }
}
