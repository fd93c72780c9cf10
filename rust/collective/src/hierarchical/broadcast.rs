//! Broadcast among several hosts: along a tree of leaders, of which the root is one, then inside each host.

use phalanx_types::Result;

use crate::group::Group;
use crate::inter_host::tree;
use crate::intra_host;
use crate::wait::Watch;

impl Group {
    /// Every rank's `buffer` becomes the root's.
    pub(crate) fn hierarchical_broadcast(
        &mut self,
        watch: &Watch<'_>,
        buffer: &mut [u8],
        root: usize,
    ) -> Result<()> {
        let leaders = self.leaders(Some(root));
        let leader = leaders[self.topology.locate(self.rank).0];
        if self.rank == leader {
            let channel = self.channel(watch, &leaders);
            tree::broadcast(&channel, buffer, self.topology.locate(root).0)?;
        }
        let from = self.topology.locate(leader).1;
        match &mut self.local {
            Some(local) => intra_host::broadcast::broadcast(local, watch, Some(watch.call), buffer, from),
            None => Ok(()),
        }
    }
}
