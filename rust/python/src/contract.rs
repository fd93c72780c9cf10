//! The names that a node and its ranks agree on.

use std::collections::BTreeMap;

use phalanx_types::contract::{NAMES, NUMBERS};
use pyo3::prelude::*;

#[derive(IntoPyObject)]
pub(crate) enum Value {
    Name(&'static str),
    Number(u64),
}

#[pyfunction]
pub(crate) fn rank_contract() -> BTreeMap<&'static str, Value> {
    let names = NAMES.iter().map(|(name, value)| (*name, Value::Name(value)));
    names.chain(NUMBERS.iter().map(|(name, value)| (*name, Value::Number(*value)))).collect()
}
