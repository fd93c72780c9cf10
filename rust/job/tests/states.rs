//! Each state of a node, and each fault that may meet it there: what the run's caller is told, what the node's caller
//! is, within what time, and that nothing is left. The faults are real: killed processes, pipes for files, a dead line.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/outage.rs"]
mod outage;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{LONG, TestCallbacks, listen, open, spawn_node, test_node};
use outage::{Network, Outage};
use phalanx_job::{Event, Hub};
use phalanx_testkit::{alive, children, eventually};
use phalanx_types::contract::FILE_ERROR;
use phalanx_types::{Deadline, Failure, FailureKind, Job, RankProgram, Result, RunSnapshot};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The hub doesn't answer.
    Reaching,
    /// Another task has not joined.
    Joining,
    /// Its disk hangs.
    PreparingFiles,
    /// Its pool imports for ever.
    PreparingPool,
    Running,
    /// Its ranks use their grace.
    Ending,
    /// What its ranks left can't be read: a disk hangs.
    Draining,
    /// It serves the store to a rank of another node.
    Serving,
    /// It is done, and kept for a restart.
    Leaving,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    RankDies,
    Stop,
    HubLost,
    Interrupt,
    DiskHangs,
    GuardKilled,
    PoolHangs,
}

const STATES: [State; 9] = [
    State::Reaching,
    State::Joining,
    State::PreparingFiles,
    State::PreparingPool,
    State::Running,
    State::Ending,
    State::Draining,
    State::Serving,
    State::Leaving,
];
const FAULTS: [Fault; 7] = [
    Fault::RankDies,
    Fault::Stop,
    Fault::HubLost,
    Fault::Interrupt,
    Fault::DiskHangs,
    Fault::GuardKilled,
    Fault::PoolHangs,
];

/// Why a cell has no test, if it has none.
fn cant_be(state: State, fault: Fault) -> Option<&'static str> {
    use Fault::{DiskHangs, GuardKilled, PoolHangs, RankDies};
    use State::{
        Draining, Ending, Joining, Leaving, PreparingFiles, PreparingPool, Reaching, Running, Serving,
    };
    match (state, fault) {
        (Reaching, Fault::Stop) => Some("no order comes without a line"),
        (Reaching, Fault::HubLost) => Some("that is what the state is"),
        (Reaching | Joining, RankDies | GuardKilled | DiskHangs | PoolHangs) => {
            Some("it has nothing before its place")
        }
        (PreparingFiles | PreparingPool, RankDies) => Some("no rank has started"),
        (PreparingFiles, DiskHangs) | (PreparingPool, PoolHangs) => Some("that is what the state is"),
        (PreparingFiles, PoolHangs) => Some("the two don't wait for each other: PreparingPool has it"),
        (PreparingPool, DiskHangs) => Some("the two don't wait for each other: PreparingFiles has it"),
        (PreparingPool, GuardKilled) => Some("the guard is what comes from the pool"),
        (Running | Ending | Draining | Serving | Leaving, PoolHangs) => Some("its ranks have started"),
        (Draining | Serving | Leaving, RankDies) => Some("its ranks have ended"),
        (Draining | Serving | Leaving, GuardKilled) => Some("its guard has ended"),
        (Draining, DiskHangs) => Some("that is what the state is"),
        (Serving | Leaving, DiskHangs) => Some("it has read what its ranks left"),
        _ => None,
    }
}

const GRACE: Duration = Duration::from_secs(3);

/// A job whose node 0, or 1, is in a state.
struct Case {
    dir: tempfile::TempDir,
    driver: Hub,
    network: Network,
    _silent: common::Silent,
    subject: JoinHandle<Result<()>>,
    other: Option<JoinHandle<Result<()>>>,
    interrupt: Arc<Mutex<Option<String>>>,
    /// Processes of this program that there were before.
    before: Vec<u32>,
}

/// How it ended.
#[derive(Debug)]
struct End {
    node: Result<()>,
    /// `None` where the run goes on without the node, or ended well.
    failure: Option<Failure>,
    took: Duration,
}

fn job(tasks: u32) -> Job {
    let mut job = Job::new("states", "t", 2 * tasks, tasks).unwrap();
    job.policy.node_timeout = Duration::from_secs(3);
    job.policy.grace = GRACE;
    job.policy.join_timeout = LONG;
    job
}

fn guards() -> Vec<u32> {
    children(std::process::id()).into_iter().map(|child| child.pid).collect()
}

impl Case {
    /// Brings a node into `state`.
    fn of(state: State) -> Case {
        let dir = phalanx_testkit::temp_dir("states");
        let script = format!("exec /bin/bash {}", dir.path().join("script").display());
        let tasks = if matches!(state, State::Joining | State::Serving | State::Leaving) { 2 } else { 1 };
        let mut job = job(tasks);
        job.policy.max_restarts = u32::from(state == State::Leaving);
        job.warm.enabled = state == State::PreparingPool;
        let driver = open(&job);
        let network = Network::before(driver.address());
        let subject = u32::from(state == State::Leaving);
        std::fs::write(dir.path().join("script"), script_of(state, dir.path(), subject)).unwrap();
        let before = guards();
        let callbacks = TestCallbacks::default();
        let interrupt = Arc::clone(&callbacks.interrupt);
        let disk = dir.path().join("disk");
        std::fs::create_dir_all(disk.join("phalanx-states")).unwrap();
        if state == State::PreparingFiles {
            pipe(&disk.join("phalanx-states/.in-use"));
        }
        let mut test = test_node(&driver, subject, &script, &disk);
        test.spec.hub.clone_from(&network.address);
        let silent = common::silent();
        if state == State::Reaching {
            test.spec.hub.clone_from(&silent.address);
        }
        if state == State::PreparingPool {
            test.spec.program = RankProgram::Python(Some(pool(dir.path()).display().to_string()));
        }
        let node = spawn_node(test, callbacks);
        let other = matches!(state, State::Serving | State::Leaving).then(|| {
            let other = test_node(&driver, 1 - subject, &script, &dir.path().join("other"));
            spawn_node(other, TestCallbacks::default())
        });
        let case = Case { _silent: silent, dir, driver, network, subject: node, other, interrupt, before };
        case.is_in(state);
        case
    }

    /// Waits until the node is in its state.
    fn is_in(&self, state: State) {
        let has = |file: &str| self.dir.path().join(file).exists();
        match state {
            State::Reaching => eventually("it connects", LONG, || {
                let threads = std::fs::read_dir("/proc/self/task").unwrap();
                let name = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm"));
                threads.flatten().any(|thread| name(thread).is_ok_and(|name| name.trim() == "phalanx-line"))
            }),
            State::Joining => eventually("it has joined", LONG, || {
                let event = self.driver.next(Deadline::after(Duration::from_millis(50))).unwrap();
                matches!(event, Some(Event::Phase(phase)) if phase.point.name() == "first join")
            }),
            State::PreparingFiles => {
                eventually("its guard is there", LONG, || guards().len() > self.before.len())
            }
            State::PreparingPool => eventually("its pool imports", LONG, || has("imports")),
            State::Running | State::Draining => {
                eventually("ranks run", LONG, || has("rank-0") && has("rank-1"))
            }
            State::Ending => {
                eventually("ranks run", LONG, || has("rank-0") && has("rank-1"));
                self.driver.stop("the test ends it");
                eventually("ranks are told", LONG, || has("told-0") && has("told-1"));
            }
            State::Serving | State::Leaving => {
                let subjects = if state == State::Serving { [0, 1] } else { [2, 3] };
                eventually("its ranks have ended", LONG, || {
                    let snapshot = RunSnapshot::from_json(&self.driver.snapshot()).unwrap();
                    subjects
                        .iter()
                        .all(|at| snapshot.ranks.get(*at).is_some_and(|rank| rank.state == "finished"))
                });
            }
        }
    }

    fn meets(&self, fault: Fault) {
        match fault {
            Fault::RankDies => kill(self.pid_of_rank(0)),
            Fault::Stop => self.driver.stop("the test says so"),
            Fault::HubLost => self.network.fails(Outage::Reset),
            Fault::Interrupt => {
                self.interrupt.lock().unwrap().replace("its task was killed".into());
            }
            Fault::DiskHangs => {
                for rank in 0..2 {
                    pipe(
                        &self
                            .dir
                            .path()
                            .join(format!("disk/phalanx-states/task-0/rank-{rank}"))
                            .join(FILE_ERROR),
                    );
                }
                kill(self.pid_of_rank(0));
            }
            Fault::GuardKilled => {
                guards().into_iter().filter(|pid| !self.before.contains(pid)).for_each(kill);
            }
            Fault::PoolHangs => unreachable!("each such cell can't be"),
        }
    }

    fn pid_of_rank(&self, rank: u32) -> u32 {
        std::fs::read_to_string(self.dir.path().join(format!("rank-{rank}"))).unwrap().trim().parse().unwrap()
    }

    /// Waits for the end of the node. A disk that hangs is held until the run's caller has heard of it.
    fn ends(self, state: State, fault: Fault) -> End {
        let began = Instant::now();
        let failure = failure_of(state, fault).and_then(|_| listen(&self.driver).failure);
        let answers = self.disk_answers();
        eventually(&format!("the node returns: {state:?}, {fault:?}"), LONG, || self.subject.is_finished());
        let (node, took) = (self.subject.join().unwrap(), began.elapsed());
        self.driver.stop("the test is over");
        if let Some(other) = self.other {
            other.join().unwrap().ok();
        }
        let ranks: Vec<u32> = (0..4)
            .filter_map(|rank| std::fs::read_to_string(self.dir.path().join(format!("rank-{rank}"))).ok())
            .map(|pid| pid.trim().parse().unwrap())
            .collect();
        assert!(!ranks.iter().any(|pid| alive(*pid)), "NODE-39: {state:?}, {fault:?}: {ranks:?}");
        let left: Vec<u32> = guards().into_iter().filter(|pid| !self.before.contains(pid)).collect();
        // A pool outlives its run.
        assert!(left.is_empty() || state == State::PreparingPool, "NODE-39: {state:?}, {fault:?}: {left:?}");
        drop(answers);
        End { node, failure, took }
    }

    /// Opens the pipes that hold up a disk, so that threads that wait there end.
    fn disk_answers(&self) -> Vec<std::fs::File> {
        let disk = self.dir.path().join("disk/phalanx-states");
        let pipes = (0..2).map(|rank| disk.join(format!("task-0/rank-{rank}")).join(FILE_ERROR));
        let all: Vec<PathBuf> = pipes.chain([disk.join(".in-use")]).collect();
        let open = |path: PathBuf| std::fs::File::options().read(true).write(true).open(path).ok();
        all.into_iter().filter_map(open).collect()
    }
}

fn pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

fn kill(pid: u32) {
    // It may have ended.
    let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
}

/// A Python whose pool imports for ever.
fn pool(dir: &Path) -> PathBuf {
    let python = dir.join("python");
    std::fs::write(&python, format!("#!/bin/sh\ntouch {}/imports\nexec sleep 600\n", dir.display())).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    python
}

/// What the ranks do.
fn script_of(state: State, dir: &Path, subject: u32) -> String {
    let dir = dir.display();
    let begins = format!("echo $$ > {dir}/began-$RANK; mv {dir}/began-$RANK {dir}/rank-$RANK\n");
    let sleeps = "exec sleep 600\n";
    match state {
        State::Ending => {
            format!("trap 'touch {dir}/told-$RANK' TERM\n{begins}while :; do sleep 0.05; done\n")
        }
        State::Draining => format!("mkfifo $PHALANX_RANK_DIR/{FILE_ERROR}\n{begins}exit 0\n"),
        State::Serving | State::Leaving => {
            format!("[ $GROUP_RANK = {subject} ] && exit 0\n{begins}{sleeps}")
        }
        State::Reaching | State::Joining | State::PreparingFiles | State::PreparingPool | State::Running => {
            format!("{begins}{sleeps}")
        }
    }
}

/// What the run's caller is told; `None` where the run goes on.
fn failure_of(state: State, fault: Fault) -> Option<FailureKind> {
    match (state, fault) {
        // Spark may try the task again; a node that is done is needed for a restart alone, which is one of the stage
        // then.
        (State::Reaching | State::Joining | State::Leaving, Fault::HubLost | Fault::Interrupt) => None,
        (State::Ending, _) | (_, Fault::Stop) => Some(FailureKind::Cancelled),
        (State::Running, Fault::RankDies | Fault::DiskHangs | Fault::GuardKilled) => {
            Some(FailureKind::Signal)
        }
        (State::PreparingFiles, Fault::GuardKilled) => Some(FailureKind::Start),
        (State::Draining, Fault::Interrupt) => Some(FailureKind::ExitCode),
        _ => Some(FailureKind::LostNode),
    }
}

/// What the node's caller is told, if it is an error: a part of it.
fn error_of(state: State, fault: Fault) -> Option<&'static str> {
    match (state, fault) {
        (_, Fault::HubLost) => Some("the driver is gone"),
        (State::Reaching | State::Joining, Fault::Interrupt) => Some("its task was killed"),
        (State::PreparingFiles, Fault::GuardKilled) => Some("has ended (the guard was ended by SIGKILL)"),
        _ => None,
    }
}

/// Twice the time for a disk, the grace, the time for a hub, and some for the machine.
const WITHIN: Duration = Duration::from_secs(20);

#[test]
#[ignore = "takes 2 minutes; `make test-all` runs it"]
#[allow(clippy::print_stderr, reason = "the table is what is looked at")]
fn each_fault_in_each_state_of_a_node_has_an_end_that_says_what_happened() {
    for state in STATES {
        for fault in FAULTS {
            if let Some(why) = cant_be(state, fault) {
                eprintln!("| {state:?} | {fault:?} | can't be: {why} |");
                continue;
            }
            let case = Case::of(state);
            case.meets(fault);
            let End { node, failure, took } = case.ends(state, fault);
            let told = failure.as_ref().map(|failure| (failure.kind, &failure.message));
            let what = format!("{state:?} | {fault:?} | {told:?} | {node:?}");
            eprintln!("| {what} | {:.1} s |", took.as_secs_f64());
            assert_eq!(failure.map(|failure| failure.kind), failure_of(state, fault), "NODE-16, {what}");
            assert!(took < WITHIN, "NODE-16, {what}");
            match (node, error_of(state, fault)) {
                (Ok(()), None) => {}
                (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{what}"),
                _ => panic!("NODE-14, {what}"),
            }
        }
    }
}
