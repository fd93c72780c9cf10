//! Entries for whatever makes up bytes of a guard's and a pool's sockets: the fuzzer, and its corpus in `cargo test`.

use phalanx_io::FrameBuffer;
use serde::de::DeserializeOwned;

use crate::guard::wire::{GuardMessage, Order, next_message};
use crate::warm_pool::message::Answer;

fn heard<T: DeserializeOwned + std::fmt::Debug>(stream: &[u8], piece: usize) -> Vec<String> {
    let (mut inbox, mut heard) = (FrameBuffer::default(), Vec::new());
    for piece in stream.chunks(piece) {
        inbox.push(piece);
        loop {
            match next_message::<T>(&mut inbox) {
                Ok(Some(message)) => heard.push(format!("{message:?}")),
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

/// What comes over a control socket, as orders and as a guard's messages.
pub fn guard(stream: &[u8]) {
    let whole = stream.len().max(1);
    assert_eq!(heard::<Order>(stream, whole), heard::<Order>(stream, 1));
    assert_eq!(heard::<GuardMessage>(stream, whole), heard::<GuardMessage>(stream, 1));
}

/// A packet of a pool.
pub fn pool(packet: &[u8]) {
    let _ = serde_json::from_slice::<Answer>(packet);
}
