//! Operations among several hosts, an algorithm a file: reduced inside each, exchanged between them, handed out inside.
//!
//! - GROUP-45 (once-a-host): what crosses between hosts is reduced before, and crosses once a host, not once a rank.
//! - GROUP-46 (channels): a long all-reduce crosses in as many channels as the smallest host has ranks, each with a
//!   slice of its own.
//! - GROUP-47 (roundings): float16 and bfloat16 are rounded once inside a host. Between hosts they are rounded once
//!   where one rank adds up what all hosts sent: in reduce_scatter, and in an all_reduce whose slices are longer than
//!   [`LONGEST_DOUBLING`]. In a shorter all_reduce (recursive doubling) and in reduce (a tree) they are rounded once a
//!   step, log2 h times, rounded up. What crosses as bfloat16 is rounded once more, before that.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod barrier;
mod broadcast;
mod reduce;
mod reduce_scatter;

use phalanx_types::Result;

use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::inter_host::Channel;
use crate::kernels::{self, Combine};
use crate::wait::Watch;

/// Up to here the number of messages between hosts matters more than their length.
const LONGEST_DOUBLING: usize = 32 << 10;

/// How a reduction is divided: sums inside and between, and what is left for the end.
struct Stages {
    inside: Combine,
    between: Combine,
    divides_first: bool,
    divides_last: bool,
}

impl Stages {
    fn new(dtype: DType, op: ReduceOp, ranks: usize) -> Option<Stages> {
        let is_average = op == ReduceOp::Average;
        // A sum of halves may be beyond their range where their average isn't.
        let is_16_bit = matches!(dtype, DType::F16 | DType::BF16);
        let partial = match op {
            ReduceOp::Average | ReduceOp::PremulSum(_) => ReduceOp::Sum,
            op => op,
        };
        let between = Combine::new(dtype, partial, ranks)?;
        let inside = if is_average && is_16_bit { Combine::new(dtype, op, ranks)? } else { between };
        Some(Stages {
            inside,
            between,
            divides_first: is_average && is_16_bit,
            divides_last: is_average && !is_16_bit,
        })
    }

    /// What a rank that is alone on its host does instead of reducing inside.
    fn begin_alone(&self, buffer: &mut [u8], dtype: DType, ranks: usize) {
        if self.divides_first {
            kernels::divide(buffer, dtype, ranks);
        }
    }

    /// The end of an average.
    fn end(&self, buffer: &mut [u8], dtype: DType, ranks: usize) {
        if self.divides_last {
            kernels::divide(buffer, dtype, ranks);
        }
    }
}

impl Group {
    fn stages(&self, dtype: DType, op: ReduceOp) -> Result<Stages> {
        op.check(dtype)?;
        Stages::new(dtype, op, self.world_size).ok_or_else(|| self.too_many())
    }

    /// The leader of each host: its lowest rank, but `root` where that is on it.
    fn leaders(&self, root: Option<usize>) -> Vec<usize> {
        let mut leaders: Vec<usize> = self.topology.hosts.iter().map(|ranks| ranks[0]).collect();
        if let Some(root) = root {
            leaders[self.topology.locate(root).0] = root;
        }
        leaders
    }

    /// The channel of `ranks`, one a host in the order of hosts, of which this rank is one.
    fn channel<'a>(&'a self, watch: &'a Watch<'a>, ranks: &'a [usize]) -> Channel<'a> {
        let me = self.topology.locate(self.rank).0;
        Channel { transport: &self.transport, watch, ranks, me }
    }
}

/// Whether sums may cross as bfloat16.
fn adds(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Average | ReduceOp::PremulSum(_))
}
