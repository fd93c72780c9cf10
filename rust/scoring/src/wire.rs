//! What a task and a model's process say to each other: one JSON text in each packet.

use serde::{Deserialize, Serialize};

use crate::batch::Batch;

/// The version of all messages. A process is met by a name that has the version of Phalanx in it, so another one here
/// means that a build has changed and its number has not.
pub(crate) const VERSION: u32 = 2;

/// How long a packet may be: the columns' names are most of it.
pub(crate) const MOST_BYTES: usize = 160 << 10;

/// From a task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromTask {
    /// The first message. The answer is `Wanted`, `Ready` or `Failed`.
    Hello { version: u32 },
    /// The model, for a process that wants it; a descriptor comes along.
    Model,
    /// A batch. A descriptor of its memory comes along where that is another one than before in this slot.
    Batch(Batch),
}

/// From a model's process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromModel {
    /// It has no model yet; whoever hears this is to bring it.
    Wanted,
    /// It takes batches.
    Ready,
    /// The model can't be had, and the process ends.
    Failed(Trouble),
    /// What the model made of the batch in the same slot, and in how many microseconds; the memory as in
    /// [`FromTask::Batch`].
    Done { batch: Batch, micros: u64 },
    /// The model failed with the batch in this slot, and takes others.
    Refused { slot: u32, trouble: Trouble },
}

/// What Python raised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trouble {
    /// The exception in a line.
    pub error: String,
    /// Its traceback.
    pub traceback: String,
}

impl Trouble {
    /// With no more of the traceback than a packet holds: the end of it.
    pub(crate) fn shortened(mut self) -> Trouble {
        // JSON may have six bytes for one.
        const MOST: usize = MOST_BYTES / 14;
        for text in [&mut self.error, &mut self.traceback] {
            let mut from = text.len().saturating_sub(MOST);
            while !text.is_char_boundary(from) {
                from += 1;
            }
            text.drain(..from);
        }
        self
    }
}
