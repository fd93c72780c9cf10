//! The entry for whatever makes up bytes at a rank's door: the fuzzer, and its corpus in `cargo test`.

use phalanx_types::Key;

use crate::bootstrap::Card;
use crate::door::handshake::{HELLO_BYTES, PROOF_BYTES, Welcome};
use crate::failure::Failure;

/// What a stranger sends, leaves on the store, or says as a rank; panics where it passes for one of the group.
pub fn stranger(bytes: &[u8]) {
    let key = Key::from_bytes([0xa5; 32]);
    if let Some((hello, proof)) = bytes.split_first_chunk::<HELLO_BYTES>()
        && let Ok((welcome, _)) = Welcome::hear(*hello, &key, Vec::new())
    {
        assert!(welcome.prove(&proof[..proof.len().min(PROOF_BYTES)], &key).is_err(), "GROUP-42");
    }
    assert!(key.open("group/card/0", bytes).is_none(), "GROUP-8");
    let _ = serde_json::from_slice::<Card>(bytes);
    let _ = serde_json::from_slice::<Vec<usize>>(bytes);
    if let Some((_, used)) = Failure::decode(bytes) {
        assert!(used <= bytes.len());
    }
}
