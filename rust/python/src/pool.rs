//! Warm pools, in the pool's own process and in a client of it.

use std::io;
use std::time::Duration;

use pyo3::prelude::*;
use rustix::process::Pid;

use crate::errors::checked;

/// A rank's program, its arguments, its environment.
type Launched = (String, Vec<String>, Vec<(String, String)>);

#[pyfunction]
pub(crate) fn serve_guard(
    py: Python<'_>,
    grace_ms: u64,
    owned: bool,
    fork: Bound<'_, PyAny>,
) -> PyResult<Option<Launched>> {
    // Keeps the interpreter lock: this process has one thread, and forks in here.
    let mut fork = || {
        let pid: i32 = fork
            .call0()
            .and_then(|pid| pid.extract())
            .map_err(|error: PyErr| io::Error::other(error.to_string()))?;
        Ok(Pid::from_raw(pid))
    };
    match phalanx_job::serve_forked(Duration::from_millis(grace_ms), owned, &mut fork) {
        None => Ok(None),
        Some(entered) => {
            let launch = checked(
                py,
                entered.map_err(|error| phalanx_types::Error::io("make this process a rank", &error)),
            )?;
            Ok(Some((launch.program, launch.args, launch.env)))
        }
    }
}

#[pyfunction]
pub(crate) fn use_huge_pages() {
    phalanx_job::use_huge_pages();
}

#[pyfunction]
pub(crate) fn pool_usage() -> (u64, u64, u64) {
    let usage = phalanx_job::pool_usage();
    (usage.pools, usage.resident_bytes, usage.forks)
}

#[pyfunction]
pub(crate) fn end_pools(py: Python<'_>) {
    py.detach(phalanx_job::end_pools);
}
