//! The fetching end, for one rank: blocking calls, each of which ends.

use std::collections::HashMap;
use std::fmt;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use phalanx_io::{split_frame, write_frame};
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use socket2::SockRef;

use super::directory::{BlockAccess, Location, host_name, servers_of};
use super::{CHUNK_BYTES, GRANTED, MAX_ANSWER_BYTES, PROTOCOL, Request, STALLED_AFTER};
use crate::client::tune;
use crate::secure::Secure;

/// How long the way to a server may take, from its note on the store to the proof of both ends.
const CONNECT_WITHIN: Duration = Duration::from_secs(60);
/// How long one server may take for that.
const SERVER_WITHIN: Duration = Duration::from_secs(20);

/// Fetches blocks from the servers of other hosts, over a connection to each that is kept.
pub struct BlockClient {
    access: BlockAccess,
    connections: HashMap<String, Connection>,
}

impl fmt::Debug for BlockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockClient({} connections)", self.connections.len())
    }
}

impl BlockClient {
    /// Connects to nobody yet.
    pub fn new(access: BlockAccess) -> BlockClient {
        BlockClient { access, connections: HashMap::new() }
    }

    /// Fetches `bytes` bytes from `start` on of `file` on `host`, and writes them to `to`.
    ///
    /// # Errors
    /// [`ErrorKind::PeerLost`] if the server of that host can't be reached, or is lost on the way;
    /// [`ErrorKind::MissingFile`] if the block isn't there any more, or nobody serves on that host, and no carrier
    /// comes in time; [`ErrorKind::Refused`] for a server that is not the job's; [`ErrorKind::Io`] for what `to` says.
    pub fn fetch(
        &mut self,
        host: &str,
        file: &str,
        start: u64,
        bytes: u64,
        to: &mut impl Write,
    ) -> Result<()> {
        let request = Request { file: file.into(), start, bytes };
        if let Some(connection) = self.connections.get_mut(host) {
            match connection.fetch(&request, to) {
                // Another host of this name, or another container, may have it.
                Err(e) if e.kind() == ErrorKind::MissingFile => {}
                fetched => return self.checked(host, fetched),
            }
        }
        let servers = servers_of(&self.access, host, Deadline::after(CONNECT_WITHIN))?;
        let mut problem = self.unserved(host, file);
        for server in &servers {
            let deadline = Deadline::after(SERVER_WITHIN);
            match Connection::open(server, Key::from_bytes(self.access.key), deadline) {
                Err(e) => problem = lost(host, server.address, &e),
                Ok(connection) => {
                    let connection = self.connections.entry(host.into()).insert_entry(connection).into_mut();
                    match connection.fetch(&request, to) {
                        Err(e) if e.kind() == ErrorKind::MissingFile => problem = e,
                        fetched => return self.checked(host, fetched),
                    }
                }
            }
        }
        Err(problem)
    }

    /// Why there is no server on `host`.
    fn unserved(&self, host: &str, file: &str) -> Error {
        if host == host_name() {
            return Error::new(ErrorKind::MissingFile, format!("there is no file {file}"));
        }
        let said = format!(
            "no task serves the blocks on {host}: this run has none there, and Spark started none there \
             within {:.0?}; its executors are gone, or other tasks hold all their slots",
            self.access.carrier_within
        );
        Error::new(ErrorKind::MissingFile, said)
    }

    /// Forgets a connection that is not in step any more.
    fn checked(&mut self, host: &str, fetched: Result<()>) -> Result<()> {
        let Err(e) = fetched else { return Ok(()) };
        let gone = self.connections.remove(host);
        match (e.kind(), gone) {
            (ErrorKind::Io, _) | (_, None) => Err(e),
            (_, Some(gone)) => Err(lost(host, gone.server, &e)),
        }
    }
}

fn lost(host: &str, server: SocketAddr, why: &Error) -> Error {
    let kind = if why.kind() == ErrorKind::Refused { ErrorKind::Refused } else { ErrorKind::PeerLost };
    let here = host_name();
    Error::new(
        kind,
        format!("{here} can't reach the task that serves the blocks of {host} ({server}): {why}"),
    )
}

/// A proved connection to one server.
pub(super) struct Connection {
    server: SocketAddr,
    stream: TcpStream,
    secure: Secure,
    said: Vec<u8>,
    buffer: Vec<u8>,
}

impl Connection {
    pub(super) fn open(server: &Location, key: Key, deadline: Deadline) -> Result<Connection> {
        let stream = phalanx_io::connect(server.address, deadline)?;
        tune(&SockRef::from(&stream));
        let secure = Secure::of_client(&server.key, key, PROTOCOL)?;
        let mut connection = Connection {
            server: server.address,
            stream,
            secure,
            said: Vec::new(),
            buffer: vec![0; CHUNK_BYTES],
        };
        while !connection.secure.is_proved() {
            connection.flush(deadline)?;
            connection.read(deadline)?;
        }
        Ok(connection)
    }

    pub(super) fn ask(&mut self, request: &Request) -> Result<()> {
        let text = serde_json::to_vec(request).unwrap_or_default();
        let mut frame = Vec::new();
        write_frame(&mut frame, |out| out.extend_from_slice(&text));
        self.secure.send(&frame)?;
        self.flush(Deadline::after(STALLED_AFTER))
    }

    /// After an error nobody knows where in the stream the connection is.
    fn fetch(&mut self, request: &Request, to: &mut impl Write) -> Result<()> {
        self.ask(request)?;
        let used = loop {
            if let Some((answer, used)) = split_frame(&self.said, MAX_ANSWER_BYTES)? {
                if answer != GRANTED {
                    let problem = String::from_utf8_lossy(answer.get(1..).unwrap_or_default());
                    return Err(Error::new(ErrorKind::MissingFile, problem));
                }
                break used;
            }
            self.read(Deadline::after(STALLED_AFTER))?;
        };
        self.said.drain(..used);
        let mut left = request.bytes;
        loop {
            if self.said.len() as u64 > left {
                return Err(Error::new(ErrorKind::Protocol, "more bytes came than were asked for"));
            }
            to.write_all(&self.said).map_err(|e| Error::io("keep a fetched block", &e))?;
            left -= self.said.len() as u64;
            self.said.clear();
            if left == 0 {
                return Ok(());
            }
            self.read(Deadline::after(STALLED_AFTER))?;
        }
    }

    fn flush(&mut self, deadline: Deadline) -> Result<()> {
        while self.secure.unsent_bytes() > 0 {
            self.stream.set_write_timeout(left(deadline)?).map_err(|e| broke(&e))?;
            self.secure.flush(&mut self.stream).map_err(|e| broke(&e))?;
        }
        Ok(())
    }

    fn read(&mut self, deadline: Deadline) -> Result<()> {
        loop {
            self.stream.set_read_timeout(left(deadline)?).map_err(|e| broke(&e))?;
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(Error::new(ErrorKind::PeerLost, "it closed the connection")),
                Ok(count) => {
                    let heard = self.secure.receive(&self.buffer[..count], &mut self.said);
                    // What TLS itself has to say goes with the next words, or tells the peer why this end gives up.
                    let _ = self.flush(deadline);
                    return heard;
                }
                Err(e) if matches!(e.kind(), IoKind::WouldBlock | IoKind::TimedOut | IoKind::Interrupted) => {
                }
                Err(e) => return Err(broke(&e)),
            }
        }
    }
}

fn broke(e: &std::io::Error) -> Error {
    Error::new(ErrorKind::PeerLost, format!("the connection broke: {e}"))
}

fn left(deadline: Deadline) -> Result<Option<Duration>> {
    match deadline.left() {
        Some(left) if left.is_zero() => Err(Error::new(ErrorKind::PeerLost, "it didn't answer in time")),
        left => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use phalanx_io::Identity;

    use super::*;

    #[test]
    fn a_server_that_is_silent_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let key = Identity::new().unwrap().public_key().clone();
        let server = Location { address: listener.local_addr().unwrap(), key };
        let soon = Deadline::after(Duration::from_millis(50));
        let opened = Connection::open(&server, Key::from_bytes([1; 32]), soon);
        let given_up = opened.err().map(|e| (e.kind(), e.to_string()));
        assert_eq!(given_up, Some((ErrorKind::PeerLost, "it didn't answer in time".into())), "BLOCKS-4");
    }
}
