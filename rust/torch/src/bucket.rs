//! One bucket: a flat buffer in torch's memory, with a view for each gradient in it.
//!
//! BUC-1: nothing outside this file holds a tensor that shares the buffer's memory.

use phalanx_collective::{DType, Group, ReduceOp};
use phalanx_types::Result;
use tch::{Device, Kind, Tensor};

use crate::error::torch_error;
use crate::plan::Plan;

/// The gradients that are averaged by one call.
pub(crate) struct Bucket {
    dtype: DType,
    flat: Tensor,
    bytes: usize,
    /// Which parameter each view is for.
    views: Vec<(usize, Tensor)>,
}

impl Bucket {
    /// Makes the buffer for `plan`; parameter i has the shape `shapes[i]`.
    pub(crate) fn new(plan: &Plan, kind: Kind, shapes: &[Vec<i64>]) -> Result<Bucket> {
        let making = "make a buffer for gradients";
        let flat =
            Tensor::f_zeros([plan.elements() as i64], (kind, Device::Cpu)).map_err(torch_error(making))?;
        let mut views = Vec::with_capacity(plan.parts.len());
        for (index, range) in &plan.parts {
            let view = flat
                .f_narrow(0, range.start as i64, range.len() as i64)
                .and_then(|part| part.f_view(shapes[*index].as_slice()))
                .map_err(torch_error(making))?;
            views.push((*index, view));
        }
        Ok(Bucket { dtype: plan.dtype, flat, bytes: plan.elements() * plan.dtype.size(), views })
    }

    /// Collects `gradients` (by parameter; zeros where there is none) and averages them over all ranks.
    pub(crate) fn average(&mut self, group: &mut Group, gradients: &[Option<Tensor>]) -> Result<()> {
        for (index, view) in &mut self.views {
            let done = match &gradients[*index] {
                Some(gradient) => view.f_copy_(gradient),
                None => view.f_zero_().map(drop),
            };
            done.map_err(torch_error("collect a gradient"))?;
        }
        let dtype = self.dtype;
        group.all_reduce(self.memory(), dtype, ReduceOp::Average)
    }

    /// The averages, by parameter.
    pub(crate) fn averages(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        self.views.iter().map(|(index, view)| (*index, view))
    }

    fn memory(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let start = self.flat.data_ptr().cast::<u8>();
        // SAFETY: `flat` is a dense CPU tensor of `bytes` bytes, made by `f_zeros` and kept by `self`, so the memory
        // is initialised, stays where it is and lives as long as the borrow. All tensors that share it are in `self`
        // (BUC-1), which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes) }
    }
}
