//! One bucket: gradients that travel together, in a flat buffer of torch's memory with a view for each of them.
//!
//! Nothing outside this file holds a tensor that shares the buffer's memory.
//!
//! - TORCH-2 (same-bytes): the bytes that are sent are the same whether a rank averages in place or not.

use std::slice;

use phalanx_collective::{Group, ReduceOp};
use phalanx_types::Result;
use tch::{Device, Kind, Tensor};

use crate::error::torch_error;
use crate::plan::Plan;

/// The gradients that are averaged by one call.
pub(crate) struct Bucket {
    plan: Plan,
    kind: Kind,
    /// Of the parameters, in the plan's order.
    shapes: Vec<Vec<i64>>,
    /// Made when it is needed first.
    buffer: Option<Buffer>,
}

struct Buffer {
    flat: Tensor,
    /// Which parameter each view is for.
    views: Vec<(usize, Tensor)>,
}

impl Bucket {
    /// Of the parameters in `plan`; parameter i has the shape `shapes[i]`.
    pub(crate) fn new(plan: Plan, kind: Kind, shapes: &[Vec<i64>]) -> Bucket {
        let shapes = plan.parts.iter().map(|(index, _)| shapes[*index].clone()).collect();
        Bucket { plan, kind, shapes, buffer: None }
    }

    /// Averages `gradients` (by parameter; zeros where there is none) over all ranks. Returns the averages of those
    /// parameters whose gradient is not that by now.
    pub(crate) fn average(
        &mut self,
        group: &mut Group,
        gradients: &mut [Option<Tensor>],
    ) -> Result<&[(usize, Tensor)]> {
        let (dtype, elements) = (self.plan.dtype, self.plan.elements());
        if let [(index, _)] = self.plan.parts[..]
            && let Some(gradient) = &mut gradients[index]
            && is_flat(gradient, self.kind, elements)
        {
            // Alone in its bucket: the copies would take longer than the rest.
            group.all_reduce(memory(gradient, elements * dtype.size()), dtype, ReduceOp::Average)?;
            return Ok(&[]);
        }
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => none.insert(Buffer::new(&self.plan, self.kind, &self.shapes)?),
        };
        for (index, view) in &mut buffer.views {
            let done = match &gradients[*index] {
                Some(gradient) => view.f_copy_(gradient),
                None => view.f_zero_().map(drop),
            };
            done.map_err(torch_error("collect a gradient"))?;
        }
        group.all_reduce(memory(&mut buffer.flat, elements * dtype.size()), dtype, ReduceOp::Average)?;
        Ok(&buffer.views)
    }
}

impl Buffer {
    fn new(plan: &Plan, kind: Kind, shapes: &[Vec<i64>]) -> Result<Buffer> {
        let making = "make a buffer for gradients";
        let flat =
            Tensor::f_zeros([plan.elements() as i64], (kind, Device::Cpu)).map_err(torch_error(making))?;
        let mut views = Vec::with_capacity(plan.parts.len());
        for ((index, range), shape) in plan.parts.iter().zip(shapes) {
            let view = flat
                .f_narrow(0, range.start as i64, range.len() as i64)
                .and_then(|part| part.f_view(shape.as_slice()))
                .map_err(torch_error(making))?;
            views.push((*index, view));
        }
        Ok(Buffer { flat, views })
    }
}

/// Whether the elements lie one after the other in the host's memory.
fn is_flat(tensor: &Tensor, kind: Kind, elements: usize) -> bool {
    tensor.device() == Device::Cpu
        && tensor.is_contiguous()
        && !tensor.is_mkldnn()
        && tensor.f_kind().is_ok_and(|own| own == kind)
        && tensor.numel() == elements
}

/// The memory of a tensor that [`is_flat`] and has so many bytes.
fn memory(tensor: &mut Tensor, bytes: usize) -> &mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    let start = tensor.data_ptr().cast::<u8>();
    // SAFETY: both callers pass a dense tensor in the host's memory, with elements one after the other (made by
    // `f_zeros`, or looked at by `is_flat`) that are `bytes` bytes together. Torch initialised them, and keeps them
    // where they are as long as the tensor lives, which is borrowed. Other handles of the same gradient give no
    // slice of it; that no other thread works on a gradient meanwhile is what every operation of tch in place asks.
    unsafe { slice::from_raw_parts_mut(start, bytes) }
}
