//! The operations of a group: arguments are checked here, and an algorithm is chosen.

use std::ops::Range;

use phalanx_types::{Error, ErrorKind, Result};

use crate::call::{Call, Operation};
use crate::dtype::{DType, Element, ReduceOp};
use crate::group::Group;
use crate::intra_host::all_to_all::Messages;
use crate::intra_host::reduce_scatter::Buffers;
use crate::intra_host::{all_gather, all_reduce, all_to_all, broadcast, reduce, reduce_scatter};
use crate::kernels::{self, Combine};

/// Of each rank, where its message lies, in bytes.
type Ranges = Vec<Range<usize>>;

impl Group {
    /// Every rank's `buffer` becomes the reduction of all, equal to the bit on all ranks. Reduces in place.
    ///
    /// After an error the contents of `buffer` are undefined.
    pub fn all_reduce(&mut self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        let combine = self.reduction(dtype, op)?;
        whole(buffer.len(), dtype, 1)?;
        let call = Call::new(Operation::AllReduce).of_type(dtype).reducing(op).of_bytes(buffer.len());
        self.run(call, |group, watch| {
            premultiply(buffer, dtype, op);
            match group.single_host() {
                Some(local) => all_reduce::all_reduce(local, watch, Some(call), buffer, &combine),
                None => group.hierarchical_all_reduce(watch, buffer, dtype, op),
            }
        })
    }

    /// [`Group::all_reduce`] of a slice of numbers.
    pub fn all_reduce_of<T: Element>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.all_reduce(bytemuck::cast_slice_mut(buffer), T::DTYPE, op)
    }

    /// The `buffer` of `root` becomes the reduction of all; the others' stay as they are.
    pub fn reduce(&mut self, buffer: &mut [u8], dtype: DType, op: ReduceOp, root: usize) -> Result<()> {
        let combine = self.reduction(dtype, op)?;
        whole(buffer.len(), dtype, 1)?;
        self.messenger.is_rank(root)?;
        let call =
            Call::new(Operation::Reduce).of_type(dtype).reducing(op).of_bytes(buffer.len()).with_root(root);
        self.run(call, |group, watch| {
            let mut scaled = Vec::new();
            let buffer = match op {
                ReduceOp::PremulSum(_) if group.rank != root => {
                    scaled.extend_from_slice(buffer);
                    &mut scaled
                }
                _ => buffer,
            };
            premultiply(buffer, dtype, op);
            match group.single_host() {
                Some(local) => reduce::reduce(local, watch, Some(call), buffer, &combine, root),
                None => group.hierarchical_reduce(watch, buffer, (dtype, op), root),
            }
        })
    }

    /// Every rank's `buffer` becomes that of `root`.
    pub fn broadcast(&mut self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        whole(buffer.len(), dtype, 1)?;
        self.messenger.is_rank(root)?;
        let call = Call::new(Operation::Broadcast).of_type(dtype).of_bytes(buffer.len()).with_root(root);
        self.run(call, |group, watch| match group.single_host() {
            Some(local) => broadcast::broadcast(local, watch, Some(call), buffer, root),
            None => group.hierarchical_broadcast(watch, buffer, root),
        })
    }

    /// [`Group::broadcast`] of a slice of numbers.
    pub fn broadcast_of<T: Element>(&mut self, buffer: &mut [T], root: usize) -> Result<()> {
        self.broadcast(bytemuck::cast_slice_mut(buffer), T::DTYPE, root)
    }

    /// `output` becomes all ranks' `input`s one after the other; they are equally long.
    pub fn all_gather(&mut self, input: &[u8], output: &mut [u8], dtype: DType) -> Result<()> {
        let counts = vec![whole(input.len(), dtype, 1)?; self.world_size];
        self.all_gather_v(input, output, &counts, dtype)
    }

    /// The same where rank r has `counts[r]` elements.
    pub fn all_gather_v(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        dtype: DType,
    ) -> Result<()> {
        let parts = self.parts("counts", counts, dtype, output.len())?;
        same_bytes("input", input.len(), parts[self.rank].len())?;
        output[parts[self.rank].clone()].copy_from_slice(input);
        self.gather_parts(output, counts, &parts, dtype)
    }

    /// The same where each rank's own part is in its place already.
    pub fn all_gather_in_place(&mut self, buffer: &mut [u8], counts: &[usize], dtype: DType) -> Result<()> {
        let parts = self.parts("counts", counts, dtype, buffer.len())?;
        self.gather_parts(buffer, counts, &parts, dtype)
    }

    fn gather_parts(
        &mut self,
        buffer: &mut [u8],
        counts: &[usize],
        parts: &[Range<usize>],
        dtype: DType,
    ) -> Result<()> {
        let call = Call::new(Operation::AllGather).of_type(dtype).of_bytes(buffer.len()).of_counts(counts);
        self.run(call, |group, watch| match group.single_host() {
            Some(local) => all_gather::all_gather(local, watch, Some(call), buffer, parts),
            None => group.hierarchical_all_gather(watch, buffer, parts),
        })
    }

    /// `output` becomes this rank's part of the reduction of all `input`s; parts are equally long.
    pub fn reduce_scatter(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let counts = vec![whole(output.len(), dtype, 1)?; self.world_size];
        self.reduce_scatter_v(input, output, &counts, dtype, op)
    }

    /// The same where rank r gets `counts[r]` elements.
    pub fn reduce_scatter_v(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<()> {
        let combine = self.reduction(dtype, op)?;
        let parts = self.parts("counts", counts, dtype, input.len())?;
        same_bytes("output", output.len(), parts[self.rank].len())?;
        let call = Call::new(Operation::ReduceScatter)
            .of_type(dtype)
            .reducing(op)
            .of_bytes(input.len())
            .of_counts(counts);
        self.run(call, |group, watch| {
            let mut scaled = Vec::new();
            let input = match op {
                ReduceOp::PremulSum(_) => {
                    scaled.extend_from_slice(input);
                    premultiply(&mut scaled, dtype, op);
                    &scaled
                }
                _ => input,
            };
            match group.single_host() {
                Some(local) => {
                    let buffers = Buffers::Apart(input, output);
                    reduce_scatter::reduce_scatter(local, watch, Some(call), buffers, &parts, &combine)
                }
                None => group.hierarchical_reduce_scatter(watch, (input, output), &parts, (dtype, op)),
            }
        })
    }

    /// Part r of `input` goes to rank r, and part r of `output` comes from it; all parts are equally long.
    pub fn all_to_all(&mut self, input: &[u8], output: &mut [u8], dtype: DType) -> Result<()> {
        same_bytes("output", output.len(), input.len())?;
        let counts = vec![whole(input.len(), dtype, self.world_size)?; self.world_size];
        self.all_to_all_v(input, &counts, output, &counts, dtype)
    }

    /// The same where `sent[r]` elements go to rank r and `received[r]` come from it.
    pub fn all_to_all_v(
        &mut self,
        input: &[u8],
        sent: &[usize],
        output: &mut [u8],
        received: &[usize],
        dtype: DType,
    ) -> Result<()> {
        let sent = self.parts("sent", sent, dtype, input.len())?;
        let received = self.parts("received", received, dtype, output.len())?;
        same_bytes("a rank's message to itself", sent[self.rank].len(), received[self.rank].len())?;
        let call = Call::new(Operation::AllToAll).of_type(dtype);
        self.move_messages(call, Messages { input, sent: &sent, output, received: &received })
    }

    /// On `root`, `output` becomes all ranks' `input`s one after the other; elsewhere it must be empty.
    pub fn gather(&mut self, input: &[u8], output: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        let counts = vec![whole(input.len(), dtype, 1)?; self.world_size];
        self.gather_v(input, output, &counts, dtype, root)
    }

    /// The same where rank r has `counts[r]` elements. Only the root needs to know them: elsewhere `counts` is unused.
    pub fn gather_v(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        dtype: DType,
        root: usize,
    ) -> Result<()> {
        let (sent, received) =
            self.with_root(root, ("input", input.len()), ("output", output.len()), counts, dtype)?;
        let call = Call::new(Operation::Gather).of_type(dtype).with_root(root);
        self.move_messages(call, Messages { input, sent: &sent, output, received: &received })
    }

    /// Part r of `input` on `root` becomes `output` on rank r; elsewhere `input` must be empty.
    pub fn scatter(&mut self, input: &[u8], output: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        let counts = vec![whole(output.len(), dtype, 1)?; self.world_size];
        self.scatter_v(input, output, &counts, dtype, root)
    }

    /// The same where rank r gets `counts[r]` elements. Only the root needs to know them.
    pub fn scatter_v(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        counts: &[usize],
        dtype: DType,
        root: usize,
    ) -> Result<()> {
        let (received, sent) =
            self.with_root(root, ("output", output.len()), ("input", input.len()), counts, dtype)?;
        let call = Call::new(Operation::Scatter).of_type(dtype).with_root(root);
        self.move_messages(call, Messages { input, sent: &sent, output, received: &received })
    }

    /// Where this rank's own message with the root lies, and where on the root all ranks' lie, which is nowhere
    /// elsewhere.
    fn with_root(
        &self,
        root: usize,
        (own, own_bytes): (&str, usize),
        (all, all_bytes): (&str, usize),
        counts: &[usize],
        dtype: DType,
    ) -> Result<(Ranges, Ranges)> {
        self.messenger.is_rank(root)?;
        whole(own_bytes, dtype, 1)?;
        let mut with_root = vec![0..0; self.world_size];
        with_root[root] = 0..own_bytes;
        if self.rank != root {
            same_bytes(all, all_bytes, 0)?;
            return Ok((with_root, vec![0..0; self.world_size]));
        }
        let parts = self.parts("counts", counts, dtype, all_bytes)?;
        same_bytes(own, own_bytes, parts[root].len())?;
        Ok((with_root, parts))
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&mut self) -> Result<()> {
        let call = Call::new(Operation::Barrier);
        self.run(call, |group, watch| match group.single_host() {
            Some(local) => local.step(watch, Some(call)),
            None => group.hierarchical_barrier(watch),
        })
    }

    /// What all-to-all, gather and scatter are: a message from every rank to every other.
    fn move_messages(&mut self, call: Call, messages: Messages<'_>) -> Result<()> {
        self.run(call, |group, watch| {
            let (to, from) = (&messages.received[group.rank], &messages.sent[group.rank]);
            messages.output[to.clone()].copy_from_slice(&messages.input[from.clone()]);
            match group.single_host() {
                Some(local) => all_to_all::all_to_all(local, watch, Some(call), messages),
                None => group.hierarchical_all_to_all(watch, messages),
            }
        })
    }

    fn reduction(&self, dtype: DType, op: ReduceOp) -> Result<Combine> {
        op.check(dtype)?;
        Combine::new(dtype, op, self.world_size).ok_or_else(|| self.too_many())
    }

    pub(crate) fn too_many(&self) -> Error {
        Error::new(ErrorKind::Invalid, format!("{} ranks are too many", self.world_size))
    }

    /// Where each rank's elements are, one after the other.
    fn parts(&self, what: &str, counts: &[usize], dtype: DType, bytes: usize) -> Result<Vec<Range<usize>>> {
        if counts.len() != self.world_size {
            let text = format!("{what} has {} entries for {} ranks", counts.len(), self.world_size);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut end = 0usize;
        let mut parts = Vec::with_capacity(counts.len());
        for count in counts {
            let next = count.checked_mul(dtype.size()).and_then(|bytes| end.checked_add(bytes));
            let next =
                next.ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{what}: too many elements")))?;
            parts.push(end..next);
            end = next;
        }
        same_bytes("the buffer", bytes, end)?;
        Ok(parts)
    }
}

/// How many elements so many bytes are, if they can be divided among so many.
fn whole(bytes: usize, dtype: DType, among: usize) -> Result<usize> {
    if bytes.is_multiple_of(dtype.size() * among) {
        return Ok(bytes / dtype.size() / among);
    }
    let parts = if among == 1 { String::new() } else { format!(" in {among} equal parts") };
    Err(Error::new(
        ErrorKind::Invalid,
        format!("{bytes} bytes are not a whole number of {} elements{parts}", dtype.name()),
    ))
}

fn same_bytes(what: &str, bytes: usize, expected: usize) -> Result<()> {
    if bytes == expected {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Invalid, format!("{what} has {bytes} bytes, but needs {expected}")))
}

fn premultiply(buffer: &mut [u8], dtype: DType, op: ReduceOp) {
    if let ReduceOp::PremulSum(factor) = op {
        kernels::scale(buffer, dtype, factor);
    }
}
