//! What a snapshot says of a job: while it runs, when it failed, and when its hub went without an outcome.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/play.rs"]
mod play;

use std::collections::BTreeSet;
use std::time::Instant;

use common::{LONG, TestCallbacks, listen, open, run, spawn_node, test_node};
use phalanx_job::Hub;
use phalanx_job::driver::state::JobState;
use phalanx_types::message::{NodeMessage, RankActivity};
use phalanx_types::run_snapshot::{MAX_RANKS, SpanKind, Stage, State};
use phalanx_types::{Attempt, Job, RankState, RunSnapshot};
use play::Play;

fn snapshot(hub: &Hub) -> RunSnapshot {
    RunSnapshot::from_json(&hub.snapshot()).unwrap()
}

/// The first snapshot of which this is so.
fn once(hub: &Hub, what: &str, is_so: impl Fn(&RunSnapshot) -> bool) -> RunSnapshot {
    let deadline = Instant::now() + LONG;
    loop {
        let now = snapshot(hub);
        if is_so(&now) {
            return now;
        }
        assert!(Instant::now() < deadline, "{what}: {now:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_snapshot_tells_what_the_ranks_do_and_in_the_end_why_one_failed() {
    let script = r#"
        echo "hello of $RANK"
        echo "{\"report\": {\"step\": 7, \"of\": 20, \"step_us\": 50000, \"values\": {\"loss\": 0.$((5 + RANK)), \"data\": 0.25}}}" >&3
        while [ ! -e "$GO" ]; do sleep 0.05; done
        [ $RANK = 0 ] || exit 3
        sleep 60"#;
    let job = Job::new("shown", "train", 2, 2).unwrap();
    let dir = phalanx_testkit::temp_dir("job");
    let go = dir.path().join("go");
    let script = script.replace("$GO", &go.display().to_string());
    let driver = open(&job);
    assert_eq!((snapshot(&driver).state, snapshot(&driver).stage), (State::Waiting, None));
    let nodes: Vec<_> = (0..2)
        .map(|p| spawn_node(test_node(&driver, p, &script, dir.path()), TestCallbacks::default()))
        .collect();
    let is_there = |now: &RunSnapshot| {
        now.state == State::Running
            && now.ranks.iter().all(|rank| rank.step == Some(7))
            && now.lines.len() == 2
    };
    let now = once(&driver, "both ranks have reported", is_there);
    assert_eq!((now.run.as_str(), now.name.as_str(), now.world_size), (job.id.as_str(), "train", 2));
    assert_eq!(
        (now.stage, now.ended, now.failure, now.attempt),
        (Some(Stage::Jvm), None, None, Attempt::first())
    );
    for (rank, number) in now.ranks.iter().zip(0..) {
        assert_eq!(
            (rank.rank, rank.partition, rank.state.as_str()),
            (number, Some(number), "running"),
            "DRIVER-22"
        );
        assert_eq!(rank.host, Some(format!("host-{number}")));
        assert_eq!((rank.of, rank.rate, rank.data_share), (Some(20), Some(20.0), Some(0.25)));
    }
    assert_eq!(now.losses, [(7, 0.5)]);
    assert_eq!(
        BTreeSet::from_iter(now.lines),
        BTreeSet::from(["[rank 0] hello of 0", "[rank 1] hello of 1"].map(String::from))
    );
    let names: Vec<&str> = now.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["waiting for tasks", "starting ranks", "training"]);

    std::fs::write(go, "").unwrap();
    let failure = listen(&driver).failure.unwrap();
    let end = snapshot(&driver);
    assert_eq!((end.state, &end.failure.as_ref().unwrap().cause), (State::Failed, &failure.message));
    assert_eq!(end.failure.as_ref().unwrap().rank, Some(1));
    let states: Vec<&str> = end.ranks.iter().map(|rank| rank.state.as_str()).collect();
    assert_eq!(states, ["stopped", "exited"]);
    assert_eq!(end.phases.last().unwrap().name, "ending the ranks");
    assert_eq!(end.phases.last().unwrap().end, end.ended);
    assert!(end.phases.windows(2).all(|pair| pair[0].end == Some(pair[1].start)), "DRIVER-40");
    let kept = std::sync::Arc::clone(driver.snapshots());
    drop(driver);
    assert_eq!(RunSnapshot::from_json(&kept.newest()), Some(end), "DRIVER-39: the last one stays");
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn phases_of_a_rank_are_shown_whatever_it_calls_them() {
    let said = ["rank ended", "starting ranks", "restart 7", "ending the ranks"];
    let mut script = String::new();
    for name in said {
        script += &format!("echo '{{\"phase\": \"{name}\"}}' >&3; ");
    }
    let (_, driver, _dir) = run(&Job::new("shown", "t", 1, 1).unwrap(), &(script + "exit 3"));
    let phases = snapshot(&driver).phases;
    assert!(phases.iter().all(|phase| phase.kind == SpanKind::Phase), "DRIVER-41: {phases:?}");
    // Whether the rank was seen to run before its first word is chance.
    let names = phases.into_iter().map(|phase| phase.name).filter(|name| name != "training");
    let names: Vec<String> = names.collect();
    let own = ["waiting for tasks", "starting ranks"];
    let expected = [&own[..], &said].concat();
    // And whether there was time between its end and that of all.
    let last: Vec<&str> = names.iter().skip(expected.len()).map(String::as_str).collect();
    assert_eq!(names[..expected.len().min(names.len())], expected, "DRIVER-41");
    assert!(last.is_empty() || last == ["ending the ranks"], "DRIVER-41: {names:?}");
}

#[test]
fn a_job_that_ends_well_or_whose_hub_goes_is_shown_as_that() {
    let (_, driver, _dir) = run(&Job::new("shown", "t", 1, 1).unwrap(), "exit 0");
    let end = snapshot(&driver);
    assert_eq!((end.state, end.ranks[0].state.as_str()), (State::Succeeded, "finished"));
    assert!(end.ended.unwrap() >= end.started);

    let driver = open(&Job::new("shown", "t", 1, 1).unwrap());
    let kept = std::sync::Arc::clone(driver.snapshots());
    drop(driver);
    let end = RunSnapshot::from_json(&kept.newest()).unwrap();
    assert!(end.state == State::Failed && end.ended.is_some(), "{end:?}");
}

#[test]
fn very_many_who_ask_get_the_same_snapshot() {
    let driver = open(&Job::new("shown", "t", 1, 1).unwrap());
    let began = Instant::now();
    let seen: BTreeSet<String> = (0..1000).map(|_| driver.snapshot()).collect();
    let most = began.elapsed().as_millis() / 250 + 2;
    assert!(seen.len() as u128 <= most, "DRIVER-39: {} in {:?}", seen.len(), began.elapsed());
}

#[test]
fn of_thousands_of_ranks_the_first_are_listed_each_once() {
    let job = Job::new("state", "t", 3000, 3).unwrap();
    let state = JobState::new(job, Instant::now());
    let listed = state.listing(MAX_RANKS);
    assert_eq!(
        listed.iter().map(|rank| rank.rank).collect::<Vec<_>>(),
        (0..1000).collect::<Vec<_>>(),
        "TYPES-24, DRIVER-22"
    );
}

#[test]
fn a_job_is_waiting_running_restarting_and_then_over() {
    let mut play = Play::joining(|policy| policy.max_restarts = 1);
    assert_eq!(play.state.run_state(), State::Waiting);
    play.starts(0);
    assert_eq!(play.state.run_state(), State::Running);
    let slow = |rank, step_us| {
        let told = RankActivity { rank, step: Some(1), step_us: Some(step_us), ..RankActivity::default() };
        NodeMessage::Activity { ranks: vec![told] }
    };
    for seconds in [5, 40] {
        play.tell(seconds, 0, slow(0, 1000));
        play.tell(seconds + 2, 1, slow(1, 9000));
    }
    assert_eq!(play.state.slow_ranks().collect::<Vec<_>>(), [1]);
    play.fails(50, RankState::Signaled(9));
    assert_eq!(play.state.run_state(), State::Restarting);
    assert_eq!(play.state.slow_ranks().count(), 0);
    play.attempt = Attempt::new(1);
    play.orders();
    play.starts(52);
    assert_eq!(play.state.run_state(), State::Running);
    play.finishes(60);
    assert_eq!(play.state.run_state(), State::Succeeded);
}
