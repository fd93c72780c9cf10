//! A run at one moment, as every face shows it: the notebook's cell, a terminal, a page. One JSON for all languages.
//!
//! - TYPES-24 (bounded): however many ranks, lines, phases and restarts a run has, a snapshot has no more of each than
//!   the constants below say, and no text is longer than they say. What is left out is counted, or older than what is
//!   there.
//! - TYPES-25 (null-where-unknown): a reader finds each key. What is not known is null.
//! - TYPES-28 (callers-end): the snapshot of a run that is over for its caller says so, and why, whatever its hub
//!   knows: a run may end before its hub is open, or by an interrupt.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::failure_kind::FailureKind;
use crate::text::{cut, cut_front};

/// The version of the JSON. A reader takes no other.
pub const VERSION: u32 = 1;
/// How many ranks are listed: the first ones.
pub const MAX_RANKS: usize = 1000;
/// How many phases: the newest ones.
pub const MAX_PHASES: usize = 100;
/// How many restarts: the newest ones.
pub const MAX_RESTARTS: usize = 100;
/// How many changes of the number of ranks: the newest ones.
pub const MAX_SIZES: usize = 100;
/// How many hosts that are to go: those that go first.
pub const MAX_NOTICES: usize = 100;
/// How many hosts in cooldown.
pub const MAX_COOLING: usize = 100;
/// How many lines of output: the newest ones.
pub const MAX_LINES: usize = 20;
/// How many points the curve of the loss has.
pub const MAX_LOSSES: usize = 200;
/// How long a name, a line or a sentence may be, in bytes.
pub const MAX_LINE_BYTES: usize = 2000;
/// How long each text of a failure may be, in bytes.
pub const MAX_TEXT_BYTES: usize = 64 << 10;

/// A run at one moment. Times are in seconds since 1970, and never go back while the run lasts, whoever sets the clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSnapshot {
    /// [`VERSION`].
    pub version: u32,
    /// The job's id.
    pub run: String,
    /// What people call it: the name of the function or the file.
    pub name: String,
    /// Where its nodes are; null until they have been asked for.
    pub stage: Option<Stage>,
    /// Its state.
    pub state: State,
    /// The moment.
    pub time: f64,
    /// When its hub opened.
    pub started: f64,
    /// When its outcome was known.
    pub ended: Option<f64>,
    /// The present one, or the last. Its number says how often the ranks were started again.
    pub attempt: Attempt,
    /// How many ranks it has.
    pub world_size: u32,
    /// What it waits for that others hold, in words: `waiting for 4 slots; 2 are free`.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// Its phases without a gap, oldest first.
    pub phases: Vec<Span>,
    /// Its restarts, oldest first.
    pub restarts: Vec<Restart>,
    /// Since when it has had how many ranks, oldest first; empty until they have their places.
    #[serde(default)]
    pub sizes: Vec<(f64, u32)>,
    /// The hosts and executors that are to go.
    #[serde(default)]
    pub notices: Vec<NoticeLine>,
    /// The hosts that failed, and whose new tasks wait.
    #[serde(default)]
    pub cooling: Vec<CoolingLine>,
    /// How the seats of its tasks stand; null where it has no Spark tasks.
    #[serde(default)]
    pub seats: Option<SeatsNote>,
    /// Its ranks, by rank.
    pub ranks: Vec<RankLine>,
    /// How many ranks are not in `ranks`.
    pub ranks_left_out: u32,
    /// The ranks whose steps take much longer than the others'.
    pub slow: Vec<u32>,
    /// The newest lines of output, with their ranks, oldest first.
    pub lines: Vec<String>,
    /// The loss by step, as the first rank tells it that tells one; neighbours are folded into their mean.
    pub losses: Vec<(u64, f64)>,
    /// What has happened to all processes of its ranks, restarts included, by the name of the metric.
    #[serde(default)]
    pub counts: BTreeMap<String, u64>,
    /// Why it failed.
    pub failure: Option<FailureNote>,
}

/// Where the nodes of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// In the driver itself.
    Local,
    /// In Spark's Python workers.
    Python,
    /// In the executors' JVMs.
    Jvm,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not all ranks have started.
    Waiting,
    /// They run, or are being ended.
    Running,
    /// As waiting, after a failure.
    Restarting,
    /// Every rank ended well.
    Succeeded,
    /// One didn't, or it could not be started.
    Failed,
    /// Its caller asked for the end.
    Cancelled,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// What it is; where nothing says so, as in what older versions wrote, a phase.
    #[serde(default)]
    pub kind: SpanKind,
    /// For people: `waiting for tasks`, `starting ranks`, `training`, `restart 1`, `ending the ranks`, or what rank 0
    /// said.
    pub name: String,
    /// When it began.
    pub start: f64,
    /// When it ended; null for the present one.
    pub end: Option<f64>,
}

/// What a [`Span`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// What the ranks do.
    #[default]
    Phase,
    /// They are to start again, after a failure.
    Restart,
}

/// A restart of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restart {
    /// When.
    pub time: f64,
    /// The failure before it, in a sentence.
    pub cause: String,
    /// What it is for; where nothing says so, as in what older versions wrote, a replacement.
    #[serde(default)]
    pub kind: RestartKind,
    /// What it has cost; null until all ranks run again.
    #[serde(default)]
    pub cost: Option<RestartCost>,
}

/// What a restart is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestartKind {
    /// Something failed, and is there again.
    #[default]
    Replaced,
    /// There are more tasks, or some are left out.
    Resized,
    /// A host was to go.
    Preempted,
}

/// What a restart has cost.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestartCost {
    /// How many ranks run again.
    pub ranks: u32,
    /// For how long no rank worked.
    pub seconds: f64,
    /// How many reported steps came after the newest checkpoint; null where none is known.
    pub steps: Option<u64>,
}

/// A host that is to go, or executors on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoticeLine {
    /// The host, or `an executor on` it.
    pub host: String,
    /// When it goes; null where nobody knows.
    pub deadline: Option<f64>,
    /// Why.
    pub reason: String,
}

/// A host in cooldown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoolingLine {
    /// The host.
    pub host: String,
    /// Until when its new tasks wait.
    pub until: f64,
    /// How often it has failed.
    pub failures: u32,
    /// The last time, in a sentence.
    pub reason: String,
}

/// How the seats of a run's tasks stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeatsNote {
    /// How many seats there are: one for each task.
    pub of: u32,
    /// How many have a node that is there.
    pub taken: u32,
    /// How many more tasks have come, and wait.
    pub spares: u32,
    /// How many tasks Spark was asked to run, each of which takes a slot.
    pub asked: u32,
    /// How many task slots the executors have, as the last look at Spark shows; null where nobody looks.
    pub slots: Option<u32>,
    /// How many of these are free.
    pub free: Option<u32>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankLine {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: Option<String>,
    /// The partition of its task.
    pub partition: Option<u32>,
    /// The executor of its task.
    pub executor: Option<String>,
    /// The GPUs that it has, as Spark names them.
    pub gpus: Vec<String>,
    /// [`crate::RankState::name`].
    pub state: String,
    /// The step that it reported last.
    pub step: Option<u64>,
    /// How many steps it is going to take, as it says.
    pub of: Option<u64>,
    /// How many steps it takes in a second.
    pub rate: Option<f64>,
    /// Which share of its time it is in collective operations, 0 to 1.
    pub collective_share: Option<f64>,
    /// Which share of its time it waits for batches, 0 to 1.
    pub data_share: Option<f64>,
    /// All that it reported last, by name: numbers, or texts for what is no finite number.
    pub values: Map<String, Value>,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailureNote {
    /// [`crate::FailureKind::name`].
    pub kind: String,
    /// The cause in one sentence.
    pub cause: String,
    /// The rank that failed first.
    pub rank: Option<u32>,
    /// Its host.
    pub host: Option<String>,
    /// The whole story.
    pub text: String,
    /// What the training code raised; empty where it raised nothing.
    pub traceback: String,
    /// What the ranks' threads were doing, where they hung; else empty.
    pub stacks: String,
}

/// Why a run ended, as its caller knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// [`crate::FailureKind::name`], or the kind of an error of the core.
    pub kind: String,
    /// The whole story, whose first line is the cause.
    pub text: String,
}

impl From<&Problem> for FailureNote {
    fn from(problem: &Problem) -> FailureNote {
        FailureNote {
            kind: cut(&problem.kind, MAX_LINE_BYTES),
            cause: cut(problem.text.lines().next().unwrap_or_default(), MAX_LINE_BYTES),
            rank: None,
            host: None,
            text: cut(&problem.text, MAX_TEXT_BYTES),
            traceback: String::new(),
            stacks: String::new(),
        }
    }
}

impl From<&Failure> for FailureNote {
    fn from(failure: &Failure) -> FailureNote {
        FailureNote {
            kind: failure.kind.name().into(),
            cause: cut(&failure.message, MAX_LINE_BYTES),
            rank: failure.rank,
            host: Some(cut(&failure.host, MAX_LINE_BYTES)).filter(|host| !host.is_empty()),
            text: cut(&failure.render(), MAX_TEXT_BYTES),
            traceback: cut_front(&failure.traceback, MAX_TEXT_BYTES),
            stacks: cut(&failure.stacks, MAX_TEXT_BYTES),
        }
    }
}

impl RestartCost {
    /// `6 ranks run again; 14 steps and 3.2 s lost`.
    pub fn in_words(&self) -> String {
        let ranks = match self.ranks {
            1 => "1 rank runs".into(),
            ranks => format!("{ranks} ranks run"),
        };
        let steps = match self.steps {
            Some(1) => "1 step and ".into(),
            Some(steps) => format!("{steps} steps and "),
            None => String::new(),
        };
        format!("{ranks} again; {steps}{:.1} s lost", self.seconds)
    }
}

impl RunSnapshot {
    /// A run of which nothing is known yet.
    pub fn waiting(run: &str, name: &str, world_size: u32, now: f64) -> RunSnapshot {
        RunSnapshot {
            version: VERSION,
            run: run.into(),
            name: cut(name, MAX_LINE_BYTES),
            stage: None,
            state: State::Waiting,
            time: now,
            started: now,
            ended: None,
            attempt: Attempt::first(),
            world_size,
            phases: Vec::new(),
            restarts: Vec::new(),
            sizes: Vec::new(),
            notices: Vec::new(),
            cooling: Vec::new(),
            seats: None,
            ranks: Vec::new(),
            ranks_left_out: world_size,
            waits_for: None,
            slow: Vec::new(),
            lines: Vec::new(),
            losses: Vec::new(),
            counts: BTreeMap::new(),
            failure: None,
        }
    }

    /// As the caller knows the end of the run, which is over for it: well, or by a problem.
    #[must_use]
    pub fn ended(self, problem: Option<&Problem>) -> RunSnapshot {
        let ended = self.ended.or(Some(self.time));
        let is_over = matches!(self.state, State::Succeeded | State::Failed | State::Cancelled);
        match problem {
            Some(problem) if self.failure.is_none() => {
                let is_cancelled = problem.kind == FailureKind::Cancelled.name();
                let state = if is_cancelled { State::Cancelled } else { State::Failed };
                RunSnapshot { state, ended, failure: Some(FailureNote::from(problem)), ..self }
            }
            Some(_) if !is_over => RunSnapshot { state: State::Failed, ended, ..self },
            None if !is_over => RunSnapshot { state: State::Succeeded, ended, ..self },
            _ => self,
        }
    }

    /// The JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| "null".into())
    }

    /// As [`RunSnapshot::ended`], from JSON to JSON; a text that is no snapshot stays as it is.
    pub fn ended_json(snapshot: &str, problem: Option<&Problem>) -> String {
        RunSnapshot::from_json(snapshot)
            .map_or_else(|| snapshot.to_owned(), |told| told.ended(problem).to_json())
    }

    /// The snapshot in a text of [`RunSnapshot::to_json`]; `None` for anything else, also of another version.
    pub fn from_json(text: &str) -> Option<RunSnapshot> {
        serde_json::from_str(text).ok().filter(|snapshot: &RunSnapshot| snapshot.version == VERSION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FailureKind;

    #[test]
    fn a_snapshot_is_read_back_as_it_was_and_no_other_version_is() {
        let snapshot = RunSnapshot::waiting("job-1", "train", 2, 12.5);
        let text = snapshot.to_json();
        assert_eq!(RunSnapshot::from_json(&text), Some(snapshot));
        assert_eq!(RunSnapshot::from_json(&text.replacen("\"version\":1", "\"version\":2", 1)), None);
        let json: Value = serde_json::from_str(&text).unwrap();
        for key in ["stage", "ended", "failure"] {
            assert!(json.get(key).is_some_and(Value::is_null), "TYPES-25: {key}");
        }
    }

    #[test]
    fn a_span_without_a_kind_is_a_phase_as_older_versions_wrote_it() {
        let read = |text| serde_json::from_str::<Span>(text).unwrap().kind;
        assert_eq!(read(r#"{"name": "restart 1", "start": 1.0, "end": null}"#), SpanKind::Phase);
        let newer = r#"{"kind": "restart", "name": "restart 1", "start": 1.0, "end": null}"#;
        assert_eq!(read(newer), SpanKind::Restart);
    }

    #[test]
    fn a_run_that_is_over_for_its_caller_is_over_in_its_snapshot_whatever_its_hub_knows() {
        let problem = |kind: &str, text: &str| Problem { kind: kind.into(), text: text.into() };
        let going = RunSnapshot { state: State::Running, ..RunSnapshot::waiting("job-1", "train", 2, 12.5) };
        let refused = going.clone().ended(Some(&problem("start", "no port is free\nTraceback ...")));
        assert_eq!((refused.state, refused.ended), (State::Failed, Some(12.5)), "TYPES-28");
        let note = refused.failure.clone().unwrap();
        assert_eq!((note.cause.as_str(), note.kind.as_str()), ("no port is free", "start"), "TYPES-28");
        assert!(note.text.ends_with("Traceback ...") && note.rank.is_none() && note.host.is_none());
        let interrupted = going.clone().ended(Some(&problem("cancelled", "interrupted"))).state;
        assert_eq!(
            (interrupted, going.clone().ended(None).state),
            (State::Cancelled, State::Succeeded),
            "TYPES-28"
        );
        // What the hub knows stays.
        let known = refused.clone().ended(Some(&problem("cancelled", "something else")));
        assert_eq!(known, refused, "TYPES-28");
        assert_eq!(refused.clone().ended(None), refused, "TYPES-28");
        let ended = RunSnapshot { state: State::Succeeded, ended: Some(9.0), ..going };
        assert_eq!(ended.clone().ended(None), ended);
        let late = ended.ended(Some(&problem("cancelled", "interrupted")));
        assert_eq!((late.state, late.ended), (State::Cancelled, Some(9.0)), "TYPES-28");
        let long = FailureNote::from(&problem("start", &"ö".repeat(MAX_TEXT_BYTES)));
        assert!(long.cause.len() <= MAX_LINE_BYTES + 4 && long.text.len() <= MAX_TEXT_BYTES + 4, "TYPES-24");
        assert_eq!(RunSnapshot::ended_json("no snapshot", None), "no snapshot");
    }

    #[test]
    fn the_texts_of_a_failure_are_cut_and_its_traceback_keeps_its_end() {
        let failure = Failure {
            traceback: format!("{}the end", "ä".repeat(MAX_TEXT_BYTES)),
            ..Failure::without_rank(FailureKind::Exception, "ö".repeat(MAX_LINE_BYTES))
        };
        let note = FailureNote::from(&failure);
        assert!(note.cause.len() <= MAX_LINE_BYTES + 4 && note.cause.ends_with("ö ..."), "TYPES-24");
        assert!(note.text.len() <= MAX_TEXT_BYTES + 4, "TYPES-24");
        assert!(note.traceback.starts_with("... ä") && note.traceback.ends_with("the end"), "TYPES-24");
        assert_eq!((note.kind.as_str(), note.host), ("exception", None), "TYPES-25");
    }
}
