//! Jobs and settings.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_job::{Settings, settings};
use pyo3::prelude::*;

use crate::errors::detached;

type Conf = BTreeMap<String, String>;

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct Job(pub(crate) phalanx_types::Job);

#[pymethods]
impl Job {
    #[new]
    #[pyo3(signature = (*, name, ranks, tasks, use_gpu, settings))]
    fn new(
        py: Python<'_>,
        name: &str,
        ranks: u32,
        tasks: u32,
        use_gpu: bool,
        settings: Conf,
    ) -> PyResult<Job> {
        detached(py, || Ok(Job(Settings::read(&settings)?.job(name, ranks, tasks, use_gpu)?)))
    }

    #[getter]
    fn id(&self) -> &str {
        &self.0.id
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    #[getter]
    fn ranks(&self) -> u32 {
        self.0.ranks
    }

    #[getter]
    fn tasks(&self) -> u32 {
        self.0.tasks
    }

    #[getter]
    fn least_tasks(&self) -> u32 {
        self.0.least_tasks()
    }

    fn snapshot(&self, seconds: f64) -> String {
        let asked = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        phalanx_job::Snapshots::without_hub(&self.0, asked).newest()
    }

    #[getter]
    fn checkpoint_name(&self) -> String {
        self.0.checkpoint_name()
    }

    #[getter]
    fn checkpoint_owner(&self) -> Option<String> {
        self.0.checkpoint.owner.as_ref().map(phalanx_types::Owner::to_json)
    }

    #[getter]
    fn logs_folder(&self) -> Option<String> {
        phalanx_job::logs_folder(&self.0)
    }

    #[getter]
    fn logs_uri(&self) -> Option<&str> {
        phalanx_job::logs_uri(&self.0)
    }
}

#[pyfunction]
pub(crate) fn setting_keys() -> Vec<&'static str> {
    settings::keys().collect()
}

#[pyfunction]
pub(crate) fn read_settings(py: Python<'_>, settings: Conf) -> PyResult<SettingsRead> {
    let settings = detached(py, || Settings::read(&settings))?;
    let Settings { policy, slots_timeout, stage, progress, connect, data_order, predict_idle, .. } = settings;
    let (slots, node) = (slots_timeout.as_secs_f64(), policy.node_timeout.as_secs_f64());
    let idle = predict_idle.as_secs_f64();
    let (restarts, preemptions) = (policy.max_restarts, policy.max_preemptions);
    let gang = policy.gang.name();
    Ok((slots, stage, progress, connect, node, data_order, restarts, preemptions, gang, idle))
}

/// As `_native.pyi` says.
type SettingsRead = (f64, String, String, String, f64, String, u32, Option<u32>, &'static str, f64);

#[pyfunction]
pub(crate) fn rank_variables(py: Python<'_>, settings: Conf, given: Conf) -> PyResult<Conf> {
    detached(py, || phalanx_job::rank_variables(&settings, &given))
}

#[pyfunction]
pub(crate) fn hosts_in_cooldown() -> Vec<(String, u32, f64, String)> {
    phalanx_job::hosts_in_cooldown()
}

#[pyfunction]
pub(crate) fn unknown_settings(keys: Vec<String>) -> Vec<String> {
    settings::unknown_keys(keys.iter().map(String::as_str))
}
