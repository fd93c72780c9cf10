//! What the caller is told of a job, and the one form in which the languages get it.
//!
//! - DRIVER-1 (one-form): an event has three texts, whatever the language: its kind, a text for people, and its fields
//!   as a JSON object (empty where it has none). A failure comes rendered.

use phalanx_types::message::TimedReport;
use phalanx_types::run_snapshot::RestartCost;
use phalanx_types::{Attempt, Failure, RankOutcome};
use serde_json::json;

use crate::driver::state::{HostCarried, HostsPlaced, Phase, Progress, RankReports, Restarted, SeatChange};

/// How much output may wait for the reader.
pub const MAX_WAITING_OUTPUT_BYTES: usize = 4 << 20;

/// What happens at the driver, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Whole, prefixed lines to show.
    Output(String),
    /// The job or a rank got somewhere.
    Phase(Phase),
    /// Where the job is, in words.
    Status(String),
    /// A rank told by `phalanx.report` how far it is.
    Progress(Progress),
    /// All that a rank has reported, where the job says that each is wanted.
    Reports(RankReports),
    /// A task was lost, and the ranks are to start again: end the present Spark stage, and submit another whose nodes
    /// begin with this attempt, for the same hub. Where the tasks are alive the ranks start again without this.
    Resubmit {
        /// [`phalanx_types::NodeSpec::attempt`] of the new stage's nodes.
        attempt: Attempt,
    },
    /// All ranks run again after a restart.
    Restarted(Restarted),
    /// Of a gang of tasks: submit the seat of a partition once more, beside those whose tasks hold slots on hosts that
    /// the run leaves alone; or end those that it doesn't need any more.
    Seat(SeatChange),
    /// The hub has given the ranks of a run with data sets their places: blocks of other hosts need carriers.
    Placed(HostsPlaced),
    /// A carrier serves the blocks of a host.
    Carried(HostCarried),
    /// Every rank ended well, and every result is here: a line for each rank. The last event.
    Finished(Vec<RankOutcome>),
    /// The job failed. The last event.
    Failed(Box<Failure>),
}

impl Event {
    /// The event as the languages get it: kind, text and fields.
    ///
    /// | kind | text | fields |
    /// | --- | --- | --- |
    /// | `output` | the lines | |
    /// | `phase` | its name | `rank`, null for the job's own; `seconds` since the hub opened |
    /// | `status` | where the job is | |
    /// | `progress` | what the rank told, as a JSON object | `rank`, `step` |
    /// | `reports` | a JSON array of objects: `step`, `at_ms`, `values` | `rank`, `left_out` |
    /// | `resubmit` | | `attempt` |
    /// | `restarted` | what it has cost, in words | `attempt`, `kind`, and the fields of a [`RestartCost`] |
    /// | `seat_wanted` | | `attempt`, with which the gang began to which it belongs, and `partition` |
    /// | `seat_taken` | | the same, and `stage`, the Spark stage of the job that has it |
    /// | `placed` | | `attempt`, and `hosts`, the names of those that have nodes |
    /// | `carried` | the name of a host with a carrier | `attempt` |
    /// | `finished` | | `ranks`, as in a [`Failure`] |
    /// | `failed` | the failure as [`Failure::render`] tells it | those of [`Failure`] |
    pub fn pack(self) -> [String; 3] {
        let (kind, text, fields) = match self {
            Event::Output(text) => ("output", text, None),
            Event::Phase(Phase { point, at }) => {
                let fields = json!({"rank": point.rank(), "seconds": at.as_secs_f64()});
                ("phase", point.name().into_owned(), Some(fields))
            }
            Event::Status(text) => ("status", text, None),
            Event::Progress(Progress { rank, step, values }) => {
                ("progress", values, Some(json!({"rank": rank, "step": step})))
            }
            Event::Reports(RankReports { rank, left_out, reports }) => {
                let each = reports.into_iter().map(|TimedReport { step, at_ms, values }| {
                    format!(r#"{{"step":{step},"at_ms":{at_ms},"values":{values}}}"#)
                });
                let text = format!("[{}]", each.collect::<Vec<_>>().join(","));
                ("reports", text, Some(json!({"rank": rank, "left_out": left_out})))
            }
            Event::Resubmit { attempt } => ("resubmit", String::new(), Some(json!({"attempt": attempt}))),
            Event::Restarted(Restarted { attempt, kind, cost }) => {
                let RestartCost { ranks, seconds, steps } = cost;
                let fields = json!({
                    "attempt": attempt, "kind": kind, "ranks": ranks, "seconds": seconds, "steps": steps,
                });
                ("restarted", cost.in_words(), Some(fields))
            }
            Event::Seat(SeatChange::Wanted { attempt, partition }) => {
                let fields = json!({"attempt": attempt, "partition": partition});
                ("seat_wanted", String::new(), Some(fields))
            }
            Event::Seat(SeatChange::Taken { attempt, partition, stage }) => {
                let fields = json!({"attempt": attempt, "partition": partition, "stage": stage});
                ("seat_taken", String::new(), Some(fields))
            }
            Event::Placed(HostsPlaced { attempt, hosts }) => {
                ("placed", String::new(), Some(json!({"attempt": attempt, "hosts": hosts})))
            }
            Event::Carried(HostCarried { attempt, host }) => {
                ("carried", host, Some(json!({"attempt": attempt})))
            }
            Event::Finished(ranks) => ("finished", String::new(), Some(json!({"ranks": ranks}))),
            Event::Failed(failure) => ("failed", failure.render(), Some(json!(failure))),
        };
        [kind.into(), text, fields.map_or_else(String::new, |fields| fields.to_string())]
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_types::FailureKind;
    use phalanx_types::run_snapshot::RestartKind;

    use super::*;
    use crate::driver::state::Point;

    #[test]
    fn every_event_is_a_kind_a_text_and_its_fields() {
        let failure = Failure::without_rank(FailureKind::Cancelled, "enough");
        let phase = Phase { point: Point::RankPhase(1, "user code".into()), at: Duration::from_millis(1500) };
        let progress = Progress { rank: 2, step: 7, values: r#"{"loss":0.5}"#.into() };
        let report = |step| TimedReport { step, at_ms: 1000 + step, values: r#"{"loss":0.5}"#.into() };
        let reports = RankReports { rank: 2, left_out: 3, reports: vec![report(7), report(8)] };
        let cost = RestartCost { ranks: 3, seconds: 3.25, steps: Some(14) };
        let restarted = Restarted { attempt: Attempt::new(2), kind: RestartKind::Resized, cost };
        for (event, kind, text, fields) in [
            (Event::Output("[rank 0] a\n".into()), "output", "[rank 0] a\n", ""),
            (Event::Phase(phase), "phase", "user code", r#"{"rank":1,"seconds":1.5}"#),
            (Event::Status("training".into()), "status", "training", ""),
            (Event::Progress(progress), "progress", r#"{"loss":0.5}"#, r#"{"rank":2,"step":7}"#),
            (
                Event::Reports(reports),
                "reports",
                concat!(
                    r#"[{"step":7,"at_ms":1007,"values":{"loss":0.5}},"#,
                    r#"{"step":8,"at_ms":1008,"values":{"loss":0.5}}]"#
                ),
                r#"{"left_out":3,"rank":2}"#,
            ),
            (
                Event::Restarted(restarted),
                "restarted",
                "3 ranks run again; 14 steps and 3.2 s lost",
                r#"{"attempt":2,"kind":"resized","ranks":3,"seconds":3.25,"steps":14}"#,
            ),
            (Event::Resubmit { attempt: Attempt::new(3) }, "resubmit", "", r#"{"attempt":3}"#),
            (
                Event::Seat(SeatChange::Wanted { attempt: Attempt::new(1), partition: 2 }),
                "seat_wanted",
                "",
                r#"{"attempt":1,"partition":2}"#,
            ),
            (
                Event::Seat(SeatChange::Taken { attempt: Attempt::new(1), partition: 2, stage: 7 }),
                "seat_taken",
                "",
                r#"{"attempt":1,"partition":2,"stage":7}"#,
            ),
            (
                Event::Placed(HostsPlaced { attempt: Attempt::new(1), hosts: vec!["a".into()] }),
                "placed",
                "",
                r#"{"attempt":1,"hosts":["a"]}"#,
            ),
            (
                Event::Carried(HostCarried { attempt: Attempt::new(1), host: "b".into() }),
                "carried",
                "b",
                r#"{"attempt":1}"#,
            ),
            (Event::Finished(Vec::new()), "finished", "", r#"{"ranks":[]}"#),
        ] {
            assert_eq!(event.pack(), [kind, text, fields], "DRIVER-1");
        }
        let [kind, text, fields] = Event::Failed(Box::new(failure.clone())).pack();
        assert_eq!((kind.as_str(), text), ("failed", failure.render()), "DRIVER-1");
        assert_eq!(fields, json!(failure).to_string(), "DRIVER-1");
    }
}
