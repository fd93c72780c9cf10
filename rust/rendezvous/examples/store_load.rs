//! A store to measure, and a load to measure stores with: ours and torch's speak the same protocol.
//!
//! ```text
//! store_load serve [HOST:PORT]                              prints its address, serves until stdin ends
//! store_load serve-through                                  the same, and the address leads there over TLS
//! store_load HOST:PORT values OPS                           each value of 8 MiB is set and read: {"seconds": ...}
//! store_load HOST:PORT set|get|waitget|add CLIENTS OPS      {"ops_per_s": ..., "seconds": ...}
//! store_load HOST:PORT rendezvous CLIENTS                   {"connect_s": ..., "total_s": ...}
//! ```
//! One thread, one event loop, one outstanding request a connection. `set` has no reply, so each one is followed by a
//! `CHECK` in the same packet; `waitget` is what torch's `get()` does, two round trips. In a rendezvous every client
//! connects, sets its own key and waits for the keys of all.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};
use phalanx_io::Identity;
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_greeting, put_list, put_query};
use phalanx_rendezvous::store::{StoreClient, StoreEntrance, StoreServer};
use phalanx_types::{Deadline, Key};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const VALUE: &[u8; 16] = b"0123456789abcdef";
/// A store that doesn't answer for so long is broken.
const PATIENCE: Duration = Duration::from_secs(60);

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    raise_file_limit()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve"] => serve("127.0.0.1:0"),
        ["serve", address] => serve(address),
        ["serve-through"] => serve_through(),
        [server, "values", count] => values(server.parse()?, count.parse()?),
        [server, "rendezvous", clients] => rendezvous(server.parse()?, clients.parse()?),
        [server, operation, clients, count] => {
            let operation = match operation {
                "set" => Operation::Set,
                "get" => Operation::Get,
                "waitget" => Operation::WaitGet,
                "add" => Operation::Add,
                other => return Err(format!("no operation is called {other}").into()),
            };
            operations(server.parse()?, operation, clients.parse()?, count.parse()?)
        }
        _ => Err(
            "usage: store_load serve [HOST:PORT] | HOST:PORT values OPS | HOST:PORT OPERATION CLIENTS [OPS]"
                .into(),
        ),
    }
}

/// A thousand clients need more files than the usual soft limit allows.
fn raise_file_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = Some(maximum.unwrap_or(1 << 20));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum })?)
}

fn serve(address: &str) -> Fallible<()> {
    let server = StoreServer::start(TcpListener::bind(address)?, None)?;
    writeln!(io::stdout(), "{}", server.address())?;
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    server.stop();
    Ok(())
}

/// As between two hosts whose nodes encrypt.
fn serve_through() -> Fallible<()> {
    let local = || TcpListener::bind("127.0.0.1:0");
    let (identity, key, nodes) = (Identity::new()?, Key::from_bytes([7; 32]), local()?);
    let outside = nodes.local_addr()?;
    let server = StoreServer::start_secure(local()?, nodes, &identity, key.clone())?;
    let entrance = StoreEntrance::start(local()?, outside, identity.public_key().clone(), key)?;
    writeln!(io::stdout(), "{}", entrance.address())?;
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    entrance.stop();
    server.stop();
    Ok(())
}

fn values(server: SocketAddr, count: u32) -> Fallible<()> {
    let value: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
    let deadline = Deadline::after(PATIENCE);
    let mut client = StoreClient::connect(server, deadline)?;
    let begin = Instant::now();
    for number in 0..count {
        client.set(&format!("value {number}"), &value, deadline)?;
    }
    for number in 0..count {
        if client.get(&format!("value {number}"), deadline)? != value {
            return Err("another value came back".into());
        }
    }
    writeln!(io::stdout(), "{{\"seconds\": {}}}", begin.elapsed().as_secs_f64())?;
    Ok(())
}

fn connect(server: SocketAddr, nonce: u32) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut greeting = Vec::new();
    put_greeting(&mut greeting, nonce);
    stream.write_all(&greeting)?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    if answer == nonce.to_le_bytes() { Ok(stream) } else { Err(io::ErrorKind::InvalidData.into()) }
}

fn rendezvous(server: SocketAddr, clients: u32) -> Fallible<()> {
    // Keys of this run alone: the process id and the clock tell it from others on the same server.
    let run = format!("{}.{:?}", std::process::id(), std::time::SystemTime::UNIX_EPOCH.elapsed()?);
    let keys: Vec<String> = (0..clients).map(|rank| format!("/{run}/{rank}")).collect();
    let mut wait = Vec::new();
    put_list(&mut wait, Query::Wait, &keys);

    let begin = Instant::now();
    let mut streams = (0..clients).map(|nonce| connect(server, nonce)).collect::<io::Result<Vec<_>>>()?;
    let connected = begin.elapsed();
    for (stream, key) in streams.iter_mut().zip(&keys) {
        let mut message = Vec::with_capacity(wait.len() + 64);
        put_query(&mut message, Query::Set, key.as_bytes());
        put_bytes(&mut message, b"127.0.0.1:12345");
        message.extend_from_slice(&wait);
        stream.write_all(&message)?;
    }
    for stream in &mut streams {
        let mut answer = [1];
        stream.read_exact(&mut answer)?;
        if answer != [0] {
            return Err("a wait ended without its keys".into());
        }
    }
    let total = begin.elapsed();
    let result = serde_json::json!({"connect_s": connected.as_secs_f64(), "total_s": total.as_secs_f64()});
    Ok(writeln!(io::stdout(), "{result}")?)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Set,
    Get,
    WaitGet,
    Add,
}

/// One connection and the two messages of its operation; only `waitget` has a second.
struct Client {
    stream: mio::net::TcpStream,
    messages: Vec<(Vec<u8>, usize)>,
    step: usize,
    received: usize,
}

impl Client {
    fn new(stream: mio::net::TcpStream, operation: Operation, number: u32) -> Client {
        let key = format!("/k{number}");
        let value_length = 8 + VALUE.len();
        let with_key = |query| {
            let mut message = Vec::new();
            put_query(&mut message, query, key.as_bytes());
            message
        };
        let list = |query| {
            let mut message = Vec::new();
            put_list(&mut message, query, &[&key]);
            message
        };
        let messages = match operation {
            Operation::Set => {
                let mut message = with_key(Query::Set);
                put_bytes(&mut message, VALUE);
                message.extend(list(Query::Check));
                vec![(message, 1)]
            }
            Operation::Get => vec![(with_key(Query::Get), value_length)],
            Operation::WaitGet => vec![(list(Query::Wait), 1), (with_key(Query::Get), value_length)],
            Operation::Add => {
                let mut message = Vec::new();
                put_query(&mut message, Query::Add, b"/counter");
                message.extend(1_i64.to_le_bytes());
                vec![(message, 8)]
            }
        };
        Client { stream, messages, step: 0, received: 0 }
    }

    fn send(&mut self) -> io::Result<()> {
        // One small outstanding message always fits into the socket's buffer.
        self.stream.write_all(&self.messages[self.step].0)
    }

    /// Reads what there is; whether the answer is complete.
    fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 64];
        let expected = self.messages[self.step].1;
        match self.stream.read(&mut buffer[..expected - self.received]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.received += count;
                Ok(self.received == expected)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn operations(server: SocketAddr, operation: Operation, count: u32, wanted: u64) -> Fallible<()> {
    let mut poll = Poll::new()?;
    let mut clients = Vec::new();
    for number in 0..count {
        let mut stream = connect(server, number)?;
        let mut message = Vec::new();
        put_query(&mut message, Query::Set, format!("/k{number}").as_bytes());
        put_bytes(&mut message, VALUE);
        stream.write_all(&message)?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number as usize), Interest::READABLE)?;
        clients.push(Client::new(stream, operation, number));
    }

    let begin = Instant::now();
    let (mut begun, mut done) = (0, 0);
    for client in &mut clients {
        if begun < wanted {
            client.send()?;
            begun += 1;
        }
    }
    let mut events = Events::with_capacity(256);
    while done < wanted {
        poll.poll(&mut events, Some(PATIENCE))?;
        if events.is_empty() {
            return Err("the store doesn't answer".into());
        }
        for event in &events {
            let client = &mut clients[event.token().0];
            if !client.receive()? {
                continue;
            }
            client.received = 0;
            client.step += 1;
            if client.step < client.messages.len() {
                client.send()?;
                continue;
            }
            client.step = 0;
            done += 1;
            if begun < wanted {
                client.send()?;
                begun += 1;
            }
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let result = serde_json::json!({"ops_per_s": done as f64 / seconds, "seconds": seconds});
    Ok(writeln!(io::stdout(), "{result}")?)
}
