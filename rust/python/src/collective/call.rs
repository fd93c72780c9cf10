//! One collective on the memory of tensors.

use std::ops::Range;

use phalanx_collective::{DType, Group, ReduceOp};
use phalanx_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::errors::checked;

/// Memory of a tensor: what Python says of it is true until the call is done, because the ticket, or the caller who
/// waits, keeps the tensor.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
}

impl Memory {
    fn range(self) -> Range<usize> {
        self.address..self.address + self.bytes
    }

    fn overlaps(self, other: Memory) -> bool {
        let (a, b) = (self.range(), other.range());
        !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }

    /// # Safety
    /// The memory is a tensor's that lives on for `'a`, and nobody writes it meanwhile.
    pub(crate) unsafe fn read<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[]; // an empty tensor has no address
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    /// # Safety
    /// The memory is a tensor's that lives on for `'a`, and nobody reads or writes it meanwhile.
    pub(crate) unsafe fn write<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

pub(crate) type Place = (usize, usize);

impl From<Place> for Memory {
    fn from((address, bytes): Place) -> Memory {
        Memory { address, bytes }
    }
}

/// How many elements of which type each rank has.
type Counted = (Vec<usize>, DType);

/// The same as Python says it.
#[derive(FromPyObject)]
struct Parts(Vec<usize>, String);

impl Parts {
    fn checked(self) -> Result<Counted> {
        Ok((self.0, dtype_named(&self.1)?))
    }
}

#[derive(Clone)]
enum Operation {
    AllReduce(Memory, DType, ReduceOp),
    Reduce(Memory, DType, ReduceOp, usize),
    Broadcast(Memory, DType, usize),
    AllGather(Memory, Memory, Counted),
    ReduceScatter(Memory, Memory, Vec<usize>, DType, ReduceOp),
    AllToAll(Memory, Vec<usize>, Memory, Vec<usize>, DType),
    Gather(Memory, Memory, Counted, usize),
    Scatter(Memory, Memory, Counted, usize),
    Barrier,
}

#[pyclass(module = "phalanx._native", frozen, from_py_object)]
#[derive(Clone)]
pub(crate) struct Call(Operation);

impl Call {
    /// Does it.
    ///
    /// # Safety
    /// Until it returns, the memory that the call was made with exists and is used by nobody else.
    pub(crate) unsafe fn perform(&self, group: &mut Group) -> Result<()> {
        // SAFETY: the caller's promise; where two memories overlap, `apart` sees to it that references don't.
        unsafe {
            match &self.0 {
                Operation::AllReduce(memory, dtype, op) => group.all_reduce(memory.write(), *dtype, *op),
                Operation::Reduce(memory, dtype, op, root) => {
                    group.reduce(memory.write(), *dtype, *op, *root)
                }
                Operation::Broadcast(memory, dtype, root) => group.broadcast(memory.write(), *dtype, *root),
                Operation::AllGather(source, target, (counts, dtype)) => {
                    let before: usize = counts.iter().take(group.rank()).sum();
                    if source.address == target.address + before * dtype.size() {
                        return group.all_gather_in_place(target.write(), counts, *dtype);
                    }
                    apart(*source, *target, |input, output| group.all_gather_v(input, output, counts, *dtype))
                }
                Operation::ReduceScatter(source, target, counts, dtype, op) => {
                    apart(*source, *target, |input, output| {
                        group.reduce_scatter_v(input, output, counts, *dtype, *op)
                    })
                }
                Operation::AllToAll(source, sent, target, received, dtype) => {
                    apart(*source, *target, |input, output| {
                        group.all_to_all_v(input, sent, output, received, *dtype)
                    })
                }
                Operation::Gather(source, target, (counts, dtype), root) => {
                    apart(*source, *target, |input, output| {
                        group.gather_v(input, output, counts, *dtype, *root)
                    })
                }
                Operation::Scatter(source, target, (counts, dtype), root) => {
                    apart(*source, *target, |input, output| {
                        group.scatter_v(input, output, counts, *dtype, *root)
                    })
                }
                Operation::Barrier => group.barrier(),
            }
        }
    }
}

/// Calls `work` with both memories; with a copy of the source where they overlap.
///
/// # Safety
/// As [`Call::perform`].
unsafe fn apart<R>(source: Memory, target: Memory, work: impl FnOnce(&[u8], &mut [u8]) -> R) -> R {
    // SAFETY: the caller's promise. The copy is made before there is a reference for writing.
    unsafe {
        if source.overlaps(target) {
            let copy = source.read().to_vec();
            return work(&copy, target.write());
        }
        work(source.read(), target.write())
    }
}

fn dtype_named(name: &str) -> Result<DType> {
    DType::named(name)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("there are no collectives on {name}")))
}

fn reduction(name: &str, factor: f64) -> Result<ReduceOp> {
    let all = [
        ReduceOp::Sum,
        ReduceOp::Product,
        ReduceOp::Min,
        ReduceOp::Max,
        ReduceOp::Average,
        ReduceOp::BitAnd,
        ReduceOp::BitOr,
        ReduceOp::BitXor,
        ReduceOp::PremulSum(factor),
    ];
    all.into_iter()
        .find(|op| op.name() == name)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("there is no reduction {name:?}")))
}

fn made(py: Python<'_>, make: impl FnOnce() -> Result<Operation>) -> PyResult<Call> {
    checked(py, make()).map(Call)
}

#[pymethods]
impl Call {
    #[staticmethod]
    fn all_reduce(py: Python<'_>, memory: Place, dtype: &str, op: &str, factor: f64) -> PyResult<Call> {
        made(py, || Ok(Operation::AllReduce(memory.into(), dtype_named(dtype)?, reduction(op, factor)?)))
    }

    #[staticmethod]
    fn reduce(
        py: Python<'_>,
        memory: Place,
        dtype: &str,
        op: &str,
        factor: f64,
        root: usize,
    ) -> PyResult<Call> {
        made(py, || Ok(Operation::Reduce(memory.into(), dtype_named(dtype)?, reduction(op, factor)?, root)))
    }

    #[staticmethod]
    fn broadcast(py: Python<'_>, memory: Place, dtype: &str, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Broadcast(memory.into(), dtype_named(dtype)?, root)))
    }

    #[staticmethod]
    fn all_gather(py: Python<'_>, source: Place, target: Place, parts: Parts) -> PyResult<Call> {
        made(py, || Ok(Operation::AllGather(source.into(), target.into(), parts.checked()?)))
    }

    #[staticmethod]
    fn reduce_scatter(
        py: Python<'_>,
        source: Place,
        target: Place,
        counts: Vec<usize>,
        dtype: &str,
        op: &str,
        factor: f64,
    ) -> PyResult<Call> {
        made(py, || {
            let (dtype, op) = (dtype_named(dtype)?, reduction(op, factor)?);
            Ok(Operation::ReduceScatter(source.into(), target.into(), counts, dtype, op))
        })
    }

    #[staticmethod]
    fn all_to_all(
        py: Python<'_>,
        source: Place,
        sent: Vec<usize>,
        target: Place,
        received: Vec<usize>,
        dtype: &str,
    ) -> PyResult<Call> {
        made(py, || {
            Ok(Operation::AllToAll(source.into(), sent, target.into(), received, dtype_named(dtype)?))
        })
    }

    #[staticmethod]
    fn gather(py: Python<'_>, source: Place, target: Place, parts: Parts, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Gather(source.into(), target.into(), parts.checked()?, root)))
    }

    #[staticmethod]
    fn scatter(py: Python<'_>, source: Place, target: Place, parts: Parts, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Scatter(source.into(), target.into(), parts.checked()?, root)))
    }

    #[staticmethod]
    fn barrier() -> Call {
        Call(Operation::Barrier)
    }
}
