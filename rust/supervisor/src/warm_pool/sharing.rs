//! Which processes share a pool, or a process beside it: those of the same owner, by the same name. They meet it at an
//! abstract socket, whose name no other process comes to by chance.
//!
//! The process that binds the name starts what is met there. The kernel frees the name when that ends.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, getpid, getppid, getuid, pidfd_open};
use sha2::{Digest as _, Sha256};

use crate::guard::started_at;
use crate::sys;

/// Who waits for a pool while it imports: the tasks of one executor.
const BACKLOG: i32 = 128;

/// Whose end is a pool's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// This process.
    This,
    /// This process's parent, whose children share the pool.
    Parent(Pid),
}

impl Owner {
    /// The parent if it is to be, and there is one that lasts.
    pub(super) fn of(shared: bool) -> Owner {
        match getppid() {
            Some(parent) if shared && parent != Pid::INIT => Owner::Parent(parent),
            _ => Owner::This,
        }
    }

    fn pid(self) -> Pid {
        match self {
            Owner::This => getpid(),
            Owner::Parent(parent) => parent,
        }
    }

    /// A pidfd of it.
    pub(super) fn pidfd(self) -> io::Result<OwnedFd> {
        let pidfd = pidfd_open(self.pid(), PidfdFlags::empty())?;
        match self {
            // While it is still the parent, its id is its own.
            Owner::Parent(parent) if getppid() != Some(parent) => {
                Err(io::Error::other("its parent has gone"))
            }
            _ => Ok(pidfd),
        }
    }

    /// Where what is called `name`, such as a fingerprint, is met; `kind` says what it is.
    pub(super) fn address(self, kind: &str, name: &dyn Debug) -> io::Result<SocketAddrUnix> {
        let pid = self.pid();
        let since = started_at(pid).ok_or_else(|| io::Error::other("/proc does not show when it began"))?;
        let user = getuid();
        let all = format!("{} {pid} {since} {} {name:?}", env!("CARGO_PKG_VERSION"), user.as_raw());
        let name = format!("phalanx-{kind}-{}", hex::encode(Sha256::digest(all)));
        Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
    }
}

/// A connection to the pool there; `None` if there is none.
pub(super) fn connect_to(address: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let socket = seqpacket()?;
    match connect(&socket, address) {
        // Whoever can read our environment could bind the name before us; only our own user's pools will do.
        Ok(()) if sys::peer_uid(&socket)? == getuid().as_raw() => Ok(Some(socket)),
        Ok(()) => Err(io::Error::other("another user has taken its name")),
        Err(Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The socket on which a new pool is to be met; `None` if somebody else has just made one.
pub(super) fn listen_at(address: &SocketAddrUnix) -> io::Result<Option<OwnedFd>> {
    let socket = seqpacket()?;
    match bind(&socket, address) {
        Ok(()) => {
            listen(&socket, BACKLOG)?;
            Ok(Some(socket))
        }
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use rustix::thread::set_thread_uid;

    use super::super::fingerprint::Fingerprint;
    use super::super::options::PoolOptions;
    use super::*;

    fn place(name: &str) -> SocketAddrUnix {
        let name = format!("phalanx-test-{}-{name}", std::process::id());
        SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()
    }

    #[test]
    fn one_listens_and_all_others_connect_to_it_as_long_as_it_is_there() {
        let place = place("place");
        assert!(connect_to(&place).unwrap().is_none());
        let listener = listen_at(&place).unwrap().unwrap();
        assert!(listen_at(&place).unwrap().is_none());
        assert!(connect_to(&place).unwrap().is_some());
        drop(listener);
        assert!(connect_to(&place).unwrap().is_none());
        assert!(listen_at(&place).unwrap().is_some());
    }

    #[test]
    fn a_place_that_another_user_has_taken_is_refused() {
        if !getuid().is_root() {
            return; // nobody else can become another user
        }
        let (place, nobody) = (place("taken"), 65534);
        let taken = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                set_thread_uid(rustix::process::Uid::from_raw(nobody)).unwrap(); // of this thread alone
                listen_at(&place).unwrap().unwrap()
            });
            other.join().unwrap()
        });
        assert!(connect_to(&place).unwrap_err().to_string().contains("another user"));
        drop(taken);
    }

    #[test]
    fn pools_of_other_owners_and_fingerprints_are_met_elsewhere() {
        let options = |program: &str| PoolOptions { program: vec![program.into()], ..PoolOptions::default() };
        let (one, other) = (Fingerprint::of(&options("a")), Fingerprint::of(&options("b")));
        let at = |owner: Owner, fingerprint: &Fingerprint| owner.address("pool", fingerprint).unwrap();
        assert_eq!(at(Owner::This, &one), at(Owner::of(false), &one));
        assert_ne!(at(Owner::This, &one), at(Owner::This, &other));
        assert_ne!(at(Owner::This, &one), at(Owner::of(true), &one));
        assert_ne!(at(Owner::This, &one), Owner::This.address("model", &one).unwrap());
    }
}
