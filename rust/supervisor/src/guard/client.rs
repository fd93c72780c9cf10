//! The client's end of a guard.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded, unbounded};
use phalanx_io::{pause, send_with_descriptors};
use phalanx_types::{Deadline, Error, ErrorKind, Generation, Result};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

use super::event::GuardEvent;
use super::launch::Launch;
use super::process::GuardProcess;
use super::reader::{EXIT_WAIT, GuardReader};
use super::state::PATIENCE;
use super::wire::{BUILD, Order, frame};
use crate::rank_socket::RankSocket;

/// How long an order may wait for a guard that doesn't read: one that is stopped, or hangs in an exec.
const ORDER_WAIT: Duration = Duration::from_secs(10);

/// Which guard to start, and how it ends ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardOptions {
    /// The `phalanx-guard` program of this build.
    pub binary: PathBuf,
    /// How long ranks have between SIGTERM and SIGKILL.
    pub grace: Duration,
}

/// The node's ends of a rank's pipe and socket, for [`crate::pump`] and [`crate::notes`].
#[derive(Debug)]
pub struct RankPipes {
    /// What the rank writes to standard output and standard error.
    pub output: OwnedFd,
    /// What it writes to descriptor 3, `PHALANX_NOTES_FD`, and the way for news to it.
    pub notes: RankSocket,
}

/// The other ends, which the rank gets.
#[derive(Debug)]
pub struct RankPipeEnds {
    pub(crate) output: OwnedFd,
    pub(crate) notes: OwnedFd,
}

impl RankPipes {
    /// The pipes of a rank of this generation, for [`Guard::launch_with`].
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there are no descriptors left.
    pub fn open(rank: u32, generation: Generation) -> Result<(RankPipes, RankPipeEnds)> {
        let failed = |error: std::io::Error| Error::io(format!("make rank {rank}'s pipes"), &error);
        let (output, output_in) = pipe_with(PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
        let (notes, notes_in) = RankSocket::pair(generation).map_err(failed)?;
        Ok((RankPipes { output, notes }, RankPipeEnds { output: output_in, notes: notes_in }))
    }
}

/// A guard process. Events of one guard come in the order in which it saw them, and end with `Empty` or `Gone`; then
/// the channel is disconnected.
///
/// Dropping it kills everything below it at once and waits until that is done: milliseconds, or some 15 s for
/// processes that the kernel can't end. A copy of it in a forked child of the client does nothing, dropped or called.
#[derive(Debug)]
pub struct Guard {
    /// The process that it belongs to.
    client: u32,
    pid: u32,
    orders: Mutex<UnixStream>,
    events: Receiver<GuardEvent>,
    reader: Option<JoinHandle<()>>,
    /// Disconnected when the reader is done.
    done: Receiver<()>,
    /// What it was forked from, which must not go before it: a warm pool, whose own guard would end this one.
    forked_from: Option<Arc<dyn Any + Send + Sync>>,
}

impl Guard {
    /// Starts a guard. Returns before it is ready; orders wait for it.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the program can't be started.
    pub fn spawn(options: &GuardOptions) -> Result<Guard> {
        Guard::spawn_below(options, None)
    }

    /// The same, for a guard that ends with `owner`, this process's parent, if it is to outlive this process: see
    /// [`Guard::leave_to_owner`].
    pub(crate) fn spawn_below(options: &GuardOptions, owner: Option<Pid>) -> Result<Guard> {
        let starting = |error| Error::io(format!("start the guard {}", options.binary.display()), &error);
        let (ours, theirs) = UnixStream::pair().map_err(starting)?;
        let client = std::process::id();
        let child = Command::new(&options.binary)
            .args([BUILD.to_string(), client.to_string(), options.grace.as_millis().to_string()])
            .arg(owner.map_or(0, Pid::as_raw_pid).to_string())
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(starting)?;
        Guard::at(ours, child.id(), GuardProcess::child(child), None)
    }

    /// A guard that another process has forked, as a copy of itself, and whose ranks are copies, too. `keeps` is what
    /// must not go before the guard.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there is no thread to listen to it.
    pub(crate) fn forked(
        stream: UnixStream,
        pid: u32,
        pidfd: OwnedFd,
        keeps: Arc<dyn Any + Send + Sync>,
    ) -> Result<Guard> {
        Guard::at(stream, pid, GuardProcess::Forked(pidfd), Some(keeps))
    }

    /// The client's end of a guard that runs already.
    fn at(
        stream: UnixStream,
        pid: u32,
        process: GuardProcess,
        forked_from: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<Guard> {
        let (events_in, events) = unbounded();
        let (done_in, done) = bounded::<()>(0);
        // The thread gets the process through a channel, so that it is still ours if there is no thread.
        let (process_in, process_out) = bounded::<(UnixStream, GuardProcess)>(1);
        let reader = std::thread::Builder::new().name("phalanx-guard-reader".into()).spawn(move || {
            let _done = done_in;
            if let Ok((stream, process)) = process_out.recv() {
                GuardReader::new(stream, process).run(&events_in);
            }
        });
        let set_up = stream.set_write_timeout(Some(ORDER_WAIT)).and_then(|()| stream.try_clone());
        match (reader, set_up) {
            (Ok(reader), Ok(reading)) => {
                let _ = process_in.send((reading, process));
                let client = std::process::id();
                let (orders, reader) = (Mutex::new(stream), Some(reader));
                Ok(Guard { client, pid, orders, events, reader, done, forked_from })
            }
            (Err(error), _) | (_, Err(error)) => {
                let mut process = process;
                process.kill();
                // A child is waited for; killed, it is gone in a moment.
                while process.ended().is_none() {
                    pause(Duration::from_millis(1), Deadline::never());
                }
                Err(Error::io("listen to the guard", &error))
            }
        }
    }

    /// What the guard saw.
    pub fn events(&self) -> &Receiver<GuardEvent> {
        &self.events
    }

    /// The guard's process id, for logs.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Orders the start of a rank that is of no generation; `Started` or `NotStarted` tells what became of it.
    ///
    /// # Errors
    /// As [`RankPipes::open`] and [`Guard::launch_with`].
    pub fn launch(&self, launch: &Launch) -> Result<RankPipes> {
        let (pipes, ends) = RankPipes::open(launch.rank, Generation::new(0))?;
        self.launch_with(launch, ends).map(|()| pipes)
    }

    /// The same, of a rank whose pipes are there. May take 10 s, as every order does.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the guard is no more, [`ErrorKind::Timeout`] if it doesn't take the order.
    pub fn launch_with(&self, launch: &Launch, ends: RankPipeEnds) -> Result<()> {
        let rank = launch.rank;
        self.launch_at(launch, ends.output, ends.notes).map_err(|error| error.context(format!("rank {rank}")))
    }

    /// As [`Guard::launch_with`], with what the process is to have as descriptors 1 and 2, and 3.
    pub(crate) fn launch_at(&self, launch: &Launch, output: OwnedFd, notes: OwnedFd) -> Result<()> {
        let order = match &self.forked_from {
            None => Order::Launch(Box::new(launch.clone())),
            Some(_) => Order::Fork(Box::new(launch.with_inherited()?)),
        };
        self.order(&order, Some([output, notes]))
    }

    /// Whether its ranks are forked, from a warm pool.
    pub fn is_warm(&self) -> bool {
        self.forked_from.is_some()
    }

    /// Sends a rank's process a signal, if it runs; for what the rank has agreed to, such as [`crate::stacks_signal`].
    pub fn signal(&self, rank: u32, number: i32) {
        // A guard that can't be told is gone, and its events say so.
        let _ = self.order(&Order::Signal { rank, number }, None);
    }

    /// Has every process below the guard asked to end, and killed after the grace. Returns at once; `Empty` follows.
    /// Once is enough.
    pub fn stop(&self) {
        // A guard that can't be told is gone, and its events say so.
        let _ = self.order(&Order::Stop, None);
    }

    /// Leaves a guard that has an owner, and what it has started, to that: it ends when it has no child, or with the
    /// owner. Its thread here still waits for the process, as long as this one runs.
    pub(crate) fn leave_to_owner(self) {
        let mut left = ManuallyDrop::new(self);
        left.forked_from = None;
    }

    /// Has every process below the guard killed. Returns at once; `Empty` follows.
    pub fn kill(&self) {
        let _ = self.order(&Order::Kill, None);
    }

    fn order(&self, order: &Order, pipes: Option<[OwnedFd; 2]>) -> Result<()> {
        if std::process::id() != self.client {
            return Err(Error::new(
                ErrorKind::Invalid,
                "this guard belongs to the process that this one was forked from",
            ));
        }
        let bytes = frame(order)?;
        let stream = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = send_all(&stream, &bytes, pipes.as_ref());
        sent.map_err(|error| {
            // Half an order may be out, so there is no going on. The guard takes it as the client's end.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let error = if error == Errno::AGAIN { Errno::TIMEDOUT } else { error };
            Error::io("give the guard an order", &error.into())
        })
    }
}

fn send_all(stream: &UnixStream, bytes: &[u8], pipes: Option<&[OwnedFd; 2]>) -> rustix::io::Result<()> {
    let mut sent = 0;
    if let Some(pipes) = pipes {
        let pipes: [_; 2] = std::array::from_fn(|i| pipes[i].as_fd());
        sent = send_with_descriptors(stream, bytes, &pipes, SendFlags::empty())?;
    }
    while sent < bytes.len() {
        sent += retry_on_intr(|| send(stream, &bytes[sent..], SendFlags::NOSIGNAL))?;
    }
    Ok(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::process::id() != self.client {
            // The thread is the other process's; to join it here would be to wait for ever.
            if let Some(reader) = self.reader.take() {
                std::mem::forget(reader);
            }
            return;
        }
        self.kill();
        let finished = |within| matches!(self.done.recv_timeout(within), Err(e) if e.is_disconnected());
        if !finished(PATIENCE + EXIT_WAIT) {
            // The reader takes the end of the stream for the guard's, and kills it where it isn't.
            let _ = self
                .orders
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .shutdown(std::net::Shutdown::Both);
        }
        if finished(EXIT_WAIT + EXIT_WAIT)
            && let Some(reader) = self.reader.take()
        {
            let _ = reader.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_testkit::guard_binary;

    use super::super::wire::ExitStatus;
    use super::*;

    #[test]
    fn a_copy_in_a_forked_child_orders_nothing() {
        let grace = Duration::from_secs(5);
        let mut guard = Guard::spawn(&GuardOptions { binary: guard_binary(), grace }).unwrap();
        let launch = Launch { program: "sleep".into(), args: vec!["1000".into()], ..Launch::default() };
        let pipes = guard.launch(&launch).unwrap();
        assert!(matches!(guard.events().recv().unwrap(), GuardEvent::Started { .. }));
        let client = std::mem::replace(&mut guard.client, 1);
        guard.kill();
        assert_eq!(guard.launch(&launch).unwrap_err().kind(), ErrorKind::Invalid);
        guard.client = client;
        guard.stop();
        match guard.events().recv().unwrap() {
            GuardEvent::Ended { how, .. } => assert_eq!(how, ExitStatus::Signal(15), "stopped, not killed"),
            other => panic!("{other:?}"),
        }
        assert_eq!(guard.events().recv().unwrap(), GuardEvent::Empty);
        drop(pipes);
    }
}
