//! The hub's end of a connection from its first byte on: TLS, the proof, and what is said after it.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::sync::LazyLock;

use phalanx_io::{Identity, PublicKey, TlsChannel, TlsServer, split_frame};
use phalanx_types::message::{Hello, NodeMessage, Role, Welcome};
use phalanx_types::{Attempt, SparkTask};

use super::TOKEN;
use super::on_the_way::{self, End};
use crate::connection::{Connection, ReadState, Stage};
use crate::wire::{self, Frame, MAX_HELLO_BYTES, Token};

const ANOTHER_TOKEN: Token = [0xa6; 32];
const JOB: &str = "fuzz";

/// What the hub shows, and another key.
static HUB: LazyLock<Option<(TlsServer, PublicKey, PublicKey)>> = LazyLock::new(|| {
    let (hub, other) = (Identity::new().ok()?, Identity::new().ok()?);
    let server = TlsServer::new(&hub, &wire::protocol_name()).ok()?;
    Some((server, hub.public_key().clone(), other.public_key().clone()))
});

/// Plays a script of `on_the_way` between a client and the hub (end 1), after a byte that says who the client is: a
/// node (0), or somebody who doesn't know the token (1), the version (2) or the hub's key (3). The client says the
/// script's bytes inside of TLS, and at its first act its hello. Panics where somebody is believed who may not be, what
/// is heard is not what was said, or HUB-5 is hurt.
pub fn tls(script: &[u8]) {
    let Some((who, script)) = script.split_first() else { return };
    let Some((server, hub_key, another_key)) = &*HUB else { return };
    let who = who % 4;
    let protocol = if who == 2 { "phalanx-hub/another".into() } else { wire::protocol_name() };
    let expected = if who == 3 { another_key } else { hub_key };
    let (Ok(client), Ok(hub)) = (TlsChannel::connect(expected, &protocol), server.accept()) else { return };
    let mut client = Client {
        tls: client,
        token: if who == 1 { ANOTHER_TOKEN } else { TOKEN },
        hello: None,
        said: Vec::new(),
        heard: Vec::new(),
        unsent: Vec::new(),
        is_gone: false,
    };
    let mut hub = Hub {
        connection: Connection::new(Wire::default(), hub),
        buffer: vec![0; 2 * MAX_HELLO_BYTES],
        heard: Vec::new(),
        bytes: 0,
        is_gone: false,
    };
    let is_untouched = on_the_way::play(script, &mut [&mut client, &mut hub]);
    let is_proved = !matches!(hub.connection.stage, Stage::Unproved { .. });
    assert!(!is_proved || (who == 0 && client.hello.is_some()), "HUB-10");
    assert!(client.said.starts_with(&hub.heard), "the hub hears what the client says");
    assert!(who < 2 || client.said.is_empty(), "IO-8: somebody else is spoken with");
    if is_untouched && !hub.is_gone {
        let rest = split_frame(&client.said[hub.heard.len()..], hub.connection.stage.max_frame_bytes());
        assert_eq!(rest.ok(), Some(None), "all that is whole is heard");
    }
    if is_untouched && is_proved {
        let (binding, hello) = (client.tls.binding().ok(), client.hello);
        let welcome = split_frame(&client.heard, MAX_HELLO_BYTES).ok().flatten().and_then(|(body, _)| {
            let Ok(Frame::Json(json)) = wire::parse(body) else { return None };
            wire::message::<Welcome>(json).ok()
        });
        let told = binding.zip(hello).zip(welcome);
        assert!(told.is_some_and(|((binding, hello), welcome)| {
            wire::hub_is_proved(&TOKEN, &binding, &hello, &welcome)
        }));
    }
}

struct Client {
    tls: TlsChannel,
    token: Token,
    hello: Option<Hello>,
    said: Vec<u8>,
    heard: Vec<u8>,
    unsent: Vec<u8>,
    is_gone: bool,
}

impl End for Client {
    fn hear(&mut self, came: &[u8]) {
        if !self.is_gone {
            self.is_gone = self.tls.receive(came, |said| self.heard.extend_from_slice(said)).is_err();
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        if self.tls.is_ready() && !self.is_gone && self.tls.send(bytes, &mut self.unsent).is_ok() {
            self.said.extend_from_slice(bytes);
        }
    }

    fn act(&mut self) {
        let Ok(binding) = self.tls.binding() else { return };
        if self.hello.is_none() {
            let hello = wire::hello(
                &self.token,
                &binding,
                JOB,
                Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
            );
            let mut frame = Vec::new();
            wire::encode_json(&hello, &mut frame);
            self.hello = Some(hello);
            self.say(&frame);
        }
    }

    fn take(&mut self) -> Vec<u8> {
        let drained = self.tls.drain(&mut self.unsent);
        assert!(drained.is_ok());
        std::mem::take(&mut self.unsent)
    }
}

struct Hub {
    connection: Connection<Wire>,
    buffer: Vec<u8>,
    /// The frames.
    heard: Vec<u8>,
    /// What came from the wire.
    bytes: usize,
    is_gone: bool,
}

impl Hub {
    /// As the server does; whether the connection goes on.
    fn handle_frames(&mut self) -> bool {
        let connection = &mut self.connection;
        loop {
            let body = match connection.inbox.next_frame(connection.stage.max_frame_bytes()) {
                Ok(None) => return true,
                Ok(Some(body)) => body.to_vec(),
                Err(_) => return false,
            };
            phalanx_io::write_frame(&mut self.heard, |heard| heard.extend_from_slice(&body));
            let Ok(Frame::Json(json)) = wire::parse(&body) else { return false };
            if let Stage::Unproved { .. } = connection.stage {
                let (Ok(hello), Ok(binding)) = (wire::message::<Hello>(json), connection.binding()) else {
                    return false;
                };
                let is_proved = wire::client_is_proved(&TOKEN, &binding, &hello);
                let mut frame = Vec::new();
                if is_proved {
                    connection.stage = Stage::Control { partition: 0, attempt: Attempt::first() };
                    wire::encode_json(&wire::welcome(&TOKEN, &binding, &hello, Vec::new()), &mut frame);
                } else {
                    wire::encode_json(&Welcome::refusal(), &mut frame);
                }
                if connection.send(&frame).is_err() || !is_proved {
                    return false;
                }
            } else if wire::message::<NodeMessage>(json).is_err() {
                return false;
            }
        }
    }
}

impl End for Hub {
    fn hear(&mut self, came: &[u8]) {
        if self.is_gone {
            return;
        }
        self.connection.stream.came.extend_from_slice(came);
        self.bytes += came.len();
        loop {
            let state = self.connection.read(&mut self.buffer);
            let goes_on = self.handle_frames();
            match state {
                Ok(ReadState::More) if goes_on => {}
                Ok(ReadState::Drained) if goes_on => break,
                _ => {
                    self.is_gone = true;
                    return;
                }
            }
        }
        if let Stage::Unproved { .. } = self.connection.stage {
            assert!(self.bytes <= 2 * MAX_HELLO_BYTES, "HUB-5");
            assert!(
                self.connection.stream.told.len() <= MAX_HELLO_BYTES,
                "HUB-4: a stranger has it say much"
            );
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        if !matches!(self.connection.stage, Stage::Unproved { .. }) && !self.is_gone {
            let mut frame = Vec::new();
            wire::encode(&Frame::Json(bytes), &mut frame);
            self.is_gone = self.connection.send(&frame).is_err();
        }
    }

    fn act(&mut self) {}

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.connection.stream.told)
    }
}

/// A socket that has no network.
#[derive(Debug, Default)]
struct Wire {
    came: Vec<u8>,
    told: Vec<u8>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.came.is_empty() {
            return Err(IoKind::WouldBlock.into());
        }
        let count = buffer.len().min(self.came.len());
        buffer[..count].copy_from_slice(&self.came[..count]);
        self.came.drain(..count);
        Ok(count)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.told.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
