//! The host's ear: hears what the guard reports, and notices its end.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use crossbeam_channel::Sender;
use phalanx_types::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::host::GuardEvent;
use super::process::GuardProcess;
use super::wire::{Frames, Report, instant_of};

/// How long a guard that closed its socket may take to exit before it is killed.
pub(super) const EXIT_WAIT: Duration = Duration::from_secs(2);

/// How often a host without pidfds looks whether its guard has ended.
const LOOK_AT_GUARD: Duration = Duration::from_millis(100);

/// The thread that hears the guard, and the only one to wait for its process.
pub(super) struct Listener {
    stream: UnixStream,
    process: GuardProcess,
    frames: Frames,
}

impl Listener {
    /// To a guard that was just started at the other end of `stream`.
    pub(super) fn new(stream: UnixStream, process: GuardProcess) -> Listener {
        Listener { stream, process, frames: Frames::default() }
    }

    /// Until the guard has ended.
    pub(super) fn run(mut self, events: &Sender<GuardEvent>) {
        let mut over = None;
        let problem = loop {
            match self.frames.next::<Report>() {
                Ok(Some(Report::Over { problem })) => {
                    over = Some(problem);
                    break None;
                }
                Ok(Some(report)) => send_event(events, report),
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
                GuardEvent::Gone { reason: format!("the guard is of no more use: {problem}") }
            }
            (None, None) => GuardEvent::Gone { reason: format!("the guard {exit}") },
        };
        let _ = events.send(last);
    }

    /// Waits for more bytes; false when there will be none. The end of the stream alone would not do: a fork of the
    /// host, made in the moment of the guard's start, may hold its other end.
    fn receive(&mut self) -> rustix::io::Result<bool> {
        let timeout = match self.process.pidfd() {
            Some(_) => None,
            None => Timespec::try_from(LOOK_AT_GUARD).ok(),
        };
        let mut fds = vec![PollFd::new(&self.stream, PollFlags::IN)];
        fds.extend(self.process.pidfd().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)));
        retry(|| poll(&mut fds, timeout.as_ref()))?;
        let ended = match fds.get(1) {
            Some(pidfd) => !pidfd.revents().is_empty(),
            None => self.process.ended().is_some(),
        };
        let mut bytes = vec![0; 16 << 10];
        match retry(|| recv(&self.stream, &mut bytes, RecvFlags::DONTWAIT)) {
            Ok((0, _)) => Ok(false),
            Ok((n, _)) => {
                self.frames.push(&bytes[..n]);
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
            None => std::thread::sleep(left.min(LOOK_AT_GUARD)),
        }
    }
}

fn send_event(events: &Sender<GuardEvent>, report: Report) {
    let event = match report {
        Report::Started { rank, pid, at_ns } => GuardEvent::Started { rank, pid, at: instant_of(at_ns) },
        Report::NotStarted { rank, reason, at_ns } => {
            GuardEvent::NotStarted { rank, reason, at: instant_of(at_ns) }
        }
        Report::Ended { rank, how, by_itself, at_ns } => {
            GuardEvent::Ended { rank, how, by_itself, at: instant_of(at_ns) }
        }
        Report::Over { .. } => return,
    };
    // Nobody listens any more: fine.
    let _ = events.send(event);
}

/// Until it was not interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
