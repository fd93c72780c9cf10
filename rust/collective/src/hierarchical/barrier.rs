//! Barrier among several hosts: inside each, between their leaders, and inside again.

use phalanx_types::Result;

use crate::group::Group;
use crate::wait::Watch;

impl Group {
    /// Returns once all ranks have called it.
    pub(crate) fn hierarchical_barrier(&mut self, watch: &Watch<'_>) -> Result<()> {
        if let Some(local) = &mut self.local {
            local.step(watch, Some(watch.call))?;
        }
        let leaders = self.leaders(None);
        if leaders.contains(&self.rank) {
            self.channel(watch, &leaders).barrier()?;
        }
        match &mut self.local {
            Some(local) => local.step(watch, None),
            None => Ok(()),
        }
    }
}
