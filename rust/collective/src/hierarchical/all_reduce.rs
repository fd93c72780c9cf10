//! All-reduce among several hosts: a reduce-scatter inside each, an all-reduce of each slice between them, and an
//! all-gather inside.
//!
//! Sent by a host: 2 b (h - 1) / h, in as many channels as the smallest host has ranks (GROUP-45, GROUP-46).

use std::ops::Range;

use phalanx_types::Result;

use super::{LONGEST_DOUBLING, adds};
use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::inter_host::{Channel, pairwise, recursive_doubling, ring};
use crate::intra_host::reduce_scatter::{Buffers, reduce_scatter};
use crate::intra_host::{self, part};
use crate::kernels::{self, Combine};
use crate::wait::Watch;

/// Slices shorter than this aren't worth a channel.
const SHORTEST_SLICE: usize = 64 << 10;

impl Group {
    /// Every rank's `buffer` becomes the reduction of all.
    pub(crate) fn hierarchical_all_reduce(
        &mut self,
        watch: &Watch<'_>,
        buffer: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let smallest = self.topology.hosts.iter().map(Vec::len).min().unwrap_or(1);
        let channels = smallest.min(buffer.len() / SHORTEST_SLICE).max(1);
        let (host, local_rank) = self.topology.locate(self.rank);
        let slices: Vec<Range<usize>> = (0..self.topology.hosts[host].len())
            .map(|owner| if owner < channels { part(buffer.len(), owner, channels) } else { 0..0 })
            .collect();
        match &mut self.local {
            Some(local) => {
                reduce_scatter(
                    local,
                    watch,
                    Some(watch.call),
                    Buffers::InPlace(buffer),
                    &slices,
                    &stages.inside,
                )?;
            }
            None => stages.begin_alone(buffer, dtype, self.world_size),
        }
        if local_rank < channels {
            let ranks: Vec<usize> = self.topology.hosts.iter().map(|ranks| ranks[local_rank]).collect();
            let mut scratch = std::mem::take(&mut self.scratch);
            let channel = self.channel(watch, &ranks);
            let slice = &mut buffer[slices[local_rank].clone()];
            let as_bfloat16 = self.wire_bfloat16 && adds(op);
            let result = all_reduce(&channel, slice, dtype, &stages.between, as_bfloat16, &mut scratch);
            self.scratch = scratch;
            result?;
            stages.end(slice, dtype, self.world_size);
        }
        match &mut self.local {
            Some(local) => intra_host::all_gather::all_gather(local, watch, None, buffer, &slices),
            None => Ok(()),
        }
    }
}

/// All-reduce along a channel, by the algorithm for the length and type.
fn all_reduce(
    channel: &Channel<'_>,
    buffer: &mut [u8],
    dtype: DType,
    combine: &Combine,
    as_bfloat16: bool,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let hosts = channel.ranks.len();
    let is_long = buffer.len() > LONGEST_DOUBLING;
    if hosts == 1 {
        return Ok(());
    }
    if dtype == DType::F32 && is_long && as_bfloat16 {
        let Some(combine) = Combine::new(DType::BF16, ReduceOp::Sum, hosts) else { return Ok(()) };
        let mut narrow = std::mem::take(scratch);
        narrow.resize(buffer.len() / 2, 0);
        kernels::narrow(DType::BF16, buffer, &mut narrow);
        let result = all_reduce(channel, &mut narrow, DType::BF16, &combine, false, scratch);
        kernels::widen(DType::BF16, &narrow, buffer);
        *scratch = narrow;
        return result;
    }
    match dtype {
        _ if !is_long => recursive_doubling::all_reduce(channel, buffer, combine),
        // Around a ring of two, a part is reduced once, too.
        DType::F16 | DType::BF16 if hosts > 2 => pairwise::all_reduce(channel, buffer, combine),
        _ => ring::all_reduce(channel, buffer, combine),
    }
}
