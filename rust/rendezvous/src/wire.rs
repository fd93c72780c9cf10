//! Frames between hub and clients, and the proof that both know the job's token.
//!
//! A frame's body is one kind byte and a payload.
//!
//! HUB-21 (no-replay): each side's proof covers the role and what only the two ends of one TLS connection know. So a
//! recorded proof proves nothing, nor does one that somebody in the middle passes on. Codes
//! are compared in constant time.

use hmac::{Hmac, KeyInit, Mac};
use phalanx_io::write_frame;
use phalanx_types::message::{Hello, Role, Welcome};
use phalanx_types::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

/// A job's secret.
pub type Token = [u8; 32];
/// What binds a proof to its connection: [`phalanx_io::TlsChannel::binding`].
pub type Binding = [u8; 32];

/// What is spoken above TLS: hub and clients of different versions part before a word.
pub fn protocol_name() -> String {
    format!("phalanx-hub/{}", phalanx_types::job::VERSION)
}

/// The longest frame before a connection has proved itself.
pub const MAX_HELLO_BYTES: usize = 4 << 10;
/// The longest frame afterwards: a rank's end with a traceback and a pickled exception.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// The most output or result bytes that a client puts into one frame.
pub const MAX_DATA_BYTES: usize = 64 << 10;

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
    let (kind, position, payload) = match *frame {
        Frame::Json(json) => (0, None, json),
        Frame::Output { rank, offset, bytes } => (1, Some((rank, offset)), bytes),
        Frame::Skip { rank, resume_at, notice } => (2, Some((rank, resume_at)), notice.as_bytes()),
        Frame::Data(bytes) => (3, None, bytes),
    };
    write_frame(out, |out| {
        out.push(kind);
        if let Some((rank, offset)) = position {
            out.extend_from_slice(&rank.to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
        }
        out.extend_from_slice(payload);
    });
}

/// Appends `message` as a JSON frame to `out`.
pub fn encode_json<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    // These types have string keys and no fallible serializers, so this can't fail; an empty frame would be refused.
    let json = serde_json::to_vec(message).unwrap_or_default();
    encode(&Frame::Json(&json), out);
}

/// What the body of a frame says.
///
/// # Errors
/// [`ErrorKind::Protocol`] for one of unknown kind, or too short for its kind.
pub fn parse(body: &[u8]) -> Result<Frame<'_>> {
    let (kind, payload) = body.split_first().ok_or_else(|| protocol("a frame without a kind"))?;
    Ok(match kind {
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
    })
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

fn mac(token: &Token, direction: &str, binding: &Binding, hello: &Hello) -> Hmac<Sha256> {
    // A key shorter than SHA-256's block is padded with zeros (RFC 2104), which is done here to have no fallible step.
    let mut key = [0; 64];
    key[..token.len()].copy_from_slice(token);
    let mut mac = Hmac::<Sha256>::new(&key.into());
    let role = serde_json::to_string(&hello.role).unwrap_or_default();
    for part in [b"phalanx-hub-2", direction.as_bytes(), binding, hello.job.as_bytes(), role.as_bytes()] {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
    mac
}

fn prove(token: &Token, direction: &str, binding: &Binding, hello: &Hello) -> String {
    hex::encode(mac(token, direction, binding, hello).finalize().into_bytes())
}

fn verify(token: &Token, direction: &str, binding: &Binding, hello: &Hello, proof: &str) -> bool {
    let mac = mac(token, direction, binding, hello);
    hex::decode(proof).is_ok_and(|proof| mac.verify_slice(&proof).is_ok())
}

/// The client's proof, for one connection.
pub fn hello(token: &Token, binding: &Binding, job: &str, role: Role) -> Hello {
    let version = phalanx_types::job::VERSION;
    let mut hello = Hello { version, job: job.to_string(), role, mac: String::new() };
    hello.mac = prove(token, "client", binding, &hello);
    hello
}

/// Whether `hello` proves knowledge of the token.
pub fn client_is_proved(token: &Token, binding: &Binding, hello: &Hello) -> bool {
    verify(token, "client", binding, hello, &hello.mac)
}

/// The hub's own proof.
pub fn welcome(token: &Token, binding: &Binding, hello: &Hello, received: Vec<(u32, u64)>) -> Welcome {
    Welcome { mac: prove(token, "hub", binding, hello), received }
}

/// Whether `welcome` proves that the hub knows the token.
pub fn hub_is_proved(token: &Token, binding: &Binding, hello: &Hello, welcome: &Welcome) -> bool {
    verify(token, "hub", binding, hello, &welcome.mac)
}

#[cfg(test)]
mod tests {
    use phalanx_io::split_frame;
    use phalanx_types::{Attempt, SparkTask};
    use proptest::prelude::*;

    use super::*;

    const HERE: Binding = [7; 32];

    #[test]
    fn only_the_right_token_connection_and_role_prove_a_client() {
        let (token, other) = ([1; 32], [2; 32]);
        let said = hello(
            &token,
            &HERE,
            "job",
            Role::Control { partition: 3, attempt: Attempt::first(), task: SparkTask::default() },
        );
        assert!(client_is_proved(&token, &HERE, &said));
        assert!(!client_is_proved(&other, &HERE, &said), "another token");
        assert!(!client_is_proved(&token, &[8; 32], &said), "HUB-21: another connection");
        let promoted = Hello {
            role: Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
            ..said.clone()
        };
        assert!(!client_is_proved(&token, &HERE, &promoted), "HUB-21: another role");
        for mac in ["", "zz", "abc", &"0".repeat(64)] {
            assert!(!client_is_proved(&token, &HERE, &Hello { mac: mac.into(), ..said.clone() }));
        }
    }

    #[test]
    fn a_clients_proof_can_not_be_sent_back_as_the_hubs() {
        let token = [1; 32];
        let said =
            hello(&token, &HERE, "job", Role::Logs { partition: 0, attempt: Attempt::first(), instance: 0 });
        assert!(hub_is_proved(&token, &HERE, &said, &welcome(&token, &HERE, &said, vec![])));
        let echoed = Welcome { mac: said.mac.clone(), received: vec![] };
        assert!(!hub_is_proved(&token, &HERE, &said, &echoed), "HUB-21");
    }

    #[test]
    fn a_body_that_is_no_frame_is_refused() {
        for body in [&[][..], &[9], &[1, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff]] {
            assert_eq!(parse(body).unwrap_err().kind(), ErrorKind::Protocol, "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_survive_the_wire(rank: u32, offset: u64, bytes: Vec<u8>, notice: String) {
            let json = Frame::Json(&bytes);
            let output = Frame::Output { rank, offset, bytes: &bytes };
            let skip = Frame::Skip { rank, resume_at: offset, notice: &notice };
            for frame in [json, output, skip, Frame::Data(&bytes)] {
                let mut wire = Vec::new();
                encode(&frame, &mut wire);
                let (body, used) = split_frame(&wire, 1 << 20).unwrap().unwrap();
                prop_assert_eq!(parse(body).unwrap(), frame);
                prop_assert_eq!(used, wire.len());
            }
        }

        #[test]
        fn no_bytes_panic_the_parser(body: Vec<u8>) {
            let _ = parse(&body);
        }
    }
}
