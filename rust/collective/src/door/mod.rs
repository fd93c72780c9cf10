//! A rank's door: the one thread that opens connections to other ranks and lets theirs in, and hears of their ends, as
//! long as its group lives.
//!
//! It sleeps unless somebody connects, a connection is asked for, or a sentinel has something to say. So a rank is
//! reached, and tells on what it heard, however long its program computes, and no operation waits in a handshake.
//!
//! - GROUP-20 (ends-with-it): when its value goes, its thread has ended and nothing listens.

pub(crate) mod acceptor;
pub(crate) mod connections;
pub(crate) mod dialer;
pub(crate) mod handshake;
pub(crate) mod link;
pub(crate) mod probe;
pub(crate) mod tcp;
pub(crate) mod timed;

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;

use phalanx_types::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::door::acceptor::Acceptor;
use crate::door::connections::Connections;
use crate::door::dialer::{Dialer, Target};
use crate::forks::Private;
use crate::peers::Peers;

/// Whoever has it has the thread.
pub(crate) struct Door {
    connections: Arc<Connections>,
    targets: Arc<OnceLock<Vec<Target>>>,
    peers: Arc<OnceLock<Arc<Peers>>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has.
struct Keeper {
    connections: Arc<Connections>,
    targets: Arc<OnceLock<Vec<Target>>>,
    /// Once the group has formed.
    peers: Arc<OnceLock<Arc<Peers>>>,
    acceptor: Acceptor,
    dialer: Dialer,
    tcp: Private<TcpListener>,
    /// While the group forms.
    unix: Option<Private<UnixListener>>,
}

impl Door {
    pub(crate) fn open(
        (acceptor, dialer): (Acceptor, Dialer),
        connections: Arc<Connections>,
        (tcp, unix): (Private<TcpListener>, Private<UnixListener>),
    ) -> Result<Door> {
        let (targets, peers) = (Arc::new(OnceLock::new()), Arc::new(OnceLock::new()));
        let keeper = Keeper {
            connections: Arc::clone(&connections),
            targets: Arc::clone(&targets),
            peers: Arc::clone(&peers),
            acceptor,
            dialer,
            tcp,
            unix: Some(unix),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-door".into())
            .spawn(move || keeper.keep())
            .map_err(|error| Error::io("start a thread", &error))?;
        Ok(Door { connections, targets, peers, thread: Some(thread) })
    }

    /// Where each rank is: before any connection is asked for.
    pub(crate) fn know(&self, targets: Vec<Target>) {
        let _ = self.targets.set(targets);
    }

    /// To whom the sentinels belong from now on, those that are here and those that come.
    pub(crate) fn watch(&self, peers: Arc<Peers>) {
        let _ = self.peers.set(peers);
        self.connections.has_formed();
    }

    pub(crate) fn connections(&self) -> &Arc<Connections> {
        &self.connections
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.connections.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Keeper {
    fn keep(mut self) {
        loop {
            let (has_formed, has_ended) = self.connections.answer();
            if has_ended {
                // GROUP-70: also to those of which nobody here knows yet.
                self.watch_new();
                self.dialer.leave();
                return;
            }
            self.turn(has_formed);
            self.wait();
        }
    }

    fn turn(&mut self, has_formed: bool) {
        if has_formed && self.unix.take().is_some() {
            self.acceptor.has_formed();
        }
        let now = Instant::now();
        self.acceptor.advance(&self.connections, &self.tcp, self.unix.as_deref(), now);
        if let Some(targets) = self.targets.get() {
            self.dialer.advance(&self.connections, targets, now);
        }
        self.watch_new();
        if let Some(peers) = self.peers.get()
            && self.connections.take_news()
        {
            peers.bell().ring();
        }
    }

    fn watch_new(&self) {
        if let Some(peers) = self.peers.get() {
            self.connections.take_sentinels().into_iter().for_each(|(rank, link)| peers.watch(rank, link));
        }
    }

    /// Until there is something to do.
    fn wait(&mut self) {
        let now = Instant::now();
        let due = [self.acceptor.due(), self.dialer.due()].into_iter().flatten().min();
        let left = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        let listeners = self.listeners().filter(|_| !self.acceptor.is_resting(now));
        let readable = std::iter::once(self.connections.bell()).chain(listeners).collect::<Vec<_>>();
        let (others, visitors) = (readable.len(), self.acceptor.sockets().count());
        let readable = readable.into_iter().chain(self.acceptor.sockets());
        let readable = readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let sentinels = self.peers.get().map(|peers| peers.sentinels()).unwrap_or_default();
        let dialing = self.dialer.sockets().count();
        let watched = sentinels.iter().map(|peer| peer.fd());
        let mut fds: Vec<PollFd<'_>> = readable.chain(self.dialer.sockets()).chain(watched).collect();
        let _ = poll(&mut fds, left.as_ref());
        let ready: Vec<bool> = fds.iter().skip(others).map(|fd| !fd.revents().is_empty()).collect();
        let (here, there) = ready.split_at(visitors);
        let (there, ends) = there.split_at(dialing);
        self.acceptor.set_ready(here.iter().copied());
        self.dialer.set_ready(there.iter().copied());
        if let Some(peers) = self.peers.get() {
            let heard = sentinels.iter().zip(ends).filter(|(_, is_ready)| **is_ready);
            heard.for_each(|(peer, _)| peers.hear(peer));
        }
    }

    fn listeners(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        std::iter::once(self.tcp.as_fd()).chain(self.unix.as_ref().map(AsFd::as_fd))
    }
}
