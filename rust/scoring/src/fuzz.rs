//! An entry for whatever makes up packets of a task or a model's process: the fuzzer, and its corpus in `cargo test`.

use crate::batch::Batch;
use crate::wire::{FromModel, FromTask};

/// How large the memory of the batches is taken for.
const MEMORY: u64 = 1 << 20;

/// A packet of either end: a batch that passes is within its memory.
pub fn packet(packet: &[u8]) {
    if let Ok(FromTask::Batch(batch)) = serde_json::from_slice(packet) {
        within(&batch);
    }
    if let Ok(FromModel::Done { batch, .. }) = serde_json::from_slice(packet) {
        within(&batch);
    }
}

fn within(batch: &Batch) {
    if batch.check(MEMORY).is_ok() {
        assert!(
            batch
                .columns
                .iter()
                .all(|column| u128::from(column.at) + u128::from(column.bytes) <= u128::from(MEMORY))
        );
    }
}
