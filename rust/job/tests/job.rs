//! Whole jobs over real sockets and processes: output, results, failures, lost ends.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{LONG, TestCallbacks, listen, open, run, spawn_node, test_node};
use phalanx_job::Metric;
use phalanx_testkit::{alive, eventually, eventually_some};
use phalanx_types::{Attempt, FailureKind, Job, RankProgram};

fn job(ranks: u32, tasks: u32) -> Job {
    let mut job = Job::new("test", "test", ranks, tasks).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.connect_timeout = Duration::from_millis(500);
    job
}

#[test]
fn every_ranks_output_and_result_arrive_over_two_nodes() {
    let script = r#"echo "rank $RANK local $LOCAL_RANK of $WORLD_SIZE at $MASTER_ADDR"
        printf "result $RANK" > "$PHALANX_RANK_DIR/result""#;
    let (told, driver, dir) = run(&job(4, 2), script);
    assert_eq!(told.failure, None);
    for rank in 0..4 {
        let line = format!("[rank {rank}] rank {rank} local {} of 4 at 127.0.0.1\n", rank % 2);
        assert!(told.output.contains(&line), "{line} in {}", told.output);
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("result {rank}"));
    }
    assert_eq!(told.phases.iter().filter(|p| *p == "all joined").count(), 1);
    let left: Vec<_> = std::fs::read_dir(dir.path().join("phalanx-test"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".log") && !name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "NODE-39: only logs stay, not {left:?}");
}

#[test]
fn checkpoints_that_the_distributor_names_win_over_the_environments() {
    let mut job = job(1, 1);
    job.checkpoint.directory = "/given".into();
    job.checkpoint.name = "digits".into();
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let mut test =
        test_node(&driver, 0, r#"echo "$PHALANX_CHECKPOINT_DIR $PHALANX_CHECKPOINT_NAME""#, dir.path());
    for name in ["PHALANX_CHECKPOINT_DIR", "PHALANX_CHECKPOINT_NAME"] {
        test.spec.env.insert(name.into(), "/of-the-cluster".into());
    }
    let node = spawn_node(test, TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert!(told.output.contains("[rank 0] /given digits\n"), "{}", told.output);
}

#[test]
fn the_rank_that_failed_is_named_and_the_others_are_stopped() {
    let script = r#"echo up $RANK; [ "$RANK" = 1 ] && { echo last words; exit 3; }; sleep 600"#;
    let began = Instant::now();
    let (told, _driver, _dir) = run(&job(4, 2), script);
    let failure = told.failure.expect("TYPES-4");
    assert_eq!((failure.kind, failure.rank, failure.exit_code), (FailureKind::ExitCode, Some(1), Some(3)));
    assert_eq!(failure.last_lines, ["up 1", "last words"]);
    assert!(failure.log_path.ends_with("rank-1.log"));
    let states: Vec<_> = failure.ranks.iter().map(|rank| rank.describe()).collect();
    assert_eq!(states, ["stopped", "exited with code 3", "stopped", "stopped"]);
    assert!(began.elapsed() < LONG, "NODE-40: nobody waited for the sleepers");
}

#[test]
fn a_job_whose_processes_end_badly_after_their_results_has_all_results_and_says_so() {
    let script = r#"
        printf $$ > "$PHALANX_RANK_DIR/owed"
        printf "result $RANK" > "$PHALANX_RANK_DIR/result"
        case "$RANK" in 0) exit 0;; 1) exit 3;; *) kill -ABRT $$;; esac"#;
    let (told, driver, _dir) = run(&job(4, 2), script);
    assert_eq!(told.failure, None, "NODE-55");
    for rank in 0..4 {
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("result {rank}"), "NODE-55");
    }
    for line in [
        "[phalanx] rank 1 had returned its result, and then its process exited with code 3\n",
        "[phalanx] ranks 2-3 had returned their results, and then each process was ended by SIGABRT\n",
    ] {
        assert_eq!(told.output.matches(line).count(), 1, "DRIVER-49: {}", told.output);
    }
    assert_eq!(told.output.matches("[phalanx]").count(), 2, "DRIVER-49: {}", told.output);
}

#[test]
fn a_late_end_is_told_where_another_rank_fails_as_well() {
    let script = r#"
        other="$PHALANX_RANK_DIR/../rank-0/pid"
        if [ "$RANK" = 0 ]; then
            printf $$ > "$PHALANX_RANK_DIR/owed"; echo 7 > "$PHALANX_RANK_DIR/result"
            echo $$ > "$other.part"; mv "$other.part" "$other"; exit 3
        fi
        until [ -s "$other" ]; do sleep 0.01; done
        while [ -e "/proc/$(cat "$other")" ]; do sleep 0.01; done
        exit 4"#;
    let (told, ..) = run(&job(2, 1), script);
    assert_eq!(told.failure.expect("TYPES-4").rank, Some(1));
    let line = "[phalanx] rank 0 had returned its result, and then its process exited with code 3\n";
    assert_eq!(told.output.matches(line).count(), 1, "DRIVER-49: {}", told.output);
}

#[test]
fn a_promise_of_a_process_that_the_rank_has_started_says_nothing_of_how_the_rank_ended() {
    let trainer =
        r#"sh -c 'printf $$ > "$PHALANX_RANK_DIR/owed"; echo 7 > "$PHALANX_RANK_DIR/result"; exit'"#;
    let (told, ..) = run(&job(1, 1), &format!("{trainer} && exit 3"));
    assert_eq!(told.failure.expect("NODE-55").exit_code, Some(3));
    let (told, ..) = run(&job(1, 1), &format!("{trainer}; exit 0"));
    assert_eq!(told.failure, None);
    let (told, ..) = run(&job(1, 1), r#"sh -c 'printf $$ > "$PHALANX_RANK_DIR/owed"; exit'; exit 0"#);
    assert!(told.failure.is_some(), "TYPES-4: code 0 while a result is owed");
}

#[test]
fn a_result_that_nobody_promised_says_nothing_of_how_a_program_ended() {
    let (told, ..) = run(&job(1, 1), r#"echo 7 > "$PHALANX_RANK_DIR/result"; kill -SEGV $$"#);
    let failure = told.failure.expect("NODE-55");
    assert_eq!((failure.kind, failure.signal), (FailureKind::Signal, Some(11)));
}

#[test]
fn a_rank_that_a_signal_ends_is_the_cause_and_not_its_victims() {
    // The victim's record says 50 ms before the cause's end was seen; the cause has no words.
    let script = r#"
        cause="$PHALANX_RANK_DIR/../rank-1/pid"
        if [ "$RANK" = 1 ]; then echo $$ > "$cause.part"; mv "$cause.part" "$cause"; sleep 0.1; kill -KILL $$; fi
        until [ -s "$cause" ]; do sleep 0.01; done
        while [ -e "/proc/$(cat "$cause")" ]; do sleep 0.01; done
        now=$(awk '{printf "%d", $1 * 1000000}' /proc/uptime)
        error='"type_name": "RuntimeError", "message": "peer", "peer_lost": true'
        echo "{$error, \"at_us\": $((now - 50000))}" > "$PHALANX_RANK_DIR/error.json"
        exit 1"#;
    let (told, ..) = run(&job(2, 1), script);
    let failure = told.failure.unwrap();
    assert_eq!(
        (failure.kind, failure.rank, failure.signal),
        (FailureKind::Signal, Some(1), Some(9)),
        "TYPES-20"
    );
}

#[test]
fn what_a_rank_raised_is_told_though_it_ends_before_its_last_note_is_read() {
    // Notes in quick succession are left to gather in the pipe for some milliseconds.
    let script = r#"for i in 1 2 3 4 5 6 7 8; do echo '{"beat": {"ran": true}}' >&3; done
        echo '{"error": {"type_name": "ValueError", "message": "no room"}}' >&3
        exit 1"#;
    for _ in 0..20 {
        let (told, ..) = run(&job(1, 1), script);
        let failure = told.failure.unwrap();
        assert_eq!((failure.kind, &failure.exception_type[..]), (FailureKind::Exception, "ValueError"));
    }
}

#[test]
fn a_rank_that_floods_its_node_with_notes_takes_nothing_from_another() {
    // Rank 0 writes notes as fast as a pipe takes them, before and while rank 1 says what it raised.
    let script = r#"
        note='{"report": {"step": 3, "values": {}}}'
        [ "$RANK" = 0 ] && exec sh -c 'yes "$0" >&3' "$note"
        sleep 0.3
        echo '{"error": {"type_name": "ValueError", "message": "no room"}}' >&3
        exit 1"#;
    for _ in 0..5 {
        let (told, ..) = run(&job(2, 1), script);
        let failure = told.failure.unwrap();
        assert_eq!((failure.rank, &failure.exception_type[..]), (Some(1), "ValueError"), "NODE-32");
    }
}

#[test]
fn an_exception_with_a_text_of_any_length_is_told_as_one() {
    // Longer than a frame, and made of what JSON writes as six bytes each.
    let script = r#"
        record="$PHALANX_RANK_DIR/error.json"
        { printf '{"type_name": "ValueError", "message": "begins'
          head -c 1500000 /dev/zero | sed 's/\x00/\\u0001/g'
          printf 'ends", "traceback": "File'
          head -c 1500000 /dev/zero | sed 's/\x00/\\u0001/g'
          printf 'line 7", "at_us": 1}'; } > "$record.part"
        mv "$record.part" "$record"
        exit 1"#;
    let (told, ..) = run(&job(1, 1), script);
    let failure = told.failure.unwrap();
    assert_eq!((failure.kind, &failure.exception_type[..]), (FailureKind::Exception, "ValueError"));
    assert!(
        failure.message.starts_with("rank 0 (host-0) raised ValueError: begins"),
        "{:.200}",
        failure.message
    );
    assert!(failure.message.len() < 4 << 10, "the cause is a sentence: {} bytes", failure.message.len());
    let (head, tail) = failure.traceback.split_once("[... ").expect("its middle is left out");
    assert!(head.starts_with("File") && tail.ends_with("line 7"));
}

#[test]
fn a_program_that_is_not_there_is_a_start_failure_that_names_it() {
    let job = job(1, 1);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let mut test = test_node(&driver, 0, "", dir.path());
    test.spec.program = RankProgram::Command(vec!["/nowhere/python".into()]);
    let node = spawn_node(test, TestCallbacks::default());
    let failure = listen(&driver).failure.unwrap();
    node.join().unwrap().unwrap();
    assert_eq!(failure.kind, FailureKind::Start);
    assert!(failure.message.contains("/nowhere/python"), "{}", failure.message);
}

#[test]
fn a_node_without_its_guard_fails_in_words_and_leaves_no_file() {
    let job = job(1, 1);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let mut test = test_node(&driver, 0, "exit 0", dir.path());
    test.here.home.guard = "/nowhere/phalanx-guard".into();
    let error = spawn_node(test, TestCallbacks::default()).join().unwrap().unwrap_err();
    assert!(error.to_string().contains("/nowhere/phalanx-guard"), "{error}");
    assert!(!dir.path().join("phalanx-test/task-0").exists(), "NODE-39");
    driver.stage_ended(Attempt::first(), Some(error.to_string()));
    assert_eq!(listen(&driver).failure.unwrap().kind, FailureKind::Start);
}

#[test]
fn a_task_that_never_comes_is_named_at_the_deadline() {
    let mut job = job(3, 3);
    job.policy.join_timeout = Duration::from_millis(700);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let nodes: Vec<_> = [0, 2]
        .map(|p| spawn_node(test_node(&driver, p, "exit 0", dir.path()), TestCallbacks::default()))
        .into();
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Start, "DRIVER-25, NODE-16");
    assert!(failure.message.contains("partition 1 did not join"), "{}", failure.message);
    assert!(failure.message.contains("2 of 3"), "{}", failure.message);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_wrong_token_is_refused_and_disturbs_nobody() {
    let job = job(2, 2);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let mut intruder = test_node(&driver, 0, "echo intruder", dir.path());
    intruder.spec.token = [0; 32];
    let error = spawn_node(intruder, TestCallbacks::default()).join().unwrap().unwrap_err();
    assert_eq!(error.kind(), phalanx_types::ErrorKind::Refused, "{error}");
    let nodes: Vec<_> = (0..2)
        .map(|p| spawn_node(test_node(&driver, p, "echo mine", dir.path()), TestCallbacks::default()))
        .collect();
    let told = listen(&driver);
    assert_eq!(told.failure, None);
    assert!(!told.output.contains("intruder"));
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn cancelling_ends_ranks_that_ignore_it_and_their_detached_children() {
    let job = job(2, 1);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let pids = dir.path().join("pids");
    let script = format!(
        r#"trap '' TERM; setsid sh -c 'trap "" TERM; echo $$ >> {pids}; while :; do sleep 1; done' &
           echo $$ >> {pids}; wait; sleep 600"#,
        pids = pids.display()
    );
    let node = spawn_node(test_node(&driver, 0, &script, dir.path()), TestCallbacks::default());
    let started = eventually_some("four processes run", LONG, || {
        let text = std::fs::read_to_string(&pids).ok()?;
        let pids: Vec<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
        (pids.len() == 4).then_some(pids)
    });
    driver.stop("the test says so");
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Cancelled);
    assert!(failure.message.contains("the test says so"), "{}", failure.message);
    node.join().unwrap().unwrap();
    for pid in started {
        assert!(!alive(pid), "GUARD-6: process {pid} outlived the cancel");
    }
}

#[test]
fn a_node_that_loses_its_driver_ends_its_ranks() {
    let job = job(1, 1);
    let dir = phalanx_testkit::temp_dir("job");
    let mut driver = open(&job);
    let pid_file = dir.path().join("pid");
    let script = format!("echo $$ > {}; sleep 600", pid_file.display());
    let node = spawn_node(test_node(&driver, 0, &script, dir.path()), TestCallbacks::default());
    let pid: u32 = eventually_some("the rank runs", LONG, || {
        std::fs::read_to_string(&pid_file).ok()?.trim().parse().ok()
    });
    driver.close();
    let error = node.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("driver"), "NODE-41: {error}");
    assert!(!alive(pid), "NODE-39");
}

#[test]
fn an_interrupted_task_ends_its_ranks_and_says_why() {
    let job = job(2, 2);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let interrupt = Arc::new(Mutex::new(None));
    let nodes: Vec<_> = (0..2)
        .map(|partition| {
            let test = test_node(&driver, partition, "echo up; sleep 600", dir.path());
            let mut callbacks = TestCallbacks::default();
            if partition == 1 {
                callbacks.interrupt = Arc::clone(&interrupt);
            }
            spawn_node(test, callbacks)
        })
        .collect();
    let mut output = String::new();
    eventually("both ranks are up", LONG, || {
        let soon = phalanx_types::Deadline::after(Duration::from_millis(100));
        if let Some(phalanx_job::Event::Output(text)) = driver.next(soon).unwrap() {
            output.push_str(&text);
        }
        output.matches("up").count() == 2
    });
    *interrupt.lock().unwrap() = Some("its task was killed".into());
    let failure = listen(&driver).failure.unwrap();
    assert!(failure.message.contains("its task was killed"), "{}", failure.message);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_nodes_process_hears_what_it_may_count() {
    let dir = phalanx_testkit::temp_dir("job");
    let job = job(2, 1);
    let driver = open(&job);
    let script = r#"echo one; echo two; [ "$RANK" = 0 ] || { sleep 0.3; exit 3; }"#;
    let callbacks = TestCallbacks::default();
    let observed = Arc::clone(&callbacks.observed);
    let node = spawn_node(test_node(&driver, 0, script, dir.path()), callbacks);
    listen(&driver).failure.unwrap();
    node.join().unwrap().unwrap();
    let observed = observed.lock().unwrap();
    assert_eq!(observed[0].0, Metric::JoinLatency);
    let values = |of: Metric| observed.iter().filter(move |(metric, _)| *metric == of).map(|(_, by)| *by);
    assert_eq!(values(Metric::RanksRunning).collect::<Vec<_>>(), [1, 1, -1, -1], "NODE-22, NODE-31");
    assert_eq!(
        values(Metric::StartLatency).filter(|ms| u128::from(ms.unsigned_abs()) < LONG.as_millis()).count(),
        2
    );
    for (metric, sum) in [
        (Metric::RanksStarted, 2),
        (Metric::RanksRestarted, 0),
        (Metric::RanksFailed, 1),
        (Metric::LogsLines, 4),
        (Metric::LogsBytes, 16),
    ] {
        assert_eq!(values(metric).sum::<i64>(), sum, "{metric:?}");
    }
}

#[test]
fn a_reader_that_sleeps_slows_no_rank_and_is_told_what_it_missed() {
    let mut job = job(1, 1);
    job.logs.max_live_lag_bytes = 1 << 20;
    job.logs.drain_timeout = Duration::from_secs(20);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let done = dir.path().join("done");
    let line = "x".repeat(99);
    let script = format!("yes {line} | head -c 40000000; echo end; touch {}", done.display());
    let node = spawn_node(test_node(&driver, 0, &script, dir.path()), TestCallbacks::default());
    eventually("the rank has written everything, though nobody reads", LONG, || done.exists());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!(told.failure, None);
    assert!(told.output.contains("bytes skipped here"), "NODE-27, NODE-25, DRIVER-5: the driver took it all");
    assert!(told.output.ends_with("[rank 0] end\n"), "DRIVER-4: the view ends where the output ends");
    let log = std::fs::metadata(dir.path().join("phalanx-test/rank-0.log")).unwrap().len();
    assert_eq!(log, 40_000_004, "the file has it all");
}

#[test]
fn a_reader_that_keeps_up_misses_nothing() {
    let lines = 200_000;
    let script = format!("seq 1 {lines}");
    let (told, ..) = run(&job(2, 1), &script);
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let seen = told.output.lines().filter_map(|line| line.strip_prefix(&prefix));
        assert!(seen.eq((1..=lines).map(|n| n.to_string())), "every line of rank {rank}, in order");
    }
}

#[test]
fn logs_of_old_jobs_make_room() {
    let dir = phalanx_testkit::temp_dir("job");
    for i in 0..12 {
        let mut job = job(1, 1);
        job.id = format!("job-{i}");
        let driver = open(&job);
        let node = spawn_node(test_node(&driver, 0, "echo x", dir.path()), TestCallbacks::default());
        assert_eq!(listen(&driver).failure, None);
        node.join().unwrap().unwrap();
    }
    let kept = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(kept, 8);
    assert!(dir.path().join("phalanx-job-11/rank-0.log").exists(), "the newest are kept");
}
