//! What the tasks of a job are to Spark.

use serde::{Deserialize, Serialize};

/// What the tasks of a job are to Spark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gang {
    /// One barrier stage: Spark starts all of them or none.
    #[default]
    Barrier,
    /// A Spark job each, which waits for an executor by itself: its *seat*.
    Tasks,
}

impl Gang {
    /// All of them, by name.
    pub const ALL: [(&'static str, Gang); 2] = [("barrier", Gang::Barrier), ("tasks", Gang::Tasks)];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Gang> {
        Gang::ALL.into_iter().find(|(other, _)| *other == name).map(|(_, gang)| gang)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Gang::Barrier => "barrier",
            Gang::Tasks => "tasks",
        }
    }
}
