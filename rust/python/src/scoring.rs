//! Both ends of a model's process: a task's, and its own.

use std::fs::OpenOptions;
use std::os::fd::{AsFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_job::collect_logs;
use phalanx_scoring::{
    Answer, Batch, Caller, Connection, Done, ModelServer as Server, NewColumn, Room, Start, Trouble,
};
use phalanx_supervisor::warm_pool::kept_listener;
use phalanx_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::errors::detached;
use crate::logs;
use crate::node::PythonHome;

/// A column as Python has it: its name, element, shape, where it begins, its bytes.
type Told = (String, String, Vec<u64>, u64, u64);
/// Memory to map: a descriptor, which is the caller's to close, and its bytes.
type Memory = (RawFd, u64);

fn told(batch: Batch) -> Vec<Told> {
    batch.columns.into_iter().map(|c| (c.name, c.element, c.shape, c.at, c.bytes)).collect()
}

fn room(room: Room) -> (Option<Memory>, Vec<u64>) {
    (room.is_new.then(|| (room.file.into_raw_fd(), room.bytes)), room.at)
}

fn open<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The Python worker that waits.
struct Worker {
    model: Py<PyAny>,
    raised: Option<PyErr>,
}

impl Caller for Worker {
    fn is_wanted(&mut self) -> bool {
        if self.raised.is_none() {
            self.raised = Python::attach(|py| logs::hand_over(py).and_then(|()| py.check_signals()).err());
        }
        self.raised.is_none()
    }

    fn model(&mut self) -> Result<OwnedFd> {
        let brought = Python::attach(|py| self.model.bind(py).call0().and_then(|fd| fd.extract::<RawFd>()));
        let fd = brought.map_err(|error| {
            let text = format!("the model can't be read: {error}");
            self.raised = Some(error);
            Error::new(ErrorKind::Invalid, text)
        })?;
        // Opened anew, so that it is read from its beginning, and Python's descriptor is Python's.
        OpenOptions::new()
            .read(true)
            .open(format!("/proc/self/fd/{fd}"))
            .map(OwnedFd::from)
            .map_err(|error| Error::io("open the model", &error))
    }

    fn output(&mut self) -> Result<OwnedFd> {
        std::io::stderr().as_fd().try_clone_to_owned().map_err(|error| Error::io("keep stderr", &error))
    }
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct ModelConnection {
    state: Mutex<Connection>,
    model: Py<PyAny>,
}

#[pyclass(module = "phalanx._native", frozen, get_all)]
pub(crate) struct ModelAnswer {
    columns: Vec<Told>,
    memory: Option<Memory>,
    trouble: Option<(String, String)>,
    has_model: bool,
}

impl ModelConnection {
    fn asked<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&mut Connection, &mut Worker) -> Result<T> + Send,
    ) -> PyResult<T> {
        collect_logs();
        let mut worker = Worker { model: self.model.clone_ref(py), raised: None };
        let answer = detached(py, || ask(&mut open(&self.state), &mut worker));
        logs::hand_over(py)?;
        match worker.raised {
            Some(raised) => Err(raised),
            None => answer,
        }
    }
}

#[pymethods]
impl ModelConnection {
    #[new]
    fn new(
        name: String,
        told: String,
        env: Vec<(String, String)>,
        home: PythonHome,
        model: Py<PyAny>,
    ) -> ModelConnection {
        let PythonHome { guard, package, python, in_python_worker: shared } = home;
        let start = Start { name, told, env, guard, package, python, shared };
        ModelConnection { state: Mutex::new(Connection::new(start)), model }
    }

    fn rows_at_once(&self, batch_size: u64) -> u64 {
        open(&self.state).rows_at_once(batch_size)
    }

    fn lay_out(
        &self,
        py: Python<'_>,
        slot: u32,
        rows: u64,
        columns: Vec<NewColumn>,
        asked: String,
    ) -> PyResult<(Option<Memory>, Vec<u64>)> {
        detached(py, || open(&self.state).lay_out(slot, rows, columns, asked)).map(room)
    }

    fn close(&self) {
        open(&self.state).close();
    }

    fn give(&self, py: Python<'_>, slot: u32) -> PyResult<Option<(String, String)>> {
        let trouble = self.asked(py, |connection, worker| connection.give(slot, worker))?;
        Ok(trouble.map(|Trouble { error, traceback }| (error, traceback)))
    }

    fn take(&self, py: Python<'_>) -> PyResult<ModelAnswer> {
        let answer = self.asked(py, |connection, worker| connection.take(worker))?;
        let (has_model, trouble) = match answer {
            Answer::Done(Done { batch, results, took: _ }) => {
                let memory = results.map(|results| (results.file.into_raw_fd(), results.bytes));
                return Ok(ModelAnswer { columns: told(batch), memory, trouble: None, has_model: true });
            }
            Answer::Refused(trouble) => (true, trouble),
            Answer::NoModel(trouble) => (false, trouble),
        };
        let trouble = Some((trouble.error, trouble.traceback));
        Ok(ModelAnswer { columns: Vec::new(), memory: None, trouble, has_model })
    }
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct ModelServer(Mutex<Server>);

#[pyclass(module = "phalanx._native", frozen, get_all)]
pub(crate) struct ModelWork {
    task: u64,
    slot: u32,
    rows: u64,
    columns: Vec<Told>,
    asked: String,
    memory: Option<Memory>,
}

impl ModelServer {
    /// Waits without the interpreter lock, and answers signals.
    fn waiting<T: Send>(
        &self,
        py: Python<'_>,
        wait: impl FnOnce(&mut Server, &mut dyn FnMut() -> bool) -> Option<T> + Send,
    ) -> PyResult<Option<T>> {
        let mut raised = None;
        let mut go_on = || {
            raised = Python::attach(|py| py.check_signals().err());
            raised.is_none()
        };
        let found = detached(py, || Ok(wait(&mut open(&self.0), &mut go_on)))?;
        match raised {
            Some(raised) => Err(raised),
            None => Ok(found),
        }
    }
}

#[pymethods]
impl ModelServer {
    #[new]
    fn new(py: Python<'_>, idle_seconds: f64) -> PyResult<ModelServer> {
        detached(py, || {
            let idle = Duration::try_from_secs_f64(idle_seconds)
                .map_err(|error| Error::new(ErrorKind::Invalid, format!("{idle_seconds} s: {error}")))?;
            Ok(ModelServer(Mutex::new(Server::new(kept_listener()?, idle)?)))
        })
    }

    fn model(&self, py: Python<'_>) -> PyResult<Option<RawFd>> {
        Ok(self.waiting(py, |server, go_on| server.model(go_on))?.map(|file| file.into_raw_fd()))
    }

    fn ready(&self, py: Python<'_>) {
        py.detach(|| open(&self.0).ready());
    }

    fn failed(&self, py: Python<'_>, error: String, traceback: String) {
        py.detach(|| open(&self.0).failed(Trouble { error, traceback }));
    }

    fn wait(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.waiting(py, |server, go_on| server.wait(go_on).then_some(()))?.is_some())
    }

    fn next(&self) -> Option<ModelWork> {
        open(&self.0).next_work().map(|work| ModelWork {
            task: work.task,
            slot: work.batch.slot,
            rows: work.batch.rows,
            asked: work.batch.asked.clone(),
            memory: work.memory.map(|memory| (memory.file.into_raw_fd(), memory.bytes)),
            columns: told(work.batch),
        })
    }

    fn has(&self, task: u64) -> bool {
        open(&self.0).has(task)
    }

    fn lay_out(
        &self,
        py: Python<'_>,
        task: u64,
        slot: u32,
        rows: u64,
        columns: Vec<NewColumn>,
    ) -> PyResult<Option<(Option<Memory>, Vec<u64>)>> {
        Ok(detached(py, || open(&self.0).lay_out(task, slot, rows, columns))?.map(room))
    }

    fn done(&self, task: u64, slot: u32) {
        open(&self.0).done(task, slot);
    }

    fn refused(&self, task: u64, slot: u32, error: String, traceback: String) {
        open(&self.0).refused(task, slot, Trouble { error, traceback });
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ModelConnection>()?;
    module.add_class::<ModelAnswer>()?;
    module.add_class::<ModelServer>()?;
    module.add_class::<ModelWork>()
}
