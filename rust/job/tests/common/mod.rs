//! A whole job in one process: the driver's end, and a thread for each node, with shell scripts as ranks.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use phalanx_job::course::Report;
use phalanx_job::{DriverJob, DriverOptions, Event, NodeHost, NodeOptions, Observation, run_node};
use phalanx_rendezvous::HubAddress;
use phalanx_types::{Deadline, Failure, Job, Result};

/// No test waits longer for anything.
pub const LONG: Duration = Duration::from_secs(40);

/// A host process of a node, as the tests need it.
#[derive(Default)]
pub struct TestHost {
    pub gather: Option<Arc<Gather>>,
    pub partition: u32,
    /// For how long it then does nothing, as on a busy machine.
    pub late: Duration,
    pub interrupt: Arc<Mutex<Option<String>>>,
    pub observed: Arc<Mutex<Vec<Observation>>>,
}

#[derive(Default)]
struct Gathering {
    texts: BTreeMap<u32, String>,
    waiting: Vec<Sender<Vec<String>>>,
}

/// Stands for Spark's `allGather` among threads.
pub struct Gather {
    tasks: usize,
    state: Mutex<Gathering>,
}

impl Gather {
    pub fn of(tasks: usize) -> Arc<Gather> {
        Arc::new(Gather { tasks, state: Mutex::default() })
    }

    fn exchange(&self, partition: u32, text: &str) -> Vec<String> {
        let answer: Receiver<Vec<String>> = {
            let mut state = self.state.lock().unwrap();
            let (sender, receiver) = channel();
            state.texts.insert(partition, text.to_string());
            state.waiting.push(sender);
            if state.texts.len() == self.tasks {
                let all: Vec<String> = state.texts.values().cloned().collect();
                for sender in state.waiting.drain(..) {
                    sender.send(all.clone()).unwrap();
                }
            }
            receiver
        };
        answer.recv_timeout(LONG).expect("all tasks exchange their joins")
    }
}

impl NodeHost for TestHost {
    fn interrupted(&mut self) -> Option<String> {
        self.interrupt.lock().unwrap().clone()
    }

    fn all_gather(&mut self, text: &str) -> Result<Vec<String>> {
        let all = self.gather.as_ref().expect("no fallback in this test").exchange(self.partition, text);
        std::thread::sleep(self.late);
        Ok(all)
    }

    fn observe(&mut self, what: Observation) {
        self.observed.lock().unwrap().push(what);
    }
}

/// What a job came to.
#[derive(Debug, Default)]
pub struct Told {
    pub output: String,
    pub phases: Vec<String>,
    pub statuses: Vec<String>,
    pub reports: Vec<Report>,
    /// The attempts for which the stage was to be submitted again.
    pub resubmits: Vec<u32>,
    pub failure: Option<Failure>,
}

pub fn open(job: &Job) -> DriverJob {
    DriverJob::open(
        job.clone(),
        &DriverOptions {
            bind: "127.0.0.1".into(),
            advertise: "127.0.0.1".into(),
            work_dir: std::env::temp_dir(),
        },
    )
    .unwrap()
}

/// The options of a node whose ranks run `script` in a shell.
pub fn node_options(driver: &DriverJob, job: &Job, partition: u32, script: &str, dir: &Path) -> NodeOptions {
    NodeOptions {
        job: job.clone(),
        payload: b"payload".to_vec(),
        hub: HubAddress { address: driver.address().into(), job: job.id.clone(), token: *driver.token() },
        partition,
        attempt: 0,
        host: format!("host-{partition}"),
        gpus: Vec::new(),
        program: vec!["/bin/sh".into(), "-c".into(), script.into()],
        pool: Vec::new(),
        shares_pool: false,
        env: BTreeMap::new(),
        work_dir: dir.to_path_buf(),
        guard: guard(),
    }
}

pub fn guard() -> PathBuf {
    phalanx_testkit::guard_binary()
}

pub fn spawn_node(options: NodeOptions, mut host: TestHost) -> JoinHandle<Result<Vec<u8>>> {
    std::thread::spawn(move || run_node(&options, &mut host))
}

/// Takes events to the last one.
pub fn listen(driver: &DriverJob) -> Told {
    let mut told = Told::default();
    let deadline = Deadline::after(LONG);
    loop {
        match driver.next(deadline).unwrap() {
            None => panic!("the job did not end in time: {told:?}"),
            Some(Event::Output(text)) => told.output.push_str(&text),
            Some(Event::Phase(phase)) => told.phases.push(phase.name),
            Some(Event::Status(status)) => told.statuses.push(status),
            Some(Event::Report(report)) => told.reports.push(report),
            Some(Event::Resubmit { attempt }) => told.resubmits.push(attempt),
            Some(Event::Finished(_)) => return told,
            Some(Event::Failed(failure)) => {
                told.failure = Some(*failure);
                return told;
            }
        }
    }
}

/// Runs `script` as every rank of `job`, all nodes here; returns what was told after all nodes returned.
pub fn run(job: &Job, script: &str) -> (Told, DriverJob, tempfile::TempDir) {
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(job);
    let nodes: Vec<_> = (0..job.tasks)
        .map(|p| spawn_node(node_options(&driver, job, p, script, dir.path()), TestHost::default()))
        .collect();
    let told = listen(&driver);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    (told, driver, dir)
}
