//! One end of a connection to a node's server (of the store, or of blocks), without its socket: TLS, and above it the
//! proof that both ends are of the job.
//!
//! - HUB-19 (proved-first): nothing above it is sent or heard before both ends have proved that they know the
//!   generation's key, over what only the two ends of this one connection know. The server's end proves itself second.
//! - HUB-20 (bounded): who has not proved itself may send [`MAX_UNPROVED_BYTES`] in all.

use std::io::{self, Write};

use hmac::{Hmac, Mac};
use phalanx_io::{PublicKey, TlsChannel, TlsServer};
use phalanx_types::{Error, ErrorKind, Key, Result};
use sha2::Sha256;

use crate::unsent::Unsent;

/// What a peer sends until it has proved itself: a handshake of some hundred bytes, and its proof.
pub(crate) const MAX_UNPROVED_BYTES: usize = 8 << 10;
const PROOF_BYTES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

impl Side {
    fn name(self) -> &'static [u8] {
        match self {
            Side::Client => b"client",
            Side::Server => b"server",
        }
    }

    fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct Secure {
    side: Side,
    tls: TlsChannel,
    key: Key,
    /// The peer's proof, as far as it has come.
    proof: Vec<u8>,
    heard_bytes: usize,
    has_sent_proof: bool,
    is_proved: bool,
    /// As it goes over the wire.
    unsent: Unsent,
}

impl Secure {
    /// The server's end of a connection that was accepted.
    pub(crate) fn of_server(tls: &TlsServer, key: Key) -> Result<Secure> {
        Ok(Secure::new(Side::Server, tls.accept()?, key))
    }

    /// The end that connects: to the server that has the key `server`, and speaks `protocol` above TLS.
    pub(crate) fn of_client(server: &PublicKey, key: Key, protocol: &str) -> Result<Secure> {
        let mut secure = Secure::new(Side::Client, TlsChannel::connect(server, protocol)?, key);
        secure.tls.drain(secure.unsent.tail())?;
        Ok(secure)
    }

    fn new(side: Side, tls: TlsChannel, key: Key) -> Secure {
        Secure {
            side,
            tls,
            key,
            proof: Vec::new(),
            heard_bytes: 0,
            has_sent_proof: false,
            is_proved: false,
            unsent: Unsent::default(),
        }
    }

    /// Takes bytes from the wire, and appends what they say to `said`.
    ///
    /// # Errors
    /// As [`TlsChannel::receive`]; [`ErrorKind::Refused`] for a peer that doesn't prove itself.
    pub(crate) fn receive(&mut self, came: &[u8], said: &mut Vec<u8>) -> Result<()> {
        if !self.is_proved {
            self.heard_bytes += came.len();
            if self.heard_bytes > MAX_UNPROVED_BYTES {
                // What follows a proof at once is read with the next bytes: nobody sends that much before an answer.
                return Err(Error::new(ErrorKind::Refused, "it sent too much before it authenticated"));
            }
        }
        let (is_proved, proof) = (self.is_proved, &mut self.proof);
        let heard = self.tls.receive(came, |piece| match is_proved {
            true => said.extend_from_slice(piece),
            false => proof.extend_from_slice(piece),
        });
        // The next words of the handshake; after an error the word that tells the peer.
        let told = self.tls.drain(self.unsent.tail());
        heard.and(told)?;
        if self.tls.is_ready() && !self.is_proved {
            self.prove(said)?;
        }
        Ok(())
    }

    fn prove(&mut self, said: &mut Vec<u8>) -> Result<()> {
        let binding = self.tls.binding()?;
        if self.side == Side::Client {
            self.send_proof(&binding)?;
        }
        let Some((proof, rest)) = self.proof.split_first_chunk::<PROOF_BYTES>() else { return Ok(()) };
        if self.proof_of(self.side.other(), &binding).verify_slice(proof).is_err() {
            return Err(Error::new(ErrorKind::Refused, "it doesn't know this job's token"));
        }
        said.extend_from_slice(rest);
        self.proof = Vec::new();
        self.is_proved = true;
        self.send_proof(&binding)
    }

    fn send_proof(&mut self, binding: &[u8; 32]) -> Result<()> {
        if std::mem::replace(&mut self.has_sent_proof, true) {
            return Ok(());
        }
        let proof = self.proof_of(self.side, binding).finalize().into_bytes();
        self.tls.send(&proof, self.unsent.tail())
    }

    fn proof_of(&self, side: Side, binding: &[u8; 32]) -> Hmac<Sha256> {
        let mut mac = self.key.mac();
        mac.update(side.name());
        mac.update(binding);
        mac
    }

    /// Queues `bytes` for the peer; only when it [is proved](Secure::is_proved).
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.tls.send(bytes, self.unsent.tail())
    }

    /// Queues that nothing more follows.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.tls.end(self.unsent.tail())
    }

    /// Sends what `wire` takes of what is queued; whether it took anything.
    pub(crate) fn flush(&mut self, wire: &mut impl Write) -> io::Result<bool> {
        self.unsent.flush(wire)
    }

    /// How much is queued.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.unsent.len()
    }

    /// Whether the peer has proved itself.
    pub(crate) fn is_proved(&self) -> bool {
        self.is_proved
    }

    /// Whether the peer has said that nothing more follows.
    pub(crate) fn has_ended(&self) -> bool {
        self.tls.has_ended()
    }
}

#[cfg(test)]
mod tests {
    use phalanx_io::Identity;

    use super::*;

    const PROTOCOL: &str = "test/1";

    fn key(byte: u8) -> Key {
        Key::from_bytes([byte; 32])
    }

    /// Lets both talk until neither has anything to say; what the store's end heard, or who refused.
    fn meet(node: &mut Secure, store: &mut Secure) -> Result<Vec<u8>> {
        let (mut heard, mut answer) = (Vec::new(), Vec::new());
        loop {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            node.flush(&mut there).unwrap();
            let took = if there.is_empty() { Ok(()) } else { store.receive(&there, &mut heard) };
            store.flush(&mut back).unwrap();
            took?;
            if !back.is_empty() {
                node.receive(&back, &mut answer)?;
            }
            if there.is_empty() && back.is_empty() {
                return Ok(heard);
            }
        }
    }

    fn ends(node: u8, store: u8) -> (Secure, Secure) {
        let identity = Identity::new().unwrap();
        let there = Secure::of_server(&TlsServer::new(&identity, PROTOCOL).unwrap(), key(store)).unwrap();
        (Secure::of_client(identity.public_key(), key(node), PROTOCOL).unwrap(), there)
    }

    #[test]
    fn both_ends_prove_the_key_before_anything_is_said() {
        let (mut node, mut store) = ends(1, 1);
        assert_eq!(meet(&mut node, &mut store).unwrap(), b"");
        assert!(node.is_proved() && store.is_proved(), "HUB-19");
        node.send(b"hello").unwrap();
        node.end().unwrap();
        assert_eq!(meet(&mut node, &mut store).unwrap(), b"hello");
        assert!(store.has_ended() && !node.has_ended());
        store.send(b"still there").unwrap();
        store.end().unwrap();
        meet(&mut node, &mut store).unwrap();
        assert!(node.has_ended());
    }

    #[test]
    fn who_does_not_know_the_key_is_refused_and_hears_nothing() {
        let (mut node, mut store) = ends(1, 2);
        let refused = meet(&mut node, &mut store).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "HUB-19: {refused}");
        assert!(!node.is_proved() && !store.is_proved() && !store.has_sent_proof, "HUB-19");
        let (mut node, _) = ends(1, 1);
        let (_, mut another) = ends(1, 1);
        let refused = meet(&mut node, &mut another).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused, "another store's key: {refused}");
    }

    #[test]
    fn a_stranger_that_only_sends_is_let_go() {
        let (_, mut store) = ends(1, 1);
        // A record of TLS that never ends.
        let mut endless = vec![22, 3, 1, 0x40, 0];
        endless.resize(MAX_UNPROVED_BYTES, 0);
        let refused = endless
            .chunks(1000)
            .chain([&[0; 10][..]])
            .find_map(|piece| store.receive(piece, &mut Vec::new()).err());
        assert!(refused.is_some(), "HUB-20");
    }
}
