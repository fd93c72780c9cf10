//! One rank's end of a process group of torch: collectives on the memory of tensors, in the order of their calls.
//!
//! Each runs on the thread that asks for it or, if that thread doesn't want to wait, on a thread of the group's.
//! Neither holds the interpreter lock. Messages go beside the collectives.
//!
//! - BINDING-5 (no-inheritance): a forked child has nothing of its parent's group: no connection, no memory, and no way
//!   to speak for the rank.

mod call;
mod engine;
pub(crate) mod forks;
mod job_ranks;
mod own_process;
mod postbox;
mod signals;
mod work;
mod work_queue;

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_collective::{Aborter, Group, GroupOptions, Store, job_encryption, job_key};
use phalanx_rendezvous::interfaces;
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use pyo3::exceptions::{PyConnectionError, PyRuntimeWarning};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) use call::Call;
use engine::Engine;
use job_ranks::JobRanks;
use own_process::OwnProcess;
use postbox::{Postbox, Receive};
pub(crate) use work::Work;
use work::{CallbackThread, Completion};
use work_queue::WorkQueue;

use crate::errors::group::{checked, detached};
use crate::memory::Memory;

/// c10d's store, as Python holds it.
struct PythonStore {
    get: Py<PyAny>,
    set: Py<PyAny>,
}

impl Store for PythonStore {
    fn set(&mut self, key: &str, value: &[u8], _deadline: Deadline) -> Result<()> {
        Python::attach(|py| {
            self.set.call1(py, (key, PyBytes::new(py, value))).map(drop).map_err(|error| {
                let kind = kind_of(py, &error, ErrorKind::Unreachable);
                Error::new(kind, format!("the store didn't take {key}: {error}"))
            })
        })
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let left = deadline.left().unwrap_or(Duration::from_secs(1 << 30));
        Python::attach(|py| {
            let value = self.get.call1(py, (key, left.as_secs_f64())).and_then(|value| value.extract(py));
            value.map_err(|error| {
                let kind = kind_of(py, &error, ErrorKind::Timeout);
                Error::new(kind, format!("the store has no {key}: {error}"))
            })
        })
    }
}

/// The kind of an error of the store: whether it went away with the rank or node that serves it, else `otherwise`.
fn kind_of(py: Python<'_>, error: &PyErr, otherwise: ErrorKind) -> ErrorKind {
    let distributed = py.import("torch.distributed").and_then(|torch| torch.getattr("DistNetworkError"));
    let is_network = distributed.is_ok_and(|class| error.is_instance(py, &class));
    if is_network || error.is_instance_of::<PyConnectionError>(py) { ErrorKind::PeerLost } else { otherwise }
}

#[pyclass(module = "phalanx._native", frozen, weakref)]
pub(crate) struct ProcessGroup {
    parts: OwnProcess<Parts>,
    timeout: Mutex<Duration>,
}

/// What a forked child has nothing of.
struct Parts {
    queue: WorkQueue<Engine>,
    messages: Postbox,
    aborter: Aborter,
    callbacks: Arc<CallbackThread>,
}

impl Parts {
    fn work(&self, kept: Py<PyAny>) -> (Work, Arc<Completion>, Arc<CallbackThread>) {
        let completion = Arc::new(Completion::keeping(kept));
        let work = Work { completion: Arc::clone(&completion), callbacks: Arc::clone(&self.callbacks) };
        (work, completion, Arc::clone(&self.callbacks))
    }

    /// Leaves the group when `in_turn` has it. It waits until all is delivered (GROUP-41), and can be interrupted
    /// (BINDING-9).
    fn leaving(
        &self,
        py: Python<'_>,
        timeout: Duration,
        in_turn: impl FnOnce(&mut (dyn FnMut(&mut Engine) -> Result<()> + Send)) -> Result<()> + Send,
    ) -> PyResult<()> {
        let mut leave = |engine: &mut Engine| {
            self.messages.close();
            engine.leave(timeout)
        };
        signals::watched(|| detached(py, || in_turn(&mut leave)))
    }

    /// BINDING-14
    fn end_callbacks(&self, py: Python<'_>) -> PyResult<()> {
        if detached(py, || Ok(self.callbacks.end()))? {
            return Ok(());
        }
        let text = c"a callback of a collective still runs, though its process group has been left";
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), text, 1)
    }
}

impl ProcessGroup {
    fn own(&self, py: Python<'_>) -> PyResult<&Parts> {
        checked(py, self.parts.get())
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self, timeout: Option<f64>) -> Deadline {
        let own = || self.timeout();
        Deadline::after(timeout.map_or_else(own, |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)))
    }
}

#[pymethods]
impl ProcessGroup {
    #[new]
    #[pyo3(signature = (*, rank, ranks, name, get, set, timeout, interface, towards, cut_timeout, activity))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        rank: usize,
        ranks: Vec<usize>,
        name: &str,
        get: Py<PyAny>,
        set: Py<PyAny>,
        timeout: f64,
        interface: Option<&str>,
        towards: Option<&str>,
        cut_timeout: Option<f64>,
        activity: Option<PathBuf>,
    ) -> PyResult<ProcessGroup> {
        let mut store = PythonStore { get, set };
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        detached(py, || {
            let names = JobRanks::new(&ranks);
            let mut options = GroupOptions::new(rank, ranks.len(), name);
            options.timeout = timeout;
            options.key = job_key()?;
            options.encryption = job_encryption()?;
            options.address = own_address(interface, towards);
            options.cut_timeout = cut_timeout.and_then(|limit| Duration::try_from_secs_f64(limit).ok());
            options.activity = activity;
            let mut group = Group::join(options, &mut store).map_err(|error| names.with_job_ranks(error))?;
            group.set_interrupt_check(signals::check);
            let parts = OwnProcess::new(Parts {
                aborter: group.aborter(),
                callbacks: Arc::default(),
                messages: Postbox::new(rank, group.messenger(), names.clone()),
                queue: WorkQueue::new("phalanx-collective", Engine::new(group, names)),
            });
            Ok(ProcessGroup { parts, timeout: Mutex::new(timeout) })
        })
    }

    fn set_timeout(&self, seconds: f64) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) =
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    }

    fn run(&self, py: Python<'_>, calls: Vec<Call>, timeout: Option<f64>, kept: Py<PyAny>) -> PyResult<()> {
        let parts = self.own(py)?;
        let deadline = self.deadline(timeout);
        // SAFETY: the caller holds the tensors and waits here.
        let now = || parts.queue.run_if_idle(|engine| unsafe { engine.perform(&calls, deadline) });
        match signals::watched(|| detached(py, || Ok(now()))?.map(|result| checked(py, result)).transpose())?
        {
            Some(()) => Ok(()),
            None if parts.queue.is_mine() => checked(py, Err(in_itself())),
            // Others are at it: this can be interrupted meanwhile.
            None => self.submit(py, calls, timeout, kept)?.wait(py, None),
        }
    }

    fn submit(
        &self,
        py: Python<'_>,
        calls: Vec<Call>,
        timeout: Option<f64>,
        kept: Py<PyAny>,
    ) -> PyResult<Work> {
        let parts = self.own(py)?;
        let deadline = self.deadline(timeout);
        let (work, completion, callbacks) = parts.work(kept);
        detached(py, || {
            parts.queue.submit(move |engine| {
                // SAFETY: `kept` holds the tensors until the end; torch forbids to touch them before.
                let perform = || unsafe { engine.perform(&calls, deadline) };
                let result = catch_unwind(AssertUnwindSafe(perform)).unwrap_or_else(|_| Err(panicked()));
                completion.end(result.map(|()| None), &callbacks);
            })
        })?;
        Ok(work)
    }

    fn send(&self, py: Python<'_>, memory: Memory, to: usize, tag: u64) -> PyResult<()> {
        let parts = self.own(py)?;
        // SAFETY: the caller holds the tensor and waits here.
        detached(py, || unsafe { parts.messages.send(memory, to, tag) })
    }

    fn receive(
        &self,
        py: Python<'_>,
        memory: Memory,
        source: Option<usize>,
        tag: u64,
        timeout: Option<f64>,
        kept: Py<PyAny>,
    ) -> PyResult<Work> {
        let parts = self.own(py)?;
        let deadline = self.deadline(timeout);
        let timeout = deadline.left().unwrap_or(Duration::MAX);
        let (work, completion, callbacks) = parts.work(kept);
        let receive = Receive { memory, from: source, tag, deadline, timeout, completion, callbacks };
        detached(py, || parts.messages.receive(receive))?;
        Ok(work)
    }

    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        let parts = self.own(py)?;
        detached(py, || {
            parts.aborter.abort(why);
            Ok(())
        })
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(parts) = self.parts.get() else { return Ok(()) };
        let left =
            parts.leaving(py, self.timeout(), |leave| parts.queue.run_if_idle(leave).unwrap_or(Ok(())));
        parts.end_callbacks(py).and(left)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok(parts) = self.parts.get() else { return Ok(()) };
        let left = parts.leaving(py, self.timeout(), |leave| {
            parts.queue.run(leave).unwrap_or_else(|| {
                parts.aborter.abort("it closed the process group while a call of its own was waiting");
                Ok(())
            })
        });
        parts.end_callbacks(py).and(left)
    }
}

/// Who lets a group go without having closed it leaves it, too. What it sent may wait for long to be taken, and others
/// need the interpreter lock meanwhile.
impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // BINDING-5
        let Ok(parts) = self.parts.get() else { return };
        let timeout = self.timeout();
        let leave = || {
            parts.messages.close();
            parts.queue.run_if_idle(|engine| engine.let_go(timeout));
        };
        // None where the interpreter is about to end.
        Python::try_attach(|py| py.detach(leave));
    }
}

/// BINDING-17
fn in_itself() -> Error {
    let text = "this thread is already in a call of the same process group; a signal handler perhaps made another one";
    Error::new(ErrorKind::State, text)
}

fn panicked() -> Error {
    Error::new(ErrorKind::Closed, "Phalanx itself failed: a panic in a collective")
}

/// The address of the named interface, else the one that leads to the job's master, else the loopback's.
fn own_address(interface: Option<&str>, towards: Option<&str>) -> IpAddr {
    let of_interface = || {
        let name = interface?;
        interfaces::all_addresses().into_iter().find(|address| interfaces::interface_of(*address) == name)
    };
    let towards = || {
        let found = interfaces::resolve(towards?, 1).ok()?;
        found.into_iter().find_map(interfaces::local_address_towards)
    };
    of_interface().or_else(towards).unwrap_or(IpAddr::from([127, 0, 0, 1]))
}

/// What a group is doing, as the stub says.
type Seen = (usize, usize, u64, String, u64, bool, f64, f64);

#[pyfunction]
pub(crate) fn read_activity(py: Python<'_>, path: PathBuf) -> PyResult<Seen> {
    detached(py, || {
        let seen = phalanx_collective::read_activity(&path)?;
        let (age, busy) = (seen.age.as_secs_f64(), seen.busy.as_secs_f64());
        Ok((seen.rank, seen.world_size, seen.sequence, seen.call, seen.bytes, seen.is_running, age, busy))
    })
}
