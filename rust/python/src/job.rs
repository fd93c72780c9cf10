//! Jobs, settings and failures.

use std::collections::BTreeMap;

use phalanx_job::{Settings, settings};
use phalanx_rendezvous::wire;
use phalanx_types::Failure;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::detached;

type Conf = BTreeMap<String, String>;

#[pyfunction]
#[pyo3(signature = (*, name, ranks, tasks, use_gpu, settings))]
pub(crate) fn new_job<'py>(
    py: Python<'py>,
    name: &str,
    ranks: u32,
    tasks: u32,
    use_gpu: bool,
    settings: Conf,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = detached(py, || Ok(Settings::read(&settings)?.job(name, ranks, tasks, use_gpu)?.to_json()))?;
    Ok(PyBytes::new(py, &bytes))
}

#[pyfunction]
pub(crate) fn setting_keys() -> Vec<&'static str> {
    settings::SETTINGS.iter().map(|setting| setting.key).collect()
}

#[pyfunction]
pub(crate) fn read_settings(py: Python<'_>, settings: Conf) -> PyResult<(f64, String)> {
    let settings = detached(py, || Settings::read(&settings))?;
    Ok((settings.slots_timeout.as_secs_f64(), settings.stage))
}

#[pyfunction]
pub(crate) fn unknown_settings(keys: Vec<String>) -> Vec<String> {
    settings::unknown_keys(keys.iter().map(String::as_str))
}

#[pyfunction]
pub(crate) fn render_failure(py: Python<'_>, failure: &str) -> PyResult<String> {
    detached(py, || Ok(wire::message::<Failure>(failure.as_bytes())?.render()))
}
