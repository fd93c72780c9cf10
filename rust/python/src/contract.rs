//! The names that a node and its ranks agree on.

use std::collections::BTreeMap;

use phalanx_types::contract::NAMES;
use pyo3::prelude::*;

#[pyfunction]
pub(crate) fn rank_contract() -> BTreeMap<&'static str, &'static str> {
    NAMES.iter().copied().collect()
}
