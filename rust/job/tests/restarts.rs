//! Attempts of a whole job over real sockets and processes: in place, and by another stage.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{LONG, TestCallbacks, Told, listen, open, spawn_node, test_node};
use phalanx_job::{Event, Hub, Metric, MetricChange, MetricKind, MetricSource};
use phalanx_testkit::Proxy;
use phalanx_types::run_snapshot::RestartKind;
use phalanx_types::{Attempt, Deadline, FailureKind, Job, RunSnapshot};

fn job(ranks: u32, tasks: u32, max_restarts: u32) -> Job {
    let mut job = Job::new("test", "test", ranks, tasks).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.max_restarts = max_restarts;
    job
}

/// Runs `script` on all nodes; also what was observed there.
fn run(job: &Job, script: &str) -> (Told, Hub, tempfile::TempDir, Vec<MetricChange>) {
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(job);
    let observed = Arc::new(Mutex::new(Vec::new()));
    let nodes: Vec<_> = (0..job.tasks)
        .map(|p| {
            let callbacks = TestCallbacks { observed: Arc::clone(&observed), ..TestCallbacks::default() };
            spawn_node(test_node(&driver, p, script, dir.path()), callbacks)
        })
        .collect();
    let told = listen(&driver);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    let observed = std::mem::take(&mut *observed.lock().unwrap());
    (told, driver, dir, observed)
}

#[test]
fn a_killed_rank_starts_again_with_the_others_in_place() {
    let script = r#"
        echo "attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS rank $RANK"
        [ -e "$PHALANX_RANK_DIR/left" ] && echo "an old folder"
        touch "$PHALANX_RANK_DIR/left"
        [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || {
            echo "at $MASTER_PORT"; printf "r$RANK" > "$PHALANX_RANK_DIR/result"; exit 0
        }
        job="$PHALANX_RANK_DIR/../.."; touch "$job/up-$RANK"
        [ "$RANK" = 3 ] && { for r in 0 1 2; do until [ -e "$job/up-$r" ]; do sleep 0.01; done; done; kill -KILL $$; }
        printf old > "$PHALANX_RANK_DIR/result"; [ "$RANK" = 0 ] || sleep 600"#;
    let (told, driver, dir, observed) = run(&job(4, 2, 2), script);
    assert_eq!(told.failure, None);
    assert_eq!(told.resubmits, [], "DRIVER-31, NODE-42");
    assert_eq!(told.restarted, [(RestartKind::Replaced, 4)]);
    let line = "[phalanx] restart 1 of 2: rank 3 (host-1) was ended by SIGKILL\n";
    assert_eq!(told.output.matches(line).count(), 1, "{}", told.output);
    let (before, after) = told.output.split_once(line).unwrap();
    for rank in 0..4 {
        assert!(before.contains(&format!("attempt 0 of 2 rank {rank}")), "{before}");
        assert!(after.contains(&format!("attempt 1 of 2 rank {rank}")), "{after}");
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"), "results of the last attempt");
        let log = std::fs::read_to_string(dir.path().join(format!("phalanx-test/rank-{rank}.log"))).unwrap();
        assert!(log.contains("attempt 0") && log.contains("attempt 1"), "one file over attempts: {log}");
        assert!(log.contains("[phalanx: restart 1: rank 3 (host-1) was ended by SIGKILL]"), "{log}");
    }
    assert!(!told.output.contains("an old folder"), "NODE-43");
    assert_eq!(observed.iter().filter(|what| what.0 == Metric::RanksRestarted).count(), 4);
    let RunSnapshot { counts, restarts, sizes, .. } = RunSnapshot::from_json(&driver.snapshot()).unwrap();
    let cost = restarts[0].cost.unwrap();
    assert_eq!((restarts.len(), cost.ranks, cost.steps), (1, 4, None));
    assert_eq!(sizes.iter().map(|(_, ranks)| *ranks).collect::<Vec<_>>(), [4], "as many as before");
    assert_eq!((counts["restarts.replaced"], counts["restarts.resized"]), (1, 0));
    assert_eq!(counts["lost.time"], Duration::from_secs_f64(cost.seconds).as_millis() as u64);
    let of_nodes = |metric: &Metric| {
        metric.source() == MetricSource::Node && metric.declaration().1 != MetricKind::Histogram
    };
    for metric in Metric::ALL.into_iter().filter(of_nodes) {
        let sum: i64 = observed.iter().filter(|what| what.0 == metric).map(|what| what.1).sum();
        let name = metric.declaration().0;
        assert_eq!(
            counts.get(name),
            Some(&u64::try_from(sum).unwrap()),
            "the hub and the nodes count {name}"
        );
    }
}

#[test]
fn ranks_in_place_run_again_within_a_tenth_of_a_second_after_one_was_killed() {
    // Rank 1 kills itself as soon as rank 0 runs, but in the last attempt; the others end at SIGTERM.
    let script = r#"up="$PHALANX_RANK_DIR/../../up-$TORCHELASTIC_RESTART_COUNT"
        echo "rank $RANK runs at $(date +%s%N)"
        [ "$TORCHELASTIC_RESTART_COUNT" = 15 ] && exit 0
        [ "$RANK" = 0 ] && { touch "$up"; exec sleep 600; }
        until [ -e "$up" ]; do sleep 0.01; done
        echo "it ends at $(date +%s%N)"; kill -KILL $$"#;
    let (told, ..) = run(&job(2, 1, 15), script);
    assert_eq!(told.failure, None);
    let times = |what: &str| -> Vec<u64> {
        let lines = told.output.lines().filter_map(|line| line.split_once(what)?.1.parse().ok());
        lines.collect()
    };
    let (ends, runs) = (times("[rank 1] it ends at "), times("[rank 0] rank 0 runs at "));
    assert_eq!((ends.len(), runs.len()), (15, 16), "{}", told.output);
    let took: Vec<_> =
        ends.iter().zip(&runs[1..]).map(|(end, run)| Duration::from_nanos(run - end)).collect();
    // The least of many: what else the machine does makes any of them longer.
    let least = took.iter().min().unwrap();
    assert!(*least < Duration::from_millis(100), "docs/failures.md, Restarts: {took:?}");
}

/// Restarts ranks twice in place, after output that the live view has shown: each line is sent once, and shown once.
fn output_comes_once(max_live_lag_bytes: u64) {
    const LINES: usize = 15_000;
    /// How many times so many lines each attempt writes.
    const PIECES: [usize; 3] = [6, 1, 1];
    let mut job = job(2, 1, 2);
    job.logs.max_live_lag_bytes = max_live_lag_bytes;
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let proxy = Proxy::before(driver.address(), |_, _| false);
    // Each piece waits until the one before is shown, so that the live view is never behind.
    let script = format!(
        r#"cd "{}"; a=$TORCHELASTIC_RESTART_COUNT
        await() {{ until [ -e "seen-$1" ]; do sleep 0.01; done; }}
        pieces() {{ [ "$a" = 0 ] && echo {} || echo {}; }}
        for n in $(seq 1 $(pieces)); do seq -f "$a.$n.%.0f" 1 {LINES}; await "$RANK.$a.$n"; done
        [ "$a" = 2 ] && exit 0
        [ "$RANK" = 1 ] && {{ await "0.$a.$(pieces)"; kill -KILL $$; }}; exec sleep 600"#,
        dir.path().display(),
        PIECES[0],
        PIECES[1],
    );
    let mut test = test_node(&driver, 0, &script, dir.path());
    test.spec.hub.clone_from(&proxy.address);
    let node = spawn_node(test, TestCallbacks::default());
    let (mut shown, mut seen) = (String::new(), 0);
    let last = format!(".{LINES}");
    loop {
        match driver.next(Deadline::after(LONG)).unwrap().expect("in time") {
            Event::Output(text) => shown.push_str(&text),
            Event::Finished(_) => break,
            Event::Failed(failure) => panic!("{failure:?}"),
            _ => {}
        }
        let whole = shown.rfind('\n').map_or(0, |at| at + 1);
        for line in shown[seen..whole].lines() {
            let piece =
                line.strip_suffix(&last).and_then(|line| line.strip_prefix("[rank ")?.split_once("] "));
            if let Some((rank, piece)) = piece {
                std::fs::write(dir.path().join(format!("seen-{rank}.{piece}")), "").unwrap();
            }
        }
        seen = whole;
    }
    node.join().unwrap().unwrap();
    assert!(!shown.contains("skipped"), "NODE-29: nothing was passed over");
    let mut written = 0;
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let mut lines = shown.lines().filter_map(|line| line.strip_prefix(&prefix));
        for (attempt, pieces) in PIECES.into_iter().enumerate() {
            for (piece, line) in (1..=pieces).flat_map(|piece| (1..=LINES).map(move |line| (piece, line))) {
                let expected = format!("{attempt}.{piece}.{line}");
                written += expected.len() as u64 + 1;
                assert_eq!(lines.next(), Some(expected.as_str()), "NODE-29: every line of rank {rank}, once");
            }
        }
        assert_eq!(lines.next(), None, "NODE-29: every line of rank {rank}, once");
    }
    assert_eq!(shown.matches("[phalanx] restart").count(), 2);
    let most = written + written / 10;
    assert!(proxy.passed_bytes() < most, "NODE-29: {} bytes for {written}", proxy.passed_bytes());
}

#[test]
fn output_is_sent_once_over_restarts_in_place() {
    output_comes_once(u64::MAX);
}

#[test]
fn more_output_than_the_live_view_may_be_behind_is_not_passed_over_at_a_restart() {
    output_comes_once(400_000);
}

#[test]
fn a_spent_budget_ends_the_job_with_the_last_cause() {
    let script = r#"echo "attempt $TORCHELASTIC_RESTART_COUNT"; [ "$RANK" = 1 ] && kill -SEGV $$; sleep 600"#;
    let (told, ..) = run(&job(2, 1, 1), script);
    let failure = told.failure.unwrap();
    assert_eq!((failure.kind, failure.rank, failure.restarts), (FailureKind::Signal, Some(1), 1));
    assert_eq!(failure.last_lines, ["attempt 1"], "the last attempt's only");
    assert_eq!(told.output.matches("[phalanx] restart").count(), 1);
}

#[test]
fn a_result_of_a_failed_attempt_is_not_the_last_ones() {
    let script = r#"[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { [ "$RANK" = 1 ] && exit 3; exec sleep 600; }
        [ "$RANK" = 0 ] && { printf old > "$PHALANX_RANK_DIR/result"; exit 0; }; sleep 0.3; kill -KILL $$"#;
    let (told, driver, ..) = run(&job(2, 1, 1), script);
    assert_eq!(told.failure.unwrap().exit_code, Some(3));
    assert_eq!(driver.result_path(0), None, "TYPES-10");
}

#[test]
fn an_attempt_leaves_nothing_that_the_next_one_meets() {
    // A process that rank 0 left behind in the first attempt is gone in the second.
    let dir = phalanx_testkit::temp_dir("job");
    let pid = dir.path().join("pid");
    let script = format!(
        r#"if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then
               setsid sh -c 'trap "" TERM; echo $$ > {pid}.part; mv {pid}.part {pid}; sleep 600' &
               until [ -e {pid} ]; do sleep 0.01; done; kill -KILL $$
           fi
           [ -d /proc/$(cat {pid}) ] && echo alive; exit 0"#,
        pid = pid.display()
    );
    let (told, ..) = run(&job(1, 1, 1), &script);
    assert_eq!(told.failure, None);
    assert!(!told.output.contains("alive"), "GUARD-6, NODE-43");
}

#[test]
fn a_lost_task_has_the_stage_submitted_again_and_the_new_one_finishes_the_job() {
    let mut job = job(2, 2, 1);
    job.policy.node_timeout = Duration::from_millis(1500);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let script = r#"[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && { echo up $RANK; exec sleep 600; }
        echo again $RANK; printf "r$RANK" > "$PHALANX_RANK_DIR/result""#;
    let node = |partition, attempt| {
        let mut test = test_node(&driver, partition, script, dir.path());
        test.spec.attempt = attempt;
        let callbacks = TestCallbacks::default();
        let interrupt = Arc::clone(&callbacks.interrupt);
        (spawn_node(test, callbacks), interrupt)
    };
    let first = [node(0, Attempt::first()), node(1, Attempt::first())];
    let mut output = String::new();
    let mut next = || {
        let event = driver.next(Deadline::after(LONG)).unwrap().expect("in time");
        if let Event::Output(text) = &event {
            output.push_str(text);
        }
        (event, output.matches("up ").count())
    };
    while next().1 < 2 {}
    // As Spark does with the tasks of a stage that lost one.
    *first[1].1.lock().unwrap() = Some("its executor is going away".into());
    driver.stage_ended(Attempt::first(), Some("ExecutorLostFailure".into()));
    let attempt = loop {
        if let Event::Resubmit { attempt } = next().0 {
            break attempt;
        }
    };
    assert_eq!(attempt, Attempt::first().next());
    for (node, _) in first {
        node.join().unwrap().unwrap();
    }
    let second = [node(0, attempt), node(1, attempt)];
    let told = listen(&driver);
    assert_eq!(told.failure, None);
    for rank in 0..2 {
        assert!(told.output.contains(&format!("[rank {rank}] again {rank}")), "{}", told.output);
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"));
    }
    for (node, _) in second {
        node.join().unwrap().unwrap();
    }
}
