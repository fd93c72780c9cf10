//! The guard's end of the control socket. It never blocks: a client that doesn't read must not keep the guard from its
//! children.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use phalanx_io::{FrameBuffer, receive_with_descriptors};
use phalanx_types::{Error, ErrorKind, Result};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, send};

use super::launch::Launch;
use super::wire::{GuardMessage, Order, frame, next_message};

const READ_BYTES: usize = 64 << 10;

/// An order with the descriptors that came with it.
#[derive(Debug)]
pub(crate) enum Incoming {
    Launch(Box<Start>),
    Signal { rank: u32, number: i32 },
    Stop,
    Kill,
}

/// A rank to start.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) launch: Launch,
    /// Whether by a fork of the guard, which then has to be able to.
    pub(crate) by_fork: bool,
    pub(crate) output: OwnedFd,
    pub(crate) notes: OwnedFd,
}

/// The guard's end.
#[derive(Debug)]
pub(crate) struct Control {
    stdin: io::Stdin,
    received: FrameBuffer,
    /// Received and not yet used. Descriptors arrive with the first byte of their frame, so never after it.
    fds: VecDeque<OwnedFd>,
    unsent: Vec<u8>,
    open: bool,
}

impl Control {
    /// The control socket is standard input.
    pub(crate) fn on_stdin() -> Control {
        Control {
            stdin: io::stdin(),
            received: FrameBuffer::default(),
            fds: VecDeque::new(),
            unsent: Vec::new(),
            open: true,
        }
    }

    /// The socket, to wait on; `None` once the client has closed it.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.stdin.as_fd())
    }

    /// Whether reports wait for the client to read.
    pub(crate) fn has_unsent(&self) -> bool {
        self.open && !self.unsent.is_empty()
    }

    /// Takes in what has arrived, and returns the next order; `None` when there is none yet.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the client has closed its end, [`ErrorKind::Protocol`] if it is not our client. There
    /// is no more to come, and nobody to report to, after either.
    pub(crate) fn next_order(&mut self) -> Result<Option<Incoming>> {
        let order = self.try_next();
        self.open &= order.is_ok();
        order
    }

    fn try_next(&mut self) -> Result<Option<Incoming>> {
        loop {
            if let Some(order) = next_message(&mut self.received)? {
                return self.with_fds(order).map(Some);
            }
            if !self.receive()? {
                return Ok(None);
            }
        }
    }

    fn with_fds(&mut self, order: Order) -> Result<Incoming> {
        let by_fork = matches!(order, Order::Fork(_));
        Ok(match order {
            Order::Signal { rank, number } => Incoming::Signal { rank, number },
            Order::Stop => Incoming::Stop,
            Order::Kill => Incoming::Kill,
            Order::Launch(launch) | Order::Fork(launch) => {
                let (Some(output), Some(notes)) = (self.fds.pop_front(), self.fds.pop_front()) else {
                    return Err(Error::new(ErrorKind::Protocol, "a launch came without its pipes"));
                };
                Incoming::Launch(Box::new(Start { launch: *launch, by_fork, output, notes }))
            }
        })
    }

    /// Whether anything came.
    fn receive(&mut self) -> Result<bool> {
        let mut bytes = [0; READ_BYTES];
        let received = match receive_with_descriptors(&self.stdin, &mut bytes, RecvFlags::DONTWAIT) {
            Ok(received) if received.bytes > 0 => received,
            Ok(_) => return Err(Error::new(ErrorKind::Closed, "the client closed the control socket")),
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(Error::io("read the control socket", &errno.into())),
        };
        self.fds.extend(received.descriptors);
        if received.lacks_descriptors {
            let why = "the guard has no descriptor left for a rank's pipe";
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        self.received.push(&bytes[..received.bytes]);
        Ok(true)
    }

    /// Queues a report and sends what the socket takes.
    pub(crate) fn report(&mut self, report: &GuardMessage) {
        // Nothing the guard says can be too long for a frame.
        if let Ok(bytes) = frame(report) {
            self.unsent.extend(bytes);
        }
        self.flush();
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self) {
        while self.has_unsent() {
            match send(self.stdin.as_fd(), &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.open = false,
            }
        }
    }
}
