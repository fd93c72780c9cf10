//! Jobs and failures as JSON.

use phalanx_rendezvous::wire;
use phalanx_types::{Error, ErrorKind, Failure, Job, LogPolicy, Policy};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors::detached;

/// `defaults` with the fields that `overrides` (JSON) names.
fn with_overrides<T: Serialize + DeserializeOwned>(
    what: &str,
    defaults: &T,
    overrides: &str,
) -> Result<T, Error> {
    let invalid = |e: serde_json::Error| Error::new(ErrorKind::Invalid, format!("{what}: {e}"));
    let mut fields = serde_json::to_value(defaults).map_err(invalid)?;
    let overrides: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(overrides).map_err(invalid)?;
    for (name, value) in overrides {
        fields[name] = value;
    }
    serde_json::from_value(fields).map_err(invalid)
}

#[pyfunction]
#[pyo3(signature = (*, name, ranks, tasks, use_gpu, policy, logs))]
pub(crate) fn new_job<'py>(
    py: Python<'py>,
    name: &str,
    ranks: u32,
    tasks: u32,
    use_gpu: bool,
    policy: &Bound<'py, PyDict>,
    logs: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyBytes>> {
    let json = py.import("json")?;
    let dumps = |dict: &Bound<'py, PyDict>| json.call_method1("dumps", (dict,))?.extract::<String>();
    let (policy, logs) = (dumps(policy)?, dumps(logs)?);
    let bytes = detached(py, || {
        let id = wire::hex(&wire::random_token()?[..8]);
        let mut job = Job::new(id, name, ranks, tasks)?;
        job.use_gpu = use_gpu;
        job.policy = with_overrides("the job's policy", &Policy::default(), &policy)?;
        job.logs = with_overrides("the job's log policy", &LogPolicy::default(), &logs)?;
        Ok(job.to_json())
    })?;
    Ok(PyBytes::new(py, &bytes))
}

#[pyfunction]
pub(crate) fn render_failure(py: Python<'_>, failure: &str) -> PyResult<String> {
    detached(py, || Ok(wire::message::<Failure>(failure.as_bytes())?.render()))
}
