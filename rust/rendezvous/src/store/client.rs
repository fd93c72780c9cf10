//! A blocking client of the store, with a deadline for every call.
//!
//! Keys get a `/` in front, as torch's own client does it, so both see the same keys.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::protocol::{
    self, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, Query, READY, REFUSAL, STOP_WAITING, put_bytes,
    put_greeting, refused_as,
};

/// How long the server may take to confirm that a wait is cancelled.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// The longest refusal.
const MAX_REFUSAL_BYTES: usize = 80;
/// How many keys an error message names.
const KEYS_NAMED: usize = 3;

/// A connection to a store. After an error other than a time-out of [`StoreClient::wait`] or [`StoreClient::get`]
/// nobody knows where in the stream the connection is: further calls are [`ErrorKind::Closed`].
#[derive(Debug)]
pub struct StoreClient {
    stream: TcpStream,
    server: SocketAddr,
    is_broken: bool,
}

impl StoreClient {
    /// Connects, and returns once the server has answered.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the server takes this host for a stranger, with the address that it sees.
    pub fn connect(server: SocketAddr, deadline: Deadline) -> Result<StoreClient> {
        let failed = |error: io::Error| Error::io(format_args!("connect to the store at {server}"), &error);
        let stream = phalanx_io::connect(server, deadline).map_err(|error| error.context("the store"))?;
        stream.set_nodelay(true).map_err(failed)?;
        let mut client = StoreClient { stream, server, is_broken: false };
        let nonce = std::process::id();
        let mut message = Vec::new();
        put_greeting(&mut message, nonce);
        let answer: [u8; 4] = client.call(&message, deadline)?;
        if answer == REFUSAL {
            return Err(client.refused(deadline));
        }
        if answer != nonce.to_le_bytes() {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("{server} is not a store: wrong answer to a ping"),
            ));
        }
        Ok(client)
    }

    /// Gives the key a value. The server doesn't confirm it, but carries out this client's calls in their order.
    pub fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        let mut message = query(Query::Set, key)?;
        put_bytes(&mut message, checked(value)?);
        self.send(&message, deadline)
    }

    /// Waits for the key and returns its value.
    pub fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.wait(&[key], deadline)?;
        let message = query(Query::Get, key)?;
        self.send(&message, deadline)?;
        self.receive_value(deadline)
    }

    /// Adds to a number, 0 if the key is missing, and returns the sum.
    pub fn add(&mut self, key: &str, delta: i64, deadline: Deadline) -> Result<i64> {
        let mut message = query(Query::Add, key)?;
        message.extend_from_slice(&delta.to_le_bytes());
        self.call(&message, deadline).map(i64::from_le_bytes)
    }

    /// Waits until every key exists.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline; the connection stays usable.
    pub fn wait(&mut self, keys: &[&str], deadline: Deadline) -> Result<()> {
        self.send(&key_list(Query::Wait, keys)?, deadline)?;
        let mut answer = [0];
        match self.receive(&mut answer, deadline) {
            Err(error) if error.kind() == ErrorKind::Timeout => {}
            result => return result.and_then(|()| self.expect(answer, STOP_WAITING)),
        }
        // Nothing of the answer had arrived, so the stream is still in step.
        self.is_broken = false;
        let soon = Deadline::after(CANCEL_PATIENCE);
        self.send(&[Query::CancelWait as u8], soon)?;
        self.receive(&mut answer, soon)?;
        if answer == [STOP_WAITING] {
            // The keys came just before the server heard of the end of our patience.
            self.receive(&mut answer, soon)?;
            return self.expect(answer, protocol::WAIT_CANCELED);
        }
        self.expect(answer, protocol::WAIT_CANCELED)?;
        let named = keys[..keys.len().min(KEYS_NAMED)].join(", ");
        let more = if keys.len() > KEYS_NAMED {
            format!(" and {} more", keys.len() - KEYS_NAMED)
        } else {
            "".into()
        };
        let server = self.server;
        Err(Error::new(
            ErrorKind::Timeout,
            format!("the store at {server} doesn't have all of these keys at the deadline: {named}{more}"),
        ))
    }

    /// Whether every key exists.
    pub fn check(&mut self, keys: &[&str], deadline: Deadline) -> Result<bool> {
        self.call(&key_list(Query::Check, keys)?, deadline).map(|[answer]| answer == READY)
    }

    /// Takes the key away; whether it was there.
    pub fn delete(&mut self, key: &str, deadline: Deadline) -> Result<bool> {
        let message = query(Query::DeleteKey, key)?;
        self.call(&message, deadline).map(|count| i64::from_le_bytes(count) == 1)
    }

    /// Swaps `desired` in if the value is `expected`, or if the key is missing and `expected` empty. Returns the
    /// value that the key has then; but `expected` if the key is missing and stays so.
    pub fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let mut message = query(Query::CompareSet, key)?;
        put_bytes(&mut message, checked(expected)?);
        put_bytes(&mut message, checked(desired)?);
        self.send(&message, deadline)?;
        self.receive_value(deadline)
    }

    /// Why the server has let this client go: STORE-9.
    fn refused(&mut self, deadline: Deadline) -> Error {
        let mut told = REFUSAL.to_vec();
        let mut byte = [0];
        while told.len() < MAX_REFUSAL_BYTES
            && !told.ends_with(b"\n")
            && self.receive(&mut byte, deadline).is_ok()
        {
            told.extend(byte);
        }
        let seen = refused_as(&told).map_or("an address".into(), |address| address.to_string());
        let server = self.server;
        let text = format!(
            "the job's store at {server} admits only the job's hosts, and sees this host as {seen}, which is \
             not one of them: a proxy or address translation is in between; allow its network with \
             spark.phalanx.store.allowedNetworks"
        );
        Error::new(ErrorKind::Refused, text)
    }

    /// Sends a message and receives an answer of fixed length.
    fn call<const N: usize>(&mut self, message: &[u8], deadline: Deadline) -> Result<[u8; N]> {
        let mut answer = [0; N];
        self.send(message, deadline)?;
        self.receive(&mut answer, deadline)?;
        Ok(answer)
    }

    fn receive_value(&mut self, deadline: Deadline) -> Result<Vec<u8>> {
        let mut length = [0; 8];
        self.receive(&mut length, deadline)?;
        // A value that was appended to can be longer than one message; but no length is trusted with memory.
        let mut left = u64::from_le_bytes(length);
        let mut value = Vec::new();
        while left > 0 {
            let piece = left.min(MAX_VALUE_BYTES as u64) as usize;
            let start = value.len();
            value.resize(start + piece, 0);
            self.receive(&mut value[start..], deadline)?;
            left -= piece as u64;
        }
        Ok(value)
    }

    fn expect(&mut self, answer: [u8; 1], expected: u8) -> Result<()> {
        if answer == [expected] {
            return Ok(());
        }
        self.is_broken = true;
        let server = self.server;
        Err(Error::new(ErrorKind::Protocol, format!("the store at {server} answered {answer:?} to a wait")))
    }

    fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()> {
        let mut sent = 0;
        let result = self.step(|mut stream| {
            while sent < message.len() {
                stream.set_write_timeout(left(deadline)?)?;
                match stream.write(&message[sent..]) {
                    Ok(0) => return Err(io::ErrorKind::BrokenPipe.into()),
                    Ok(count) => sent += count,
                    Err(error) => retry(error)?,
                }
            }
            Ok(())
        });
        // Late before the first byte: the stream is still in step.
        self.is_broken &= sent > 0 || !matches!(&result, Err(error) if error.kind() == ErrorKind::Timeout);
        result
    }

    fn receive(&mut self, answer: &mut [u8], deadline: Deadline) -> Result<()> {
        self.step(|mut stream| {
            let mut received = 0;
            while received < answer.len() {
                stream.set_read_timeout(left(deadline)?)?;
                match stream.read(&mut answer[received..]) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(count) => received += count,
                    Err(error) => retry(error)?,
                }
            }
            Ok(())
        })
    }

    fn step(&mut self, action: impl FnOnce(&TcpStream) -> io::Result<()>) -> Result<()> {
        let server = self.server;
        if self.is_broken {
            return Err(Error::new(
                ErrorKind::Closed,
                format!("the connection to the store at {server} broke before"),
            ));
        }
        let result = action(&self.stream);
        self.is_broken = result.is_err();
        result.map_err(|error| Error::io(format_args!("talk to the store at {server}"), &error))
    }
}

/// What a socket's time-out has to be; an error if the deadline has passed.
fn left(deadline: Deadline) -> io::Result<Option<Duration>> {
    match deadline.left() {
        Some(left) if left.is_zero() => Err(io::ErrorKind::TimedOut.into()),
        left => Ok(left),
    }
}

/// A socket's time-out is no error yet: the deadline decides.
fn retry(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(()),
        _ => Err(error),
    }
}

fn prefixed(key: &str) -> Result<String> {
    if key.len() >= MAX_KEY_BYTES {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a key of the store has to be shorter than {MAX_KEY_BYTES} bytes, this one has {}",
                key.len()
            ),
        ));
    }
    Ok(format!("/{key}"))
}

fn checked(value: &[u8]) -> Result<&[u8]> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("a value in the store has at most {MAX_VALUE_BYTES} bytes, this one has {}", value.len()),
        ));
    }
    Ok(value)
}

fn query(query: Query, key: &str) -> Result<Vec<u8>> {
    let mut message = Vec::new();
    protocol::put_query(&mut message, query, prefixed(key)?.as_bytes());
    Ok(message)
}

fn key_list(query: Query, keys: &[&str]) -> Result<Vec<u8>> {
    if keys.len() as u64 > MAX_KEYS {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("one call names at most {MAX_KEYS} keys, this one {}", keys.len()),
        ));
    }
    let keys = keys.iter().map(|key| prefixed(key)).collect::<Result<Vec<_>>>()?;
    let mut message = Vec::new();
    protocol::put_list(&mut message, query, &keys);
    Ok(message)
}
