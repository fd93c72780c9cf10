//! A whole job in one process: the driver's end, and a thread for each node, with shell scripts as ranks.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use phalanx_job::driver::state::{Progress, RankReports};
use phalanx_job::{Event, Here, Home, Hub, HubOptions, MetricChange, NodeCallbacks, Payload, run_node};
use phalanx_types::run_snapshot::RestartKind;
use phalanx_types::{Attempt, Deadline, Failure, Job, NodeSpec, RankProgram, Result, SparkTask};

/// No test waits longer for anything.
pub const LONG: Duration = Duration::from_secs(40);

/// The process of a node, as the tests need it.
#[derive(Default)]
pub struct TestCallbacks {
    pub interrupt: Arc<Mutex<Option<String>>>,
    /// While a test holds it, the process does nothing, as a JVM in a full collection.
    pub stopped: Arc<Mutex<()>>,
    pub observed: Arc<Mutex<Vec<MetricChange>>>,
    pub executor_log: Option<OwnedFd>,
}

impl NodeCallbacks for TestCallbacks {
    fn interrupted(&mut self) -> Option<String> {
        drop(self.stopped.lock().unwrap());
        self.interrupt.lock().unwrap().clone()
    }

    fn observed(&mut self, changes: &[MetricChange]) {
        self.observed.lock().unwrap().extend(changes);
    }

    fn executor_log(&mut self) -> Option<OwnedFd> {
        self.executor_log.take()
    }
}

/// What a job came to.
#[derive(Debug, Default)]
pub struct Told {
    pub output: String,
    pub phases: Vec<String>,
    pub statuses: Vec<String>,
    pub reports: Vec<Progress>,
    /// Every report, where the job says so.
    pub every_report: Vec<RankReports>,
    /// The attempts for which the stage was to be submitted again.
    pub resubmits: Vec<Attempt>,
    /// What each restart was for, and how many ranks ran again.
    pub restarted: Vec<(RestartKind, u32)>,
    /// The hosts of nodes, where the run has data sets.
    pub placed: Vec<String>,
    /// The hosts of carriers.
    pub carried: Vec<String>,
    pub failure: Option<Failure>,
}

pub fn open(job: &Job) -> Hub {
    Hub::open(
        job.clone(),
        &HubOptions {
            bind: "127.0.0.1".into(),
            advertise: "127.0.0.1".into(),
            work_dir: std::env::temp_dir(),
        },
    )
    .unwrap()
}

/// What one node is told, and what it knows itself.
pub struct TestNode {
    pub spec: NodeSpec,
    pub here: Here,
}

/// A node whose ranks run `script` in a shell.
pub fn test_node(driver: &Hub, partition: u32, script: &str, dir: &Path) -> TestNode {
    let program = RankProgram::Command(vec!["/bin/sh".into(), "-c".into(), script.into()]);
    TestNode {
        spec: driver.node_spec(Attempt::first(), program, BTreeMap::new(), Vec::new()),
        here: Here {
            partition,
            task: SparkTask::default(),
            host: format!("host-{partition}"),
            gpus: None,
            work_dir: dir.to_path_buf(),
            home: Home { guard: guard(), ..Home::default() },
            other_ways: Vec::new(),
        },
    }
}

pub fn guard() -> PathBuf {
    phalanx_testkit::guard_binary()
}

pub fn run_node_of(node: &TestNode, payload: Payload<'_>, mut callbacks: TestCallbacks) -> Result<()> {
    run_node(&node.spec, payload, &node.here, &mut callbacks)
}

pub fn spawn_node(node: TestNode, callbacks: TestCallbacks) -> JoinHandle<Result<()>> {
    std::thread::spawn(move || run_node_of(&node, Payload::Bytes(b"payload"), callbacks))
}

/// Takes events to the last one.
pub fn listen(driver: &Hub) -> Told {
    listen_for(driver, LONG)
}

/// The same, where it may take so long.
pub fn listen_for(driver: &Hub, time: Duration) -> Told {
    let mut told = Told::default();
    let deadline = Deadline::after(time);
    loop {
        match driver.next(deadline).unwrap() {
            None => panic!("the job did not end in time: {told:?}"),
            Some(Event::Output(text)) => told.output.push_str(&text),
            Some(Event::Phase(phase)) => told.phases.push(phase.point.name().into_owned()),
            Some(Event::Status(status)) => told.statuses.push(status),
            Some(Event::Progress(report)) => told.reports.push(report),
            Some(Event::Reports(reports)) => told.every_report.push(reports),
            Some(Event::Seat(change)) => panic!("no host is in cooldown here: {change:?}"),
            Some(Event::Resubmit { attempt }) => told.resubmits.push(attempt),
            Some(Event::Restarted(of)) => told.restarted.push((of.kind, of.cost.ranks)),
            Some(Event::Placed(placed)) => told.placed = placed.hosts,
            Some(Event::Carried(carried)) => told.carried.push(carried.host),
            Some(Event::Finished(_)) => return told,
            Some(Event::Failed(failure)) => {
                told.failure = Some(*failure);
                return told;
            }
        }
    }
}

/// An address at which nobody answers, as behind a firewall that drops what it doesn't like.
pub struct Silent {
    pub address: String,
    _listener: socket2::Socket,
    _waiting: std::net::TcpStream,
}

/// Makes one: a listener that accepts nobody, and has no room for one more to wait.
pub fn silent() -> Silent {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let waiting = std::net::TcpStream::connect(address).unwrap();
    Silent { address: address.to_string(), _listener: listener, _waiting: waiting }
}

/// An address of this host where nobody listens, nor can anybody while it lives.
pub struct Closed {
    pub address: String,
    _socket: socket2::Socket,
}

/// Makes one.
pub fn closed() -> Closed {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    Closed { address: address.to_string(), _socket: socket }
}

/// Runs `script` as every rank of `job`, all nodes here; returns what was told after all nodes returned.
pub fn run(job: &Job, script: &str) -> (Told, Hub, tempfile::TempDir) {
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(job);
    let nodes: Vec<_> = (0..job.tasks)
        .map(|p| spawn_node(test_node(&driver, p, script, dir.path()), TestCallbacks::default()))
        .collect();
    let told = listen(&driver);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    (told, driver, dir)
}
