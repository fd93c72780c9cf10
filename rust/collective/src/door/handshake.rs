//! How two ranks that have just connected prove to each other that they are of the same group.
//!
//! Both answer a fresh challenge with a keyed hash (HMAC-SHA-256) under the group's key, which is never sent. The side
//! that was connected to does no I/O here: many strangers may be at its door.
//!
//! - GROUP-42 (proof-first): a connection that doesn't prove it is closed, and changes nothing.
//! - GROUP-43 (no-replay): who replays a recorded conversation proves nothing, because both sides' random numbers enter
//!   both proofs.
//! - GROUP-44 (one-connection): a proof holds on the encrypted connection for which it was made and on no other,
//!   because what only the two ends of it know enters it, too.

use hmac::Mac;
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};

use crate::door::timed::Timed;

const MAGIC: [u8; 8] = *b"PHXCOLL1";
const NONCE_BYTES: usize = 32;
/// How long a proof is.
pub(crate) const PROOF_BYTES: usize = 32;
/// How long the answer to a hello is.
pub(crate) const ANSWER_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
/// What two ranks do, for errors.
pub(crate) const INTRODUCING: &str = "introduce two ranks to each other";

/// Who connects, to whom, what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Which of the connections between the two.
    pub(crate) connection: u32,
}

/// How long the first message of the side that connects is.
pub(crate) const HELLO_BYTES: usize = MAGIC.len() + 12 + NONCE_BYTES;

impl Hello {
    fn encode(&self, nonce: [u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        for (field, number) in bytes[8..20].chunks_mut(4).zip([self.from, self.to, self.connection]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        bytes[20..].copy_from_slice(&nonce);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let (numbers, _) = bytes[8..20].as_chunks::<4>();
        let number = |field: usize| u32::from_le_bytes(numbers[field]);
        (bytes[..8] == MAGIC).then(|| Hello { from: number(0), to: number(1), connection: number(2) })
    }
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("can't get random numbers: {error}")))?;
    Ok(bytes)
}

fn proof(key: &Key, side: &[u8], hello: &[u8], nonce: &[u8], binding: &[u8]) -> impl Mac + use<> {
    let mut mac = key.mac();
    for part in [side, hello, nonce, binding] {
        mac.update(part);
    }
    mac
}

fn refused() -> Error {
    Error::new(ErrorKind::Refused, "the other side doesn't know the group's secret")
}

/// The side that connected, which has said its hello. It does no I/O either.
#[derive(Debug)]
pub(crate) struct Introduction {
    hello: [u8; HELLO_BYTES],
}

impl Introduction {
    /// Begins; [`Introduction::hello`] is what to say.
    pub(crate) fn new(hello: Hello) -> Result<Introduction> {
        Ok(Introduction { hello: hello.encode(random()?) })
    }

    pub(crate) fn hello(&self) -> &[u8; HELLO_BYTES] {
        &self.hello
    }

    /// Hears the answer; what to say to it. `binding` is what only the two ends of the connection know, nothing where
    /// it is plain.
    pub(crate) fn prove(&self, answer: &[u8; ANSWER_BYTES], key: &Key, binding: &[u8]) -> Result<Vec<u8>> {
        let (nonce, theirs) = answer.split_at(NONCE_BYTES);
        let theirs = proof(key, b"welcome", &self.hello, nonce, binding).verify_slice(theirs);
        theirs.map_err(|_| refused())?;
        Ok(proof(key, b"introduce", &self.hello, nonce, binding).finalize().into_bytes().to_vec())
    }
}

/// The side that connected, on a connection that is waited for.
pub(crate) fn introduce(
    stream: &mut impl Timed,
    hello: Hello,
    key: &Key,
    binding: &[u8],
    deadline: Deadline,
) -> Result<()> {
    let introduction = Introduction::new(hello)?;
    stream.send(introduction.hello(), deadline, INTRODUCING)?;
    let mut answer = [0; ANSWER_BYTES];
    stream.receive(&mut answer, deadline, INTRODUCING)?;
    stream.send(&introduction.prove(&answer, key, binding)?, deadline, INTRODUCING)
}

/// The side that was connected to, which has answered a hello.
#[derive(Debug)]
pub(crate) struct Welcome {
    hello: [u8; HELLO_BYTES],
    nonce: [u8; NONCE_BYTES],
    binding: Vec<u8>,
}

impl Welcome {
    /// Hears the hello; what to answer. `binding` as in [`introduce`].
    pub(crate) fn hear(hello: [u8; HELLO_BYTES], key: &Key, binding: Vec<u8>) -> Result<(Welcome, Vec<u8>)> {
        Hello::decode(&hello).ok_or_else(refused)?;
        let nonce: [u8; NONCE_BYTES] = random()?;
        let mut answer = nonce.to_vec();
        answer.extend_from_slice(&proof(key, b"welcome", &hello, &nonce, &binding).finalize().into_bytes());
        Ok((Welcome { hello, nonce, binding }, answer))
    }

    /// Hears the proof; who it is that has connected.
    pub(crate) fn prove(&self, theirs: &[u8], key: &Key) -> Result<Hello> {
        proof(key, b"introduce", &self.hello, &self.nonce, &self.binding)
            .verify_slice(theirs)
            .map_err(|_| refused())?;
        Hello::decode(&self.hello).ok_or_else(refused)
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    const HELLO: Hello = Hello { from: 3, to: 1, connection: 2 };

    fn key(byte: u8) -> Key {
        Key::from_bytes([byte; 32])
    }

    fn welcome(stream: &mut UnixStream, key: &Key, binding: &[u8]) -> Result<Hello> {
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let (welcome, answer) = Welcome::hear(hello, key, binding.to_vec())?;
        stream.write_all(&answer).unwrap();
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).map_err(|e| Error::io("read", &e))?;
        welcome.prove(&proof, key)
    }

    fn meet(one: u8, other: u8) -> (Result<()>, Result<Hello>) {
        meet_over(one, other, [b"", b""])
    }

    /// Over a connection of which the ends know these.
    fn meet_over(one: u8, other: u8, bindings: [&'static [u8]; 2]) -> (Result<()>, Result<Hello>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let welcomed = std::thread::spawn(move || welcome(&mut there, &key(other), bindings[1]));
        let soon = Deadline::after(Duration::from_secs(30));
        let introduced = introduce(&mut here, HELLO, &key(one), bindings[0], soon);
        drop(here);
        (introduced, welcomed.join().unwrap())
    }

    #[test]
    fn ranks_of_one_group_meet() {
        let (introduced, welcomed) = meet(7, 7);
        introduced.unwrap();
        assert_eq!(welcomed.unwrap(), HELLO);
    }

    #[test]
    fn another_secret_is_refused_by_both_sides() {
        // GROUP-42
        let (introduced, welcomed) = meet(7, 8);
        assert_eq!(introduced.unwrap_err().kind(), ErrorKind::Refused);
        assert!(welcomed.is_err());
    }

    #[test]
    fn a_proof_that_is_passed_on_to_another_connection_is_refused_by_both_sides() {
        let (introduced, welcomed) = meet_over(7, 7, [b"one", b"one"]);
        assert!(introduced.is_ok() && welcomed.is_ok());
        let (introduced, welcomed) = meet_over(7, 7, [b"one", b"another"]);
        assert_eq!(introduced.unwrap_err().kind(), ErrorKind::Refused, "GROUP-44");
        assert!(welcomed.is_err(), "GROUP-44");
    }

    #[test]
    fn a_repeated_conversation_is_refused() {
        // GROUP-43: a client that plays back what another one sent, secret unknown.
        let hello = HELLO.encode([1; 32]);
        let recorded = proof(&key(7), b"introduce", &hello, &[2; 32], b"").finalize().into_bytes();
        let (welcome, _) = Welcome::hear(hello, &key(7), Vec::new()).unwrap();
        assert_eq!(welcome.prove(&recorded, &key(7)).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn other_protocols_are_refused() {
        let refused = Welcome::hear([b'G'; HELLO_BYTES], &key(7), Vec::new()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
    }
}
