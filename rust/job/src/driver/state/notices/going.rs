//! A host that is to go, or one executor on it.

use std::time::{Duration, Instant};

/// Where ranks are that are to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::driver::state) struct Place<'a> {
    pub(in crate::driver::state) host: &'a str,
    /// Spark's attempt id of the task whose executor goes; `None` where the whole host does.
    pub(in crate::driver::state) task: Option<u64>,
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.task {
            None => write!(to, "{}", self.host),
            Some(_) => write!(to, "an executor on {}", self.host),
        }
    }
}

/// A host that is there so long after it was to go, and was said to, has stayed.
const STAYED: Duration = Duration::from_secs(60);

/// What is known of a place that is to go.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::driver::state) struct Going {
    /// When, if that is known.
    pub(in crate::driver::state) due: Option<Instant>,
    /// When its ranks are ended: they have their grace until it goes, and at least half of the time before that.
    pub(in crate::driver::state) ranks_until: Option<Instant>,
    /// `due` in milliseconds since 1970.
    pub(in crate::driver::state) deadline_ms: Option<u64>,
    pub(in crate::driver::state) reason: String,
    /// When it was said first, and last.
    pub(in crate::driver::state) since: Instant,
    pub(super) said: Instant,
    /// Ranks are told of it.
    pub(super) is_told: bool,
    /// Ranks have left their work because of it: those that start again are not told once more.
    pub(super) is_spent: bool,
    /// New tasks from there are taken: no other host came, or it has stayed.
    pub(super) is_taken: bool,
}

impl Going {
    /// From when on it has stayed: it was to go long ago, and nobody says so any more.
    pub(super) fn stays_from(&self) -> Option<Instant> {
        self.due.map(|due| due.max(self.said) + STAYED)
    }

    pub(super) fn has_stayed(&self, now: Instant) -> bool {
        self.stays_from().is_some_and(|from| now >= from)
    }

    /// Whether Spark may give new tasks to a host until it goes.
    pub(super) fn may_have_tasks(&self) -> bool {
        self.due.is_some() && !self.is_taken
    }
}
