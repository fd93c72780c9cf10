//! How a guard learns of its client's end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use super::tree::{has_ended, parent_of};

/// How often a guard without a pidfd of its client looks whether it is still the client's child.
pub(super) const LOOK_AT_CLIENT: Duration = Duration::from_millis(250);

/// The watch on the guard's client, besides the control socket, which a fork of the client may keep open.
#[derive(Debug)]
pub(super) struct ClientWatch {
    /// The client, where it is the guard's parent.
    parent: Option<Pid>,
    pub(super) pidfd: Option<OwnedFd>,
    /// Whether this is the client's owner: the guard then stays without its client, as long as it has children.
    pub(super) is_owner: bool,
}

impl ClientWatch {
    pub(super) fn on_parent(pid: Pid) -> ClientWatch {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        ClientWatch { parent: Some(pid), pidfd, is_owner: false }
    }

    /// By a pidfd that came from the client itself: its own, or its owner's.
    pub(super) fn by_pidfd(pidfd: OwnedFd, is_owner: bool) -> ClientWatch {
        ClientWatch { parent: None, pidfd: Some(pidfd), is_owner }
    }

    /// On `owner`, which has to be the parent of `client`, this process's own parent: so the ids are theirs.
    pub(super) fn on_owner(client: Pid, owner: Pid) -> io::Result<ClientWatch> {
        let pidfd = pidfd_open(owner, PidfdFlags::empty())?;
        if parent_of(client) != Some(owner) || getppid() != Some(client) {
            return Err(io::Error::other("its client, or the process that started it, has gone"));
        }
        Ok(ClientWatch { parent: None, pidfd: Some(pidfd), is_owner: true })
    }

    /// Whether the client is gone. As long as it is this process's parent, its id, and so the pidfd, is the client's.
    pub(super) fn is_gone(&self) -> bool {
        self.parent.is_some_and(|pid| getppid() != Some(pid)) || self.pidfd.as_ref().is_some_and(has_ended)
    }
}
