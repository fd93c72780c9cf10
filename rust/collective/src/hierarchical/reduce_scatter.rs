//! Reduce-scatter among several hosts. For each rank of another host, one rank of this host, its *carrier*, gets the
//! reduction of that rank's part inside the host and sends it there, where what all hosts sent is reduced.
//!
//! Steps between hosts: 1. Sent by a host: the parts of all ranks of other hosts, once. That is half of what an
//! all-reduce sends, and the least possible. A rank with n others on its host, and parts of b / ranks, needs room for
//! one more part for each host.
//!
//! HIE-1 and HIE-3 hold. Where float32 crosses as bfloat16, a rank doesn't round what it adds up itself.

use std::ops::Range;

use phalanx_types::Result;

use super::{LONGEST_DOUBLING, adds};
use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::inter_host::transport::{Incoming, Outgoing};
use crate::intra_host::reduce_scatter::{Buffers, reduce_scatter};
use crate::kernels;
use crate::topology::Topology;
use crate::wait::Watch;

/// The rank of a host that reduces, inside it, the part of a rank: its own, or one of another host.
fn carrier(topology: &Topology, host: usize, rank: usize) -> usize {
    let (own, local_rank) = topology.locate(rank);
    let ranks = &topology.hosts[host];
    if own == host { rank } else { ranks[local_rank % ranks.len()] }
}

/// Whose parts a rank reduces inside its host: its own first.
fn carried_by(topology: &Topology, rank: usize, ranks: usize) -> Vec<usize> {
    let host = topology.locate(rank).0;
    let others = (0..ranks).filter(|other| *other != rank && carrier(topology, host, *other) == rank);
    std::iter::once(rank).chain(others).collect()
}

impl Group {
    /// `output` becomes this rank's part of the reduction of all `input`s.
    pub(crate) fn hierarchical_reduce_scatter(
        &mut self,
        watch: &Watch<'_>,
        (input, output): (&[u8], &mut [u8]),
        parts: &[Range<usize>],
        (dtype, op): (DType, ReduceOp),
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let (me, local_rank) = self.topology.locate(self.rank);
        let ranks = self.topology.hosts[me].clone();
        let carried: Vec<Vec<usize>> =
            ranks.iter().map(|rank| carried_by(&self.topology, *rank, self.world_size)).collect();
        let rounds = carried.iter().map(Vec::len).max().unwrap_or(0);
        let mut partial: Vec<Vec<u8>> = Vec::new();
        for round in 0..rounds {
            let of = |carried: &Vec<usize>| carried.get(round).map_or(0..0, |rank| parts[*rank].clone());
            let ranges: Vec<Range<usize>> = carried.iter().map(of).collect();
            let mine = &ranges[local_rank];
            let mut reduced = vec![0; mine.len()];
            match &mut self.local {
                Some(local) => {
                    let begins = (round == 0).then_some(watch.call);
                    let buffers = Buffers::Apart(input, &mut reduced);
                    reduce_scatter(local, watch, begins, buffers, &ranges, &stages.inside)?;
                }
                None => {
                    reduced.copy_from_slice(&input[mine.clone()]);
                    stages.begin_alone(&mut reduced, dtype, self.world_size);
                }
            }
            partial.push(reduced);
        }
        output.copy_from_slice(&partial[0]);
        // Both ends of a message decide alike: it is as long as the receiver's part.
        let is_narrow =
            |bytes: usize| self.wire_bfloat16 && dtype == DType::F32 && adds(op) && bytes > LONGEST_DOUBLING;
        for bytes in partial.iter_mut().skip(1).filter(|bytes| is_narrow(bytes.len())) {
            let mut narrow = vec![0; bytes.len() / 2];
            kernels::narrow(DType::BF16, bytes, &mut narrow);
            *bytes = narrow;
        }
        let outgoing: Vec<Outgoing<'_>> = carried[local_rank]
            .iter()
            .zip(&partial)
            .skip(1)
            .map(|(to, bytes)| Outgoing { to: *to, bytes })
            .collect();
        let hosts = self.topology.hosts.len();
        let length = if is_narrow(output.len()) { output.len() / 2 } else { output.len() };
        let mut theirs = vec![vec![0; length]; hosts - 1];
        let others = (0..hosts).filter(|host| *host != me);
        let mut incoming: Vec<Incoming<'_>> = others
            .zip(&mut theirs)
            .map(|(host, bytes)| Incoming::new(carrier(&self.topology, host, self.rank), bytes))
            .collect();
        self.transport.transfer(watch, &outgoing, &mut incoming)?;
        if is_narrow(output.len()) {
            for bytes in &mut theirs {
                let mut wide = vec![0; output.len()];
                kernels::widen(DType::BF16, bytes, &mut wide);
                *bytes = wide;
            }
        }
        // KER-1: in the order of hosts.
        let theirs: Vec<&[u8]> = theirs.iter().map(Vec::as_slice).collect();
        stages.between.apply(output, me, &theirs);
        stages.end(output, dtype, self.world_size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_carried_once_in_each_host() {
        let topology = Topology { hosts: vec![vec![0, 3, 4], vec![1], vec![2, 5]] };
        for host in &topology.hosts {
            let mut all: Vec<usize> = host.iter().flat_map(|rank| carried_by(&topology, *rank, 6)).collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(carried_by(&topology, 3, 6), [3, 5]);
        assert_eq!(carrier(&topology, 1, 4), 1);
    }
}
