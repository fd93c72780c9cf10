//! The connections to ranks of other hosts: which there are, and which are being opened.
//!
//! Two ranks have numbered connections: the sentinel ([`crate::peers`]), one for messages, and some for data. Whoever
//! first has something to send over one asks for it; the door's thread ([`crate::door`]) opens it, on both sides. So it
//! doesn't matter what the program of the other rank does meanwhile, and nobody who asks has to wait here.
//!
//! - GROUP-13 (when-needed): a connection is opened when an operation first needs it. Only the sentinels to a rank's
//!   neighbours (GROUP-80) are opened when the group forms.
//! - GROUP-14 (one-of-two): two ranks that open the same connection at once get one. The higher rank decides: while it
//!   connects itself, it lets the lower one's go.
//! - GROUP-15 (taken-first): a rank sends nothing over a connection before the other has said that it has taken it. So
//!   what a rank sent before its goodbye came by a connection that was here before its goodbye.
//! - GROUP-16 (sentinel-first): two ranks have a sentinel before they have any other connection. So whoever exchanges
//!   something with a rank sees its end.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::event::{EventfdFlags, eventfd};

use crate::door::link::Link;
use crate::forks::{Opening, Private};

/// The connection that carries no data: see [`crate::peers`].
pub(crate) const SENTINEL: u32 = 0;
/// The connection for messages; those after it are for data.
pub(crate) const MESSAGES: u32 = 1;
/// The first for data.
pub(crate) const DATA: u32 = 2;

/// A number that no connection between hosts has: two ranks find out whether they are of one.
pub(crate) const LOCAL: u32 = u32::MAX;

/// What the side that was connected to says when it has taken a connection (GROUP-15).
pub(crate) const TAKEN: u8 = 1;

/// A rank, and which of the connections to it.
pub(crate) type Place = (usize, u32);

enum Phase {
    Opening,
    Open(Link),
    /// Its user has it.
    Used,
}

#[derive(Default)]
struct State {
    phases: HashMap<Place, Phase>,
    /// What nobody connects for yet.
    asked: VecDeque<Place>,
    /// Why the last try came to nothing; the next one may not.
    troubles: HashMap<Place, Error>,
    failed: HashMap<usize, Error>,
    /// For messages, and not used yet.
    messages: Vec<usize>,
    /// Whose sentinels are open, and watched by nobody yet.
    sentinels: Vec<usize>,
    /// Of this host, while the group forms.
    local: HashMap<usize, Private<UnixStream>>,
    is_formed: bool,
    is_closed: bool,
}

impl State {
    fn has_sentinel(&self, rank: usize) -> bool {
        matches!(self.phases.get(&(rank, SENTINEL)), Some(Phase::Open(_) | Phase::Used))
    }
}

/// Shared by those who use connections and the door's thread, which opens them.
pub(crate) struct Connections {
    me: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the door's thread.
    bell: Private<OwnedFd>,
    has_messages: AtomicBool,
    /// For those who wait for messages, and don't know of it.
    has_news: AtomicBool,
}

impl Connections {
    pub(crate) fn new(me: usize) -> Result<Connections> {
        let opening = Opening::begin();
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|event| opening.private(event))
            .map_err(|errno| Error::io("make an event", &errno.into()))?;
        let (state, changed, has_messages, has_news) = Default::default();
        Ok(Connections { me, state, changed, bell, has_messages, has_news })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a connection opened, and the sentinel before it (GROUP-16), unless it is open or being opened.
    pub(crate) fn ask(&self, place: Place) {
        let mut state = self.state();
        let before = state.asked.len();
        for place in [(place.0, SENTINEL), place] {
            if let Entry::Vacant(vacant) = state.phases.entry(place) {
                vacant.insert(Phase::Opening);
                state.asked.push_back(place);
            }
        }
        if state.asked.len() > before {
            drop(state);
            ring(&self.bell);
        }
    }

    /// A connection for its user, if it is open and nobody has it.
    ///
    /// # Errors
    /// Why it can't be opened, with the rank's number and address.
    pub(crate) fn take(&self, place: Place) -> Result<Option<Link>> {
        let mut state = self.state();
        if let Some(error) = state.failed.get(&place.0) {
            return Err(error.clone());
        }
        let Some(phase @ Phase::Open(_)) = state.phases.get_mut(&place) else { return Ok(None) };
        match std::mem::replace(phase, Phase::Used) {
            Phase::Open(link) => Ok(Some(link)),
            _ => Ok(None),
        }
    }

    /// Waits for a connection, for at most so long. Wakes for others, too.
    pub(crate) fn wait(&self, place: Place, patience: Duration) {
        let state = self.state();
        if matches!(state.phases.get(&place), Some(Phase::Opening)) && !state.failed.contains_key(&place.0) {
            drop(self.changed.wait_timeout(state, patience));
        }
    }

    /// How many are open, whoever has them.
    pub(crate) fn open(&self) -> usize {
        let is_open = |phase: &&Phase| !matches!(phase, Phase::Opening);
        self.state().phases.values().filter(is_open).count()
    }

    /// Why no connection to a rank can be opened, if that is so.
    pub(crate) fn failure(&self, rank: usize) -> Option<Error> {
        self.state().failed.get(&rank).cloned()
    }

    /// Why a connection isn't open yet, where a try has come to nothing: its own, or its sentinel's (GROUP-16).
    pub(crate) fn trouble(&self, place: Place) -> Option<Error> {
        let state = self.state();
        let troubles = [place, (place.0, SENTINEL)].map(|place| state.troubles.get(&place));
        troubles.into_iter().flatten().next().cloned()
    }

    /// The ranks whose connections for messages have come, and those.
    pub(crate) fn take_messages(&self) -> Vec<(usize, Link)> {
        if !self.has_messages.load(Ordering::Acquire) {
            return Vec::new();
        }
        let ranks = {
            let mut state = self.state();
            self.has_messages.store(false, Ordering::Relaxed);
            std::mem::take(&mut state.messages)
        };
        let taken = ranks.into_iter().filter_map(|rank| Some((rank, self.take((rank, MESSAGES)).ok()??)));
        taken.collect()
    }

    /// Waits until these ranks, which share memory with this one, have connected; their connections.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline, with a rank that hasn't; why a connection can't be opened.
    pub(crate) fn wait_for_local(
        &self,
        ranks: &[usize],
        deadline: Deadline,
    ) -> Result<Vec<(usize, Private<UnixStream>)>> {
        for rank in ranks {
            self.wait_until(*rank, |state| state.local.contains_key(rank), deadline)?;
        }
        let mut state = self.state();
        Ok(ranks.iter().filter_map(|rank| Some((*rank, state.local.remove(rank)?))).collect())
    }

    /// Waits until there is a sentinel to each of these ranks of other hosts.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline, with a rank to which there is none; why one can't be opened.
    pub(crate) fn wait_for_sentinels(
        &self,
        ranks: impl IntoIterator<Item = usize>,
        deadline: Deadline,
    ) -> Result<()> {
        let mut ranks = ranks.into_iter();
        ranks.try_for_each(|rank| self.wait_until(rank, |state| state.has_sentinel(rank), deadline))
    }

    fn wait_until(&self, rank: usize, is_so: impl Fn(&State) -> bool, deadline: Deadline) -> Result<()> {
        let mut state = self.state();
        while !is_so(&state) {
            if let Some(error) = state.failed.values().next() {
                return Err(error.clone());
            }
            let left = deadline.left().unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                let before = state.troubles.get(&(rank, SENTINEL));
                let before = before.map_or_else(String::new, |error| format!("; before that: {error}"));
                let text = format!("rank {rank} has not connected in time{before}");
                return Err(Error::new(ErrorKind::Timeout, text));
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// The group has come together: nobody connects inside the host any more.
    pub(crate) fn has_formed(&self) {
        self.state().is_formed = true;
        ring(&self.bell);
    }

    /// Has the door's thread end.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        ring(&self.bell);
    }

    // --- for the door's thread

    /// What wakes it.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Hears the bell. Whether the group has formed, and whether it has ended.
    pub(crate) fn answer(&self) -> (bool, bool) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        let state = self.state();
        (state.is_formed, state.is_closed)
    }

    /// The next connection that is to be opened, and can be (GROUP-16).
    pub(crate) fn next_asked(&self) -> Option<Place> {
        let mut state = self.state();
        let State { phases, asked, .. } = &mut *state;
        asked.retain(|place| matches!(phases.get(place), Some(Phase::Opening)));
        let next = state.asked.iter().position(|place| place.1 == SENTINEL || state.has_sentinel(place.0))?;
        state.asked.remove(next)
    }

    /// The ranks whose sentinels are open and not watched yet, and those.
    pub(crate) fn take_sentinels(&self) -> Vec<(usize, Link)> {
        let ranks = std::mem::take(&mut self.state().sentinels);
        let taken = ranks.into_iter().filter_map(|rank| Some((rank, self.take((rank, SENTINEL)).ok()??)));
        taken.collect()
    }

    /// Whether [`Connections::take_messages`] or [`Connections::failure`] have something since this was asked last.
    pub(crate) fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::AcqRel)
    }

    /// Whether the group has come together.
    pub(crate) fn is_formed(&self) -> bool {
        self.state().is_formed
    }

    /// Whether it still has to be opened from here: the other rank may have done it meanwhile.
    pub(crate) fn is_opening(&self, place: Place) -> bool {
        matches!(self.state().phases.get(&place), Some(Phase::Opening))
    }

    /// Takes a connection that the other rank has made, and says so to it, or lets it go (GROUP-14).
    pub(crate) fn admit(&self, place: Place, link: Link) -> Result<()> {
        let mut state = self.state();
        let may = match state.phases.get(&place) {
            None => true,
            Some(Phase::Opening) => self.me < place.0,
            Some(_) => false,
        };
        if !may {
            return Err(Error::new(
                ErrorKind::Refused,
                "there is this connection, or it is being opened from here",
            ));
        }
        // Before anybody else can write to it.
        match link.write(&[TAKEN]) {
            Ok(1) => self.put(&mut state, place, link),
            Ok(_) => return Err(Error::new(ErrorKind::Closed, "it doesn't read")),
            Err(error) => return Err(Error::io("take a connection", &error)),
        }
        Ok(())
    }

    /// A connection that was made from here.
    pub(crate) fn opened(&self, place: Place, link: Link) {
        let mut state = self.state();
        if matches!(state.phases.get(&place), Some(Phase::Opening)) {
            self.put(&mut state, place, link);
        }
    }

    fn put(&self, state: &mut State, place: Place, link: Link) {
        state.phases.insert(place, Phase::Open(link));
        state.troubles.remove(&place);
        match place.1 {
            // Others wait for it.
            SENTINEL => {
                state.sentinels.push(place.0);
                ring(&self.bell);
            }
            MESSAGES => {
                state.messages.push(place.0);
                self.has_messages.store(true, Ordering::Release);
                self.has_news.store(true, Ordering::Release);
            }
            _ => {}
        }
        self.changed.notify_all();
    }

    /// A try came to nothing.
    pub(crate) fn troubled(&self, place: Place, error: Error) {
        self.state().troubles.insert(place, error);
    }

    /// A connection can't be opened.
    pub(crate) fn fail(&self, place: Place, error: Error) {
        self.state().failed.insert(place.0, error);
        self.has_news.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// A rank of this host has connected.
    pub(crate) fn admit_local(&self, rank: usize, stream: Private<UnixStream>) {
        self.state().local.insert(rank, stream);
        self.changed.notify_all();
    }
}

fn ring(bell: &OwnedFd) {
    // It can only be full, and then it rings.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// A link, and the socket at its other end.
    fn link() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Link::plain(Opening::begin().private(listener.accept().unwrap().0)), there)
    }

    #[test]
    fn of_two_connections_that_are_opened_at_once_the_higher_ranks_stays() {
        for (me, other, is_taken) in [(3, 7, true), (7, 3, false)] {
            let connections = Connections::new(me).unwrap();
            let place = (other, DATA);
            connections.ask(place);
            assert_eq!(connections.next_asked(), Some((other, SENTINEL)), "GROUP-16");
            assert_eq!(connections.next_asked(), None, "GROUP-16");
            connections.troubled((other, SENTINEL), Error::new(ErrorKind::Timeout, "it is slow"));
            assert!(connections.trouble(place).unwrap().to_string().contains("it is slow"), "GROUP-16");
            connections.opened((other, SENTINEL), link().0);
            assert!(connections.trouble(place).is_none());
            assert_eq!(connections.next_asked(), Some(place));
            let (theirs, mut there) = link();
            assert_eq!(connections.admit(place, theirs).is_ok(), is_taken, "GROUP-14: {me} and {other}");
            let mut said = Vec::new();
            // GROUP-15: it is told, or it is let go.
            if is_taken {
                said = vec![0];
                there.read_exact(&mut said).unwrap();
            } else {
                assert_eq!(there.read_to_end(&mut said).unwrap(), 0, "GROUP-15");
            }
            assert_eq!(said.first() == Some(&TAKEN), is_taken, "GROUP-15");
            // Its own comes to its end meanwhile.
            assert_eq!(connections.is_opening(place), !is_taken);
            connections.opened(place, link().0);
            assert!(connections.take(place).unwrap().is_some() && connections.take(place).unwrap().is_none());
            assert!(connections.admit(place, link().0).is_err(), "GROUP-14: there is one");
            assert_eq!(connections.open(), 2, "GROUP-14");
        }
    }

    #[test]
    fn what_is_asked_for_twice_is_opened_once() {
        let connections = Connections::new(0).unwrap();
        connections.ask((1, SENTINEL));
        assert_eq!(connections.next_asked(), Some((1, SENTINEL)));
        connections.opened((1, SENTINEL), link().0);
        assert_eq!((connections.take_sentinels().len(), connections.take_sentinels().len()), (1, 0));
        for _ in 0..2 {
            connections.ask((1, DATA));
        }
        connections.ask((1, MESSAGES));
        assert_eq!(connections.next_asked(), Some((1, DATA)), "GROUP-13");
        // The other rank was sooner.
        connections.admit((1, MESSAGES), link().0).unwrap();
        assert_eq!(connections.next_asked(), None, "GROUP-13");
        assert_eq!(connections.take_messages().len(), 1);
        assert!(connections.take_messages().is_empty());
    }
}
