//! A node's end of a job, in a Python worker of Spark or in the driver.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use phalanx_job::{Here, Home, NodeCallbacks, Payload, Way, collect_logs};
use phalanx_types::{Error, ErrorKind, Result, SparkTask};
use pyo3::prelude::*;

use crate::errors::detached;
use crate::logs;

/// The Python process that the node runs in.
struct PythonCallbacks {
    /// Whether its stderr is an executor's log.
    in_executor: bool,
    /// Copies files to a folder by its URI, where Python has a way to.
    copy_files: Option<Py<PyAny>>,
    /// What Python wants raised instead of the node's outcome, e.g. KeyboardInterrupt.
    raised: Option<PyErr>,
}

impl NodeCallbacks for PythonCallbacks {
    fn interrupted(&mut self) -> Option<String> {
        if self.raised.is_some() {
            return Some("its Python process was interrupted".into());
        }
        Python::attach(|py| {
            self.raised = logs::hand_over(py).and_then(|()| py.check_signals()).err();
            self.raised
                .as_ref()
                .map(|error| format!("its Python process was interrupted ({})", error.value(py)))
        })
    }

    fn executor_log(&mut self) -> Option<OwnedFd> {
        // Spark has a worker's stderr in its executor's; its stdout goes there, too, but for a worker's beginning.
        self.in_executor.then(|| std::io::stderr().as_fd().try_clone_to_owned().ok()).flatten()
    }

    fn copy_files(&mut self, files: &[PathBuf], folder: &str) -> Result<()> {
        let Some(copy) = &self.copy_files else {
            let why = "only Spark's JVM can write to a URI, and Spark's Python workers can't call it";
            return Err(Error::new(ErrorKind::Unreachable, why));
        };
        let files: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
        Python::attach(|py| copy.bind(py).call1((files, folder)).map(drop))
            .map_err(|e| Error::new(ErrorKind::Io, e.to_string()))
    }
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct NodeSpec(phalanx_types::NodeSpec);

#[pymethods]
impl NodeSpec {
    #[new]
    fn new(py: Python<'_>, packed: &[u8]) -> PyResult<NodeSpec> {
        detached(py, || Ok(NodeSpec(phalanx_types::NodeSpec::unpack(packed)?)))
    }

    #[getter]
    fn tasks(&self) -> u32 {
        self.0.job.tasks
    }
}

#[pyfunction]
#[pyo3(signature = (spec, *, number, wanted))]
pub(crate) fn run_carrier(
    py: Python<'_>,
    spec: &NodeSpec,
    number: u32,
    wanted: Vec<String>,
) -> PyResult<bool> {
    collect_logs();
    let mut callbacks = PythonCallbacks { in_executor: false, copy_files: None, raised: None };
    let run = || phalanx_job::run_carrier(&spec.0, number, &wanted, Vec::new(), &mut callbacks);
    let served = detached(py, run);
    logs::hand_over(py)?;
    match callbacks.raised {
        Some(raised) => Err(raised),
        None => Ok(served?),
    }
}

/// What only the task knows: attributes of `Here` of `stages/here.py`.
#[derive(FromPyObject)]
pub(crate) struct TaskHere {
    partition: u32,
    /// `TaskContext`'s stage, task attempt id and attempt number.
    task: (u32, u64, u32),
    host: String,
    gpus: Option<Vec<String>>,
    work_dir: PathBuf,
    env: BTreeMap<String, String>,
    tunnel: Option<String>,
    relay: Option<String>,
}

/// Phalanx and Python on this machine: attributes of `Home` of `stages/here.py`.
#[derive(FromPyObject)]
pub(crate) struct PythonHome {
    pub(crate) guard: PathBuf,
    pub(crate) package: PathBuf,
    pub(crate) python: String,
    pub(crate) in_python_worker: bool,
}

#[pyfunction]
#[pyo3(signature = (spec, payload, here, home, *, in_executor=false, copy_files=None))]
pub(crate) fn run_node(
    py: Python<'_>,
    spec: &NodeSpec,
    payload: &[u8],
    here: TaskHere,
    home: PythonHome,
    in_executor: bool,
    copy_files: Option<Py<PyAny>>,
) -> PyResult<()> {
    collect_logs();
    let TaskHere { partition, task: (stage, id, number), host, gpus, work_dir, env, tunnel, relay } = here;
    let PythonHome { guard, package, python, in_python_worker } = home;
    let home = Home { guard, package, python, env, in_python_worker };
    let other_ways = tunnel.map(Way::Tunnel).into_iter().chain(relay.map(Way::Relay)).collect();
    let task = SparkTask { stage, id, number, ..SparkTask::default() };
    let here = Here { partition, task, host, gpus, work_dir, home, other_ways };
    let mut callbacks = PythonCallbacks { in_executor, copy_files, raised: None };
    let outcome =
        detached(py, || phalanx_job::run_node(&spec.0, Payload::Bytes(payload), &here, &mut callbacks));
    logs::hand_over(py)?;
    match callbacks.raised {
        Some(raised) => Err(raised),
        None => Ok(outcome?),
    }
}
