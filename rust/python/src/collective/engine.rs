//! What a group's queue drives: the group.

use std::time::Duration;

use phalanx_collective::Group;
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::call::Call;
use super::job_ranks::JobRanks;

/// A rank's group until it is closed.
pub(crate) struct Engine {
    group: Option<Group>,
    names: JobRanks,
}

impl Engine {
    pub(crate) fn new(group: Group, names: JobRanks) -> Engine {
        Engine { group: Some(group), names }
    }

    /// Runs calls one after the other; errors name ranks as the job does.
    ///
    /// # Safety
    /// As [`Call::perform`].
    pub(crate) unsafe fn perform(&mut self, calls: &[Call], deadline: Deadline) -> Result<()> {
        let group = self.group.as_mut().ok_or_else(closed)?;
        calls
            .iter()
            .try_for_each(|call| {
                let left = deadline.left().unwrap_or(Duration::MAX);
                group.set_timeout(left.max(Duration::from_millis(1)));
                // SAFETY: passed on to the caller.
                unsafe { call.perform(group) }
            })
            .map_err(|error| self.names.with_job_ranks(error))
    }

    /// Leaves the group, when all is delivered or nobody took anything for so long.
    pub(crate) fn leave(&mut self, timeout: Duration) -> Result<()> {
        let Some(mut group) = self.group.take() else { return Ok(()) };
        group.set_timeout(timeout);
        group.leave().map_err(|error| self.names.with_job_ranks(error))
    }

    /// The same where nobody is there to be told: a log has the error.
    pub(crate) fn let_go(&mut self, timeout: Duration) {
        if let Some(mut group) = self.group.take() {
            group.set_timeout(timeout);
        }
    }
}

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the process group is closed")
}
