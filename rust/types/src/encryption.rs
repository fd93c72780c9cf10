//! What of a job's traffic between hosts is encrypted, besides all of the hub's, which always is.

use serde::{Deserialize, Serialize};

/// Whether nodes and ranks of different hosts encrypt what they send one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Encryption {
    /// They don't.
    #[default]
    Off,
    /// They do.
    On {
        /// Whether groups of gloo and NCCL, which can't, may cross hosts all the same.
        plain_gradients: bool,
    },
}

impl Encryption {
    /// Whether they do.
    pub fn is_on(self) -> bool {
        self != Encryption::Off
    }
}
