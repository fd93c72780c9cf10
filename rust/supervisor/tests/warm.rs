//! A guard that was forked from a pool keeps the rules of any other: GUARD-5 to GUARD-9, and POOL-10, POOL-11.
//!
//! The pool is the project's own, in Python, and imports nothing here; its ranks become shells. Without the Python of
//! `make setup` these tests do nothing.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{LONG, empty, ended, last_events, next_event, number_in, started};
use phalanx_supervisor::warm_pool::{PoolOptions, end_pools, pool_usage, warm_guard};
use phalanx_supervisor::{ExitStatus, Guard, GuardEvent, Launch};
use phalanx_testkit::{
    Leaks, Process, alive, children, descendants, eventually, guard_binary, leaks, temp_dir,
};
use phalanx_types::contract::ProfileRequest;
use phalanx_types::{Deadline, RankNews, RankNote};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const GRACE: Duration = Duration::from_millis(300);
const CLIENT: &str = "PHALANX_TEST_WARM_CLIENT";
const SHARES: &str = "PHALANX_TEST_WARM_SHARING_CLIENT";
const OWNER: &str = "PHALANX_TEST_WARM_OWNER";

/// A place for payloads, and the proof that a test leaves nothing, its pools included.
struct Stage {
    folder: TempDir,
    python: PathBuf,
    package: PathBuf,
    _leaks: Leaks,
}

impl Stage {
    fn set() -> Option<Stage> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let (python, package) = (root.join(".venv/bin/python"), root.join("python"));
        let there = python.exists() && package.join("phalanx/_native.abi3.so").exists();
        there.then(|| Stage { folder: temp_dir("warm"), python, package, _leaks: leaks() })
    }

    fn guard(&self) -> Guard {
        warm_guard(&self.options(false), GRACE, Deadline::after(LONG), &mut || true).unwrap()
    }

    fn options(&self, shared: bool) -> PoolOptions {
        let boot = format!(
            "import sys; sys.path.append({:?}); from phalanx.warm_pool.entry import main; main()",
            self.package
        );
        PoolOptions {
            guard: guard_binary(),
            program: vec![self.python.to_string_lossy().into_owned(), "-c".into(), boot],
            idle_timeout: LONG * 4,
            shared,
            ..PoolOptions::default()
        }
    }

    /// A warm rank that becomes a shell.
    fn sh(&self, rank: u32, script: &str) -> Launch {
        let script = serde_json::to_string(script).unwrap();
        self.python(rank, &format!("import os\nos.execv('/bin/sh', ['sh', '-c', {script}])\n"))
    }

    /// A warm rank that runs this text as its training file.
    fn python(&self, rank: u32, source: &str) -> Launch {
        let payload = self.folder.path().join(format!("payload-{rank}"));
        let header = serde_json::json!({"kind": "file", "name": "rank.py", "path": "/nowhere/rank.py"});
        std::fs::write(&payload, format!("phalanx payload 1\n{header}\n{source}")).unwrap();
        let env = [
            ("PHALANX_PAYLOAD", payload.to_string_lossy().into_owned()),
            ("PHALANX_RANK_DIR", self.folder.path().to_string_lossy().into_owned()),
        ];
        let env = env.map(|(name, value)| (name.to_string(), value)).to_vec();
        Launch { rank, program: "python".into(), env, ..Launch::default() }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        end_pools();
    }
}

fn pools() -> Vec<u32> {
    let here = std::process::id();
    descendants(here).into_iter().filter(|p| p.name == "phalanx-pool" && p.runs()).map(|p| p.pid).collect()
}

#[test]
fn every_end_of_a_warm_rank_is_told_exactly_once() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    assert!(guard.is_warm());
    for (rank, script, how) in [
        (0, "exit 0", ExitStatus::Code(0)),
        (1, "exit 7", ExitStatus::Code(7)),
        (2, "kill -SEGV $$", ExitStatus::Signal(11)),
    ] {
        let _output = started(&guard, &stage.sh(rank, script));
        assert_eq!(ended(&guard), (rank, how), "GUARD-5");
    }
    let nowhere = Launch { cwd: Some("/no/such/place".into()), ..stage.sh(3, "") };
    let _pipes = guard.launch(&nowhere).unwrap();
    match next_event(&guard) {
        GuardEvent::NotStarted { rank: 3, reason, .. } => {
            assert!(reason.contains("/no/such/place"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    guard.stop();
    let (rest, _) = last_events(&guard);
    assert_eq!(rest, [GuardEvent::Empty], "GUARD-5: nothing twice");
    assert_eq!(pool_usage().pools, 1, "the pool is there for the next");
}

#[test]
fn news_reach_a_warm_rank_and_its_notes_arrive() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    let source = "import os, phalanx, time
phalanx.phase('up')
phalanx.report(step=120)
profile = os.path.join(os.environ['PHALANX_RANK_DIR'], 'profile-of-1')
while not os.path.exists(profile): time.sleep(0.01)
";
    let pipes = guard.launch(&stage.python(0, source)).unwrap();
    pipes.notes.tell(&RankNews::Profile(ProfileRequest { number: 1, millis: 100 }));
    let (send, got) = crossbeam_channel::unbounded();
    let reader =
        phalanx_supervisor::notes(pipes.notes.clone(), Box::new(move |note| send.send(note).unwrap()))
            .unwrap();
    assert!(matches!(next_event(&guard), GuardEvent::Started { rank: 0, .. }));
    assert_eq!(ended(&guard), (0, ExitStatus::Code(0)), "GUARD-15");
    reader.join();
    assert_eq!(pipes.notes.words().reported(), Some(120), "GUARD-18");
    drop(pipes);
    assert!(got.iter().any(|note| note == RankNote::Phase("up".into())), "GUARD-17");
    guard.stop();
    empty(&guard);
}

#[test]
fn a_stop_leaves_nothing_of_a_warm_rank_and_keeps_the_grace() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    let script = "trap '' TERM; (setsid sh -c 'echo daemon $$; sleep 1000' &) & echo rank $$
        while :; do sleep 1; done";
    let (_, output) = started(&guard, &stage.sh(0, script));
    let tree = [output.pid("rank"), output.pid("daemon")];
    let stopped = std::time::Instant::now();
    guard.stop();
    empty(&guard);
    assert!(stopped.elapsed() >= GRACE, "the rank that ignores SIGTERM has its grace");
    assert!(tree.iter().all(|pid| !alive(*pid)), "GUARD-6");
}

#[test]
fn the_guard_of_a_pool_cuts_graces_to_an_hour() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    let pool = Process::find(pools()[0]).unwrap();
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", pool.parent)).unwrap();
    // The guard's main says which argument this is; what it makes of it is seen in its state's tests.
    assert_eq!(
        command.split('\0').nth(3),
        Some("3600000"),
        "docs/failures.md, What is left behind: {command:?}"
    );
    guard.stop();
    empty(&guard);
}

#[test]
fn warm_ranks_die_with_their_guard_and_the_next_job_has_another() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    let (_, output) = started(&guard, &stage.sh(0, "echo rank $$; sleep 1000"));
    let rank = output.pid("rank");
    kill_process(Pid::from_raw(guard.pid().cast_signed()).unwrap(), Signal::KILL).unwrap();
    let (events, _) = last_events(&guard);
    assert!(matches!(events.last(), Some(GuardEvent::Gone { .. })), "GUARD-9: {events:?}");
    eventually("the rank is gone", LONG, || !alive(rank));
    let next = stage.guard();
    let _output = started(&next, &stage.sh(1, "exit 0"));
    assert_eq!(ended(&next), (1, ExitStatus::Code(0)));
}

#[test]
fn a_guard_needs_no_pool_once_it_serves() {
    let Some(stage) = Stage::set() else { return };
    let guard = stage.guard();
    let (_, output) = started(&guard, &stage.sh(0, "echo rank $$; read -r line < /dev/zero; sleep 1000"));
    let rank = output.pid("rank");
    let pool = pools()[0];
    kill_process(Pid::from_raw(pool.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the pool is gone", LONG, || !alive(pool) && pool_usage().pools == 0);
    assert!(alive(rank) && alive(guard.pid()), "POOL-11");
    let _output = started(&guard, &stage.sh(1, "exit 3"));
    assert_eq!(ended(&guard), (1, ExitStatus::Code(3)), "POOL-11");
    guard.stop();
    empty(&guard);
    assert!(!alive(rank), "GUARD-6");
}

#[test]
fn two_jobs_at_once_share_a_pool_and_do_not_end_one_another() {
    let Some(stage) = Stage::set() else { return };
    let (one, other) = (stage.guard(), stage.guard());
    assert_eq!(pool_usage().pools, 1);
    let (_, output) = started(&one, &stage.sh(0, "echo rank $$; sleep 1000"));
    let (_, gone) = started(&other, &stage.sh(1, "echo rank $$; sleep 1000"));
    let (lives, ends) = (output.pid("rank"), gone.pid("rank"));
    drop(other);
    assert!(alive(lives) && !alive(ends));
    drop(one);
    assert!(!alive(lives));
}

#[test]
fn a_pool_that_can_not_be_made_is_told_and_costs_nothing_else() {
    let _leaks = phalanx_testkit::leaks();
    let options = PoolOptions {
        guard: phalanx_testkit::guard_binary(),
        program: vec!["/no/such/python".into()],
        ..PoolOptions::default()
    };
    let why = warm_guard(&options, GRACE, Deadline::after(LONG), &mut || true).unwrap_err();
    assert!(why.contains("/no/such/python"), "POOL-13: {why}");
    end_pools();
}

/// This test program once more, as another process that one test only is for.
fn again(test: &str, variable: &str, directory: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(variable, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Writes what the guard's rank, the guard and the pool are to files of `directory`, then lives on.
fn client_of(stage: &Stage, guard: &Guard, pool: u32, directory: &Path) {
    let script = format!("cd {}; trap '' TERM; echo $$ >rank; sleep 1000", directory.display());
    let pipes = guard.launch(&stage.sh(0, &script)).unwrap();
    eventually("it runs", LONG, || directory.join("rank").exists());
    std::fs::write(directory.join("pool"), format!("{pool}\n")).unwrap();
    std::fs::write(directory.join("guard"), format!("{}\n", guard.pid())).unwrap();
    std::thread::sleep(LONG * 2);
    drop(pipes);
}

/// Not a test of its own: the one below runs this test program again, as the client that dies.
#[test]
fn acts_as_client() {
    let Some(directory) = std::env::var_os(CLIENT) else { return };
    let directory = Path::new(&directory);
    let stage = Stage::set().unwrap();
    let guard = stage.guard();
    for child in children(std::process::id()) {
        std::fs::write(directory.join("cold"), format!("{}\n", child.pid)).unwrap();
    }
    client_of(&stage, &guard, pools()[0], directory);
}

#[test]
fn ranks_and_pool_end_when_the_client_is_killed() {
    let Some(stage) = Stage::set() else { return };
    let directory = temp_dir("warm-client");
    let mut client = again("acts_as_client", CLIENT, directory.path());
    let tree = ["guard", "rank", "pool", "cold"].map(|name| number_in(&directory.path().join(name)));
    assert!(tree.iter().all(|pid| alive(*pid)));
    client.kill().unwrap();
    client.wait().unwrap();
    eventually("guards, rank and pool have ended", LONG, || tree.iter().all(|pid| !alive(*pid)));
    drop(stage);
}

/// As `acts_as_client`, with the pool of all children of its parent.
#[test]
fn acts_as_client_that_shares() {
    let Some(directory) = std::env::var_os(SHARES) else { return };
    let stage = Stage::set().unwrap();
    let guard = warm_guard(&stage.options(true), GRACE, Deadline::after(LONG), &mut || true).unwrap();
    let pool = Process::find(guard.pid()).unwrap().parent;
    client_of(&stage, &guard, pool, Path::new(&directory));
}

/// As a Spark daemon: has a child for every folder that appears, and reaps them.
#[test]
fn acts_as_owner() {
    let Some(directory) = std::env::var_os(OWNER) else { return };
    let directory = Path::new(&directory);
    let mut clients: Vec<Child> = Vec::new();
    let begun = std::time::Instant::now();
    while begun.elapsed() < LONG * 2 {
        let next = directory.join(format!("client-{}", clients.len()));
        if next.exists() {
            let client = again("acts_as_client_that_shares", SHARES, &next);
            std::fs::write(next.join("client"), format!("{}\n", client.id())).unwrap();
            clients.push(client);
        }
        for client in &mut clients {
            client.try_wait().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn children_of_one_owner_share_a_pool_that_outlives_them_and_ends_with_the_owner() {
    let Some(stage) = Stage::set() else { return };
    let directory = temp_dir("warm-owner");
    let mut owner = again("acts_as_owner", OWNER, directory.path());
    let folder = |n: u32| directory.path().join(format!("client-{n}"));
    let number = |n: u32, name: &str| number_in(&folder(n).join(name));
    // Two that begin at once start one between them.
    std::fs::create_dir(folder(0)).unwrap();
    std::fs::create_dir(folder(1)).unwrap();
    let pool = number(0, "pool");
    assert_eq!(number(1, "pool"), pool, "one for all");
    for n in [0, 1] {
        let (rank, guard, client) = (number(n, "rank"), number(n, "guard"), number(n, "client"));
        kill_process(Pid::from_raw(client.cast_signed()).unwrap(), Signal::KILL).unwrap();
        eventually("the client's guard and rank have ended", LONG, || !alive(rank) && !alive(guard));
    }
    assert!(alive(pool), "POOL-10: it is the owner's, whichever client started it");
    std::fs::create_dir(folder(2)).unwrap();
    assert_eq!(number(2, "pool"), pool, "it is there for the next");
    let (rank, guard) = (number(2, "rank"), number(2, "guard"));
    owner.kill().unwrap();
    owner.wait().unwrap();
    eventually("the pool has ended with the owner", LONG, || !alive(pool));
    // The client is alive, and its job with it: what the pool had forked is its own.
    assert!(alive(rank) && alive(guard), "POOL-11");
    kill_process(Pid::from_raw(number(2, "client").cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("its guard and rank have ended", LONG, || !alive(rank) && !alive(guard));
    drop(stage);
}
