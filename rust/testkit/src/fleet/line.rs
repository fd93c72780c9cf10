//! One connection of a simulated node: TLS, the proofs, then frames both ways. It never blocks.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use phalanx_io::{FrameBuffer, PublicKey, TlsChannel};
use phalanx_rendezvous::wire::{self, Binding, Frame};
use phalanx_types::message::{Hello, HubMessage, Role, Welcome};
use phalanx_types::{Error, ErrorKind, Result};

/// How far a connection has got.
enum Stage {
    /// TLS is not ready.
    Greeting,
    /// The hub has yet to prove itself, bound to this.
    Proving(Hello, Binding),
    Open,
}

pub(super) struct Line {
    stream: TcpStream,
    tls: TlsChannel,
    role: Role,
    stage: Stage,
    inbox: FrameBuffer,
    /// What is said first once both are proved.
    first: Vec<u8>,
    /// As it goes over the wire.
    unsent: Vec<u8>,
    sent: usize,
}

/// What came of looking at a connection.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) heard: Vec<HubMessage>,
    /// Both ends are proved now, and were not before.
    pub(super) opened: bool,
    pub(super) ended: bool,
}

impl Line {
    pub(super) fn dial(
        hub: SocketAddr,
        key: &PublicKey,
        role: Role,
        first: Vec<u8>,
        registry: &Registry,
        token: Token,
    ) -> Result<Line> {
        let failed = |e: std::io::Error| Error::io("connect a node of the fleet", &e);
        let mut stream = TcpStream::connect(hub).map_err(failed)?;
        // As a node does: a word that waits for the answer to the one before costs 40 ms.
        stream.set_nodelay(true).map_err(failed)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut stream, token, both).map_err(failed)?;
        Ok(Line {
            stream,
            tls: TlsChannel::connect(key, &wire::protocol_name())?,
            role,
            stage: Stage::Greeting,
            inbox: FrameBuffer::default(),
            first,
            unsent: Vec::new(),
            sent: 0,
        })
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    /// What it was to say, if it never got to it.
    pub(super) fn into_unproved(self) -> Option<Vec<u8>> {
        (!matches!(self.stage, Stage::Open)).then_some(self.first)
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.unsent.len()
    }

    /// Sends frames; false if the connection is broken.
    pub(super) fn send(&mut self, frames: &[u8]) -> bool {
        self.tls.send(frames, &mut self.unsent).and_then(|()| self.flush()).is_ok()
    }

    /// Moves bytes in both directions, for as long as the socket has or takes some.
    pub(super) fn serve(&mut self, token: &wire::Token, job: &str, buffer: &mut [u8]) -> Turn {
        let mut turn = Turn::default();
        turn.ended = self.advance(token, job, buffer, &mut turn).is_err();
        turn
    }

    fn advance(&mut self, token: &wire::Token, job: &str, buffer: &mut [u8], turn: &mut Turn) -> Result<()> {
        loop {
            self.tls.drain(&mut self.unsent)?;
            if matches!(self.stage, Stage::Greeting) && self.tls.is_ready() {
                let binding = self.tls.binding()?;
                let hello = wire::hello(token, &binding, job, self.role);
                let mut frame = Vec::new();
                wire::encode_json(&hello, &mut frame);
                self.tls.send(&frame, &mut self.unsent)?;
                self.stage = Stage::Proving(hello, binding);
            }
            self.flush()?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(Error::new(ErrorKind::Closed, "the hub ended it")),
                Ok(count) => {
                    let inbox = &mut self.inbox;
                    self.tls.receive(&buffer[..count], |said| inbox.push(said))?;
                    self.take_frames(token, turn)?;
                }
                Err(e) if matches!(e.kind(), IoKind::WouldBlock | IoKind::NotConnected) => return Ok(()),
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return Err(Error::io("read from the hub", &e)),
            }
        }
    }

    fn take_frames(&mut self, token: &wire::Token, turn: &mut Turn) -> Result<()> {
        while let Some(body) = self.inbox.next_frame(wire::MAX_FRAME_BYTES)? {
            let Frame::Json(json) = wire::parse(body)? else {
                return Err(Error::new(ErrorKind::Protocol, "data from the hub"));
            };
            if let Stage::Proving(hello, binding) = &self.stage {
                let welcome: Welcome = wire::message(json)?;
                if !wire::hub_is_proved(token, binding, hello, &welcome) {
                    return Err(Error::new(ErrorKind::Refused, "the hub refuses a node of the fleet"));
                }
                self.stage = Stage::Open;
                turn.opened = true;
                let first = std::mem::take(&mut self.first);
                self.tls.send(&first, &mut self.unsent)?;
            } else {
                turn.heard.push(wire::message(json)?);
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(e) if matches!(e.kind(), IoKind::WouldBlock | IoKind::NotConnected) => return Ok(()),
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return Err(Error::io("write to the hub", &e)),
            }
        }
        self.unsent = Vec::new();
        self.sent = 0;
        Ok(())
    }
}
