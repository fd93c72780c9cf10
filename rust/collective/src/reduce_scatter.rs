//! Reduce-scatter among several hosts. For each rank of another host, one rank of this host, its *carrier*, gets the
//! reduction of that rank's part inside the host and sends it there, where what all hosts sent is reduced.
//!
//! Steps between hosts: 1. Sent by a host: the parts of all ranks of other hosts, once: half of what an all-reduce sends,
//! and the least possible. A rank with n others on its host, of parts of b / ranks, needs room for one part a host more.
//!
//! HIE-1 and HIE-3 hold. What a rank adds up itself needs no rounding where float32 crosses as bfloat16.

use std::ops::Range;

use phalanx_types::Result;

use crate::between::transfer::{Incoming, Outgoing};
use crate::call::Call;
use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::hierarchy::{LONGEST_DOUBLING, adds};
use crate::host::reduce_scatter::{Buffers, reduce_scatter};
use crate::kernels;
use crate::topology::Topology;
use crate::wait::Watch;

/// The rank of a host that reduces, inside it, the part of a rank: its own, or one of another host.
fn carrier(topology: &Topology, host: usize, rank: usize) -> usize {
    let (place, seat) = topology.place(rank);
    let ranks = &topology.hosts[host];
    if place == host { rank } else { ranks[seat % ranks.len()] }
}

/// Whose parts a rank reduces inside its host: its own first.
fn carried_by(topology: &Topology, rank: usize, ranks: usize) -> Vec<usize> {
    let host = topology.place(rank).0;
    let others = (0..ranks).filter(|other| *other != rank && carrier(topology, host, *other) == rank);
    std::iter::once(rank).chain(others).collect()
}

impl Group {
    pub(crate) fn reduce_scatter_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        (input, output): (&[u8], &mut [u8]),
        parts: &[Range<usize>],
        (dtype, op): (DType, ReduceOp),
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let (place, seat) = self.topology.place(self.rank);
        let ranks = self.topology.hosts[place].clone();
        let carried: Vec<Vec<usize>> =
            ranks.iter().map(|rank| carried_by(&self.topology, *rank, self.world_size)).collect();
        let rounds = carried.iter().map(Vec::len).max().unwrap_or(0);
        let mut partial: Vec<Vec<u8>> = Vec::new();
        for round in 0..rounds {
            let of = |carried: &Vec<usize>| carried.get(round).map_or(0..0, |rank| parts[*rank].clone());
            let ranges: Vec<Range<usize>> = carried.iter().map(of).collect();
            let mine = &ranges[seat];
            let mut reduced = vec![0; mine.len()];
            match &mut self.host {
                Some(host) => {
                    let begins = (round == 0).then_some(call);
                    let buffers = Buffers::Apart(input, &mut reduced);
                    reduce_scatter(host, watch, begins, buffers, &ranges, &stages.inside)?;
                }
                None => {
                    reduced.copy_from_slice(&input[mine.clone()]);
                    if stages.divides_first {
                        kernels::divide(&mut reduced, dtype, self.world_size);
                    }
                }
            }
            partial.push(reduced);
        }
        output.copy_from_slice(&partial[0]);
        // Both ends of a message decide alike: it is as long as the receiver's part.
        let is_short =
            |bytes: usize| self.wire_bfloat16 && dtype == DType::F32 && adds(op) && bytes > LONGEST_DOUBLING;
        for bytes in partial.iter_mut().skip(1).filter(|bytes| is_short(bytes.len())) {
            let mut short = vec![0; bytes.len() / 2];
            kernels::shorten(DType::BF16, bytes, &mut short);
            *bytes = short;
        }
        let outgoing: Vec<Outgoing<'_>> = carried[seat]
            .iter()
            .zip(&partial)
            .skip(1)
            .map(|(to, bytes)| Outgoing { to: *to, bytes })
            .collect();
        let hosts = self.topology.hosts.len();
        let length = if is_short(output.len()) { output.len() / 2 } else { output.len() };
        let mut theirs = vec![vec![0; length]; hosts - 1];
        let others = (0..hosts).filter(|host| *host != place);
        let mut incoming: Vec<Incoming<'_>> = others
            .zip(&mut theirs)
            .map(|(host, bytes)| Incoming::new(carrier(&self.topology, host, self.rank), bytes))
            .collect();
        self.wires.transfer(watch, call, &outgoing, &mut incoming)?;
        if is_short(output.len()) {
            for bytes in &mut theirs {
                let mut wide = vec![0; output.len()];
                kernels::widen(DType::BF16, bytes, &mut wide);
                *bytes = wide;
            }
        }
        // KER-1: in the order of hosts.
        let theirs: Vec<&[u8]> = theirs.iter().map(Vec::as_slice).collect();
        stages.between.apply(output, place, &theirs);
        if stages.divides_last {
            kernels::divide(output, dtype, self.world_size);
        }
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
