//! Processes beside the ranks that an owner keeps: whichever of its processes needs one meets it by its name, or starts
//! it (POOL-15).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::options::PoolOptions;
use super::registry::guard_of;
use super::sharing::{Owner, connect_to, listen_at};
use crate::guard::{Guard, GuardEvent, GuardOptions, Launch};
use crate::sys;

/// What the names of such processes are told from those of pools by.
const KIND: &str = "kept";
/// How long its guard may take to start it.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A process to keep.
#[derive(Debug)]
pub struct Kept<'a> {
    /// What it is met by.
    pub name: &'a str,
    /// The pool that it is forked from, where there can be one. `shared` says who its owner is, too.
    pub pool: &'a PoolOptions,
    /// Its command line.
    pub program: &'a [String],
    /// What it has beyond this process's variables.
    pub env: &'a [(String, String)],
    /// How long it has between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// A seqpacket connection to the process of this name; `None` if there is none. `shared` is as in [`PoolOptions`].
///
/// # Errors
/// [`ErrorKind::Io`] if it can't be known, or belongs to another user.
pub fn meet(name: &str, shared: bool) -> Result<Option<OwnedFd>> {
    let address = Owner::of(shared).address(KIND, &name);
    address
        .and_then(|address| connect_to(&address))
        .map_err(|error| Error::io(format!("meet {name}"), &error))
}

/// Starts the process, with the socket on which it is met as descriptor 3, and its output into `output`. Connections
/// wait from here on. Returns false where somebody else has just done it.
///
/// # Errors
/// [`ErrorKind::Io`] if it can't be started; [`ErrorKind::Cancelled`] once `go_on` (asked 20 times a second) says no.
pub fn start_kept(
    kept: &Kept<'_>,
    output: OwnedFd,
    deadline: Deadline,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool> {
    let failed = |error: io::Error| Error::io(format!("start {}", kept.name), &error);
    let owner = Owner::of(kept.pool.shared);
    let address = owner.address(KIND, &kept.name).map_err(failed)?;
    let Some(listener) = listen_at(&address).map_err(failed)? else { return Ok(false) };
    let guard = match guard_of(kept.pool, kept.grace, Some(owner), deadline, go_on) {
        Ok(guard) => guard,
        Err(why) if !go_on() => return Err(Error::new(ErrorKind::Cancelled, why)),
        Err(why) => {
            log::warn!("{} starts without a warm pool: {why}", kept.name);
            let options = GuardOptions { binary: kept.pool.guard.clone(), grace: kept.grace };
            match owner {
                Owner::This => Guard::spawn(&options)?,
                Owner::Parent(parent) => Guard::spawn_below(&options, Some(parent))?,
            }
        }
    };
    let (program, args) = kept
        .program
        .split_first()
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{} has no program", kept.name)))?;
    let launch =
        Launch { program: program.clone(), args: args.to_vec(), env: kept.env.to_vec(), ..Launch::default() };
    guard.launch_at(&launch, output, listener)?;
    match guard.events().recv_timeout(START_TIMEOUT) {
        Ok(GuardEvent::Started { .. }) => {}
        Ok(GuardEvent::NotStarted { reason, .. }) => {
            return Err(Error::new(ErrorKind::Io, format!("{} can't be started: {reason}", kept.name)));
        }
        other => {
            let why = format!("the guard of {} did not start it: {other:?}", kept.name);
            return Err(Error::new(ErrorKind::Io, why));
        }
    }
    match owner {
        Owner::Parent(_) => guard.leave_to_owner(),
        Owner::This => keep(guard)?,
    }
    Ok(true)
}

/// The guards of what this process itself keeps.
static KEPT: Mutex<Vec<Arc<Guard>>> = Mutex::new(Vec::new());

fn all_kept() -> MutexGuard<'static, Vec<Arc<Guard>>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a guard as long as what it has started: a thread waits for that.
///
/// # Errors
/// [`ErrorKind::Io`] if there is no thread; the process is killed then.
fn keep(guard: Guard) -> Result<()> {
    let guard = Arc::new(guard);
    let its = Arc::clone(&guard);
    all_kept().push(Arc::clone(&guard));
    let waiting = std::thread::Builder::new().name("phalanx-kept".into()).spawn(move || {
        while let Ok(GuardEvent::Started { .. }) = its.events().recv() {}
        forget(&its);
    });
    waiting.map(|_| ()).map_err(|error| {
        forget(&guard);
        Error::io("wait for a process that is kept", &error)
    })
}

fn forget(guard: &Arc<Guard>) {
    all_kept().retain(|other| !Arc::ptr_eq(other, guard));
}

/// Has all processes that this process itself keeps killed. Returns at once.
pub fn end_kept() {
    for guard in all_kept().iter() {
        guard.kill();
    }
}

/// In a process that [`start_kept`] has started: the socket on which it is met. To be called once.
///
/// # Errors
/// [`ErrorKind::Io`] if there is none.
pub fn kept_listener() -> Result<OwnedFd> {
    sys::inherited(sys::NOTES_FD)
        .map_err(|error| Error::io("find the socket that this process is met at", &error))
}
