//! Which start of a job's ranks something belongs to.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One start of a job's ranks. The first is 0, and a restart begins the next. Its number is told to people: in logs,
/// names of files, and `TORCHELASTIC_RESTART_COUNT`. What ranks have in common follows from their
/// [`Generation`](crate::Generation), and never from this.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// The one with which a job begins.
    pub const fn first() -> Attempt {
        Attempt(0)
    }

    /// The one with this number, as another language says it.
    pub const fn new(number: u32) -> Attempt {
        Attempt(number)
    }

    /// The one that a restart begins.
    #[must_use]
    pub const fn next(self) -> Attempt {
        Attempt(self.0 + 1)
    }

    /// Whether no restart came before it.
    pub const fn is_first(self) -> bool {
        self.0 == 0
    }

    /// How many restarts led to it.
    pub const fn restarts(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_restart_begins_the_next_attempt_and_json_has_its_number() {
        let second = Attempt::first().next();
        assert!(Attempt::first().is_first() && !second.is_first() && Attempt::first() < second);
        assert_eq!((second, second.restarts(), second.to_string()), (Attempt::new(1), 1, "1".into()));
        assert_eq!(serde_json::to_string(&second).unwrap(), "1");
        assert_eq!(serde_json::from_str::<Attempt>("0").unwrap(), Attempt::first());
    }
}
