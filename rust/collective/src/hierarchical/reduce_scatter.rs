//! Reduce-scatter among several hosts. For each rank of another host, one rank of this host, its *carrier*, gets the
//! reduction of that rank's part inside the host and sends it there, where what all hosts sent is reduced.
//!
//! Steps between hosts: 1. Sent by a host: the parts of all ranks of other hosts, once. That is half of what an
//! all-reduce sends, and the least possible. A rank with n others on its host, and parts of b / ranks, needs room for
//! one more part for each host.
//!
//! GROUP-45 and GROUP-47 hold. Where float32 crosses as bfloat16, a rank doesn't round what it adds up itself.

use std::ops::Range;

use phalanx_types::Result;

use super::{LONGEST_DOUBLING, adds};
use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::inter_host::transport::{Incoming, Outgoing};
use crate::intra_host::reduce_scatter::{Buffers, reduce_scatter};
use crate::kernels;
use crate::wait::Watch;

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
        let carried = &self.carried;
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
            .map(|(host, bytes)| Incoming::new(self.topology.carrier(host, self.rank), bytes))
            .collect();
        self.transport.transfer(watch, &outgoing, &mut incoming)?;
        if is_narrow(output.len()) {
            for bytes in &mut theirs {
                let mut wide = vec![0; output.len()];
                kernels::widen(DType::BF16, bytes, &mut wide);
                *bytes = wide;
            }
        }
        // GROUP-56: in the order of hosts.
        let theirs: Vec<&[u8]> = theirs.iter().map(Vec::as_slice).collect();
        stages.between.apply(output, me, &theirs);
        stages.end(output, dtype, self.world_size);
        Ok(())
    }
}
