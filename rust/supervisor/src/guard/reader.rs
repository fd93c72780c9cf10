//! The thread of a guard's client that reads what the guard says, and notices its end.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use crossbeam_channel::Sender;
use phalanx_io::{FrameBuffer, pause};
use phalanx_types::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::event::GuardEvent;
use super::process::GuardProcess;
use super::wire::{GuardMessage, next_message};

/// How long a guard that closed its socket may take to exit before it is killed.
pub(super) const EXIT_WAIT: Duration = Duration::from_secs(2);

/// How often a client without pidfds looks whether its guard has ended.
const LOOK_AT_GUARD: Duration = Duration::from_millis(100);

/// What that thread has; the only one to wait for the guard's process.
pub(super) struct GuardReader {
    stream: UnixStream,
    process: GuardProcess,
    received: FrameBuffer,
}

impl GuardReader {
    /// To a guard that was just started at the other end of `stream`.
    pub(super) fn new(stream: UnixStream, process: GuardProcess) -> GuardReader {
        GuardReader { stream, process, received: FrameBuffer::default() }
    }

    /// Until the guard has ended.
    pub(super) fn run(mut self, events: &Sender<GuardEvent>) {
        let mut over = None;
        let problem = loop {
            match next_message(&mut self.received) {
                Ok(Some(GuardMessage::Over { problem })) => {
                    over = Some(problem);
                    break None;
                }
                Ok(Some(message)) => {
                    // Nobody listens any more: fine.
                    let _ = GuardEvent::of(message).map(|event| events.send(event));
                }
                Ok(None) => match self.receive() {
                    Ok(true) => {}
                    Ok(false) => break None,
                    Err(errno) => break Some(format!("its socket broke: {errno}")),
                },
                Err(error) => break Some(error.to_string()),
            }
        };
        // A forked guard that has said that it is over is its pool's to wait for: it takes a while to go.
        let exit = if over.is_some() && self.process.is_forked() { String::new() } else { self.reap() };
        let last = match (over, problem) {
            (Some(None), _) => GuardEvent::Empty,
            (Some(Some(problem)), _) => GuardEvent::Gone { reason: problem },
            (None, Some(problem)) => {
                GuardEvent::Gone { reason: format!("the guard can't be used any more: {problem}") }
            }
            (None, None) => GuardEvent::Gone { reason: format!("the guard {exit}") },
        };
        let _ = events.send(last);
    }

    /// Waits for more bytes; false when there will be none. The end of the stream alone would not do: a fork of the
    /// client, made in the moment of the guard's start, may hold its other end.
    fn receive(&mut self) -> rustix::io::Result<bool> {
        let timeout = match self.process.pidfd() {
            Some(_) => None,
            None => Timespec::try_from(LOOK_AT_GUARD).ok(),
        };
        let mut fds = vec![PollFd::new(&self.stream, PollFlags::IN)];
        fds.extend(self.process.pidfd().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        retry_on_intr(|| poll(&mut fds, timeout.as_ref()))?;
        let ended = match fds.get(1) {
            Some(pidfd) => !pidfd.revents().is_empty(),
            None => self.process.ended().is_some(),
        };
        let mut bytes = vec![0; 16 << 10];
        match retry_on_intr(|| recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => Ok(false),
            Ok((n, _)) => {
                self.received.push(&bytes[..n]);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(!ended),
            Err(Errno::CONNRESET) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Takes in the guard's exit, in words. One that lingers is killed; its ranks die with it.
    fn reap(&mut self) -> String {
        for kill in [false, true] {
            if kill {
                self.process.kill();
            }
            let deadline = Deadline::after(EXIT_WAIT);
            loop {
                if let Some(how) = self.process.ended() {
                    return how;
                }
                if deadline.passed() {
                    break;
                }
                self.wait_for_exit(deadline);
            }
        }
        "does not end, not even by SIGKILL".to_string()
    }

    fn wait_for_exit(&self, deadline: Deadline) {
        let left = deadline.left().unwrap_or(EXIT_WAIT);
        match self.process.pidfd() {
            Some(pidfd) => {
                let timeout = Timespec::try_from(left).ok();
                let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref());
            }
            None => pause(LOOK_AT_GUARD, deadline),
        }
    }
}
