//! The driver's end of a job.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use phalanx_job::{Endpoint, Event, HubOptions, LogTails, Snapshots, StageLook, collect_logs};
use phalanx_types::rank_file::{Piece, PieceWanted, RankFile};
use phalanx_types::stacks::group;
use phalanx_types::{Attempt, Deadline, Error, ErrorKind, RankProgram, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::detached;
use crate::job::Job;
use crate::logs;

/// How often a waiting call looks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The offset of a piece's first byte, where the output ends, why bytes before the piece are missing, and the bytes.
type OutputPiece<'py> = (u64, u64, String, Bound<'py, PyBytes>);

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct Hub {
    /// `None` once closed. Calls share the lock for reading; closing waits for them, 50 ms at most.
    hub: RwLock<Option<Arc<phalanx_job::Hub>>>,
    /// Outlives the hub.
    logs: Arc<LogTails>,
    /// Outlive it, too.
    snapshots: Arc<Snapshots>,
    address: String,
}

impl Hub {
    fn open(&self) -> Result<Arc<phalanx_job::Hub>> {
        let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner);
        hub.clone().ok_or_else(|| Error::new(ErrorKind::Closed, "the hub is closed"))
    }
}

#[pymethods]
impl Hub {
    #[new]
    #[pyo3(signature = (job, *, bind, advertise, work_dir))]
    fn new(
        py: Python<'_>,
        job: &Job,
        bind: String,
        advertise: String,
        work_dir: std::path::PathBuf,
    ) -> PyResult<Hub> {
        collect_logs();
        detached(py, || {
            let hub = phalanx_job::Hub::open(job.0.clone(), &HubOptions { bind, advertise, work_dir })?;
            let (logs, snapshots) = (Arc::clone(hub.logs()), Arc::clone(hub.snapshots()));
            let address = hub.address().to_string();
            Ok(Hub { hub: RwLock::new(Some(Arc::new(hub))), logs, snapshots, address })
        })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    #[pyo3(signature = (attempt, *, python, env, local_gpus, by=None))]
    fn node_spec<'py>(
        &self,
        py: Python<'py>,
        attempt: u32,
        python: Option<String>,
        env: BTreeMap<String, String>,
        local_gpus: Vec<String>,
        by: Option<String>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let program = RankProgram::Python(python);
        let packed = detached(py, || {
            let mut spec = self.open()?.node_spec(Attempt::new(attempt), program, env, local_gpus);
            if let Some(by) = by {
                spec.hub = by;
            }
            Ok(spec.pack())
        })?;
        Ok(PyBytes::new(py, &packed))
    }

    fn next(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(String, String, String)>> {
        let event = waiting(py, timeout, |slice| Ok(self.open()?.next(slice)?.map(Event::pack)))?;
        Ok(event.map(Into::into))
    }

    fn result_path(&self, py: Python<'_>, rank: u32) -> PyResult<Option<std::path::PathBuf>> {
        let path = detached(py, || Ok(self.open()?.result_path(rank)))?;
        Ok(path)
    }

    fn stage_ended(&self, py: Python<'_>, attempt: u32, problem: Option<String>) -> PyResult<()> {
        detached(py, || {
            self.open()?.stage_ended(Attempt::new(attempt), problem);
            Ok(())
        })
    }

    fn stage_seen(
        &self,
        py: Python<'_>,
        attempt: u32,
        running: Option<u32>,
        slots: u32,
        free: u32,
    ) -> PyResult<()> {
        detached(py, || {
            self.open()?.stage_seen(Attempt::new(attempt), StageLook { running, slots, free });
            Ok(())
        })
    }

    fn decommissioned(&self, py: Python<'_>, tasks: Vec<u64>) -> PyResult<()> {
        detached(py, || {
            self.open()?.decommissioned(tasks);
            Ok(())
        })
    }

    fn stacks(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<(BTreeMap<u32, String>, String)>> {
        let answer = detached(py, || Ok(self.open()?.ask_for_stacks()))?;
        let stacks = waiting(py, timeout, |slice| answer.wait(slice))?;
        Ok(stacks.map(|stacks| {
            let text = group(&stacks);
            (stacks.into_iter().map(|of| (of.rank, of.text)).collect(), text)
        }))
    }

    fn logs(&self, py: Python<'_>, rank: u32) -> PyResult<String> {
        detached(py, || Ok(self.logs.newest(rank)))
    }

    fn read_output<'py>(
        &self,
        py: Python<'py>,
        rank: u32,
        start: i64,
        bytes: u64,
        timeout: f64,
    ) -> PyResult<Option<OutputPiece<'py>>> {
        let wanted = PieceWanted { rank, file: RankFile::Output, start, bytes };
        let answer = detached(py, || Ok(self.open()?.read(wanted)))?;
        let piece = waiting(py, timeout, |slice| answer.wait(slice))?;
        Ok(piece
            .map(|Piece { start, end, missing, bytes, .. }| (start, end, missing, PyBytes::new(py, &bytes))))
    }

    #[pyo3(signature = (rank, start, bytes, timeout, *, number, millis))]
    #[allow(clippy::too_many_arguments, reason = "a call of Python's, with names")]
    fn read_profile<'py>(
        &self,
        py: Python<'py>,
        rank: u32,
        start: i64,
        bytes: u64,
        timeout: f64,
        number: u32,
        millis: u32,
    ) -> PyResult<Option<(u64, u64, Bound<'py, PyBytes>)>> {
        let wanted = PieceWanted { rank, file: RankFile::Profile { number, millis }, start, bytes };
        let answer = detached(py, || Ok(self.open()?.read(wanted)))?;
        let piece = waiting(py, timeout, |slice| answer.wait(slice))?;
        Ok(piece.map(|Piece { end, clock_us, bytes, .. }| (end, clock_us, PyBytes::new(py, &bytes))))
    }

    fn snapshot(&self, py: Python<'_>) -> PyResult<String> {
        detached(py, || {
            let hub = self.hub.read().unwrap_or_else(PoisonError::into_inner).clone();
            Ok(hub.map_or_else(|| self.snapshots.newest(), |hub| hub.snapshot()))
        })
    }

    fn losses(&self) -> BTreeMap<u32, Vec<(u64, f64)>> {
        self.snapshots.losses()
    }

    fn stop(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        detached(py, || {
            self.open()?.stop(reason);
            Ok(())
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let hub = self.hub.write().unwrap_or_else(PoisonError::into_inner).take();
            // The last of the calls that still hold it frees it; dropping joins the hub's thread.
            drop(hub);
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

/// Addresses to bind and hosts to tell, in turn: those of Spark's driver, and those that the settings say.
#[pyfunction]
pub(crate) fn hub_endpoint(
    py: Python<'_>,
    driver_bind: &str,
    driver_host: &str,
    set_bind: &str,
    set_host: &str,
) -> PyResult<(String, String)> {
    let (driver, set) = (Endpoint::new(driver_bind, driver_host), Endpoint::new(set_bind, set_host));
    detached(py, || {
        let Endpoint { bind, host } = Endpoint::of_hub(driver, set);
        Ok((bind, host))
    })
}

#[pyfunction]
pub(crate) fn is_own_host(py: Python<'_>, host: &str) -> PyResult<bool> {
    detached(py, || Ok(phalanx_job::is_own_host(host)))
}
