//! A node's way to a store that is elsewhere: ranks connect to it inside their host, and it carries what they say over
//! TLS to the node that serves the store.
//!
//! - ENTRANCE-1 (own-ranks): it listens at a loopback address, and only processes of its own user are let in.
//! - ENTRANCE-2 (as-direct): a connection through it ends as a direct one would: what was said arrives first, an end in
//!   one direction leaves the other open, and a break breaks both.
//! - ENTRANCE-3 (bounded): of each connection it holds so many bytes in each direction; who doesn't read isn't read
//!   from.
//! - ENTRANCE-4 (clean-stop): after `stop` returns, the thread has ended, and all sockets are closed.

use std::io::{self, ErrorKind as IoKind, Read};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use phalanx_io::{Backlog, PublicKey, Refusals, Unproved, check_own_user, check_owners_are_told};
use phalanx_types::{Error, Key, Result};
use socket2::SockRef;

use super::PROTOCOL;
use crate::client::tune;
use crate::loop_thread::{LoopThread, watch_listener};
use crate::secure::Secure;
use crate::unsent::{Unsent, would_block};

/// How much is read at once.
const READ_BYTES: usize = 64 << 10;
/// What may wait in one direction of a connection before no more is read for it.
const MAX_WAITING_BYTES: usize = 256 << 10;
/// How often one connection is looked at before the others' turn.
const TURNS: usize = 16;
/// How long the store's node may take to answer: it may begin later than this one.
const PROVED_WITHIN: Duration = Duration::from_secs(60);
/// How many connections may wait for that.
const MAX_UNPROVED: usize = 4096;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// A running entrance; it stops when dropped.
#[derive(Debug)]
pub struct StoreEntrance {
    address: SocketAddr,
    thread: LoopThread,
}

impl StoreEntrance {
    /// Takes connections on `listener`, which is at an IPv4 loopback address, and leads them to the store at `store`,
    /// which has the key `store_key`; `key` is that of the attempt.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system refuses the event queue or the thread,
    /// [`phalanx_types::ErrorKind::State`] if it doesn't tell whose connections are.
    pub fn start(
        listener: TcpListener,
        store: SocketAddr,
        store_key: PublicKey,
        key: Key,
    ) -> Result<StoreEntrance> {
        let failed = |error: io::Error| Error::io("open the way to the store", &error);
        check_owners_are_told()?;
        let address = listener.local_addr().map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        let listener = watch_listener(&poll, listener, LISTENER).map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let mut event_loop = EventLoop {
            poll,
            listener,
            store,
            store_key,
            key,
            stopping: Arc::clone(&stopping),
            passages: Vec::new(),
            unproved: Unproved::new(MAX_UNPROVED),
            again: Vec::new(),
            backlog: Backlog::new("the way to the store"),
            refusals: Refusals::default(),
            buffer: vec![0; READ_BYTES],
        };
        let thread = LoopThread::start(
            "phalanx-entrance",
            format!("the way to the store at {store}"),
            waker,
            stopping,
            move || event_loop.run(),
        )
        .map_err(failed)?;
        Ok(StoreEntrance { address, thread })
    }

    /// Where ranks of this host find the store.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends it: ENTRANCE-4. Further calls do nothing.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

struct EventLoop {
    poll: Poll,
    listener: mio::net::TcpListener,
    store: SocketAddr,
    store_key: PublicKey,
    key: Key,
    stopping: Arc<AtomicBool>,
    /// The two sockets of the passage at `n` have the tokens `2n` and `2n + 1`.
    passages: Vec<Option<Passage>>,
    unproved: Unproved<(), usize>,
    /// Passages whose turn was over before their bytes were.
    again: Vec<usize>,
    backlog: Backlog,
    refusals: Refusals,
    buffer: Vec<u8>,
}

impl EventLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.stopping.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == IoKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(number) => self.pump(number / 2),
                }
            }
            if self.backlog.is_due(Instant::now()) {
                self.accept();
            }
            while let Some(index) = self.unproved.expired(Instant::now()) {
                self.close(index, &format_args!("it didn't answer within {} s", PROVED_WITHIN.as_secs()));
            }
            for index in std::mem::take(&mut self.again) {
                self.pump(index);
            }
        }
        Ok(())
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.backlog.due().into_iter().chain(self.unproved.due()).min();
        due.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self) {
        while let Some((rank, peer)) = self.backlog.next(Instant::now(), || self.listener.accept()) {
            if let Err(why) = check_own_user(&rank) {
                let text = format_args!("the way to the store refused a connection from {peer}: {why}");
                self.refusals.tell(Instant::now(), text);
                continue;
            }
            let index = self.passages.iter().position(Option::is_none).unwrap_or(self.passages.len());
            match self.open(index, rank) {
                Ok(passage) if index == self.passages.len() => self.passages.push(Some(passage)),
                Ok(passage) => self.passages[index] = Some(passage),
                Err(error) => {
                    log::warn!("can't reach the job's store: {error}");
                    continue;
                }
            }
            let until = Instant::now() + PROVED_WITHIN;
            if let Some(oldest) = self.unproved.add((), until, index) {
                self.close(oldest, &"too many wait for it");
            }
            self.pump(index);
        }
    }

    fn open(&self, index: usize, mut rank: TcpStream) -> Result<Passage> {
        let failed = |error: io::Error| Error::io(format_args!("connect to {}", self.store), &error);
        let secure = Secure::of_client(&self.store_key, self.key.clone(), PROTOCOL)?;
        let mut line = TcpStream::connect(self.store).map_err(failed)?;
        rank.set_nodelay(true).map_err(failed)?;
        tune(&SockRef::from(&line));
        let registry = self.poll.registry();
        watch(registry, &mut rank, 2 * index).map_err(failed)?;
        watch(registry, &mut line, 2 * index + 1).map_err(failed)?;
        Ok(Passage {
            rank,
            line,
            secure,
            to_rank: Unsent::default(),
            rank_ended: false,
            rank_told: false,
            line_told: false,
        })
    }

    /// Moves what can be moved.
    fn pump(&mut self, index: usize) {
        let Some(passage) = self.passages.get_mut(index).and_then(Option::as_mut) else { return };
        let was_proved = passage.secure.is_proved();
        let state = passage.pump(&mut self.buffer);
        if !was_proved && passage.secure.is_proved() {
            self.unproved.retain(|waiting| *waiting != index);
        }
        match state {
            Ok(State::Waits) => {}
            Ok(State::HasMore) => self.again.push(index),
            Ok(State::Over) => self.close(index, &"both ends are done"),
            Err(error) => self.close(index, &error),
        }
    }

    fn close(&mut self, index: usize, why: &dyn std::fmt::Display) {
        let Some(passage) = self.passages.get_mut(index).and_then(Option::take) else { return };
        if passage.secure.is_proved() {
            log::debug!("a connection to the job's store at {} is over: {why}", self.store);
        } else {
            log::warn!("can't reach the job's store at {}: {why}", self.store);
            self.unproved.retain(|waiting| *waiting != index);
        }
        self.backlog.hurry(Instant::now());
    }
}

fn watch(registry: &Registry, stream: &mut TcpStream, token: usize) -> io::Result<()> {
    registry.register(stream, Token(token), Interest::READABLE | Interest::WRITABLE)
}

/// What a passage waits for.
enum State {
    /// An event.
    Waits,
    /// Its next turn.
    HasMore,
    /// Nothing: everything has been said.
    Over,
}

/// One connection of a rank, and the one that carries it on.
struct Passage {
    rank: TcpStream,
    line: TcpStream,
    secure: Secure,
    to_rank: Unsent,
    /// The rank says nothing more.
    rank_ended: bool,
    /// The rank was told that the store says nothing more.
    rank_told: bool,
    /// The store's node was told that the rank says nothing more.
    line_told: bool,
}

impl Passage {
    fn pump(&mut self, buffer: &mut [u8]) -> Result<State> {
        for _ in 0..TURNS {
            let moved = [
                self.hear(buffer)?,
                self.to_rank.flush(&mut self.rank).map_err(|e| Error::io("write to the rank", &e))?,
                self.hear_rank(buffer)?,
                self.secure.flush(&mut self.line).map_err(|e| Error::io("write to its node", &e))?,
            ];
            self.pass_ends();
            if self.rank_told && self.line_told {
                return Ok(State::Over);
            }
            if moved == [false; 4] {
                return Ok(State::Waits);
            }
        }
        Ok(State::HasMore)
    }

    /// Reads from the store's node; whether there was anything.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if self.secure.has_ended() || self.to_rank.len() >= MAX_WAITING_BYTES {
            return Ok(false);
        }
        match read(&mut self.line, buffer).map_err(|e| Error::io("read from its node", &e))? {
            None => Ok(false),
            Some(0) => Err(Error::new(phalanx_types::ErrorKind::Closed, "its node closed the connection")),
            Some(count) => self.secure.receive(&buffer[..count], self.to_rank.tail()).map(|()| true),
        }
    }

    /// Reads from the rank; whether there was anything.
    fn hear_rank(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if self.rank_ended || !self.secure.is_proved() || self.secure.unsent_bytes() >= MAX_WAITING_BYTES {
            return Ok(false);
        }
        match read(&mut self.rank, buffer).map_err(|e| Error::io("read from the rank", &e))? {
            None => return Ok(false),
            Some(0) => {
                self.rank_ended = true;
                self.secure.end()?;
            }
            Some(count) => self.secure.send(&buffer[..count])?,
        }
        Ok(true)
    }

    /// ENTRANCE-2: an end of one direction follows what was said in it. A socket that is gone needs no word.
    fn pass_ends(&mut self) {
        if self.secure.has_ended() && self.to_rank.len() == 0 && !self.rank_told {
            self.rank_told = true;
            let _ = self.rank.shutdown(Shutdown::Write);
        }
        if self.rank_ended && self.secure.unsent_bytes() == 0 && !self.line_told {
            self.line_told = true;
            let _ = self.line.shutdown(Shutdown::Write);
        }
    }
}

/// What there is to read: nothing yet, the end (0), or so many bytes.
fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.read(buffer) {
            Err(e) if would_block(&e) => return Ok(None),
            Err(e) if e.kind() == IoKind::Interrupted => {}
            result => return result.map(Some),
        }
    }
}
