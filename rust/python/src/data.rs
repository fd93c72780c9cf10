//! Which rows of a data set a rank takes.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_data::{BlockIndex, Column, Columns, Cut, Plan, Shuffle, Steps, Texts, Uneven, Wanted};
use phalanx_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::errors::{checked, detached};
use crate::memory::{Memory, Sources};

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct DataPlan(Mutex<Plan>);

type Taken<'py> = (WantedRows, Option<Bound<'py, PyBytes>>);

impl DataPlan {
    fn with<T>(&self, call: impl FnOnce(&mut Plan) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl DataPlan {
    #[new]
    #[pyo3(signature = (block_rows, *, even_rows, shuffle, uneven, seed, batch_size, rank, world_size))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments of a Python function")]
    fn new(
        py: Python<'_>,
        block_rows: Vec<u64>,
        even_rows: u64,
        shuffle: &str,
        uneven: &str,
        seed: u64,
        batch_size: u32,
        rank: u32,
        world_size: u32,
    ) -> PyResult<DataPlan> {
        detached(py, || {
            let (shuffle, uneven) = (shuffle_of(shuffle)?, uneven_of(uneven)?);
            let index = BlockIndex::new(&block_rows)?;
            let cut = if even_rows == 0 { Cut::AsStored } else { Cut::Even(even_rows) };
            let plan = Plan::new(index, cut, shuffle, uneven, seed, batch_size, rank, world_size)?;
            Ok(DataPlan(Mutex::new(plan)))
        })
    }

    #[getter]
    fn rows_a_step(&self) -> u64 {
        self.with(|plan| plan.rows_a_step())
    }

    fn steps_from(&self, row: u64) -> u64 {
        self.with(|plan| plan.steps_from(row))
    }

    fn blocks_from(&self, py: Python<'_>, epoch: u64, row: u64, count: usize) -> PyResult<Vec<u32>> {
        detached(py, || Ok(self.with(|plan| plan.blocks_from(epoch, row, count))))
    }

    #[pyo3(signature = (epoch, row, *, first, count, every))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        epoch: u64,
        row: u64,
        first: u64,
        count: u64,
        every: u64,
    ) -> PyResult<Taken<'py>> {
        let (wanted, counts) = detached(py, || {
            let part = self.with(|plan| plan.take(epoch, row, Steps { first, count, every }));
            let counts = part.counts.map(|counts| counts.into_iter().map(u8::from).collect::<Vec<u8>>());
            Ok((WantedRows(Arc::new(Wanted::new(&part.places))), counts))
        })?;
        Ok((wanted, counts.map(|counts| PyBytes::new(py, &counts))))
    }
}

#[pyfunction]
pub(crate) fn even_rows(rows: Vec<u64>, bytes: Vec<u64>, bytes_of_one: u64) -> u64 {
    phalanx_data::even_rows(&rows, &bytes, bytes_of_one)
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct WantedRows(Arc<Wanted>);

#[pymethods]
impl WantedRows {
    fn __len__(&self) -> usize {
        self.0.rows().len()
    }

    #[getter]
    fn blocks(&self) -> Vec<u32> {
        self.0.blocks().to_vec()
    }

    fn places<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let (blocks, rows) = detached(py, || {
            let blocks: Vec<u8> = self.0.rows().iter().flat_map(|(block, _)| block.to_ne_bytes()).collect();
            let rows: Vec<u8> = self.0.rows().iter().flat_map(|(_, row)| row.to_ne_bytes()).collect();
            Ok((blocks, rows))
        })?;
        Ok((PyBytes::new(py, &blocks), PyBytes::new(py, &rows)))
    }

    fn texts<'py>(
        &self,
        py: Python<'py>,
        blocks: Vec<TextMemory>,
        is_text: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        // SAFETY: the caller holds the arrays of all blocks, which nobody writes.
        let from: Vec<Texts<'_>> = blocks.into_iter().map(|block| unsafe { texts(block) }).collect();
        listed(py, checked(py, self.0.texts(&from))?, is_text)
    }
}

/// A column's rows: those of each block, or those that are wanted in their order.
#[derive(FromPyObject)]
pub(crate) enum Held {
    InOrder(Memory),
    Blocks(Vec<Memory>),
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct BatchColumns {
    /// In the memory of `kept`, in truth.
    columns: Mutex<Columns<'static>>,
    sources: Sources,
    _kept: Py<PyAny>,
}

#[pymethods]
impl BatchColumns {
    #[new]
    fn new(wanted: Option<&WantedRows>, columns: Vec<(usize, Held)>, kept: Py<PyAny>) -> BatchColumns {
        let memory = columns.iter().flat_map(|(_, held)| match held {
            Held::InOrder(rows) => std::slice::from_ref(rows),
            Held::Blocks(blocks) => blocks,
        });
        let sources = Sources::new(memory.copied());
        // SAFETY: `kept` owns the memory, which nobody writes, and goes with the columns.
        let read = |memory: &Memory| unsafe { memory.read::<'static>() };
        let columns = columns
            .iter()
            .map(|(width, held)| match held {
                Held::InOrder(rows) => Column::in_order(*width, read(rows)),
                Held::Blocks(blocks) => Column::of_blocks(*width, blocks.iter().map(read).collect()),
            })
            .collect();
        let wanted = wanted.map_or_else(|| Arc::new(Wanted::new(&[])), |wanted| Arc::clone(&wanted.0));
        BatchColumns { columns: Mutex::new(Columns::new(wanted, columns)), sources, _kept: kept }
    }

    fn copy(&self, py: Python<'_>, first: usize, count: usize, to: Vec<usize>) -> PyResult<()> {
        detached(py, || {
            let mut columns = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
            let of = columns.columns();
            if of.len() != to.len() {
                let problem = format!("{} columns don't go to {} places", of.len(), to.len());
                return Err(Error::new(ErrorKind::Invalid, problem));
            }
            let to = of.iter().zip(to).map(|(column, to)| Some(Memory::new(to, column.bytes_of(count)?)));
            let to: Option<Vec<_>> = to.collect();
            let Some(to) = to.filter(|to| !to.iter().any(|to| self.sources.overlap(*to))) else {
                return Err(Error::new(ErrorKind::Invalid, "rows can't be copied onto their own block"));
            };
            // SAFETY: the caller has made the targets for this, each as large as the rows are, and none is a source.
            columns.copy(first, count, to.iter().map(|to| unsafe { to.write() }))
        })
    }
}

/// The strings or bytes of a block as Arrow's format has them: where each row begins, and where the last one ends,
/// whether that is said by 64 bits, their bytes, and whether each row is one.
type TextMemory = (Memory, bool, Memory, Option<Memory>);

/// # Safety
/// As [`Memory::read`].
unsafe fn texts<'a>((ends, wide, bytes, valid): TextMemory) -> Texts<'a> {
    // SAFETY: passed on to the caller.
    let (ends, bytes, valid) = unsafe { (ends.read(), bytes.read(), valid.map(|valid| valid.read())) };
    Texts::new(ends, wide, bytes, valid)
}

#[pyfunction]
pub(crate) fn read_texts(py: Python<'_>, block: TextMemory, is_text: bool) -> PyResult<Bound<'_, PyList>> {
    // SAFETY: the caller holds the block's array, which nobody writes.
    let texts = unsafe { texts(block) };
    listed(py, checked(py, texts.all())?, is_text)
}

fn listed<'py>(py: Python<'py>, rows: Vec<Option<&[u8]>>, is_text: bool) -> PyResult<Bound<'py, PyList>> {
    let values = rows.into_iter().map(|row| match row {
        None => Ok(py.None().into_bound(py)),
        Some(bytes) if is_text => Ok(PyString::from_bytes(py, bytes)?.into_any()),
        Some(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
    });
    PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)
}

fn shuffle_of(name: &str) -> Result<Shuffle> {
    match name {
        "no" => Ok(Shuffle::No),
        "windows" => Ok(Shuffle::Windows),
        "full" => Ok(Shuffle::Full),
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!("shuffle has to be True, False or \"full\", not {name}"),
        )),
    }
}

fn uneven_of(name: &str) -> Result<Uneven> {
    match name {
        "drop" => Ok(Uneven::Drop),
        "wrap" => Ok(Uneven::Wrap),
        "pad" => Ok(Uneven::Pad),
        _ => {
            let problem = format!("uneven has to be \"drop\", \"wrap\" or \"pad\", not {name:?}");
            Err(Error::new(ErrorKind::Invalid, problem))
        }
    }
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct BlockClient(Mutex<phalanx_rendezvous::blocks::BlockClient>);

#[pymethods]
impl BlockClient {
    #[new]
    fn new(py: Python<'_>, access: Vec<u8>) -> PyResult<BlockClient> {
        detached(py, || {
            let access = phalanx_rendezvous::wire::message(&access)?;
            Ok(BlockClient(Mutex::new(phalanx_rendezvous::blocks::BlockClient::new(access))))
        })
    }

    fn fetch(
        &self,
        py: Python<'_>,
        host: &str,
        file: &str,
        start: u64,
        length: u64,
        into: &str,
    ) -> PyResult<()> {
        detached(py, || {
            let failed = |e: std::io::Error| Error::io(format!("write {into}"), &e);
            let mut to = std::fs::File::options().write(true).truncate(true).open(into).map_err(failed)?;
            let mut client = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            client.fetch(host, file, start, length, &mut to)
        })
    }
}
