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
    /// With no more of each text than a packet holds.
    pub(crate) fn shortened(self) -> Trouble {
        // JSON may have six bytes for one.
        const MOST: usize = MOST_BYTES / 14;
        Trouble { error: both_ends(self.error, MOST), traceback: both_ends(self.traceback, MOST) }
    }
}

/// What stands for the middle of a long text.
const GAP: &str = "\n...\n";

/// A text of `most` bytes at most: its beginning, which names the rows, and more of its end, which names the exception.
fn both_ends(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let mut to = most / 4;
    while !text.is_char_boundary(to) {
        to -= 1;
    }
    let mut from = text.len() - most.saturating_sub(to + GAP.len());
    while !text.is_char_boundary(from) {
        from += 1;
    }
    [&text[..to], GAP, &text[from..]].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_trouble_keeps_the_rows_that_it_begins_with_and_the_exception_that_it_ends_with() {
        let error = format!("with the rows 3 to 5 the model {}ValueError: é", "é\n".repeat(MOST_BYTES));
        let trouble = Trouble { error, traceback: "short".into() }.shortened();
        assert!(trouble.error.starts_with("with the rows 3 to 5 the model é"), "{}", trouble.error);
        assert!(trouble.error.ends_with("é\nValueError: é") && trouble.error.contains(GAP));
        assert_eq!(trouble.traceback, "short");
        let text =
            serde_json::to_vec(&Trouble { traceback: "\u{1}".repeat(MOST_BYTES), ..trouble }.shortened());
        assert!(text.unwrap().len() < MOST_BYTES);
    }

    proptest! {
        #[test]
        fn a_text_keeps_both_ends_within_its_room(text in "\\PC{0,60}", most in 8_usize..80) {
            let short = both_ends(text.clone(), most);
            prop_assert!(short.len() <= most);
            if text.len() <= most {
                prop_assert_eq!(short, text);
            } else {
                let (beginning, end) = short.split_once(GAP).unwrap();
                prop_assert!(text.starts_with(beginning) && text.ends_with(end));
                // A character has four bytes at most.
                prop_assert!(beginning.len() + 3 >= most / 4 && short.len() + 6 >= most);
            }
        }
    }
}
