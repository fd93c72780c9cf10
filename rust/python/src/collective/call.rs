//! One collective on the memory of tensors.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_collective::{DType, Group, ReduceOp};
use phalanx_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::errors::group::checked;
use crate::memory::Memory;

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

/// What all ranks gave, of sizes that nobody knew before, until it is fetched.
type Gathered = Mutex<Vec<Vec<u8>>>;

#[derive(Clone)]
enum Operation {
    AllReduce(Memory, DType, ReduceOp),
    Reduce(Memory, DType, ReduceOp, usize),
    Broadcast(Memory, DType, usize),
    AllGather(Memory, Memory, Counted),
    AllGatherSized(Memory, Arc<Gathered>),
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
                    if source.range().start == target.range().start + before * dtype.size() {
                        return group.all_gather_in_place(target.write(), counts, *dtype);
                    }
                    apart(*source, *target, |input, output| group.all_gather_v(input, output, counts, *dtype))
                }
                Operation::AllGatherSized(source, gathered) => {
                    let everything = all_gather_sized(group, source.read())?;
                    *gathered.lock().unwrap_or_else(PoisonError::into_inner) = everything;
                    Ok(())
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

/// What each rank has, whatever its size.
fn all_gather_sized(group: &mut Group, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut sizes = vec![0; group.world_size() * size_of::<u64>()];
    group.all_gather(&(bytes.len() as u64).to_le_bytes(), &mut sizes, DType::U8)?;
    let (sizes, _) = sizes.as_chunks();
    let sizes: Vec<usize> = sizes.iter().map(|size| u64::from_le_bytes(*size) as usize).collect();
    let mut all = vec![0; sizes.iter().sum()];
    group.all_gather_v(bytes, &mut all, &sizes, DType::U8)?;
    let mut rest = &all[..];
    let each = sizes.iter().map(|size| {
        let (one, others) = rest.split_at(*size);
        rest = others;
        one.to_vec()
    });
    Ok(each.collect())
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
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("collectives don't support tensors of {name}")))
}

fn reduction(name: &str, factor: f64) -> Result<ReduceOp> {
    ReduceOp::all(factor)
        .into_iter()
        .find(|op| op.name() == name)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("there is no reduction {name:?}")))
}

fn made(py: Python<'_>, make: impl FnOnce() -> Result<Operation>) -> PyResult<Call> {
    checked(py, make()).map(Call)
}

#[pymethods]
impl Call {
    #[staticmethod]
    fn all_reduce(py: Python<'_>, memory: Memory, dtype: &str, op: &str, factor: f64) -> PyResult<Call> {
        made(py, || Ok(Operation::AllReduce(memory, dtype_named(dtype)?, reduction(op, factor)?)))
    }

    #[staticmethod]
    fn reduce(
        py: Python<'_>,
        memory: Memory,
        dtype: &str,
        op: &str,
        factor: f64,
        root: usize,
    ) -> PyResult<Call> {
        made(py, || Ok(Operation::Reduce(memory, dtype_named(dtype)?, reduction(op, factor)?, root)))
    }

    #[staticmethod]
    fn broadcast(py: Python<'_>, memory: Memory, dtype: &str, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Broadcast(memory, dtype_named(dtype)?, root)))
    }

    #[staticmethod]
    fn all_gather(py: Python<'_>, source: Memory, target: Memory, parts: Parts) -> PyResult<Call> {
        made(py, || Ok(Operation::AllGather(source, target, parts.checked()?)))
    }

    #[staticmethod]
    fn all_gather_sized(source: Memory) -> Call {
        Call(Operation::AllGatherSized(source, Arc::default()))
    }

    fn gathered<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyByteArray>> {
        let Operation::AllGatherSized(_, gathered) = &self.0 else { return Vec::new() };
        // BINDING-13: to make objects may be to give up the interpreter lock.
        let taken = std::mem::take(&mut *gathered.lock().unwrap_or_else(PoisonError::into_inner));
        taken.iter().map(|bytes| PyByteArray::new(py, bytes)).collect()
    }

    #[staticmethod]
    fn reduce_scatter(
        py: Python<'_>,
        source: Memory,
        target: Memory,
        counts: Vec<usize>,
        dtype: &str,
        op: &str,
        factor: f64,
    ) -> PyResult<Call> {
        made(py, || {
            let (dtype, op) = (dtype_named(dtype)?, reduction(op, factor)?);
            Ok(Operation::ReduceScatter(source, target, counts, dtype, op))
        })
    }

    #[staticmethod]
    fn all_to_all(
        py: Python<'_>,
        source: Memory,
        sent: Vec<usize>,
        target: Memory,
        received: Vec<usize>,
        dtype: &str,
    ) -> PyResult<Call> {
        made(py, || Ok(Operation::AllToAll(source, sent, target, received, dtype_named(dtype)?)))
    }

    #[staticmethod]
    fn gather(py: Python<'_>, source: Memory, target: Memory, parts: Parts, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Gather(source, target, parts.checked()?, root)))
    }

    #[staticmethod]
    fn scatter(py: Python<'_>, source: Memory, target: Memory, parts: Parts, root: usize) -> PyResult<Call> {
        made(py, || Ok(Operation::Scatter(source, target, parts.checked()?, root)))
    }

    #[staticmethod]
    fn barrier() -> Call {
        Call(Operation::Barrier)
    }
}
