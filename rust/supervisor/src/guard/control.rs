//! The guard's end of the control socket. Never blocks: a host that doesn't read must not keep the guard from its
//! children.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use super::wire::{Frames, Launch, Order, Report, frame};

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
    frames: Frames,
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
            frames: Frames::default(),
            fds: VecDeque::new(),
            unsent: Vec::new(),
            open: true,
        }
    }

    /// The socket, to wait on; `None` once the host has closed it.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.stdin.as_fd())
    }

    /// Whether reports wait for the host to read.
    pub(crate) fn has_unsent(&self) -> bool {
        self.open && !self.unsent.is_empty()
    }

    /// Takes in what has arrived, and returns the next order; `None` when there is none yet.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] once the host has closed its end, [`ErrorKind::Protocol`] if it is not our host. There
    /// is no more to come, and nobody to report to, after either.
    pub(crate) fn next_order(&mut self) -> Result<Option<Incoming>> {
        let order = self.try_next();
        self.open &= order.is_ok();
        order
    }

    fn try_next(&mut self) -> Result<Option<Incoming>> {
        loop {
            if let Some(order) = self.frames.next::<Order>()? {
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
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match recvmsg(self.stdin.as_fd(), &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                other => break other,
            }
        };
        let received = match received {
            Ok(received) if received.bytes > 0 => received,
            Ok(_) => return Err(Error::new(ErrorKind::Closed, "the host closed the control socket")),
            Err(errno) => return Err(Error::io("read the control socket", &errno.into())),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Error::new(
                ErrorKind::Protocol,
                "the guard has no descriptor left for a rank's pipe",
            ));
        }
        self.frames.push(&bytes[..received.bytes]);
        Ok(true)
    }

    /// Queues a report and sends what the socket takes.
    pub(crate) fn report(&mut self, report: &Report) {
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
