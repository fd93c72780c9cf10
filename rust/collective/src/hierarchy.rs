//! Operations among several hosts: reduced inside each, exchanged between them, handed out inside.
//!
//! - HIE-1: what crosses between hosts is reduced before, and crosses once a host, not once a rank.
//! - HIE-2: a long all-reduce crosses in as many lanes as the smallest host has ranks, each with a slice of its own.
//! - HIE-3: float16 and bfloat16 are rounded once inside a host and once between hosts.

use std::ops::Range;

use phalanx_types::Result;

use crate::between::transfer::{Incoming, Outgoing};
use crate::between::{Lane, broadcast as tree, doubling, pairwise, ring};
use crate::call::Call;
use crate::dtype::{DType, ReduceOp};
use crate::group::Group;
use crate::host::personal::{self, Messages};
use crate::host::reduce_scatter::{Buffers, reduce_scatter};
use crate::host::{self, part};
use crate::kernels::{self, Combine};
use crate::wait::Watch;

/// Up to here the number of messages between hosts matters more than their length.
pub(crate) const LONGEST_DOUBLING: usize = 32 << 10;
/// Slices shorter than this aren't worth a lane.
const SHORTEST_LANE: usize = 64 << 10;

/// How a reduction is divided: sums inside and between, and what is left for the end.
pub(crate) struct Stages {
    pub(crate) inside: Combine,
    pub(crate) between: Combine,
    pub(crate) divides_first: bool,
    pub(crate) divides_last: bool,
}

impl Stages {
    fn new(dtype: DType, op: ReduceOp, ranks: usize) -> Option<Stages> {
        let is_average = op == ReduceOp::Average;
        // A sum of halves may be beyond their range where their average isn't.
        let is_short = matches!(dtype, DType::F16 | DType::BF16);
        let partial = match op {
            ReduceOp::Average | ReduceOp::PremulSum(_) => ReduceOp::Sum,
            op => op,
        };
        let between = Combine::new(dtype, partial, ranks)?;
        let inside = if is_average && is_short { Combine::new(dtype, op, ranks)? } else { between };
        Some(Stages {
            inside,
            between,
            divides_first: is_average && is_short,
            divides_last: is_average && !is_short,
        })
    }
}

impl Group {
    pub(crate) fn stages(&self, dtype: DType, op: ReduceOp) -> Result<Stages> {
        op.check(dtype)?;
        Stages::new(dtype, op, self.world_size).ok_or_else(|| self.too_many())
    }

    /// The rank of each host that speaks for it, if `root` speaks for its own.
    fn entries(&self, root: Option<usize>) -> Vec<usize> {
        let speaker = |ranks: &Vec<usize>| root.filter(|root| ranks.contains(root)).unwrap_or(ranks[0]);
        self.topology.hosts.iter().map(speaker).collect()
    }

    pub(crate) fn all_reduce_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        buffer: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let smallest = self.topology.hosts.iter().map(Vec::len).min().unwrap_or(1);
        let lanes = smallest.min(buffer.len() / SHORTEST_LANE).max(1);
        let (place, seat) = self.topology.place(self.rank);
        let slices: Vec<Range<usize>> = (0..self.topology.hosts[place].len())
            .map(|seat| if seat < lanes { part(buffer.len(), seat, lanes) } else { 0..0 })
            .collect();
        match &mut self.host {
            Some(host) => {
                reduce_scatter(host, watch, Some(call), Buffers::InPlace(buffer), &slices, &stages.inside)?;
            }
            None if stages.divides_first => kernels::divide(buffer, dtype, self.world_size),
            None => {}
        }
        if seat < lanes {
            let ranks: Vec<usize> = self.topology.hosts.iter().map(|ranks| ranks[seat]).collect();
            let lane = Lane { wires: &self.wires, watch, call, ranks: &ranks, me: place };
            let slice = &mut buffer[slices[seat].clone()];
            let as_bfloat16 = self.wire_bfloat16 && adds(op);
            reduce_lane(&lane, slice, dtype, &stages.between, as_bfloat16, &mut self.scratch)?;
            if stages.divides_last {
                kernels::divide(slice, dtype, self.world_size);
            }
        }
        match &mut self.host {
            Some(host) => host::all_gather::all_gather(host, watch, None, buffer, &slices),
            None => Ok(()),
        }
    }

    pub(crate) fn reduce_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        buffer: &mut [u8],
        (dtype, op): (DType, ReduceOp),
        root: usize,
    ) -> Result<()> {
        let stages = self.stages(dtype, op)?;
        let entries = self.entries(Some(root));
        let (place, _) = self.topology.place(self.rank);
        let entry = entries[place];
        let mut copy = Vec::new();
        let buffer = if self.rank == entry && self.rank != root {
            copy.extend_from_slice(buffer);
            &mut copy
        } else {
            buffer
        };
        let entry_seat = self.topology.place(entry).1;
        match &mut self.host {
            Some(host) => host::reduce::reduce(host, watch, Some(call), buffer, &stages.inside, entry_seat)?,
            None if stages.divides_first => kernels::divide(buffer, dtype, self.world_size),
            None => {}
        }
        if self.rank == entry {
            let lane = Lane { wires: &self.wires, watch, call, ranks: &entries, me: place };
            tree::reduce(&lane, buffer, &stages.between, self.topology.place(root).0)?;
        }
        if self.rank == root && stages.divides_last {
            kernels::divide(buffer, dtype, self.world_size);
        }
        Ok(())
    }

    pub(crate) fn broadcast_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        buffer: &mut [u8],
        root: usize,
    ) -> Result<()> {
        let entries = self.entries(Some(root));
        let (place, _) = self.topology.place(self.rank);
        if self.rank == entries[place] {
            let lane = Lane { wires: &self.wires, watch, call, ranks: &entries, me: place };
            tree::broadcast(&lane, buffer, self.topology.place(root).0)?;
        }
        let entry_seat = self.topology.place(entries[place]).1;
        match &mut self.host {
            Some(host) => host::broadcast::broadcast(host, watch, Some(call), buffer, entry_seat),
            None => Ok(()),
        }
    }

    /// Inside the hosts, around a ring of hosts, and inside again. Steps: (h - 1) times the ranks of a host.
    pub(crate) fn all_gather_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        buffer: &mut [u8],
        parts: &[Range<usize>],
    ) -> Result<()> {
        let Group { rank, topology, host, wires, .. } = self;
        let hosts = &topology.hosts;
        let (place, seat) = topology.place(*rank);
        if let Some(host) = host {
            let local: Vec<Range<usize>> = hosts[place].iter().map(|rank| parts[*rank].clone()).collect();
            host::all_gather::all_gather(host, watch, Some(call), buffer, &local)?;
        }
        if seat == 0 {
            let (next, previous) = ((place + 1) % hosts.len(), (place + hosts.len() - 1) % hosts.len());
            for step in 0..hosts.len() - 1 {
                let sent = &hosts[(place + hosts.len() - step) % hosts.len()];
                let received = &hosts[(previous + hosts.len() - step) % hosts.len()];
                for number in 0..sent.len().max(received.len()) {
                    let mut arrived = received.get(number).map(|rank| vec![0; parts[*rank].len()]);
                    let outgoing = sent
                        .get(number)
                        .map(|rank| Outgoing { to: hosts[next][0], bytes: &buffer[parts[*rank].clone()] });
                    let incoming = arrived.as_mut().map(|bytes| Incoming::new(hosts[previous][0], bytes));
                    wires.transfer(
                        watch,
                        call,
                        outgoing.as_slice(),
                        incoming.into_iter().collect::<Vec<_>>().as_mut_slice(),
                    )?;
                    if let (Some(rank), Some(arrived)) = (received.get(number), arrived) {
                        buffer[parts[*rank].clone()].copy_from_slice(&arrived);
                    }
                }
            }
        }
        if let Some(host) = host {
            for rank in hosts.iter().enumerate().filter(|(one, _)| *one != place).flat_map(|(_, ranks)| ranks)
            {
                host::broadcast::broadcast(host, watch, None, &mut buffer[parts[*rank].clone()], 0)?;
            }
        }
        Ok(())
    }

    pub(crate) fn barrier_across(&mut self, watch: &Watch<'_>, call: Call) -> Result<()> {
        if let Some(host) = &mut self.host {
            host.step(watch, Some(call))?;
        }
        let entries = self.entries(None);
        let (place, seat) = self.topology.place(self.rank);
        if seat == 0 {
            Lane { wires: &self.wires, watch, call, ranks: &entries, me: place }.barrier()?;
        }
        match &mut self.host {
            Some(host) => host.step(watch, None),
            None => Ok(()),
        }
    }

    /// Inside the hosts through shared memory; between them, every rank with every other at once.
    pub(crate) fn personal_across(
        &mut self,
        watch: &Watch<'_>,
        call: Call,
        messages: Messages<'_>,
    ) -> Result<()> {
        let Messages { input, sent, output, received } = messages;
        let local = self.topology.host_of(self.rank);
        if let Some(host) = &mut self.host {
            let of =
                |ranges: &[Range<usize>]| local.iter().map(|rank| ranges[*rank].clone()).collect::<Vec<_>>();
            let (sent, received) = (of(sent), of(received));
            let messages = Messages { input, sent: &sent, output: &mut *output, received: &received };
            personal::exchange(host, watch, Some(call), messages)?;
        }
        let remote = |rank: &usize| !local.contains(rank);
        let outgoing: Vec<Outgoing<'_>> = (0..self.world_size)
            .filter(remote)
            .map(|to| Outgoing { to, bytes: &input[sent[to].clone()] })
            .collect();
        let mut incoming = Vec::new();
        let (mut rest, mut start) = (output, 0);
        for (from, range) in received.iter().enumerate() {
            // Parts follow one another; one that is empty may claim to be anywhere.
            let skipped = if range.is_empty() { 0 } else { range.start - start };
            let (bytes, after) = std::mem::take(&mut rest)[skipped..].split_at_mut(range.len());
            rest = after;
            start += skipped + range.len();
            if remote(&from) {
                incoming.push(Incoming::new(from, bytes));
            }
        }
        self.wires.transfer(watch, call, &outgoing, &mut incoming)
    }
}

pub(crate) fn adds(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::Sum | ReduceOp::Average | ReduceOp::PremulSum(_))
}

/// All-reduce along a lane, by the algorithm for the length and type.
fn reduce_lane(
    lane: &Lane<'_>,
    buffer: &mut [u8],
    dtype: DType,
    combine: &Combine,
    as_bfloat16: bool,
    scratch: &mut Vec<u8>,
) -> Result<()> {
    let hosts = lane.ranks.len();
    let is_long = buffer.len() > LONGEST_DOUBLING;
    if hosts == 1 {
        return Ok(());
    }
    if dtype == DType::F32 && is_long && as_bfloat16 {
        let Some(combine) = Combine::new(DType::BF16, ReduceOp::Sum, hosts) else { return Ok(()) };
        let mut short = std::mem::take(scratch);
        short.resize(buffer.len() / 2, 0);
        kernels::shorten(DType::BF16, buffer, &mut short);
        let result = reduce_lane(lane, &mut short, DType::BF16, &combine, false, scratch);
        kernels::widen(DType::BF16, &short, buffer);
        *scratch = short;
        return result;
    }
    match dtype {
        _ if !is_long => doubling::all_reduce(lane, buffer, combine),
        // Around a ring of two, a part is reduced once, too.
        DType::F16 | DType::BF16 if hosts > 2 => pairwise::all_reduce(lane, buffer, combine),
        _ => ring::all_reduce(lane, buffer, combine),
    }
}
