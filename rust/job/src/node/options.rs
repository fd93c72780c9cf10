//! What a node goes by: what the driver told it, and the few facts that only its task and its machine know.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use phalanx_rendezvous::HubAddress;
use phalanx_types::contract::{ENV_OMP_THREADS, ENV_VISIBLE_GPUS};
use phalanx_types::{Error, ErrorKind, NodeSpec, Result, SparkTask, host_digest};

use crate::node::home::Home;
use crate::node::line::ways::{Way, Ways};
use crate::node::rank::{program, threads};
use crate::preflight::TaskGpus;

/// What only the task knows.
#[derive(Debug, Clone)]
pub struct Here {
    /// The task's partition.
    pub partition: u32,
    /// The task as Spark counts it; its instance is the node's to choose.
    pub task: SparkTask,
    /// The machine's name: equal for tasks on the same machine.
    pub host: String,
    /// The addresses of the GPUs that Spark gave the task; `None` where it gave none.
    pub gpus: Option<Vec<String>>,
    /// Where logs and the ranks' private files go: Spark's local directory.
    pub work_dir: PathBuf,
    /// Phalanx and Python on this machine.
    pub home: Home,
    /// The ways to the hub beside the direct one, in the order in which they are tried.
    pub other_ways: Vec<Way>,
}

/// What the ranks of a node execute.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// What this file has, which stays until the node is over.
    File(&'a Path),
}

/// This process's variable.
pub(crate) fn own_variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// All that one node works by.
#[derive(Debug)]
pub(crate) struct Options<'a> {
    pub(crate) spec: &'a NodeSpec,
    pub(crate) here: &'a Here,
    /// Who this is, among those that want the seat of its partition.
    pub(crate) task: SparkTask,
    /// What the ranks execute; each finds it in the file that `PHALANX_PAYLOAD` names.
    pub(crate) payload: Payload<'a>,
    pub(crate) ways: Ways,
    pub(crate) gpus: Vec<String>,
    /// The command line of a rank.
    pub(crate) program: Vec<String>,
    /// The command line of a warm pool for such ranks; empty if there can be none, and they start cold.
    pub(crate) pool: Vec<String>,
    /// Variables of the ranks beyond those that this process has and those of the placement.
    pub(crate) env: BTreeMap<String, String>,
}

fn random() -> Result<u64> {
    getrandom::u64().map_err(|e| Error::new(ErrorKind::Io, format!("get a random number: {e}")))
}

impl<'a> Options<'a> {
    /// What follows from `spec` here.
    ///
    /// # Errors
    /// As [`TaskGpus::of`].
    pub(crate) fn of(spec: &'a NodeSpec, payload: Payload<'a>, here: &'a Here) -> Result<Options<'a>> {
        let gpus = TaskGpus {
            partition: here.partition,
            leased: &spec.local_gpus,
            addresses: here.gpus.as_deref(),
            visible: own_variable(ENV_VISIBLE_GPUS).as_deref(),
            host: &here.host,
        }
        .of(&spec.job)?;
        let hub = HubAddress {
            address: spec.hub.clone(),
            job: spec.job.id.clone(),
            token: spec.token,
            key: spec.hub_key.clone(),
        };
        Ok(Options {
            gpus,
            ways: Ways::to(hub, &here.other_ways),
            program: program::of_rank(&spec.program, &here.home),
            pool: program::of_pool(&spec.program, &here.home),
            env: here.home.environment(&spec.env, own_variable),
            task: SparkTask { instance: random()?, host: host_digest(&here.host), ..here.task },
            spec,
            here,
            payload,
        })
    }

    /// Whether a rank has a variable from its user or its machine.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        self.env.contains_key(name) || own_variable(name).is_some_and(|value| !self.is_sparks(name, &value))
    }

    fn is_sparks(&self, name: &str, value: &str) -> bool {
        let in_python_worker = self.here.home.in_python_worker;
        name == ENV_OMP_THREADS && threads::is_sparks(&self.spec.job.cpus, in_python_worker, value)
    }
}
