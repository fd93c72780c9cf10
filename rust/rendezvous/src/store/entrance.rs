//! A node's way to a store that is elsewhere: ranks connect to it inside their host, and it carries what they say over
//! TLS to the node that serves the store.
//!
//! - STORE-1 (own-ranks): it listens at a loopback address, and only processes of its own user are let in.
//! - STORE-2 (as-direct): a connection through it ends as a direct one would: what was said arrives first, an end in
//!   one direction leaves the other open, and a break breaks both.
//! - STORE-3 (bounded): of each connection it holds so many bytes in each direction; who doesn't read isn't read
//!   from.
//! - STORE-4 (clean-stop): after `stop` returns, the thread has ended, and all sockets are closed.

use std::fmt::Display;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpStream;
use phalanx_io::{PublicKey, check_own_user, check_owners_are_told};
use phalanx_types::{Error, ErrorKind, Key, Result};
use socket2::SockRef;

use super::PROTOCOL;
use crate::client::tune;
use crate::event_loop::{Connection, EventLoop, Limits, Service, Sockets};
use crate::secure::Secure;
use crate::unsent::{Unsent, read};

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

/// A running entrance; it stops when dropped.
#[derive(Debug)]
pub struct StoreEntrance(EventLoop);

impl StoreEntrance {
    /// Takes connections on `listener`, which is at an IPv4 loopback address, and leads them to the store at `store`,
    /// which has the key `store_key`; `key` is that of the generation.
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
        let limits = Limits {
            connections: usize::MAX,
            unproved: MAX_UNPROVED,
            crowded: "too many wait for it",
            proved_within: PROVED_WITHIN,
            late: format!("it didn't answer within {} s", PROVED_WITHIN.as_secs()),
        };
        let sockets = Sockets::new("the way to the store", [listener], limits).map_err(failed)?;
        let entrance = Entrance { sockets, store, store_key, key, buffer: vec![0; READ_BYTES] };
        EventLoop::start("phalanx-entrance", entrance).map(StoreEntrance).map_err(failed)
    }

    /// Where ranks of this host find the store.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Ends it: STORE-4. Further calls do nothing.
    pub fn stop(&self) {
        self.0.stop();
    }
}

struct Entrance {
    sockets: Sockets<Passage>,
    store: SocketAddr,
    store_key: PublicKey,
    key: Key,
    buffer: Vec<u8>,
}

impl Service for Entrance {
    type Connection = Passage;

    fn sockets(&mut self) -> &mut Sockets<Passage> {
        &mut self.sockets
    }

    fn begin(&mut self, _: usize, _: usize, rank: TcpStream, _: SocketAddr) -> Result<Passage> {
        check_own_user(&rank)?;
        let failed = |error: io::Error| {
            Error::io(format_args!("connect to the job's store at {}", self.store), &error)
        };
        let secure = Secure::of_client(&self.store_key, self.key.clone(), PROTOCOL)?;
        let line = TcpStream::connect(self.store).map_err(failed)?;
        rank.set_nodelay(true).map_err(failed)?;
        tune(&SockRef::from(&line));
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

    fn turn(&mut self, id: usize, _: Option<&Event>) -> Result<bool> {
        self.sockets.get_mut(id).map_or(Ok(false), |passage| passage.pump(&mut self.buffer))
    }

    fn closed(&mut self, _: usize, passage: Passage, why: &dyn Display) {
        match passage.secure.is_proved() {
            true => log::debug!("a connection to the job's store at {} is over: {why}", self.store),
            false => log::warn!("can't reach the job's store at {}: {why}", self.store),
        }
    }
}

impl Connection for Passage {
    fn streams(&mut self) -> Vec<&mut TcpStream> {
        vec![&mut self.rank, &mut self.line]
    }

    fn is_proved(&self) -> bool {
        self.secure.is_proved()
    }
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
    /// Whether there is more to do at once.
    fn pump(&mut self, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..TURNS {
            let moved = [
                self.hear(buffer)?,
                self.to_rank.flush(&mut self.rank).map_err(|e| Error::io("write to the rank", &e))?,
                self.hear_rank(buffer)?,
                self.secure.flush(&mut self.line).map_err(|e| Error::io("write to its node", &e))?,
            ];
            self.pass_ends();
            if self.rank_told && self.line_told {
                return Err(Error::new(ErrorKind::Closed, "both ends are done"));
            }
            if moved == [false; 4] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads from the store's node; whether there was anything.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if self.secure.has_ended() || self.to_rank.len() >= MAX_WAITING_BYTES {
            return Ok(false);
        }
        match read(&mut self.line, buffer).map_err(|e| Error::io("read from its node", &e))? {
            None => Ok(false),
            Some(0) => Err(Error::new(ErrorKind::Closed, "its node closed the connection")),
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

    /// STORE-2: an end of one direction follows what was said in it. A socket that is gone needs no word.
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
