//! Reduce among several hosts: to a leader inside each, the root on its own, then along a tree of the leaders.

use phalanx_types::Result;

use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::inter_host::tree;
use crate::intra_host;
use crate::wait::Watch;

impl Group {
    /// The root's `buffer` becomes the reduction of all; the others' stay as they are.
    pub(crate) fn hierarchical_reduce(
        &mut self,
        watch: &Watch<'_>,
        buffer: &mut [u8],
        (dtype, op): (DType, ReduceOp),
        root: usize,
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let leaders = self.leaders(Some(root));
        let leader = leaders[self.topology.locate(self.rank).0];
        let mut copy = Vec::new();
        let buffer = if self.rank == leader && self.rank != root {
            copy.extend_from_slice(buffer);
            &mut copy
        } else {
            buffer
        };
        let to = self.topology.locate(leader).1;
        match &mut self.local {
            Some(local) => {
                intra_host::reduce::reduce(local, watch, Some(watch.call), buffer, &stages.inside, to)?
            }
            None => stages.begin_alone(buffer, dtype, self.world_size),
        }
        if self.rank == leader {
            let channel = self.channel(watch, &leaders);
            tree::reduce(&channel, buffer, &stages.between, self.topology.locate(root).0)?;
        }
        if self.rank == root {
            stages.end(buffer, dtype, self.world_size);
        }
        Ok(())
    }
}
