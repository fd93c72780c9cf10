//! A run's snapshot once it is over.

use phalanx_types::RunSnapshot;
use phalanx_types::run_snapshot::Problem;
use pyo3::prelude::*;

use crate::errors::detached;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ended_snapshot, module)?)
}

#[pyfunction]
fn ended_snapshot(py: Python<'_>, snapshot: &str, problem: Option<(String, String)>) -> PyResult<String> {
    let problem = problem.map(|(kind, text)| Problem { kind, text });
    detached(py, || Ok(RunSnapshot::ended_json(snapshot, problem.as_ref())))
}
