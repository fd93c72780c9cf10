//! How two ranks that have just connected prove to each other that they are of the same group.
//!
//! Both answer a fresh challenge with a keyed hash (HMAC-SHA-256) under the group's secret, which is never sent.
//!
//! - HAN-1: a connection that doesn't prove it is closed, and changes nothing.
//! - HAN-2: a recorded conversation is of no use: both sides' random numbers enter both proofs.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit, Mac};
use phalanx_types::{Error, ErrorKind, Result};
use sha2::Sha256;

const MAGIC: [u8; 8] = *b"PHXCOLL1";
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;

/// What all ranks of a group know.
pub(crate) type Secret = [u8; 32];

/// Who connects, to whom, what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// Which of the connections between the two.
    pub(crate) stream: u32,
}

const HELLO_BYTES: usize = MAGIC.len() + 12 + NONCE_BYTES;

impl Hello {
    fn encode(&self, nonce: [u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        for (place, number) in bytes[8..20].chunks_mut(4).zip([self.from, self.to, self.stream]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes[20..].copy_from_slice(&nonce);
        bytes
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let (numbers, _) = bytes[8..20].as_chunks::<4>();
        let number = |place: usize| u32::from_le_bytes(numbers[place]);
        (bytes[..8] == MAGIC).then(|| Hello { from: number(0), to: number(1), stream: number(2) })
    }
}

/// Random bytes from the operating system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorKind::Io, format!("can't get random numbers: {error}")))?;
    Ok(bytes)
}

fn proof(secret: &Secret, side: &[u8], hello: &[u8], nonce: &[u8]) -> Hmac<Sha256> {
    // HMAC fills a short key up with zeros itself.
    let mut key = [0; 64];
    key[..secret.len()].copy_from_slice(secret);
    let mut mac = Hmac::<Sha256>::new(&key.into());
    for part in [side, hello, nonce] {
        mac.update(part);
    }
    mac
}

fn failed(error: io::Error) -> Error {
    Error::io("introduce two ranks to each other", &error)
}

fn refused() -> Error {
    Error::new(ErrorKind::Refused, "the other side doesn't know the group's secret")
}

/// The side that connected.
pub(crate) fn introduce(stream: &mut (impl Read + Write), hello: Hello, secret: &Secret) -> Result<()> {
    let hello = hello.encode(random()?);
    stream.write_all(&hello).map_err(failed)?;
    let mut answer = [0; NONCE_BYTES + PROOF_BYTES];
    stream.read_exact(&mut answer).map_err(failed)?;
    let (nonce, theirs) = answer.split_at(NONCE_BYTES);
    proof(secret, b"welcome", &hello, nonce).verify_slice(theirs).map_err(|_| refused())?;
    let mine = proof(secret, b"introduce", &hello, nonce).finalize().into_bytes();
    stream.write_all(&mine).map_err(failed)
}

/// The side that was connected to.
pub(crate) fn welcome(stream: &mut (impl Read + Write), secret: &Secret) -> Result<Hello> {
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).map_err(failed)?;
    let hello = Hello::decode(&bytes).ok_or_else(refused)?;
    let nonce: [u8; NONCE_BYTES] = random()?;
    let mut answer = nonce.to_vec();
    answer.extend_from_slice(&proof(secret, b"welcome", &bytes, &nonce).finalize().into_bytes());
    stream.write_all(&answer).map_err(failed)?;
    let mut theirs = [0; PROOF_BYTES];
    stream.read_exact(&mut theirs).map_err(failed)?;
    proof(secret, b"introduce", &bytes, &nonce).verify_slice(&theirs).map_err(|_| refused())?;
    Ok(hello)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const HELLO: Hello = Hello { from: 3, to: 1, stream: 2 };

    fn meet(one: Secret, other: Secret) -> (Result<()>, Result<Hello>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let welcomed = std::thread::spawn(move || welcome(&mut there, &other));
        let introduced = introduce(&mut here, HELLO, &one);
        drop(here);
        (introduced, welcomed.join().unwrap())
    }

    #[test]
    fn ranks_of_one_group_meet() {
        let (introduced, welcomed) = meet([7; 32], [7; 32]);
        introduced.unwrap();
        assert_eq!(welcomed.unwrap(), HELLO);
    }

    #[test]
    fn another_secret_is_refused_by_both_sides() {
        // HAN-1
        let (introduced, welcomed) = meet([7; 32], [8; 32]);
        assert_eq!(introduced.unwrap_err().kind(), ErrorKind::Refused);
        assert!(welcomed.is_err());
    }

    #[test]
    fn a_repeated_conversation_is_refused() {
        // HAN-2: a client that plays back what another one sent, secret unknown.
        let secret = [7; 32];
        let hello = HELLO.encode([1; 32]);
        let recorded = proof(&secret, b"introduce", &hello, &[2; 32]).finalize().into_bytes();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&hello).unwrap();
        here.write_all(&recorded).unwrap();
        assert_eq!(welcome(&mut there, &secret).unwrap_err().kind(), ErrorKind::Refused);
    }

    #[test]
    fn other_protocols_are_refused() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(&[b'G'; HELLO_BYTES]).unwrap();
        assert_eq!(welcome(&mut there, &[7; 32]).unwrap_err().kind(), ErrorKind::Refused);
    }
}
