//! A node's connection to the hub: connect within a deadline, prove each other, then messages both ways.
//!
//! Owns its socket. CLIENT-1: every blocking call takes a deadline. CLIENT-2: a peer that can't prove that it knows
//! the token is told nothing but the job's id.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use phalanx_types::message::{Challenge, Role, Welcome};
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::{SockRef, TcpKeepalive};

use crate::interfaces;
use crate::wire::{self, Frame, Token};

/// Idle connections are probed, so that middleboxes keep them and dead peers are noticed.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);

/// How a node finds and convinces the hub.
#[derive(Clone)]
pub struct HubAddress {
    /// `host:port`; the host may be a name.
    pub address: String,
    /// The job's id.
    pub job: String,
    /// The job's secret.
    pub token: Token,
}

impl std::fmt::Debug for HubAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HubAddress({}, job {})", self.address, self.job)
    }
}

/// A proved connection to the hub.
#[derive(Debug)]
pub struct HubConnection {
    stream: TcpStream,
    received: Vec<u8>,
    welcome: Welcome,
}

/// Sets what every connection between hub and node has: no delay, keep-alive.
pub(crate) fn tune(stream: &SockRef<'_>) {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_AFTER).with_interval(KEEPALIVE_AFTER).with_retries(3);
    if let Err(e) = stream.set_tcp_nodelay(true).and_then(|()| stream.set_tcp_keepalive(&keepalive)) {
        log::debug!("a connection goes without no-delay or keep-alive: {e}");
    }
}

impl HubConnection {
    /// Connects and proves both sides before `deadline`.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] or [`ErrorKind::Timeout`] if nobody answers, [`ErrorKind::Closed`] if the connection
    /// ends, [`ErrorKind::Refused`] if a side doesn't know the token, [`ErrorKind::Protocol`] if the peer is no hub of
    /// this version.
    pub fn open(hub: &HubAddress, role: Role, deadline: Deadline) -> Result<HubConnection> {
        let about = |e: Error| e.context(format!("the hub at {}", hub.address));
        let stream = dial(&hub.address, deadline).map_err(about)?;
        tune(&SockRef::from(&stream));
        let welcome = Welcome { mac: String::new(), received: Vec::new() };
        let mut connection = HubConnection { stream, received: Vec::new(), welcome };
        connection.prove(hub, role, deadline).map_err(about)?;
        Ok(connection)
    }

    fn prove(&mut self, hub: &HubAddress, role: Role, deadline: Deadline) -> Result<()> {
        let challenge: Challenge = self.receive(deadline)?;
        if challenge.version != phalanx_types::job::VERSION {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("it speaks version {}, not {}", challenge.version, phalanx_types::job::VERSION),
            ));
        }
        let hello = wire::answer(&hub.token, &challenge, &hub.job, role, &wire::random_token()?);
        self.send(&hello, deadline)?;
        let welcome: Welcome = self.receive(deadline)?;
        if welcome == Welcome::refusal() {
            return Err(Error::new(
                ErrorKind::Refused,
                "it refused this job's token, or has gone on without this node",
            ));
        }
        if !wire::hub_is_proved(&hub.token, &challenge, &hello, &welcome) {
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
        self.stream.local_addr().ok().map(|a| a.ip().to_canonical())
    }

    /// A second handle on the connection, for a thread that only sends.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no descriptor.
    pub fn sender(&self) -> Result<Sender> {
        let stream = self.stream.try_clone().map_err(|e| Error::io("share the connection to the hub", &e))?;
        Ok(Sender { stream, buffer: Vec::new() })
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Closed`] if the hub is gone.
    pub fn send<T: Serialize>(&mut self, message: &T, deadline: Deadline) -> Result<()> {
        let mut frame = Vec::new();
        wire::encode_json(message, &mut frame);
        write_all(&mut self.stream, &frame, deadline)
    }

    /// Waits for one message.
    ///
    /// # Errors
    /// As [`HubConnection::send`], and [`ErrorKind::Protocol`] for bytes that are no message.
    pub fn receive<T: DeserializeOwned>(&mut self, deadline: Deadline) -> Result<T> {
        loop {
            if let Some((frame, used)) = wire::decode(&self.received, wire::MAX_FRAME_BYTES)? {
                let Frame::Json(json) = frame else {
                    return Err(Error::new(ErrorKind::Protocol, "data where a message was expected"));
                };
                let message = wire::message(json)?;
                self.received.drain(..used);
                return Ok(message);
            }
            let mut chunk = [0; 4096];
            let n = read_some(&mut self.stream, &mut chunk, deadline)?;
            self.received.extend_from_slice(&chunk[..n]);
        }
    }
}

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Sender {
    /// Sends one message.
    ///
    /// # Errors
    /// As [`HubConnection::send`]. After an error part of a frame may be sent: the connection is of no more use.
    pub fn send<T: Serialize>(&mut self, message: &T, deadline: Deadline) -> Result<()> {
        self.buffer.clear();
        wire::encode_json(message, &mut self.buffer);
        write_all(&mut self.stream, &self.buffer, deadline)
    }

    /// Sends one frame of data.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub fn send_frame(&mut self, frame: &Frame<'_>, deadline: Deadline) -> Result<()> {
        self.buffer.clear();
        wire::encode(frame, &mut self.buffer);
        write_all(&mut self.stream, &self.buffer, deadline)
    }

    /// Ends the connection in both directions; a thread that waits for a message is woken.
    pub fn close(&self) {
        // An error here means that the peer closed first.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Resolves and connects.
fn dial(address: &str, deadline: Deadline) -> Result<TcpStream> {
    let (host, port) = interfaces::split_host_port(address)?;
    let candidates = match host.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => interfaces::resolve_in_time(host, port, deadline)?,
    };
    let mut last = Error::new(ErrorKind::Unreachable, "it has no address");
    for (i, candidate) in candidates.iter().enumerate() {
        let left = deadline.left().unwrap_or(Duration::from_secs(60));
        let share = left / u32::try_from(candidates.len() - i).unwrap_or(1);
        if share.is_zero() {
            return Err(Error::new(ErrorKind::Timeout, "it did not answer in time"));
        }
        match TcpStream::connect_timeout(candidate, share) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = Error::io(format!("connect to {candidate}"), &e),
        }
    }
    Err(last)
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

fn read_some(stream: &mut TcpStream, buffer: &mut [u8], deadline: Deadline) -> Result<usize> {
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

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: Deadline) -> Result<()> {
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
