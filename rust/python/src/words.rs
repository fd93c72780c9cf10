//! The words that a rank shares with its node, for what takes a fence: Python has none.

use std::path::PathBuf;

use pyo3::prelude::*;

use crate::errors::detached;

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct RankWords(phalanx_job::RankWords);

#[pymethods]
impl RankWords {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<RankWords> {
        detached(py, || phalanx_job::RankWords::open(&path).map(RankWords))
    }

    fn ask(&self, step: u64) -> bool {
        self.0.ask(step)
    }

    fn go_on(&self, step: u64) {
        self.0.go_on(step);
    }
}
