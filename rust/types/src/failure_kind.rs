//! The kinds of failure: the one list that the error tables of all languages follow.

use serde::{Deserialize, Serialize};

/// Why a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The training code raised.
    Exception,
    /// A rank was ended by a signal.
    Signal,
    /// A rank exited with a code other than 0.
    ExitCode,
    /// The kernel ended a rank for want of memory.
    OutOfMemory,
    /// Ranks stopped making progress.
    Hang,
    /// A node, its task or its executor is gone.
    LostNode,
    /// A host was announced to go, and the ranks left their work, or the host went.
    Preempted,
    /// The job or a rank could not be started.
    Start,
    /// The caller asked for the end.
    Cancelled,
}

impl FailureKind {
    /// Every kind, in the order of the error table.
    pub const ALL: [FailureKind; 9] = [
        FailureKind::Exception,
        FailureKind::Signal,
        FailureKind::ExitCode,
        FailureKind::OutOfMemory,
        FailureKind::Hang,
        FailureKind::LostNode,
        FailureKind::Preempted,
        FailureKind::Start,
        FailureKind::Cancelled,
    ];

    /// The kind's name on the wire and in the bindings, e.g. `out_of_memory`.
    pub fn name(self) -> &'static str {
        match self {
            FailureKind::Exception => "exception",
            FailureKind::Signal => "signal",
            FailureKind::ExitCode => "exit_code",
            FailureKind::OutOfMemory => "out_of_memory",
            FailureKind::Hang => "hang",
            FailureKind::LostNode => "lost_node",
            FailureKind::Preempted => "preempted",
            FailureKind::Start => "start",
            FailureKind::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_name_it_has_on_the_wire() {
        for kind in FailureKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
