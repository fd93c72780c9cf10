//! One entry for whatever makes up input: the fuzzer, its corpus in `cargo test`, and proptest.
//!
//! The input is a script of several clients: a header byte (low three bits: the client; next three: what it does),
//! a length byte, and so many bytes, which it sends. Every script is played twice: pieces as they are, and byte by
//! byte; both must answer the same, so framing can't depend on how TCP cuts a stream.

use super::machine::{HIGH_WATER_BYTES, Machine};
use super::protocol::{MAX_REQUEST_BYTES, put_greeting};
use super::waits::ClientId;

mod secure;

pub use secure::meet;

const CLIENTS: usize = 8;
const NONCE: u32 = 0x7a7a_7a7a;

/// Plays a script and panics where an invariant is hurt.
pub fn play(script: &[u8]) {
    let mut whole = Stage::default();
    let mut bytewise = Stage::default();
    let mut rest = script;
    while let [head, length, tail @ ..] = rest {
        let client = usize::from(head & 7);
        let bytes = &tail[..tail.len().min(usize::from(*length))];
        rest = &tail[bytes.len()..];
        for (stage, piece) in [(&mut whole, usize::MAX), (&mut bytewise, 1)] {
            match (head >> 3) & 7 {
                7 => stage.leave(client),
                6 => stage.send_raw(client, bytes, piece),
                _ => stage.send(client, bytes, piece),
            }
            stage.drain();
            stage.machine.keys().assert_consistent();
        }
        assert_eq!(whole.heard, bytewise.heard, "the answers depend on how the stream is cut");
        assert_eq!(whole.machine.keys().count(), bytewise.machine.keys().count());
    }
}

/// A machine, its clients, and what each of them has heard.
#[derive(Default)]
struct Stage {
    machine: Machine,
    clients: [Option<ClientId>; CLIENTS],
    heard: [Vec<u8>; CLIENTS],
}

impl Stage {
    /// Sends as a client that has been greeted.
    fn send(&mut self, client: usize, bytes: &[u8], piece: usize) {
        if self.clients[client].is_none() {
            let mut greeting = Vec::new();
            put_greeting(&mut greeting, NONCE);
            self.send_raw(client, &greeting, piece);
        }
        self.send_raw(client, bytes, piece);
    }

    fn send_raw(&mut self, client: usize, bytes: &[u8], piece: usize) {
        let id = *self.clients[client].get_or_insert_with(|| {
            self.machine.connect(client as ClientId);
            client as ClientId
        });
        for piece in bytes.chunks(piece.min(bytes.len().max(1))) {
            if self.machine.receive(id, piece).is_err() {
                return self.leave(client);
            }
        }
        let (unparsed, unsent) = self.machine.buffered(id);
        assert!(unparsed <= MAX_REQUEST_BYTES + bytes.len());
        assert!(unsent <= HIGH_WATER_BYTES || self.machine.is_stalled(id));
    }

    fn leave(&mut self, client: usize) {
        if let Some(id) = self.clients[client].take() {
            self.machine.unsent(id).for_each(|piece| self.heard[client].extend_from_slice(piece));
            self.heard[client].push(b'!');
            self.machine.disconnect(id);
        }
    }

    /// Lets every client read all that there is for it.
    fn drain(&mut self) {
        while self.machine.next_dirty().is_some() {}
        for client in 0..CLIENTS {
            let Some(id) = self.clients[client] else { continue };
            while self.machine.has_unsent(id) {
                self.machine.unsent(id).for_each(|piece| self.heard[client].extend_from_slice(piece));
                self.machine.sent(id, self.machine.buffered(id).1);
                if self.machine.resume(id).is_err() {
                    self.leave(client);
                    break;
                }
            }
            // What was heard long ago is the same in both: keep the comparison cheap.
            let long = self.heard[client].len().saturating_sub(1 << 16);
            self.heard[client].drain(..long);
        }
    }
}
