//! One rank's end of a process group of torch: collectives on the memory of tensors, in the order of their calls.
//!
//! Each runs on the thread that asks for it, or, if that doesn't want to wait, on a thread of the group's; both
//! without the interpreter lock.
//!
//! - COL-1: a forked child has nothing of its parent's group: no connection, no memory, and no way to speak for the rank.

mod call;
mod job_ranks;
mod lane;
mod member;
mod signals;
mod ticket;

use std::net::IpAddr;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_collective::{Aborter, Exchange, Group, GroupOptions};
use phalanx_rendezvous::interfaces;
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) use call::Call;
use call::{Memory, Place};
use job_ranks::JobRanks;
use lane::Lane;
use member::{Member, Receive};
pub(crate) use ticket::Ticket;
use ticket::{Callbacks, Progress};

use crate::errors::{checked, detached};

/// c10d's store, as Python holds it.
struct Store {
    get: Py<PyAny>,
    set: Py<PyAny>,
}

impl Exchange for Store {
    fn set(&mut self, key: &str, value: &[u8], _deadline: Deadline) -> Result<()> {
        Python::attach(|py| self.set.call1(py, (key, PyBytes::new(py, value))).map(drop)).map_err(|error| {
            Error::new(ErrorKind::Unreachable, format!("the store didn't take {key}: {error}"))
        })
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let left = deadline.left().unwrap_or(Duration::from_secs(1 << 30));
        Python::attach(|py| self.get.call1(py, (key, left.as_secs_f64()))?.extract(py))
            .map_err(|error| Error::new(ErrorKind::Timeout, format!("the store has no {key}: {error}")))
    }
}

#[pyclass(module = "phalanx._native", frozen, weakref)]
pub(crate) struct Collective {
    lane: Lane<Member>,
    aborter: Aborter,
    callbacks: Arc<Callbacks>,
    timeout: Mutex<Duration>,
    process: u32,
    sockets: Vec<RawFd>,
}

impl Collective {
    /// COL-1: in a forked child, locks may be held by threads that it doesn't have.
    fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    fn own(&self) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let text = format!(
            "this process group belongs to process {}, from which this one was forked: only that one can use it",
            self.process
        );
        Err(Error::new(ErrorKind::Closed, text))
    }

    fn ticket(&self, kept: Py<PyAny>) -> (Ticket, Arc<Progress>, Arc<Callbacks>) {
        let progress = Arc::new(Progress::keeping(kept));
        let ticket = Ticket { progress: Arc::clone(&progress), callbacks: Arc::clone(&self.callbacks) };
        (ticket, progress, Arc::clone(&self.callbacks))
    }

    fn deadline(&self, timeout: Option<f64>) -> Deadline {
        let own = || *self.timeout.lock().unwrap_or_else(PoisonError::into_inner);
        Deadline::after(timeout.map_or_else(own, |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)))
    }
}

#[pymethods]
impl Collective {
    #[new]
    #[pyo3(signature = (*, rank, ranks, name, get, set, timeout, interface, towards, activity))]
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
        activity: Option<PathBuf>,
    ) -> PyResult<Collective> {
        let mut store = Store { get, set };
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        detached(py, || {
            let names = JobRanks::new(&ranks);
            let mut options = GroupOptions::new(rank, ranks.len(), name);
            options.timeout = timeout;
            options.address = own_address(interface, towards);
            options.activity = activity;
            let mut group =
                Group::join(options, &mut store).map_err(|error| names.in_words_of_the_job(error))?;
            group.ask_while_waiting(signals::look);
            Ok(Collective {
                aborter: group.aborter(),
                callbacks: Arc::default(),
                timeout: Mutex::new(timeout),
                process: std::process::id(),
                sockets: group.sockets().to_vec(),
                lane: Lane::new(Member::new(group, names)),
            })
        })
    }

    fn set_timeout(&self, seconds: f64) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) =
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    }

    fn run(&self, py: Python<'_>, calls: Vec<Call>, timeout: Option<f64>, kept: Py<PyAny>) -> PyResult<()> {
        checked(py, self.own())?;
        let deadline = self.deadline(timeout);
        // SAFETY: the caller holds the tensors and waits here.
        let now = || self.lane.run_if_idle(|member| unsafe { member.perform(&calls, deadline) });
        match signals::watched(|| detached(py, || Ok(now()))?.map(|result| checked(py, result)).transpose())?
        {
            Some(()) => Ok(()),
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
    ) -> PyResult<Ticket> {
        checked(py, self.own())?;
        let deadline = self.deadline(timeout);
        let (ticket, progress, callbacks) = self.ticket(kept);
        detached(py, || {
            self.lane.leave(move |member| {
                // SAFETY: `kept` holds the tensors until the end; torch forbids to touch them before.
                let perform = || unsafe { member.perform(&calls, deadline) };
                let result = catch_unwind(AssertUnwindSafe(perform)).unwrap_or_else(|_| Err(panicked()));
                progress.end(result.map(|()| None), &callbacks);
            })
        })?;
        Ok(ticket)
    }

    fn send(
        &self,
        py: Python<'_>,
        memory: Place,
        to: usize,
        tag: u64,
        kept: Py<PyAny>,
    ) -> PyResult<Option<Ticket>> {
        checked(py, self.own())?;
        let memory = Memory::from(memory);
        // SAFETY: the caller holds the tensor and waits here.
        let now = || self.lane.run_if_idle(|member| unsafe { member.send(memory, to, tag) });
        if let Some(sent) = py.detach(now) {
            return checked(py, sent).map(|()| None);
        }
        let (ticket, progress, callbacks) = self.ticket(kept);
        detached(py, || {
            self.lane.leave(move |member| {
                // SAFETY: `kept` holds the tensor until the end; torch forbids to touch it before.
                let result = unsafe { member.send(memory, to, tag) };
                progress.end(result.map(|()| None), &callbacks);
            })
        })?;
        Ok(Some(ticket))
    }

    fn receive(
        &self,
        py: Python<'_>,
        memory: Place,
        source: Option<usize>,
        tag: u64,
        timeout: Option<f64>,
        kept: Py<PyAny>,
    ) -> PyResult<Ticket> {
        checked(py, self.own())?;
        let deadline = self.deadline(timeout);
        let timeout = deadline.left().unwrap_or(Duration::MAX);
        let (ticket, progress, callbacks) = self.ticket(kept);
        let receive =
            Receive { memory: memory.into(), from: source, tag, deadline, timeout, progress, callbacks };
        detached(py, || {
            let mut receive = Some(receive);
            let now = self.lane.run_if_idle(|member| receive.take().map(|receive| member.receive(receive)));
            match (now, receive) {
                (None, Some(receive)) => self.lane.leave(move |member| member.receive(receive)),
                _ => Ok(()),
            }
        })?;
        Ok(ticket)
    }

    fn abort(&self, py: Python<'_>, why: &str) -> PyResult<()> {
        checked(py, self.own())?;
        detached(py, || {
            self.aborter.abort(why);
            Ok(())
        })
    }

    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            if self.is_own() {
                self.lane.run_if_idle(Member::leave);
            }
            Ok(())
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            if self.is_own() {
                self.lane.run(Member::leave);
            }
            Ok(())
        })
    }

    fn disown(slf: Py<Self>) -> Vec<RawFd> {
        let sockets = slf.get().sockets.clone();
        // COL-1: dropped, it would take leave of the others.
        std::mem::forget(slf);
        sockets
    }
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

#[pyfunction]
pub(crate) fn read_activity(
    py: Python<'_>,
    path: PathBuf,
) -> PyResult<(usize, usize, u64, String, u64, bool, f64)> {
    detached(py, || {
        let seen = phalanx_collective::read_activity(&path)?;
        let age = seen.age.as_secs_f64();
        Ok((seen.rank, seen.world_size, seen.sequence, seen.call, seen.bytes, seen.is_running, age))
    })
}
