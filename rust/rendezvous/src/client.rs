//! A node's connection to the hub: TLS within a deadline, prove each other, then messages both ways.
//!
//! It owns its socket.
//!
//! - HUB-1 (deadline): every blocking call takes a deadline.
//! - HUB-2 (proof-first): a peer without the hub's key is told nothing. One that can't prove, too, that it knows the
//!   token is told only the job's id.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_io::{FrameBuffer, PublicKey, TlsChannel};
use phalanx_types::message::{Role, Welcome};
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

use crate::interfaces;
use crate::wire::{self, Frame, Token};

/// Idle connections are probed, so that middleboxes keep them and dead peers are noticed.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// How often a connection that is being made looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a node finds and convinces the hub.
#[derive(Clone)]
pub struct HubAddress {
    /// `host:port`; the host may be a name.
    pub address: String,
    /// The job's id.
    pub job: String,
    /// The job's secret.
    pub token: Token,
    /// The hub's own key: nobody else is spoken with.
    pub key: PublicKey,
}

impl std::fmt::Debug for HubAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HubAddress({}, job {})", self.address, self.job)
    }
}

/// A proved connection to the hub.
#[derive(Debug)]
pub struct HubConnection {
    line: Arc<Line>,
    received: FrameBuffer,
    welcome: Welcome,
}

/// The socket and its encryption, which a thread that receives and threads that send share.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    /// Held for no longer than it takes to encrypt or decrypt.
    tls: Mutex<TlsChannel>,
    /// What is being sent, as it goes over the wire: held until it has gone, so that it goes in order.
    wire: Mutex<Vec<u8>>,
}

impl Line {
    fn tls(&self) -> MutexGuard<'_, TlsChannel> {
        self.tls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what `encrypt` appends.
    fn write(
        &self,
        deadline: Deadline,
        encrypt: impl FnOnce(&mut TlsChannel, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let mut wire = self.wire.lock().unwrap_or_else(PoisonError::into_inner);
        wire.clear();
        encrypt(&mut self.tls(), &mut wire)?;
        write_all(&self.stream, &wire, deadline)
    }

    /// Reads once; what the hub said goes to `received`, if it is a whole record.
    fn read(&self, received: &mut FrameBuffer, deadline: Deadline) -> Result<()> {
        let mut chunk = [0; 4096];
        let n = read_some(&self.stream, &mut chunk, deadline)?;
        self.tls().receive(&chunk[..n], |said| received.push(said))
    }
}

/// Sets what every connection between hub and node has: no delay, keep-alive.
pub(crate) fn tune(stream: &SockRef<'_>) {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_AFTER).with_retries(3);
    if let Err(e) = stream.set_tcp_nodelay(true).and_then(|()| stream.set_tcp_keepalive(&keepalive)) {
        log::debug!("a connection has no TCP_NODELAY or keep-alive: {e}");
    }
}

impl HubConnection {
    /// Connects and proves both sides before `deadline`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Timeout`] if nobody answers, or the connection ends before both are
    /// proved; [`ErrorKind::Closed`] if the host answers that nothing listens there, [`ErrorKind::Refused`] if a side
    /// doesn't know the token, [`ErrorKind::Protocol`] if the peer is no hub of this version.
    pub fn open(hub: &HubAddress, role: Role, deadline: Deadline) -> Result<HubConnection> {
        HubConnection::open_unless(&AtomicBool::new(false), hub, role, deadline)
    }

    /// As [`HubConnection::open`], and ends soon after `stop` is set.
    ///
    /// # Errors
    /// As there; [`ErrorKind::Cancelled`] once `stop` is set.
    pub fn open_unless(
        stop: &AtomicBool,
        hub: &HubAddress,
        role: Role,
        deadline: Deadline,
    ) -> Result<HubConnection> {
        let about = |e: Error| e.context(format!("the hub at {}", hub.address));
        let stream = dial(stop, &hub.address, deadline).map_err(about)?;
        tune(&SockRef::from(&stream));
        let tls = TlsChannel::connect(&hub.key, &wire::protocol_name())?;
        let line = Arc::new(Line { stream, tls: Mutex::new(tls), wire: Mutex::default() });
        let welcome = Welcome { mac: String::new(), received: Vec::new() };
        let mut connection = HubConnection { line, received: FrameBuffer::default(), welcome };
        connection.prove(stop, hub, role, deadline).map_err(unproved).map_err(about)?;
        Ok(connection)
    }

    fn prove(&mut self, stop: &AtomicBool, hub: &HubAddress, role: Role, deadline: Deadline) -> Result<()> {
        while !self.line.tls().is_ready() {
            self.line.write(deadline, TlsChannel::drain)?;
            self.read_unless(stop, deadline)?;
        }
        let binding = self.line.tls().binding()?;
        let hello = wire::hello(&hub.token, &binding, &hub.job, role);
        self.send(&hello, deadline)?;
        let welcome: Welcome = self.receive_by(|connection| connection.read_unless(stop, deadline))?;
        if welcome == Welcome::refusal() {
            return Err(Error::new(
                ErrorKind::Refused,
                "it refused this job's token, or goes on without this task",
            ));
        }
        if !wire::hub_is_proved(&hub.token, &binding, &hello, &welcome) {
            return Err(Error::new(ErrorKind::Refused, "it does not know this job's token"));
        }
        self.welcome = welcome;
        Ok(())
    }

    /// What the hub said when it accepted the connection.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The address of this host on the way to the hub.
    pub fn local_address(&self) -> Option<IpAddr> {
        self.line.stream.local_addr().ok().map(|a| a.ip().to_canonical())
    }

    /// A second handle on the connection, for a thread that only sends.
    pub fn sender(&self) -> Sender {
        Sender { line: Arc::clone(&self.line), buffer: Vec::new() }
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Closed`] if the hub is gone.
    pub fn send<T: Serialize>(&mut self, message: &T, deadline: Deadline) -> Result<()> {
        self.sender().send(message, deadline)
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// As [`HubConnection::send`], and [`ErrorKind::Protocol`] for bytes that are no message.
    pub fn receive<T: DeserializeOwned>(&mut self, deadline: Deadline) -> Result<T> {
        self.receive_by(|connection| connection.line.read(&mut connection.received, deadline))
    }

    fn receive_by<T: DeserializeOwned>(&mut self, read: impl Fn(&mut Self) -> Result<()>) -> Result<T> {
        loop {
            if let Some(body) = self.received.next_frame(wire::MAX_FRAME_BYTES)? {
                let Frame::Json(json) = wire::parse(body)? else {
                    return Err(Error::new(ErrorKind::Protocol, "data where a message was expected"));
                };
                return wire::message(json);
            }
            read(self)?;
        }
    }

    /// Reads once; looks from time to time whether it is still wanted.
    fn read_unless(&mut self, stop: &AtomicBool, deadline: Deadline) -> Result<()> {
        loop {
            match self.line.read(&mut self.received, deadline.min(Deadline::after(LOOK_EVERY))) {
                Err(e) if e.kind() == ErrorKind::Timeout && !deadline.passed() => {}
                read => return read,
            }
            if stop.load(Ordering::Acquire) {
                return Err(Error::new(ErrorKind::Cancelled, "the connection is not wanted any more"));
            }
        }
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    line: Arc<Line>,
    buffer: Vec<u8>,
}

impl Sender {
    /// Sends one message.
    ///
    /// # Errors
    /// As [`HubConnection::send`]. After an error part of a frame may have been sent, so the connection can't be used
    /// any more.
    pub fn send<T: Serialize>(&mut self, message: &T, deadline: Deadline) -> Result<()> {
        self.buffer.clear();
        wire::encode_json(message, &mut self.buffer);
        self.line.write(deadline, |tls, wire| tls.send(&self.buffer, wire))
    }

    /// Sends one frame of data.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_frame(&mut self, frame: &Frame<'_>, deadline: Deadline) -> Result<()> {
        self.buffer.clear();
        wire::encode(frame, &mut self.buffer);
        self.line.write(deadline, |tls, wire| tls.send(&self.buffer, wire))
    }

    /// Ends the connection in both directions; a thread that waits for a message is woken.
    pub fn close(&self) {
        // An error here means that the peer closed first.
        let _ = self.line.stream.shutdown(Shutdown::Both);
    }
}

/// A connection that ends before both sides are proved says nothing of the hub: a proxy in between may have ended it.
fn unproved(e: Error) -> Error {
    if e.kind() == ErrorKind::Closed { Error::new(ErrorKind::Unreachable, e.to_string()) } else { e }
}

/// Resolves and connects.
fn dial(stop: &AtomicBool, address: &str, deadline: Deadline) -> Result<TcpStream> {
    let (host, port) = interfaces::split_host_port(address)?;
    let candidates = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => interfaces::resolve_in_time(host, port, deadline)?,
    };
    let mut refused = 0;
    let mut last = Error::new(ErrorKind::Unreachable, "it has no address");
    for (i, candidate) in candidates.iter().enumerate() {
        let left = deadline.left().unwrap_or(Duration::from_secs(60));
        let share = left / u32::try_from(candidates.len() - i).unwrap_or(1);
        if share.is_zero() {
            return Err(Error::new(ErrorKind::Timeout, "it did not answer in time"));
        }
        match phalanx_io::connect_unless(stop, *candidate, Deadline::after(share)) {
            Ok(Some(stream)) => return Ok(stream),
            Ok(None) => refused += 1,
            Err(e) if e.kind() == ErrorKind::Cancelled => return Err(e),
            Err(e) => last = e,
        }
    }
    // A hub may listen at some of its host's addresses only: one that does not answer may be it.
    match refused {
        n if n > 0 && n == candidates.len() => {
            Err(Error::new(ErrorKind::Closed, "its host refuses the connection: nothing listens there"))
        }
        _ => Err(last),
    }
}

fn time_left(deadline: Deadline) -> Result<Option<Duration>> {
    match deadline.left() {
        Some(left) if left.is_zero() => Err(Error::new(ErrorKind::Timeout, "it did not answer in time")),
        left => Ok(left),
    }
}

fn retry(e: &std::io::Error) -> bool {
    matches!(e.kind(), IoKind::WouldBlock | IoKind::TimedOut | IoKind::Interrupted)
}

fn read_some(mut stream: &TcpStream, buffer: &mut [u8], deadline: Deadline) -> Result<usize> {
    loop {
        let left = time_left(deadline)?;
        stream.set_read_timeout(left).map_err(|e| Error::io("set a time-out", &e))?;
        match stream.read(buffer) {
            Ok(0) => return Err(Error::new(ErrorKind::Closed, "it closed the connection")),
            Ok(n) => return Ok(n),
            Err(e) if retry(&e) => {}
            Err(e) => return Err(Error::io("read from the hub", &e)),
        }
    }
}

fn write_all(mut stream: &TcpStream, mut bytes: &[u8], deadline: Deadline) -> Result<()> {
    while !bytes.is_empty() {
        let left = time_left(deadline)?;
        stream.set_write_timeout(left).map_err(|e| Error::io("set a time-out", &e))?;
        match stream.write(bytes) {
            Ok(0) => return Err(Error::new(ErrorKind::Closed, "it closed the connection")),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if retry(&e) => {}
            Err(e) => return Err(Error::io("write to the hub", &e)),
        }
    }
    Ok(())
}
