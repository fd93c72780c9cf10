//! As TYPES-3 says, the kinds of errors and failures are those of `tests/contract/errors.json`.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::fs;

use phalanx_types::{ErrorKind, FailureKind};
use serde_json::Value;

fn kinds(part: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/contract/errors.json");
    let table: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let rows = table[part].as_array().unwrap();
    rows.iter().map(|row| row["kind"].as_str().unwrap().to_string()).collect()
}

#[test]
fn the_table_has_every_kind_of_failure() {
    assert_eq!(kinds("kinds"), FailureKind::ALL.map(FailureKind::name));
}

#[test]
fn the_table_has_every_kind_of_error_and_a_panics() {
    let mut names = ErrorKind::ALL.map(ErrorKind::name).to_vec();
    names.push("panic");
    assert_eq!(kinds("errors"), names, "TYPES-3");
}
