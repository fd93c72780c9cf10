//! Frames between hub and clients, and the proof that both know the job's token.
//!
//! A frame is a `u32` length (little-endian, of what follows), one kind byte and a payload. WIRE-1: nothing is
//! allocated for a length that the receiver hasn't allowed. WIRE-2: a message authentication code is compared in
//! constant time, and each side proves itself over both nonces, so that a recorded handshake proves nothing.

use hmac::{Hmac, KeyInit, Mac};
use phalanx_types::message::{Challenge, Hello, Role, Welcome};
use phalanx_types::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

/// A job's secret.
pub type Token = [u8; 32];

/// The longest frame before a connection has proved itself.
pub const MAX_HELLO_BYTES: usize = 4 << 10;
/// The longest frame afterwards: a rank's end with a traceback and a pickled exception.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// The most output or result bytes that a client puts into one frame.
pub const MAX_DATA_BYTES: usize = 64 << 10;

const HEADER_BYTES: usize = 5;

/// One frame, payload borrowed from the receive buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A JSON message.
    Json(&'a [u8]),
    /// Output of a rank, from this offset on.
    Output {
        /// The rank.
        rank: u32,
        /// The logical offset of the first byte.
        offset: u64,
        /// The bytes as the rank wrote them.
        bytes: &'a [u8],
    },
    /// The live view skips to this offset; the text says so to the reader.
    Skip {
        /// The rank.
        rank: u32,
        /// The logical offset at which output goes on.
        resume_at: u64,
        /// One line for the reader.
        notice: &'a str,
    },
    /// A piece of a result.
    Data(&'a [u8]),
}

fn protocol(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Protocol, why)
}

/// Appends `frame` to `out`.
pub fn encode(frame: &Frame<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let kind = match frame {
        Frame::Json(json) => {
            out.extend_from_slice(json);
            0
        }
        Frame::Output { rank, offset, bytes } => {
            out.extend_from_slice(&rank.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(bytes);
            1
        }
        Frame::Skip { rank, resume_at, notice } => {
            out.extend_from_slice(&rank.to_le_bytes());
            out.extend_from_slice(&resume_at.to_le_bytes());
            out.extend_from_slice(notice.as_bytes());
            2
        }
        Frame::Data(bytes) => {
            out.extend_from_slice(bytes);
            3
        }
    };
    let length = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4] = kind;
}

/// Appends `message` as a JSON frame to `out`.
pub fn encode_json<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    // These types have string keys and no fallible serializers, so this can't fail; an empty frame would be refused.
    let json = serde_json::to_vec(message).unwrap_or_default();
    encode(&Frame::Json(&json), out);
}

/// The first frame in `buffer` and how many bytes it takes; `None` if more bytes are needed.
///
/// # Errors
/// [`ErrorKind::Protocol`] for a frame longer than `max_bytes`, of unknown kind or too short for its kind.
pub fn decode(buffer: &[u8], max_bytes: usize) -> Result<Option<(Frame<'_>, usize)>> {
    let Some((length, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > max_bytes {
        return Err(protocol(format!("a frame of {length} bytes where 1 to {max_bytes} are allowed")));
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let (kind, payload) = (body[0], &body[1..]);
    let frame = match kind {
        0 => Frame::Json(payload),
        1 => {
            let (rank, offset, bytes) = positioned(payload)?;
            Frame::Output { rank, offset, bytes }
        }
        2 => {
            let (rank, resume_at, notice) = positioned(payload)?;
            let notice = std::str::from_utf8(notice).map_err(|_| protocol("a notice that is not UTF-8"))?;
            Frame::Skip { rank, resume_at, notice }
        }
        3 => Frame::Data(payload),
        other => return Err(protocol(format!("a frame of unknown kind {other}"))),
    };
    Ok(Some((frame, 4 + length)))
}

fn positioned(payload: &[u8]) -> Result<(u32, u64, &[u8])> {
    let short = || protocol("a frame that ends inside its header");
    let (rank, rest) = payload.split_first_chunk::<4>().ok_or_else(short)?;
    let (offset, bytes) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    Ok((u32::from_le_bytes(*rank), u64::from_le_bytes(*offset), bytes))
}

/// Reads a JSON frame's message.
///
/// # Errors
/// [`ErrorKind::Protocol`] if it isn't one.
pub fn message<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|e| protocol(format!("a message that this version doesn't know: {e}")))
}

/// 32 bytes that nobody can guess.
///
/// # Errors
/// [`ErrorKind::Io`] if the system has no randomness.
pub fn random_token() -> Result<Token> {
    let mut token = [0; 32];
    getrandom::fill(&mut token)
        .map_err(|e| Error::new(ErrorKind::Io, format!("the system gives no random bytes: {e}")))?;
    Ok(token)
}

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|b| [b >> 4, b & 15])
        .map(|d| char::from_digit(d.into(), 16).unwrap_or('0'))
        .collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok())).collect();
    let digits = digits?;
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect())
}

fn mac(
    token: &Token,
    direction: &str,
    hub_nonce: &str,
    client_nonce: &str,
    job: &str,
    role: Role,
) -> Hmac<Sha256> {
    // A key shorter than SHA-256's block is padded with zeros (RFC 2104), which is done here to have no fallible step.
    let mut key = [0; 64];
    key[..token.len()].copy_from_slice(token);
    let mut mac = Hmac::<Sha256>::new(&key.into());
    let role = serde_json::to_string(&role).unwrap_or_default();
    for part in ["phalanx-hub-1", direction, hub_nonce, client_nonce, job, &role] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part.as_bytes());
    }
    mac
}

fn prove(token: &Token, direction: &str, challenge: &Challenge, hello: &Hello) -> String {
    let mac = mac(token, direction, &challenge.nonce, &hello.nonce, &hello.job, hello.role);
    hex(&mac.finalize().into_bytes())
}

fn verify(token: &Token, direction: &str, challenge: &Challenge, hello: &Hello, proof: &str) -> bool {
    let mac = mac(token, direction, &challenge.nonce, &hello.nonce, &hello.job, hello.role);
    unhex(proof).is_some_and(|proof| mac.verify_slice(&proof).is_ok())
}

/// The client's answer to a challenge.
pub fn answer(token: &Token, challenge: &Challenge, job: &str, role: Role, nonce: &Token) -> Hello {
    let mut hello = Hello {
        version: phalanx_types::job::VERSION,
        job: job.to_string(),
        role,
        nonce: hex(nonce),
        mac: String::new(),
    };
    hello.mac = prove(token, "client", challenge, &hello);
    hello
}

/// Whether `hello` proves knowledge of the token.
pub fn client_is_proved(token: &Token, challenge: &Challenge, hello: &Hello) -> bool {
    verify(token, "client", challenge, hello, &hello.mac)
}

/// The hub's own proof.
pub fn welcome(token: &Token, challenge: &Challenge, hello: &Hello, received: Vec<(u32, u64)>) -> Welcome {
    Welcome { mac: prove(token, "hub", challenge, hello), received }
}

/// Whether `welcome` proves that the hub knows the token.
pub fn hub_is_proved(token: &Token, challenge: &Challenge, hello: &Hello, welcome: &Welcome) -> bool {
    verify(token, "hub", challenge, hello, &welcome.mac)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn challenge() -> Challenge {
        Challenge { version: 1, nonce: hex(&[7; 32]) }
    }

    #[test]
    fn only_the_right_token_nonce_and_role_prove_a_client() {
        let (token, other) = ([1; 32], [2; 32]);
        let role = Role::Control { partition: 3, attempt: 0 };
        let hello = answer(&token, &challenge(), "job", role, &[9; 32]);
        assert!(client_is_proved(&token, &challenge(), &hello));
        assert!(!client_is_proved(&other, &challenge(), &hello), "another token");
        let replayed = Challenge { nonce: hex(&[8; 32]), ..challenge() };
        assert!(!client_is_proved(&token, &replayed, &hello), "another nonce");
        let promoted = Hello { role: Role::Control { partition: 0, attempt: 0 }, ..hello.clone() };
        assert!(!client_is_proved(&token, &challenge(), &promoted), "another role");
        for mac in ["", "zz", "abc", &"0".repeat(64)] {
            assert!(!client_is_proved(&token, &challenge(), &Hello { mac: mac.into(), ..hello.clone() }));
        }
    }

    #[test]
    fn a_clients_proof_can_not_be_sent_back_as_the_hubs() {
        let token = [1; 32];
        let hello = answer(&token, &challenge(), "job", Role::Logs { partition: 0, attempt: 0 }, &[9; 32]);
        assert!(hub_is_proved(&token, &challenge(), &hello, &welcome(&token, &challenge(), &hello, vec![])));
        let echoed = Welcome { mac: hello.mac.clone(), received: vec![] };
        assert!(!hub_is_proved(&token, &challenge(), &hello, &echoed));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let bytes = u32::MAX.to_le_bytes();
        assert_eq!(decode(&bytes, MAX_HELLO_BYTES).unwrap_err().kind(), ErrorKind::Protocol, "WIRE-1");
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire_and_partial_ones_wait(rank: u32, offset: u64, bytes: Vec<u8>, cut in 0usize..64) {
            let mut wire = Vec::new();
            let frame = Frame::Output { rank, offset, bytes: &bytes };
            encode(&frame, &mut wire);
            let partial = cut.min(wire.len() - 1);
            prop_assert_eq!(decode(&wire[..partial], 1 << 20).unwrap(), None);
            let (read, used) = decode(&wire, 1 << 20).unwrap().unwrap();
            prop_assert_eq!(read, frame);
            prop_assert_eq!(used, wire.len());
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes: Vec<u8>) {
            let _ = decode(&bytes, 256);
        }
    }
}
