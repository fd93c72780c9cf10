//! Entries for whatever makes up bytes of the hub's connections: the fuzzer, and its corpus in `cargo test`.
//!
//! Each stream is heard twice, in one piece and byte by byte. Both must come to the same, so framing can't depend on
//! how TCP cuts a stream.

use phalanx_io::FrameBuffer;
use phalanx_types::message::{Hello, HubMessage, NodeMessage, Welcome};
pub use tls::tls;

use crate::wire::{self, Binding, Frame, MAX_DATA_BYTES, MAX_FRAME_BYTES, MAX_HELLO_BYTES, Token};

pub(crate) mod on_the_way;
mod tls;

/// What no input knows.
const TOKEN: Token = [0xa5; 32];
const BINDING: Binding = [0x5a; 32];

fn heard(stream: &[u8], piece: usize, most: usize, hear: &dyn Fn(&[u8]) -> String) -> Vec<String> {
    let (mut inbox, mut heard) = (FrameBuffer::default(), Vec::new());
    for piece in stream.chunks(piece) {
        inbox.push(piece);
        loop {
            match inbox.next_frame(most) {
                Ok(Some(body)) => heard.push(hear(body)),
                Ok(None) => break,
                Err(error) => {
                    heard.push(error.to_string());
                    return heard;
                }
            }
        }
    }
    heard
}

fn play(stream: &[u8], most: usize, hear: &dyn Fn(&[u8]) -> String) {
    let whole = heard(stream, stream.len().max(1), most, hear);
    assert_eq!(whole, heard(stream, 1, most, hear), "what is heard depends on how the stream is cut");
}

/// What a connection sends, inside of TLS, before it has proved itself; panics where that proves anything.
pub fn hello(stream: &[u8]) {
    play(stream, MAX_HELLO_BYTES, &|body| match wire::parse(body) {
        Ok(Frame::Json(json)) => match wire::message::<Hello>(json) {
            Ok(hello) => {
                assert!(!wire::client_is_proved(&TOKEN, &BINDING, &hello));
                format!("{hello:?}")
            }
            Err(error) => error.to_string(),
        },
        other => format!("{other:?}"),
    });
}

/// What is sent afterwards: the first byte says by whom, and over which connection.
pub fn frames(script: &[u8]) {
    let Some((from, stream)) = script.split_first() else { return };
    let most = if from & 1 == 0 { MAX_FRAME_BYTES } else { MAX_DATA_BYTES + 64 };
    play(stream, most, &|body| {
        let Ok(frame) = wire::parse(body) else { return "no frame".into() };
        let mut again = Vec::new();
        wire::encode(&frame, &mut again);
        assert_eq!(&again[4..], body, "a frame is written as it was read");
        match (frame, (from >> 1) % 3) {
            (Frame::Json(json), 0) => format!("{:?}", wire::message::<NodeMessage>(json)),
            (Frame::Json(json), 1) => format!("{:?}", wire::message::<HubMessage>(json)),
            (Frame::Json(json), _) => format!("{:?}", wire::message::<Welcome>(json)),
            (frame, _) => format!("{frame:?}"),
        }
    });
}
