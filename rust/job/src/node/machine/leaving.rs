//! A node that has told the hub that it is done, or could not do its part, until it returns.

use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};

use super::told::AfterAttempt;

/// How long the hub may take to say that it has everything, from its last word on.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Leaving {
    /// What the caller is told, whatever the hub says.
    failure: Option<Error>,
    word: Word,
    /// What the hub was told against this node.
    pub(super) problem: Option<String>,
}

/// What the hub says to a node that is done.
#[derive(Debug)]
enum Word {
    /// Nobody waits for it.
    NotAwaited,
    /// The hub may keep this node until all others are done, too; as long as it answers it is waited for.
    Awaited {
        until: Instant,
    },
    Said(AfterAttempt),
}

impl Leaving {
    /// The node could not do its part.
    pub(super) fn failed(failure: Error) -> Leaving {
        Leaving { failure: Some(failure), word: Word::NotAwaited, problem: None }
    }

    /// The hub has said what follows.
    pub(super) fn told(after: AfterAttempt) -> Leaving {
        Leaving { failure: None, word: Word::Said(after), problem: None }
    }

    /// The hub hears that the node is done.
    pub(super) fn done(now: Instant, problem: Option<String>) -> Leaving {
        let word = Word::Awaited { until: now + RELEASE_TIMEOUT };
        Leaving { failure: None, word, problem }
    }

    /// Whether the hub has yet to say something.
    pub(super) fn waits(&self) -> bool {
        matches!(self.word, Word::Awaited { .. })
    }

    /// The hub answers.
    pub(super) fn heard(&mut self, now: Instant) {
        if let Word::Awaited { until } = &mut self.word {
            *until = now + RELEASE_TIMEOUT;
        }
    }

    pub(super) fn said(&mut self, after: AfterAttempt) {
        if self.waits() {
            self.word = Word::Said(after);
        }
    }

    /// What the caller is told, once no helper is waited for. `interrupted` is why its process wanted the end, `gone`
    /// why there is no hub.
    pub(super) fn conclude(
        &self,
        now: Instant,
        interrupted: Option<&str>,
        gone: Option<&str>,
    ) -> Option<Result<AfterAttempt>> {
        if let Some(failure) = &self.failure {
            return Some(Err(failure.clone()));
        }
        match &self.word {
            Word::Said(after) => Some(Ok(after.clone())),
            Word::Awaited { until } if gone.is_some() || now >= *until => {
                let unheard = "the driver did not confirm that it knows of the ranks' end";
                let why = self.problem.as_deref().or(interrupted).or(gone).unwrap_or(unheard);
                Some(Err(Error::new(ErrorKind::Unreachable, why)))
            }
            Word::NotAwaited | Word::Awaited { .. } => None,
        }
    }
}
