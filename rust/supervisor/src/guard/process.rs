//! A guard's process as its client sees it: a child of the client, or of a pool.

use std::os::fd::OwnedFd;
use std::process::Child;

use phalanx_types::rank_exit::signal_name;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tree::has_ended;
use super::wire::EXIT_OTHER_BUILD;

/// A running guard.
#[derive(Debug)]
pub(super) enum GuardProcess {
    /// The client's own child, and its pidfd where the kernel has such.
    Child(Child, Option<OwnedFd>),
    /// A pool's child, which the pool waits for.
    Forked(OwnedFd),
}

impl GuardProcess {
    pub(super) fn child(child: Child) -> GuardProcess {
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
        GuardProcess::Child(child, pidfd)
    }

    /// Whether a pool waits for it.
    pub(super) fn is_forked(&self) -> bool {
        matches!(self, GuardProcess::Forked(_))
    }

    /// Readable once the process has ended.
    pub(super) fn pidfd(&self) -> Option<&OwnedFd> {
        match self {
            GuardProcess::Child(_, pidfd) => pidfd.as_ref(),
            GuardProcess::Forked(pidfd) => Some(pidfd),
        }
    }

    /// How it ended, in words, if it has; waits for a child.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self {
            GuardProcess::Child(child, _) => match child.try_wait() {
                Ok(status) => status.map(describe),
                // Somebody else in this process waits for every child.
                Err(_) => Some("ended".to_string()),
            },
            GuardProcess::Forked(pidfd) => has_ended(pidfd).then(|| "ended".to_string()),
        }
    }

    pub(super) fn kill(&mut self) {
        match self {
            GuardProcess::Child(child, _) => drop(child.kill()),
            GuardProcess::Forked(pidfd) => drop(pidfd_send_signal(pidfd, Signal::KILL)),
        }
    }
}

fn describe(status: std::process::ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) if code == i32::from(EXIT_OTHER_BUILD) => {
            "is of another build than this library".to_string()
        }
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by {}", signal_name(signal)),
        (None, None) => format!("ended: {status}"),
    }
}
