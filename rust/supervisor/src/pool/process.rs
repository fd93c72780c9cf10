//! One pool: a Python process below a cold guard of its own, which is asked for guards.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;
use phalanx_types::{Deadline, Error};
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::message::{Answer, Beginning, Request};
use crate::guard::{Guard, GuardEvent, GuardOptions, Launch};

/// How long a pool and what it has forked may take to end after its host has: longer than any job's grace, because
/// the guards below it keep that themselves.
const GRACE: Duration = Duration::from_secs(3600);
/// How long a pool may take for its imports.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long it may take to fork.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// What is kept of a pool's output until it is ready: its end says why an import broke it.
const KEPT_OUTPUT: usize = 4 << 10;
const MAX_ANSWER: usize = 64 << 10;

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

/// A pool that can be asked. Ends, with all that is below it, when it is dropped.
#[derive(Debug)]
pub(crate) struct Pool {
    socket: Mutex<OwnedFd>,
    guard: Guard,
    host: u32,
    pid: u32,
    idle_timeout: Duration,
}

impl Pool {
    /// Starts a pool and waits until it is ready; also what it could not import.
    pub(super) fn start(options: &PoolOptions) -> Result<(Pool, Vec<String>), String> {
        let (program, args) = options.program.split_first().ok_or("a pool needs a program")?;
        let say = |error: Error| error.to_string();
        let guard =
            Guard::spawn(&GuardOptions { binary: options.guard.clone(), grace: GRACE }).map_err(say)?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| error.to_string())?;
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
        guard.launch_at(&launch, output_in, theirs).map_err(say)?;
        let mut pool = Pool {
            socket: Mutex::new(socket),
            guard,
            host: std::process::id(),
            pid: 0,
            idle_timeout: options.idle_timeout,
        };
        let (pid, missing) = pool.ready(&output)?;
        pool.pid = pid;
        Ok((pool, missing))
    }

    /// Waits for its word that it is ready.
    fn ready(&self, output: &OwnedFd) -> Result<(u32, Vec<String>), String> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Deadline::after(START_TIMEOUT);
        let mut said = Vec::new();
        let mut open = true;
        loop {
            let mut fds = vec![PollFd::new(&*socket, PollFlags::IN)];
            if open {
                fds.push(PollFd::new(output, PollFlags::IN));
            }
            wait(&mut fds, deadline);
            let (answered, wrote) =
                (!fds[0].revents().is_empty(), fds.get(1).is_some_and(|fd| !fd.revents().is_empty()));
            if wrote {
                let mut bytes = [0; 4 << 10];
                let count = read(output, &mut bytes).unwrap_or(0);
                open = count > 0;
                said.extend_from_slice(&bytes[..count]);
                said.drain(..said.len().saturating_sub(KEPT_OUTPUT));
            } else if answered {
                return match receive(&socket) {
                    Ok((Answer::Ready { pid, missing }, _)) => Ok((pid, missing)),
                    Ok((Answer::Unfit(why), _)) => Err(why),
                    Ok((other, _)) => Err(format!("it said {other:?} before it was ready")),
                    Err(_) => Err(self.why_it_ended(&said)),
                };
            } else if deadline.passed() {
                return Err(format!("its imports took longer than {} s", START_TIMEOUT.as_secs()));
            }
        }
    }

    fn why_it_ended(&self, said: &[u8]) -> String {
        let event = std::iter::from_fn(|| self.guard.events().recv_timeout(Duration::from_secs(2)).ok())
            .find(|event| !matches!(event, GuardEvent::Started { .. }));
        let said = String::from_utf8_lossy(said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        match event {
            Some(GuardEvent::NotStarted { reason, .. }) => reason,
            Some(GuardEvent::Ended { how, .. }) => format!("it ended while it imported ({how:?}): {last}"),
            _ => format!("it ended while it imported: {last}"),
        }
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
        let request = Request { grace_ms: millis(grace), idle_ms: millis(self.idle_timeout) };
        let text =
            serde_json::to_vec(&request).map_err(|error| Refusal::Other(format!("no request: {error}")))?;
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        send(&socket, &text, [control.as_fd(), host.as_fd()])
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

    /// What becomes of it: ends with its end.
    pub(super) fn events(&self) -> Receiver<GuardEvent> {
        self.guard.events().clone()
    }

    /// How much memory it has resident, shared with what it forked or not.
    pub(super) fn resident_bytes(&self) -> u64 {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", self.pid)).unwrap_or_default();
        let pages: u64 = statm.split_ascii_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        pages * rustix::param::page_size() as u64
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

fn send(socket: &OwnedFd, text: &[u8], with: [std::os::fd::BorrowedFd<'_>; 2]) -> rustix::io::Result<usize> {
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
