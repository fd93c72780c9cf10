//! A snapshot as far as it can be read: event logs have those of older versions, and of later ones.
//!
//! - PAGE-3 (reads-any): unknown fields are passed over, and what is missing, or of another type, is empty.

use phalanx_types::run_snapshot::{
    MAX_COOLING, MAX_LINE_BYTES, MAX_LINES, MAX_LOSSES, MAX_NOTICES, MAX_PHASES, MAX_RANKS, MAX_RESTARTS,
    MAX_SIZES, MAX_TEXT_BYTES, RestartCost,
};
use phalanx_types::text::cut;
use serde_json::Value;

use super::numbers;

/// How many of a rank's own values are shown, and how long each may be, in bytes.
const MAX_VALUES: usize = 8;
const MAX_VALUE_BYTES: usize = 64;
/// Differences of times are exact enough below this many seconds, which are 30,000 years.
const MAX_MOMENT: f64 = 1e12;

/// As [`phalanx_types::RunSnapshot`], with empty texts and zeros for what isn't told.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) name: String,
    pub(super) stage: String,
    pub(super) state: String,
    pub(super) time: f64,
    pub(super) started: f64,
    pub(super) ended: Option<f64>,
    pub(super) attempt: u64,
    pub(super) world_size: u64,
    pub(super) waits_for: String,
    pub(super) phases: Vec<Phase>,
    pub(super) restarts: Vec<Restart>,
    /// Since when there were how many ranks.
    pub(super) sizes: Vec<(f64, u64)>,
    /// Which host, when if that is known, and why.
    pub(super) notices: Vec<(String, Option<f64>, String)>,
    /// Which host, until when, how often it failed, and why the last time.
    pub(super) cooling: Vec<(String, f64, u64, String)>,
    pub(super) seats: Option<Seats>,
    pub(super) ranks: Vec<Rank>,
    pub(super) ranks_left_out: u64,
    /// By rank.
    pub(super) slow: Vec<u32>,
    pub(super) lines: Vec<String>,
    pub(super) losses: Vec<(f64, f64)>,
    pub(super) failure: Option<Failure>,
}

/// As [`phalanx_types::run_snapshot::Restart`].
#[derive(Debug)]
pub(super) struct Restart {
    pub(super) time: f64,
    pub(super) cause: String,
    pub(super) kind: String,
    pub(super) cost: Option<RestartCost>,
}

/// As [`phalanx_types::run_snapshot::SeatsNote`].
#[derive(Debug)]
pub(super) struct Seats {
    pub(super) of: u64,
    pub(super) taken: u64,
    pub(super) spares: u64,
    pub(super) asked: u64,
    pub(super) slots: Option<u64>,
    pub(super) free: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Phase {
    pub(super) is_restart: bool,
    pub(super) name: String,
    pub(super) start: f64,
    pub(super) end: Option<f64>,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) rank: Option<u32>,
    pub(super) host: String,
    pub(super) executor: String,
    pub(super) gpus: String,
    pub(super) state: String,
    pub(super) step: Option<u64>,
    pub(super) of: Option<u64>,
    pub(super) rate: Option<f64>,
    pub(super) collective_share: Option<f64>,
    pub(super) data_share: Option<f64>,
    /// `epoch=1, loss=0.75`.
    pub(super) values: String,
}

#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: String,
    pub(super) cause: String,
    pub(super) rank: Option<u32>,
    pub(super) host: String,
    pub(super) text: String,
    pub(super) traceback: String,
    pub(super) stacks: String,
}

impl Told {
    /// What a snapshot's JSON tells; nothing where it is none.
    pub(super) fn read(snapshot: &str) -> Told {
        let json: Value = serde_json::from_str(snapshot).unwrap_or_default();
        let listed = each(&json, "ranks").len();
        Told {
            name: line(&json, "name"),
            stage: line(&json, "stage"),
            state: line(&json, "state"),
            time: moment(&json, "time").unwrap_or_default(),
            started: moment(&json, "started").unwrap_or_default(),
            ended: moment(&json, "ended"),
            attempt: count(&json, "attempt").unwrap_or_default(),
            world_size: count(&json, "world_size").unwrap_or_default(),
            waits_for: line(&json, "waits_for"),
            phases: newest(&json, "phases", MAX_PHASES).iter().map(phase).collect(),
            restarts: newest(&json, "restarts", MAX_RESTARTS).iter().map(restart).collect(),
            sizes: newest(&json, "sizes", MAX_SIZES)
                .iter()
                .filter_map(|at| Some((as_moment(at.get(0)?)?, at.get(1)?.as_u64()?)))
                .collect(),
            notices: each(&json, "notices")
                .iter()
                .take(MAX_NOTICES)
                .map(|at| (line(at, "host"), moment(at, "deadline"), line(at, "reason")))
                .collect(),
            cooling: each(&json, "cooling")
                .iter()
                .take(MAX_COOLING)
                .filter_map(|at| {
                    let failures = count(at, "failures").unwrap_or_default();
                    Some((line(at, "host"), moment(at, "until")?, failures, line(at, "reason")))
                })
                .collect(),
            seats: json.get("seats").filter(|at| at.is_object()).map(seats),
            ranks: each(&json, "ranks").iter().take(MAX_RANKS).map(rank).collect(),
            ranks_left_out: count(&json, "ranks_left_out")
                .unwrap_or_default()
                .saturating_add(listed.saturating_sub(MAX_RANKS) as u64),
            slow: each(&json, "slow").iter().filter_map(rank_of).take(MAX_RANKS).collect(),
            lines: newest(&json, "lines", MAX_LINES).iter().map(|at| text_of(at, MAX_LINE_BYTES)).collect(),
            losses: newest(&json, "losses", MAX_LOSSES)
                .iter()
                .filter_map(|at| Some((at.get(0)?.as_f64()?, at.get(1)?.as_f64()?)))
                .collect(),
            failure: json.get("failure").filter(|at| at.is_object()).map(failure),
        }
    }
}

fn restart(json: &Value) -> Restart {
    let cost = json.get("cost").and_then(|cost| {
        let ranks = u32::try_from(count(cost, "ranks")?).ok()?;
        Some(RestartCost { ranks, seconds: moment(cost, "seconds")?, steps: count(cost, "steps") })
    });
    Restart {
        time: moment(json, "time").unwrap_or_default(),
        cause: line(json, "cause"),
        kind: line(json, "kind"),
        cost,
    }
}

fn seats(json: &Value) -> Seats {
    let number = |key| count(json, key).unwrap_or_default();
    Seats {
        of: number("of"),
        taken: number("taken"),
        spares: number("spares"),
        asked: number("asked"),
        slots: count(json, "slots"),
        free: count(json, "free"),
    }
}

fn phase(json: &Value) -> Phase {
    Phase {
        is_restart: line(json, "kind") == "restart",
        name: line(json, "name"),
        start: moment(json, "start").unwrap_or_default(),
        end: moment(json, "end"),
    }
}

fn rank(json: &Value) -> Rank {
    let gpus: Vec<String> = each(json, "gpus").iter().map(|at| text_of(at, MAX_LINE_BYTES)).collect();
    let values = json.get("values").and_then(Value::as_object);
    let shown = |(name, value): (&String, &Value)| {
        let value = value.as_f64().map_or_else(|| text_of(value, MAX_VALUE_BYTES), numbers::number);
        format!("{}={value}", cut(name, MAX_VALUE_BYTES))
    };
    Rank {
        rank: json.get("rank").and_then(rank_of),
        host: line(json, "host"),
        executor: line(json, "executor"),
        gpus: cut(&gpus.join(", "), MAX_LINE_BYTES),
        state: line(json, "state"),
        step: count(json, "step"),
        of: count(json, "of"),
        rate: number(json, "rate"),
        collective_share: number(json, "collective_share"),
        data_share: number(json, "data_share"),
        values: values.into_iter().flatten().take(MAX_VALUES).map(shown).collect::<Vec<_>>().join(", "),
    }
}

fn failure(json: &Value) -> Failure {
    Failure {
        kind: line(json, "kind"),
        cause: line(json, "cause"),
        rank: json.get("rank").and_then(rank_of),
        host: line(json, "host"),
        text: text(json, "text"),
        traceback: text(json, "traceback"),
        stacks: text(json, "stacks"),
    }
}

fn line(json: &Value, name: &str) -> String {
    text_of(json.get(name).unwrap_or_default(), MAX_LINE_BYTES)
}

fn text(json: &Value, name: &str) -> String {
    text_of(json.get(name).unwrap_or_default(), MAX_TEXT_BYTES)
}

/// A text, a number or a truth as a text; what has parts has none.
fn text_of(json: &Value, most_bytes: usize) -> String {
    match json {
        Value::String(text) => cut(text, most_bytes),
        Value::Bool(_) | Value::Number(_) => json.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

/// Seconds since 1970, of a time that there may be.
fn moment(json: &Value, name: &str) -> Option<f64> {
    as_moment(json.get(name)?)
}

fn as_moment(json: &Value) -> Option<f64> {
    json.as_f64().filter(|seconds| seconds.abs() < MAX_MOMENT)
}

fn number(json: &Value, name: &str) -> Option<f64> {
    json.get(name)?.as_f64().filter(|number| number.is_finite())
}

/// A rank's number; what is as large as no number of ranks is none.
fn rank_of(json: &Value) -> Option<u32> {
    u32::try_from(json.as_u64()?).ok().filter(|rank| *rank < u32::MAX)
}

fn count(json: &Value, name: &str) -> Option<u64> {
    json.get(name)?.as_u64()
}

fn each<'a>(json: &'a Value, name: &str) -> &'a [Value] {
    json.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn newest<'a>(json: &'a Value, name: &str, most: usize) -> &'a [Value] {
    let all = each(json, name);
    &all[all.len().saturating_sub(most)..]
}
