//! What ranks report, from their memory to the caller: the newest for displays, each where the job says so.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{TestCallbacks, Told, listen, open, run, spawn_node, test_node};
use phalanx_job::Hub;
use phalanx_testkit::{Proxy, temp_dir};
use phalanx_types::{EveryReport, Job};
use serde_json::Value;

/// A rank of Python that does this; its `go` is a file that all ranks see.
fn python(program: &str) -> String {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python");
    let program = format!(
        r#"
import os, signal, time
from phalanx.rank import reporting
from phalanx.rank.node_socket import NodeSocket
reporting.enter(NodeSocket(3), os.environ["PHALANX_RANK_DIR"])
report, rank = reporting.report, int(os.environ["RANK"])
go = os.path.join(os.environ["PHALANX_RANK_DIR"], "..", "go")
{program}
"#
    );
    let path = package.display();
    format!("PYTHONPATH='{path}' exec python3 -c '{}'", program.replace('\'', "'\\''"))
}

fn job(every_report: EveryReport) -> Job {
    let mut job = Job::new("test", "test", 2, 1).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.every_report = every_report;
    job
}

/// The steps of a rank that came, and how many were left out.
fn steps(told: &Told, rank: u32) -> (Vec<u64>, u64) {
    let of: Vec<_> = told.every_report.iter().filter(|of| of.rank == rank).collect();
    let steps = of.iter().flat_map(|of| of.reports.iter().map(|report| report.step));
    (steps.collect(), of.iter().map(|of| of.left_out).sum())
}

/// The step that the last snapshot and the last event of its rank show.
fn shown(told: &Told, driver: &Hub, rank: u32) -> [Option<u64>; 2] {
    let snapshot: Value = serde_json::from_str(&driver.snapshot()).unwrap();
    let listed = snapshot["ranks"][rank as usize]["step"].as_u64();
    [listed, told.reports.iter().rev().find(|report| report.rank == rank).map(|report| report.step)]
}

#[test]
fn each_report_of_rank_0_comes_in_order_with_its_step_time_and_values() {
    let script = python(
        "for step in range(1000):
    report(step=step, of=1000, loss=step / 2)",
    );
    let (told, driver, _) = run(&job(EveryReport::First), &script);
    assert_eq!(told.failure, None);
    let (of_first, left_out) = steps(&told, 0);
    assert!(of_first.into_iter().eq(0..1000), "NODE-51");
    assert_eq!(left_out, 0);
    assert_eq!(steps(&told, 1), (Vec::new(), 0), "of others nobody wants each");
    let reports: Vec<_> = told.every_report.iter().flat_map(|of| &of.reports).collect();
    assert_eq!(reports[999].values, r#"{"loss":499.5}"#);
    assert!(reports[0].at_ms > 1_700_000_000_000 && reports.is_sorted_by_key(|report| report.at_ms));
    for rank in 0..2 {
        assert_eq!(shown(&told, &driver, rank), [Some(999); 2], "NODE-53");
    }
    assert!(told.reports.len() < 100, "displays have samples");
}

#[test]
fn what_a_rank_reported_last_is_shown_however_it_ended() {
    for (end, every_report) in [
        ("os.kill(os.getpid(), signal.SIGKILL)", EveryReport::All),
        ("os._exit(3)", EveryReport::None),
        ("raise ValueError", EveryReport::First),
    ] {
        // Rank 0 is stopped right after its last report, rank 1 ends right after its own.
        let program = format!(
            "for step in range(120):
    report(step=step, loss=step)
if rank == 0:
    open(go, 'w').close()
    time.sleep(60)
while not os.path.exists(go):
    time.sleep(0.001)
report(step=120, loss=0.5)
{end}"
        );
        let (told, driver, _) = run(&job(every_report), &python(&program));
        assert_eq!(told.failure.as_ref().unwrap().rank, Some(1), "{end}");
        for rank in 0..2 {
            let last = 119 + u64::from(rank);
            assert_eq!(
                shown(&told, &driver, rank),
                [Some(last); 2],
                "NODE-53, DRIVER-48: rank {rank}, {end}"
            );
            let expected = if every_report.is_of(rank) { (0..=last).collect() } else { Vec::new() };
            assert_eq!(steps(&told, rank), (expected, 0), "NODE-51: rank {rank}, {end}");
        }
    }
}

#[test]
fn a_rank_that_hangs_or_is_cancelled_has_its_last_report() {
    let program = "for step in range(120):
    report(step=step)
while True:
    signal.pause()";
    let mut job = job(EveryReport::First);
    job.policy.hang_timeout = Duration::from_millis(800);
    let (told, driver, _) = run(&job, &python(program));
    assert!(told.failure.is_some());
    assert_eq!(shown(&told, &driver, 0), [Some(119); 2], "NODE-53, DRIVER-48");
    assert!(steps(&told, 0).0.into_iter().eq(0..120), "NODE-51");
}

#[test]
fn reports_that_are_on_their_way_when_the_connection_breaks_come_once() {
    let program = "for step in range(1000):
    report(step=step, **{f'value {i}': 'x' * 50 for i in range(8)})
    time.sleep(0.002)";
    let driver = open(&job(EveryReport::First));
    let is_cut = AtomicBool::new(false);
    let proxy = Proxy::before(driver.address(), move |number, passed| {
        number == 1 && passed >= 150_000 && !is_cut.swap(true, Ordering::SeqCst)
    });
    let dir = temp_dir("reports");
    let mut test = test_node(&driver, 0, &python(program), dir.path());
    test.spec.hub.clone_from(&proxy.address);
    let node = spawn_node(test, TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!((told.failure.as_ref(), proxy.cuts()), (None, 1), "the proxy has cut");
    let (steps, left_out) = steps(&told, 0);
    assert!(steps.into_iter().eq(0..1000), "NODE-54, DRIVER-46");
    assert_eq!(left_out, 0);
}

#[test]
fn of_a_flood_the_newest_come_and_how_many_are_missing() {
    let script = python("for step in range(200_000 if rank == 0 else 1):\n    report(step=step, loss=0.5)");
    let (told, driver, _) = run(&job(EveryReport::First), &script);
    assert_eq!(told.failure, None);
    let (steps, left_out) = steps(&told, 0);
    assert_eq!(steps.len() as u64 + left_out, 200_000, "TYPES-29");
    assert!(steps.is_sorted_by(|a, b| a < b) && steps.last() == Some(&199_999), "GUARD-20");
    assert!(left_out > 0, "it was no flood for this machine");
    assert_eq!(shown(&told, &driver, 0), [Some(199_999); 2], "NODE-53");
}

#[test]
fn reports_of_a_program_that_writes_notes_come_too() {
    let script = r#"for i in 1 2 3; do echo "{\"report\": {\"step\": $i, \"values\": {\"loss\": 0.$i}}}" >&3; sleep 0.2; done"#;
    let (told, driver, _) = run(&job(EveryReport::First), script);
    assert_eq!(told.failure, None);
    assert_eq!(steps(&told, 0), (vec![1, 2, 3], 0));
    assert_eq!(shown(&told, &driver, 0), [Some(3); 2]);
}
