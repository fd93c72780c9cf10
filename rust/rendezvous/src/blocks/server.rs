//! The blocks of one host behind a listening socket: one thread, one event loop. Files are read in it, a piece at a
//! time: they are in the system's memory as a rule, since the host's own ranks read them, too.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use mio::event::Event;
use mio::net::TcpStream;
use phalanx_io::{Identity, TlsServer, split_frame, write_frame};
use phalanx_types::{Error, ErrorKind, Key, Result};
use rustix::fs::OFlags;
use socket2::SockRef;

use super::{
    CHUNK_BYTES, GRANTED, MAX_CONNECTIONS, MAX_REQUEST_BYTES, MAX_UNPROVED, MAX_WAITING_BYTES, PROTOCOL,
    PROVED_WITHIN, Request,
};
use crate::client::tune;
use crate::event_loop::{self, EventLoop, Limits, Service, Sockets};
use crate::secure::Secure;
use crate::unsent::read;

/// How often one connection is looked at before the others' turn.
const TURNS: usize = 16;

/// A running server of blocks; it stops when dropped.
#[derive(Debug)]
pub struct BlockServer(EventLoop);

impl BlockServer {
    /// Serves on `listener`, to who knows `key`, the files of this user in folders that are called `folder`, wherever
    /// they are. Clients see `identity`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system refuses the event queue or the thread.
    pub fn start(listener: TcpListener, identity: &Identity, key: Key, folder: &str) -> Result<BlockServer> {
        let failed = |error: io::Error| Error::io("serve blocks", &error);
        let limits = Limits {
            connections: MAX_CONNECTIONS,
            unproved: MAX_UNPROVED,
            crowded: "too many connections are not authenticated yet",
            proved_within: PROVED_WITHIN,
            late: "it didn't prove in time that it is a rank of this job".into(),
        };
        let server = Server {
            sockets: Sockets::new("the server of blocks", [listener], limits).map_err(failed)?,
            tls: TlsServer::new(identity, PROTOCOL)?,
            key,
            folder: folder.into(),
            buffer: vec![0; CHUNK_BYTES],
        };
        EventLoop::start("phalanx-blocks", server).map(BlockServer).map_err(failed)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Ends it: BLOCKS-6. Further calls do nothing.
    pub fn stop(&self) {
        self.0.stop();
    }
}

struct Server {
    sockets: Sockets<Connection>,
    tls: TlsServer,
    key: Key,
    folder: String,
    buffer: Vec<u8>,
}

impl Service for Server {
    type Connection = Connection;

    fn sockets(&mut self) -> &mut Sockets<Connection> {
        &mut self.sockets
    }

    fn begin(&mut self, _: usize, _: usize, stream: TcpStream, peer: SocketAddr) -> Result<Connection> {
        let secure = Secure::of_server(&self.tls, self.key.clone())?;
        tune(&SockRef::from(&stream));
        Ok(Connection { stream, peer, secure, said: Vec::new(), sending: None })
    }

    fn turn(&mut self, id: usize, _: Option<&Event>) -> Result<bool> {
        let Some(connection) = self.sockets.get_mut(id) else { return Ok(false) };
        connection.pump(&self.folder, &mut self.buffer)
    }

    fn closed(&mut self, _: usize, mut connection: Connection, why: &dyn Display) {
        let peer = connection.peer;
        match connection.secure.is_proved() {
            true => log::debug!("a connection of {peer} for blocks is over: {why}"),
            false => self.sockets.refused(peer, why),
        }
        // Why TLS was broken off, for one.
        let _ = connection.secure.flush(&mut connection.stream);
    }
}

impl event_loop::Connection for Connection {
    fn streams(&mut self) -> Vec<&mut TcpStream> {
        vec![&mut self.stream]
    }

    fn is_proved(&self) -> bool {
        self.secure.is_proved()
    }
}

struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    secure: Secure,
    /// What came and was not answered yet.
    said: Vec<u8>,
    sending: Option<Sending>,
}

/// A block on its way.
struct Sending {
    file: File,
    left: u64,
}

impl Connection {
    /// Whether there is more to do at once.
    fn pump(&mut self, folder: &str, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..TURNS {
            let moved = [
                self.hear(buffer)?,
                self.answer(folder)?,
                self.send(buffer)?,
                self.secure.flush(&mut self.stream).map_err(|e| Error::io("write to it", &e))?,
            ];
            if moved == [false; 4] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads, unless something is being answered; whether there was anything.
    fn hear(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if self.sending.is_some() || self.secure.unsent_bytes() >= MAX_WAITING_BYTES {
            return Ok(false);
        }
        match read(&mut self.stream, buffer).map_err(|e| Error::io("read from it", &e))? {
            None => return Ok(false),
            Some(0) => return Err(Error::new(ErrorKind::Closed, "it closed the connection")),
            Some(count) => self.secure.receive(&buffer[..count], &mut self.said)?,
        }
        if self.secure.has_ended() {
            return Err(Error::new(ErrorKind::Closed, "it is done"));
        }
        Ok(true)
    }

    /// Begins to answer the next request; whether there was one.
    fn answer(&mut self, folder: &str) -> Result<bool> {
        if self.sending.is_some() || !self.secure.is_proved() {
            return Ok(false);
        }
        let Some((body, used)) = split_frame(&self.said, MAX_REQUEST_BYTES)? else { return Ok(false) };
        let request: Request = crate::wire::message(body)?;
        self.said.drain(..used);
        let mut answer = Vec::new();
        match open(folder, &request) {
            Ok(file) => {
                write_frame(&mut answer, |out| out.extend_from_slice(GRANTED));
                self.sending = Some(Sending { file, left: request.bytes });
            }
            Err(e) => {
                let problem = format!("-{e}");
                write_frame(&mut answer, |out| out.extend(problem.bytes().take(super::MAX_ANSWER_BYTES)));
            }
        }
        self.secure.send(&answer)?;
        Ok(true)
    }

    /// Sends the next piece of a block; whether there was one, and room for it.
    fn send(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let Some(sending) = &mut self.sending else { return Ok(false) };
        if self.secure.unsent_bytes() >= MAX_WAITING_BYTES {
            return Ok(false);
        }
        let most = buffer.len().min(usize::try_from(sending.left).unwrap_or(usize::MAX));
        if most > 0 {
            // Whoever waits for the rest learns by the end of the connection that there is none.
            let count = sending.file.read(&mut buffer[..most]).map_err(|e| Error::io("read a block", &e))?;
            if count == 0 {
                return Err(Error::new(ErrorKind::Io, "a block became shorter while it was read"));
            }
            self.secure.send(&buffer[..count])?;
            sending.left -= count as u64;
        }
        if sending.left == 0 {
            self.sending = None;
        }
        Ok(true)
    }
}

/// BLOCKS-1
fn open(folder: &str, request: &Request) -> Result<File> {
    let refused = |why: String| Error::new(ErrorKind::Refused, why);
    let path = Path::new(&request.file);
    let parent = path.parent().and_then(Path::file_name).and_then(std::ffi::OsStr::to_str);
    if !path.is_absolute() || folder.is_empty() || parent != Some(folder) {
        return Err(refused(format!("{} is not a file of this job's data", request.file)));
    }
    // Not waiting: to open a FIFO takes until somebody writes into it.
    let how = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let how = i32::try_from(how.bits()).unwrap_or(0);
    let opened = File::options().read(true).custom_flags(how).open(path);
    let mut file = opened.map_err(|e| Error::io(format_args!("open {}", request.file), &e))?;
    let found = file.metadata().map_err(|e| Error::io(format_args!("look at {}", request.file), &e))?;
    if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("{} is not a file of this job's user", request.file)));
    }
    let end = request.start.checked_add(request.bytes);
    if end.is_none_or(|end| end > found.len()) {
        let short = format!("{} has {} bytes and should have more", request.file, found.len());
        return Err(Error::new(ErrorKind::Closed, short));
    }
    file.seek(SeekFrom::Start(request.start)).map_err(|e| Error::io("read a block", &e))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use phalanx_types::Deadline;

    use super::super::client::Connection as Client;
    use super::super::directory::Location;
    use super::*;

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let disk = tempfile::tempdir().unwrap();
        let path = disk.path().join("phalanx-data-1").join("0-0");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let request = Request { file: path.to_str().unwrap().into(), start: 0, bytes: 1 };
        let (told, answer) = mpsc::channel();
        // On a thread: to open a FIFO waits for a writer.
        std::thread::spawn(move || told.send(open("phalanx-data-1", &request).map(drop)));
        let answer = answer.recv_timeout(Duration::from_secs(10)).expect("it is not waited for");
        assert!(answer.unwrap_err().to_string().contains("is not a file of this job's user"), "BLOCKS-1");
    }

    #[test]
    fn of_a_block_that_nobody_reads_little_is_held() {
        let disk = tempfile::tempdir().unwrap();
        let file = disk.path().join("phalanx-data-1").join("0-0");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        std::fs::write(&file, vec![7; 64 << 20]).unwrap();
        let (identity, key) = (Identity::new().unwrap(), Key::from_bytes([1; 32]));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let location =
            Location { address: listener.local_addr().unwrap(), key: identity.public_key().clone() };
        let request = Request { file: file.to_str().unwrap().into(), start: 0, bytes: 64 << 20 };
        let (asked, was_asked) = mpsc::channel();
        let client_key = key.clone();
        // Asks, and reads nothing of the answer until it is told to end.
        let client = std::thread::spawn(move || {
            let deadline = Deadline::after(Duration::from_secs(60));
            let mut client = Client::open(&location, client_key, deadline).unwrap();
            client.ask(&request).unwrap();
            asked.send(()).unwrap();
            client
        });
        let (stream, peer) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let secure = Secure::of_server(&TlsServer::new(&identity, PROTOCOL).unwrap(), key).unwrap();
        let stream = TcpStream::from_std(stream);
        let mut connection = Connection { stream, peer, secure, said: Vec::new(), sending: None };
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut has_asked = false;
        while !has_asked || connection.sending.is_none() {
            // It is said once.
            has_asked |= was_asked.try_recv().is_ok();
            connection.pump("phalanx-data-1", &mut buffer).unwrap();
        }
        while connection.pump("phalanx-data-1", &mut buffer).unwrap() {}
        let left = connection.sending.as_ref().map_or(0, |sending| sending.left);
        assert!(left > 0, "the sockets between them don't hold all of it");
        assert!(connection.secure.unsent_bytes() <= MAX_WAITING_BYTES + 2 * CHUNK_BYTES, "BLOCKS-3");
        drop(client.join().unwrap());
    }
}
