//! A network between nodes and hub that fails for a while, or for good, at each phase of a job.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/outage.rs"]
mod outage;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{LONG, TestCallbacks, Told, listen, open, spawn_node, test_node};
use outage::{Network, Outage};
use phalanx_job::Hub;
use phalanx_testkit::{alive, eventually};
use phalanx_types::{FailureKind, Job};

const ALL: [Outage; 3] = [Outage::Reset, Outage::Pause, Outage::Forget];
/// What the run has to live through.
const SHORT: Duration = Duration::from_secs(1);

/// A job of a rank on each of two nodes. Silence is noticed after half of its node time-out.
fn job() -> Job {
    let mut job = Job::new("outages", "t", 2, 2).unwrap();
    job.policy.node_timeout = Duration::from_secs(4);
    job.policy.grace = Duration::from_secs(1);
    job
}

/// Each rank writes half of its lines, waits until it may go on, writes the others, and leaves a result of 3 MB.
fn script(dir: &Path) -> String {
    format!(
        "seq 1 5000; echo $$ > {0}/pid-$RANK.new; mv {0}/pid-$RANK.new {0}/pid-$RANK; \
         while [ ! -e {0}/go ]; do sleep 0.02; done; seq 5001 10000; \
         head -c 3000000 /dev/zero > $PHALANX_RANK_DIR/r; mv $PHALANX_RANK_DIR/r $PHALANX_RANK_DIR/result",
        dir.display()
    )
}

fn pids(dir: &Path) -> Option<Vec<u32>> {
    let read = |rank| std::fs::read_to_string(dir.join(format!("pid-{rank}"))).ok()?.trim().parse().ok();
    [0, 1].map(read).into_iter().collect()
}

fn nothing_was_lost(told: &Told, driver: &Hub, when: &str) {
    assert_eq!(told.failure, None, "{when}");
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let lines: Vec<&str> =
            told.output.lines().filter_map(|line| line.strip_prefix(prefix.as_str())).collect();
        let wrong = lines.iter().zip(1..).find(|(line, n)| **line != n.to_string());
        assert_eq!((wrong, lines.len()), (None, 10_000), "NODE-28: every line of rank {rank}, once, {when}");
        let result = std::fs::read(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result.len(), 3_000_000, "the result of rank {rank}, {when}");
        for phase in ["rank started", "rank ended"] {
            assert_eq!(told.phases.iter().filter(|name| *name == phase).count(), 2, "NODE-5: {when}");
        }
    }
}

/// Runs the job with both nodes behind a network; `events` is played beside it.
fn played(events: impl FnOnce(&Network, &Path) + Send) -> (Told, Hub) {
    played_as(&job(), events)
}

fn played_as(job: &Job, events: impl FnOnce(&Network, &Path) + Send) -> (Told, Hub) {
    let dir = phalanx_testkit::temp_dir("outages");
    let driver = open(job);
    let network = Network::before(driver.address());
    let told = std::thread::scope(|scope| {
        let beside = scope.spawn(|| events(&network, dir.path()));
        let nodes: Vec<_> = (0..2)
            .map(|partition| {
                let mut test = test_node(&driver, partition, &script(dir.path()), dir.path());
                test.spec.hub.clone_from(&network.address);
                spawn_node(test, TestCallbacks::default())
            })
            .collect();
        let told = listen(&driver);
        beside.join().unwrap();
        for node in nodes {
            // What a node says of a hub that was gone for good is no matter here.
            let _ = node.join().unwrap();
        }
        told
    });
    (told, driver)
}

fn ranks_run(dir: &Path) {
    eventually("both ranks run", LONG, || pids(dir).is_some());
}

fn goes_on(dir: &Path) {
    std::fs::write(dir.join("go"), "").unwrap();
}

fn an_outage_of_a_second_costs_nothing(when: &str, before: impl Fn(&Path) + Sync) {
    for outage in ALL {
        let (told, driver) = played(|network, dir| {
            before(dir);
            network.fails(outage);
            std::thread::sleep(SHORT);
            network.works();
            goes_on(dir);
        });
        nothing_was_lost(&told, &driver, &format!("{outage:?} {when}"));
    }
}

#[test]
fn an_outage_of_a_second_before_the_tasks_join_costs_nothing() {
    an_outage_of_a_second_costs_nothing("before joining", |_| ());
}

#[test]
fn connections_that_are_lost_while_they_are_made_are_given_up_for_others_in_time() {
    let (told, driver) = played(|network, dir| {
        network.fails(Outage::Pause);
        network.has_connected(2);
        network.fails(Outage::Forget);
        network.works();
        goes_on(dir);
    });
    nothing_was_lost(&told, &driver, "NODE-10");
}

#[test]
fn an_outage_of_a_second_while_ranks_run_costs_nothing() {
    an_outage_of_a_second_costs_nothing("while ranks run", ranks_run);
}

#[test]
fn a_line_on_which_nothing_was_said_for_long_has_as_long_to_come_back() {
    let mut job = job();
    // Then nodes say something every 5 s.
    job.policy.node_timeout = Duration::from_secs(20);
    let (told, driver) = played_as(&job, |network, dir| {
        ranks_run(dir);
        std::thread::sleep(3 * SHORT);
        network.fails(Outage::Reset);
        std::thread::sleep(SHORT);
        network.works();
        goes_on(dir);
    });
    nothing_was_lost(&told, &driver, "NODE-6");
}

#[test]
fn an_outage_of_a_second_when_ranks_end_costs_nothing() {
    for outage in ALL {
        let (told, driver) = played(|network, dir| {
            ranks_run(dir);
            goes_on(dir);
            // Output, ends and results are on their way somewhere from here on.
            std::thread::sleep(Duration::from_millis(20));
            network.fails(outage);
            std::thread::sleep(SHORT);
            network.works();
        });
        nothing_was_lost(&told, &driver, &format!("{outage:?} when ranks end"));
    }
}

#[test]
fn an_outage_for_good_is_a_lost_node_and_ends_the_ranks_on_both_sides() {
    for outage in ALL {
        let (mut ranks, mut failed_at) = (Vec::new(), None);
        let (told, _driver) = played(|network, dir| {
            ranks_run(dir);
            ranks = pids(dir).unwrap();
            failed_at = Some(Instant::now());
            network.fails(outage);
        });
        let failure = told.failure.unwrap();
        assert_eq!(failure.kind, FailureKind::LostNode, "{outage:?}: {failure:?}");
        assert!(failure.message.contains("is lost"), "{outage:?}: {}", failure.message);
        assert!(
            failed_at.unwrap().elapsed() < Duration::from_secs(10),
            "NODE-6, NODE-8, {outage:?}: 4 s of silence, 2 s more for the nodes, the grace of 1 s, 2 s for the guards, \
             and 1 s for the machine"
        );
        assert!(!ranks.iter().any(|pid| alive(*pid)), "NODE-41: {outage:?}");
    }
}

#[test]
fn a_stop_that_went_with_the_connection_is_told_again() {
    let dir = phalanx_testkit::temp_dir("outages");
    let mut job = job();
    job.policy.node_timeout = Duration::from_secs(30);
    let driver = open(&job);
    let network = Network::before(driver.address());
    let fails = format!(
        "if [ $RANK = 1 ]; then while [ ! -e {0}/go ]; do sleep 0.02; done; exit 3; fi; {1}",
        dir.path().display(),
        script(dir.path()).replace("/go ]", "/never ]")
    );
    let nodes: Vec<_> = (0..2)
        .map(|partition| {
            let mut test = test_node(&driver, partition, &fails, dir.path());
            if partition == 0 {
                test.spec.hub.clone_from(&network.address);
            }
            spawn_node(test, TestCallbacks::default())
        })
        .collect();
    eventually("rank 0 runs", LONG, || dir.path().join("pid-0").exists());
    network.fails(Outage::Reset);
    let began = Instant::now();
    goes_on(dir.path());
    std::thread::sleep(SHORT);
    network.works();
    let failure = listen(&driver).failure.unwrap();
    assert_eq!((failure.kind, failure.rank), (FailureKind::ExitCode, Some(1)));
    let told: Vec<_> = failure.ranks.iter().map(|rank| rank.describe()).collect();
    assert_eq!(told, ["stopped", "exited with code 3"], "the stop arrived, and its answer");
    assert!(began.elapsed() < Duration::from_secs(12), "well before it would be given up");
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}
