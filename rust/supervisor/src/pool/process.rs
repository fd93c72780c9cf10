//! One pool: a Python process below a cold guard of its own, which is asked for guards.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, recvmsg, send, sendmsg, shutdown,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::fingerprint::Fingerprint;
use super::meeting::{Owner, call, join};
use super::message::{Answer, Beginning, Request};
use crate::guard::{Guard, GuardEvent, GuardOptions, Launch};

/// How long a pool and what it has forked may take to end after its host has. The guards below it keep their jobs'
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

/// Which pool to start.
#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
    /// The pool's command line.
    pub program: Vec<String>,
    /// The modules to import; those that are not there are skipped.
    pub imports: Vec<String>,
    /// What its ranks have beyond the host's variables, those that are different for each left out.
    pub env: Vec<(String, String)>,
    /// It ends when it has had no job for so long.
    pub idle_timeout: Duration,
    /// Whether all children of this process's parent share it, and it ends with that: a Python worker's is to be there
    /// for the worker that Spark starts next.
    pub shared: bool,
}

/// Why a pool forks no guard.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It has ended.
    Gone(String),
    /// It can't be forked from any more.
    Unfit(String),
    /// Something else; the pool is as it was.
    Other(String),
}

/// A guard that a pool has forked.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
}

/// A pool that can be asked. Dropped, it ends with all that is below it, or, if it is shared, when nobody uses it.
#[derive(Debug)]
pub(crate) struct Pool {
    socket: Mutex<OwnedFd>,
    /// Its guard, if it is this process's own: the pool ends when this is dropped.
    _guard: Option<Guard>,
    host: u32,
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
        let meeting = owner.meeting(fingerprint).map_err(|error| error.to_string())?;
        let deadline = Deadline::after(START_TIMEOUT);
        let mut why = String::from("nobody starts it");
        while !deadline.passed() {
            if let Some(socket) = join(&meeting).map_err(|error| error.to_string())? {
                match ready(&socket, None, deadline) {
                    Ok((pid, missing)) => return Ok((Pool::at(socket, None, pid, options), missing)),
                    Err(NotReady::Said(why)) => return Err(why),
                    // It was about to end, or whoever started it learns why it can't be.
                    Err(NotReady::Gone) => why = String::from("those that others start end at once"),
                }
            } else if let Some(listener) = call(&meeting).map_err(|error| error.to_string())? {
                return Pool::started(options, owner, &meeting, listener, deadline);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Err(format!("it was not there within {} s: {why}", START_TIMEOUT.as_secs()))
    }

    /// Starts one that is met on `listener`.
    fn started(
        options: &PoolOptions,
        owner: Owner,
        meeting: &SocketAddrUnix,
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
            idle_ms: millis(options.idle_timeout),
            env: options.env.iter().map(|(name, value)| (&**name, &**value)).collect(),
        };
        let mut env = options.env.clone();
        env.push(("PHALANX_POOL".into(), serde_json::to_string(&beginning).unwrap_or_default()));
        // Numpy's OpenBLAS would start threads as soon as it is loaded. A rank makes up for it.
        env.push(("OPENBLAS_NUM_THREADS".into(), "1".into()));
        let launch = Launch { program: program.clone(), args: args.to_vec(), env, ..Launch::default() };
        let joined = join(meeting);
        guard.launch_at(&launch, output_in, listener).map_err(say)?;
        let socket = joined.map_err(|error| error.to_string())?.ok_or("its socket can't be reached")?;
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
        let (host, idle_timeout) = (std::process::id(), options.idle_timeout);
        Pool { socket: Mutex::new(socket), _guard: guard, host, pid, idle_timeout }
    }

    /// Has a guard forked that serves the host at the other end of `control`.
    pub(crate) fn fork(&self, control: &UnixStream, grace: Duration) -> Result<Forked, Refusal> {
        if std::process::id() != self.host {
            return Err(Refusal::Other(
                "its pool belongs to the process that this one was forked from".into(),
            ));
        }
        let host = pidfd_open(getpid(), PidfdFlags::empty())
            .map_err(|error| Refusal::Other(format!("this kernel has no pidfds: {error}")))?;
        let request = Request::Guard { grace_ms: millis(grace), idle_ms: millis(self.idle_timeout) };
        let text =
            serde_json::to_vec(&request).map_err(|error| Refusal::Other(format!("no request: {error}")))?;
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send_with(&socket, &text, [control.as_fd(), host.as_fd()])
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
            Ok((Answer::Forked { pid }, Some(pidfd))) => Ok(Forked { pid, pidfd }),
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
        if std::process::id() == self.host {
            // A shared one without other hosts needs not wait until it is idle.
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

fn send_with(
    socket: &OwnedFd,
    text: &[u8],
    with: [std::os::fd::BorrowedFd<'_>; 2],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&with));
    loop {
        match sendmsg(socket, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn receive(socket: &OwnedFd) -> Result<(Answer, Option<OwnedFd>), String> {
    let mut bytes = vec![0; MAX_ANSWER];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("its socket broke: {error}")),
            Ok(received) if received.bytes == 0 => return Err("it has ended".into()),
            Ok(received) => break received.bytes,
        }
    };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    serde_json::from_slice(&bytes[..received])
        .map(|answer| (answer, fd))
        .map_err(|error| format!("it said nothing known: {error}"))
}
