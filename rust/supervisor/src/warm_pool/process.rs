//! One pool: a Python process below a cold guard of its own. Clients ask it for guards.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_io::{pause, receive_with_descriptors, send_with_descriptors};
use phalanx_types::contract::ENV_POOL;
use phalanx_types::{Deadline, Error};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketAddrUnix, send, shutdown};
use rustix::pipe::{PipeFlags, pipe_with};

use super::fingerprint::{ARROW_JEMALLOC, Fingerprint};
use super::message::{Answer, Beginning, Request};
use super::options::PoolOptions;
use super::sharing::{Owner, connect_to, listen_at};
use crate::guard::{Guard, GuardEvent, GuardOptions, Launch};

/// How long a pool and what it has forked may take to end after its client has. The guards below it keep their jobs'
/// graces themselves; one that is longer than this is cut, else a pool that hangs in an import could stay for ever.
const GRACE: Duration = Duration::from_secs(3600);
/// How long a pool may take for its imports.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take to fork.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is kept of a pool's output until it is ready: its end says why an import broke it.
const KEPT_OUTPUT: usize = 4 << 10;
const MAX_ANSWER: usize = 64 << 10;
/// How often a process that waits for another to start the pool looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Why a pool forks no guard.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It has ended.
    Gone(String),
    /// It can't be forked from any more.
    Unfit(String),
    /// Something else; the pool is as it was.
    Other(String),
}

/// A pool that can be asked. Dropped, it ends with all that is below it, or, if it is shared, when nobody uses it.
#[derive(Debug)]
pub(super) struct Pool {
    socket: Mutex<OwnedFd>,
    /// Its guard, if it is this process's own: the pool ends when this is dropped.
    _guard: Option<Guard>,
    /// The process that it belongs to.
    client: u32,
    pid: u32,
    idle_timeout: Duration,
}

impl Pool {
    /// Starts a pool, or meets the one that there is, and waits until it is ready; also what it could not import.
    pub(super) fn start(
        options: &PoolOptions,
        fingerprint: &Fingerprint,
    ) -> Result<(Pool, Vec<String>), String> {
        let owner = Owner::of(options.shared);
        let address = owner.address("pool", fingerprint).map_err(|error| error.to_string())?;
        let deadline = Deadline::after(START_TIMEOUT);
        let mut why = String::from("no process starts it");
        while !deadline.passed() {
            if let Some(socket) = connect_to(&address).map_err(|error| error.to_string())? {
                match ready(&socket, None, deadline) {
                    Ok((pid, missing)) => return Ok((Pool::at(socket, None, pid, options), missing)),
                    Err(NotReady::Said(why)) => return Err(why),
                    // It was about to end, or whoever started it learns why it can't be.
                    Err(NotReady::Gone) => {
                        why = String::from("every pool that another process starts ends at once")
                    }
                }
            } else if let Some(listener) = listen_at(&address).map_err(|error| error.to_string())? {
                return Pool::started(options, owner, &address, listener, deadline);
            }
            pause(LOOK_AGAIN, deadline);
        }
        Err(format!("it did not start within {} s: {why}", START_TIMEOUT.as_secs()))
    }

    /// Starts one that is met on `listener`.
    fn started(
        options: &PoolOptions,
        owner: Owner,
        address: &SocketAddrUnix,
        listener: OwnedFd,
        deadline: Deadline,
    ) -> Result<(Pool, Vec<String>), String> {
        let (program, args) = options.program.split_first().ok_or("a pool needs a program")?;
        let say = |error: Error| error.to_string();
        let of_guard = GuardOptions { binary: options.guard.clone(), grace: GRACE };
        let guard = match owner {
            Owner::This => Guard::spawn(&of_guard),
            Owner::Parent(parent) => Guard::spawn_below(&of_guard, Some(parent)),
        }
        .map_err(say)?;
        let (output, output_in) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| error.to_string())?;
        let beginning = Beginning {
            imports: &options.imports,
            later: &options.later,
            idle_ms: millis(options.idle_timeout),
            env: options.env.iter().map(|(name, value)| (&**name, &**value)).collect(),
        };
        let mut env = options.env.clone();
        env.push((ENV_POOL.into(), serde_json::to_string(&beginning).unwrap_or_default()));
        // These libraries would start threads as soon as they are loaded: numpy's OpenBLAS, for which a rank makes up,
        // and the jemalloc of Arrow, which frees memory later without its thread.
        env.push(("OPENBLAS_NUM_THREADS".into(), "1".into()));
        if std::env::var_os(ARROW_JEMALLOC).is_none() && env.iter().all(|(name, _)| name != ARROW_JEMALLOC) {
            env.push((ARROW_JEMALLOC.into(), "background_thread:false".into()));
        }
        let launch = Launch { program: program.clone(), args: args.to_vec(), env, ..Launch::default() };
        let connected = connect_to(address);
        guard.launch_at(&launch, output_in, listener).map_err(say)?;
        let socket = connected.map_err(|error| error.to_string())?.ok_or("its socket can't be reached")?;
        let mut said = Vec::new();
        match ready(&socket, Some((&output, &mut said)), deadline) {
            Ok((pid, missing)) => {
                let guard = match owner {
                    Owner::This => Some(guard),
                    Owner::Parent(_) => {
                        guard.leave_to_owner();
                        None
                    }
                };
                Ok((Pool::at(socket, guard, pid, options), missing))
            }
            Err(NotReady::Said(why)) => Err(why),
            Err(NotReady::Gone) => Err(why_it_ended(&guard, &said)),
        }
    }

    fn at(socket: OwnedFd, guard: Option<Guard>, pid: u32, options: &PoolOptions) -> Pool {
        let (client, idle_timeout) = (std::process::id(), options.idle_timeout);
        Pool { socket: Mutex::new(socket), _guard: guard, client, pid, idle_timeout }
    }

    /// Has a guard forked whose client is this process: a copy of the pool's process, as its ranks will be. One with an
    /// owner may be left to that.
    ///
    /// # Errors
    /// Why there is none, and whether the pool is still of use.
    pub(super) fn fork_guard(
        self: &Arc<Pool>,
        grace: Duration,
        owner: Option<Owner>,
    ) -> Result<Guard, Refusal> {
        let other = |error: &dyn Display| Refusal::Other(error.to_string());
        let (ours, theirs) = UnixStream::pair().map_err(|error| other(&error))?;
        let (pid, pidfd) = self.ask_for_guard(&theirs, grace, owner)?;
        Guard::forked(ours, pid, pidfd, Arc::clone(self) as _).map_err(|error| other(&error))
    }

    /// Has the pool fork a guard with `control` as its socket: its process id and pidfd.
    fn ask_for_guard(
        &self,
        control: &UnixStream,
        grace: Duration,
        owner: Option<Owner>,
    ) -> Result<(u32, OwnedFd), Refusal> {
        if std::process::id() != self.client {
            return Err(Refusal::Other(
                "its pool belongs to the process that this one was forked from".into(),
            ));
        }
        let watched = owner
            .unwrap_or(Owner::This)
            .pidfd()
            .map_err(|error| Refusal::Other(format!("no pidfd of its client: {error}")))?;
        let idle_ms = millis(self.idle_timeout);
        let request = Request::Guard { grace_ms: millis(grace), idle_ms, owned: owner.is_some() };
        let text =
            serde_json::to_vec(&request).map_err(|error| Refusal::Other(format!("no request: {error}")))?;
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send_with_descriptors(&*socket, &text, &[control.as_fd(), watched.as_fd()], SendFlags::DONTWAIT)
            .map_err(|error| Refusal::Gone(format!("it takes no request: {error}")))?;
        let deadline = Deadline::after(ANSWER_TIMEOUT);
        loop {
            let mut fds = [PollFd::new(&*socket, PollFlags::IN)];
            wait(&mut fds, deadline);
            if !fds[0].revents().is_empty() {
                break;
            }
            if deadline.passed() {
                return Err(Refusal::Unfit(format!("it did not fork within {} s", ANSWER_TIMEOUT.as_secs())));
            }
        }
        match receive(&socket) {
            Ok((Answer::Forked { pid }, Some(pidfd))) => Ok((pid, pidfd)),
            Ok((Answer::Unfit(why), _)) => Err(Refusal::Unfit(why)),
            Ok((other, _)) => Err(Refusal::Unfit(format!("it answered {other:?}"))),
            Err(why) => Err(Refusal::Gone(why)),
        }
    }

    /// Another end of its connection, to wait for its end; dropping the pool is that, too.
    pub(super) fn line(&self) -> io::Result<OwnedFd> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).try_clone()
    }

    /// How much memory it has resident, shared with what it forked or not.
    pub(super) fn resident_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        pages * rustix::param::page_size() as u64
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let socket = self.socket.get_mut().unwrap_or_else(PoisonError::into_inner);
        if std::process::id() == self.client {
            // A shared one without other clients needs not wait until it is idle.
            let leave = serde_json::to_vec(&Request::Leave).unwrap_or_default();
            let _ = send(&*socket, &leave, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            let _ = shutdown(&*socket, Shutdown::Both);
        }
    }
}

/// Why a pool can't be asked.
enum NotReady {
    Said(String),
    Gone,
}

/// Waits for a pool's word that it is ready, and meanwhile keeps the end of what it writes.
fn ready(
    socket: &OwnedFd,
    mut output: Option<(&OwnedFd, &mut Vec<u8>)>,
    deadline: Deadline,
) -> Result<(u32, Vec<String>), NotReady> {
    loop {
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(output.as_ref().map(|(pipe, _)| PollFd::new(*pipe, PollFlags::IN)));
        wait(&mut fds, deadline);
        let readable: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if let Some((pipe, said)) = output.as_mut().filter(|_| readable[1]) {
            let mut bytes = [0; 4 << 10];
            let count = read(pipe, &mut bytes).unwrap_or(0);
            said.extend_from_slice(&bytes[..count]);
            said.drain(..said.len().saturating_sub(KEPT_OUTPUT));
            if count == 0 {
                output = None;
            }
        } else if readable[0] {
            return match receive(socket) {
                Ok((Answer::Ready { pid, missing }, _)) => Ok((pid, missing)),
                Ok((Answer::Unfit(why), _)) => Err(NotReady::Said(why)),
                Ok((other, _)) => Err(NotReady::Said(format!("it said {other:?} before it was ready"))),
                Err(_) => Err(NotReady::Gone),
            };
        } else if deadline.passed() {
            let why = format!("its imports took longer than {} s", START_TIMEOUT.as_secs());
            return Err(NotReady::Said(why));
        }
    }
}

fn why_it_ended(guard: &Guard, said: &[u8]) -> String {
    let event = std::iter::from_fn(|| guard.events().recv_timeout(Duration::from_secs(2)).ok())
        .find(|event| !matches!(event, GuardEvent::Started { .. }));
    let said = String::from_utf8_lossy(said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
    match event {
        Some(GuardEvent::NotStarted { reason, .. }) => reason,
        Some(GuardEvent::Ended { how, .. }) => format!("it ended while it imported ({how:?}): {last}"),
        _ => format!("it ended while it imported: {last}"),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Until one of them has something, or the deadline; sometimes for less.
fn wait(fds: &mut [PollFd<'_>], deadline: Deadline) {
    let timeout = deadline.left().and_then(|left| Timespec::try_from(left).ok());
    let _ = poll(fds, timeout.as_ref());
}

fn receive(socket: &OwnedFd) -> Result<(Answer, Option<OwnedFd>), String> {
    let mut bytes = vec![0; MAX_ANSWER];
    let mut received = receive_with_descriptors(socket, &mut bytes, RecvFlags::DONTWAIT)
        .map_err(|error| format!("its socket broke: {error}"))?;
    if received.bytes == 0 {
        return Err("it has ended".into());
    }
    serde_json::from_slice(&bytes[..received.bytes])
        .map(|answer| (answer, received.descriptors.pop()))
        .map_err(|error| format!("it sent an unknown message: {error}"))
}
