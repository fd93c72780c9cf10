//! The driver's end of a job.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use phalanx_job::{DriverJob, DriverOptions, Event, collect_logs};
use phalanx_rendezvous::Token;
use phalanx_types::stacks::group;
use phalanx_types::{Deadline, Error, ErrorKind, Job, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::detached;
use crate::logs;

/// How often a waiting call looks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct Hub {
    /// `None` once closed. Calls share the lock for reading; closing waits for them, 50 ms at most.
    job: RwLock<Option<Arc<DriverJob>>>,
    address: String,
    token: Token,
}

impl Hub {
    fn job(&self) -> Result<Arc<DriverJob>> {
        let job = self.job.read().unwrap_or_else(PoisonError::into_inner);
        job.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "the hub is closed"))
    }
}

#[pymethods]
impl Hub {
    #[new]
    #[pyo3(signature = (job, *, bind, advertise, work_dir))]
    fn new(
        py: Python<'_>,
        job: &[u8],
        bind: String,
        advertise: String,
        work_dir: std::path::PathBuf,
    ) -> PyResult<Hub> {
        collect_logs();
        detached(py, || {
            let job = DriverJob::open(Job::from_json(job)?, &DriverOptions { bind, advertise, work_dir })?;
            let (address, token) = (job.address().to_string(), *job.token());
            Ok(Hub { job: RwLock::new(Some(Arc::new(job))), address, token })
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.token)
    }

    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: f64,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        let event = waiting(py, timeout, |slice| self.job()?.next(slice))?;
        event.map(|event| pack(py, event)).transpose()
    }

    fn result_path(&self, py: Python<'_>, rank: u32) -> PyResult<Option<std::path::PathBuf>> {
        let path = detached(py, || Ok(self.job()?.result_path(rank)))?;
        Ok(path)
    }

    fn node_report(&self, py: Python<'_>, report: &[u8]) -> PyResult<()> {
        detached(py, || self.job()?.node_report(report))
    }

    fn stage_ended(&self, py: Python<'_>, attempt: u32, problem: Option<String>) -> PyResult<()> {
        detached(py, || {
            self.job()?.stage_ended(attempt, problem);
            Ok(())
        })
    }

    fn stacks(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(BTreeMap<u32, String>, String)>> {
        let answer = detached(py, || Ok(self.job()?.ask_for_stacks()))?;
        let stacks = waiting(py, timeout, |slice| answer.wait(slice))?;
        Ok(stacks.map(|stacks| {
            let text = group(&stacks);
            (stacks.into_iter().map(|of| (of.rank, of.text)).collect(), text)
        }))
    }

    fn logs(&self, py: Python<'_>, rank: u32) -> PyResult<String> {
        detached(py, || self.job()?.logs(rank))
    }

    fn stop(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        detached(py, || {
            self.job()?.stop(reason);
            Ok(())
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let job = self.job.write().unwrap_or_else(PoisonError::into_inner).take();
            // The last of the calls that still hold it frees it; dropping joins the hub's thread.
            drop(job);
            Ok(())
        })?;
        logs::hand_over(py)
    }
}

/// Waits by `wait`, which is given a little time again and again, so that Ctrl-C is answered; `None` after `timeout`
/// seconds.
fn waiting<T: Send>(
    py: Python<'_>,
    timeout: f64,
    wait: impl Fn(Deadline) -> Result<Option<T>> + Sync,
) -> PyResult<Option<T>> {
    let deadline = Deadline::after(Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX));
    loop {
        let slice = deadline.min(Deadline::after(SIGNALS_EVERY));
        let come = detached(py, || wait(slice))?;
        logs::hand_over(py)?;
        py.check_signals()?;
        if come.is_some() || deadline.passed() {
            return Ok(come);
        }
    }
}

fn pack(py: Python<'_>, event: Event) -> PyResult<(&'static str, Bound<'_, PyAny>)> {
    Ok(match event {
        Event::Output(text) => ("output", text.into_pyobject(py)?.into_any()),
        Event::Phase(phase) => {
            let rank = phase.rank.map_or(-1, i64::from);
            ("phase", (phase.name, rank, phase.at.as_secs_f64()).into_pyobject(py)?.into_any())
        }
        Event::Status(text) => ("status", text.into_pyobject(py)?.into_any()),
        Event::Report(report) => {
            ("report", (report.rank, report.step, report.values).into_pyobject(py)?.into_any())
        }
        Event::Resubmit { attempt } => ("resubmit", attempt.into_pyobject(py)?.into_any()),
        Event::Finished(ranks) => {
            let json = serde_json::to_string(&ranks).unwrap_or_default();
            ("finished", json.into_pyobject(py)?.into_any())
        }
        Event::Failed(failure) => {
            let json = serde_json::to_string(&failure).unwrap_or_default();
            ("failed", json.into_pyobject(py)?.into_any())
        }
    })
}
