//! A run's page and line, and its snapshot once it is over.

use std::collections::BTreeMap;

use phalanx_job::page::{self, Room, STATE_COLORS};
use phalanx_types::RunSnapshot;
use phalanx_types::run_snapshot::Problem;
use pyo3::prelude::*;

use crate::errors::detached;

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("STATE_COLORS", BTreeMap::from(STATE_COLORS))?;
    module.add_function(wrap_pyfunction!(run_page, module)?)?;
    module.add_function(wrap_pyfunction!(run_line, module)?)?;
    module.add_function(wrap_pyfunction!(ended_snapshot, module)?)
}

#[pyfunction]
#[pyo3(signature = (snapshot, note=""))]
fn run_page(py: Python<'_>, snapshot: &str, note: &str) -> PyResult<String> {
    detached(py, || Ok(page::run_page(snapshot, note, Room::Cell)))
}

#[pyfunction]
#[pyo3(signature = (snapshot, columns=None))]
fn run_line(py: Python<'_>, snapshot: &str, columns: Option<usize>) -> PyResult<String> {
    detached(py, || Ok(page::run_line(snapshot, columns)))
}

#[pyfunction]
fn ended_snapshot(py: Python<'_>, snapshot: &str, problem: Option<(String, String)>) -> PyResult<String> {
    let problem = problem.map(|(kind, text)| Problem { kind, text });
    detached(py, || Ok(RunSnapshot::ended_json(snapshot, problem.as_ref())))
}
