//! A node's end of a job, in a Python worker of Spark or in the driver.

use std::collections::BTreeMap;
use std::path::PathBuf;

use phalanx_job::{NodeHost, NodeOptions, collect_logs};
use phalanx_rendezvous::{HubAddress, Token};
use phalanx_types::{Error, ErrorKind, Job, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::detached;
use crate::logs;

/// The Python process that the node runs in.
struct PythonHost {
    all_gather: Option<Py<PyAny>>,
    /// What Python wants raised instead of the node's outcome, e.g. KeyboardInterrupt.
    raised: Option<PyErr>,
}

impl NodeHost for PythonHost {
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

    fn all_gather(&mut self, text: &str) -> Result<Vec<String>> {
        let Some(all_gather) = &self.all_gather else {
            return Err(Error::new(
                ErrorKind::Unreachable,
                "the hub can't be reached, and there is no other way here",
            ));
        };
        Python::attach(|py| {
            all_gather.bind(py).call1((text,)).and_then(|all| all.extract()).map_err(|e| {
                Error::new(ErrorKind::Unreachable, format!("the tasks could not meet through Spark: {e}"))
            })
        })
    }
}

#[pyfunction]
#[pyo3(signature = (job, payload, *, hub, token, partition, attempt, host, gpus, program, pool, shares_pool, env, work_dir, guard, all_gather))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
pub(crate) fn run_node<'py>(
    py: Python<'py>,
    job: &[u8],
    payload: Vec<u8>,
    hub: String,
    token: Token,
    partition: u32,
    attempt: u32,
    host: String,
    gpus: Vec<String>,
    program: Vec<String>,
    pool: Vec<String>,
    shares_pool: bool,
    env: BTreeMap<String, String>,
    work_dir: PathBuf,
    guard: PathBuf,
    all_gather: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    collect_logs();
    let mut python = PythonHost { all_gather, raised: None };
    let outcome = detached(py, || {
        let job = Job::from_json(job)?;
        let hub = HubAddress { address: hub, job: job.id.clone(), token };
        let options = NodeOptions {
            job,
            payload,
            hub,
            partition,
            attempt,
            host,
            gpus,
            program,
            pool,
            shares_pool,
            env,
            work_dir,
            guard,
        };
        phalanx_job::run_node(&options, &mut python)
    });
    logs::hand_over(py)?;
    match python.raised {
        Some(raised) => Err(raised),
        None => Ok(PyBytes::new(py, &outcome?)),
    }
}
