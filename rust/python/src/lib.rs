//! `phalanx._native`: the Rust core for Python. Each export unpacks, calls one function of the core, packs.
//!
//! The signatures are documented in `python/phalanx/_native.pyi`, and compared with it by `mypy.stubtest`.
// What Python sees is documented in the stub; PyO3's macros make items without docs.
#![allow(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod collective;
mod contract;
mod data;
mod errors;
mod hub;
mod job;
mod logs;
mod memory;
mod node;
mod page;
mod pool;
mod preflight;
mod scoring;
mod store;
mod words;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::checked(module.py(), collective::forks::close_in_children())?;
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("NativeError", module.py().get_type::<errors::NativeError>())?;
    module.add_function(wrap_pyfunction!(errors::fail_for_test, module)?)?;
    module.add_class::<job::Job>()?;
    module.add_class::<hub::Hub>()?;
    module.add_class::<node::NodeSpec>()?;
    module.add_class::<store::StoreServer>()?;
    module.add_class::<words::RankWords>()?;
    module.add_class::<collective::ProcessGroup>()?;
    module.add_class::<collective::Call>()?;
    module.add_class::<collective::Work>()?;
    module.add_function(wrap_pyfunction!(collective::read_activity, module)?)?;
    module.add_function(wrap_pyfunction!(contract::rank_contract, module)?)?;
    module.add_class::<data::DataPlan>()?;
    module.add_class::<data::WantedRows>()?;
    module.add_class::<data::BatchColumns>()?;
    module.add_class::<data::BlockClient>()?;
    module.add_function(wrap_pyfunction!(data::even_rows, module)?)?;
    module.add_function(wrap_pyfunction!(data::read_texts, module)?)?;
    module.add_function(wrap_pyfunction!(hub::hub_endpoint, module)?)?;
    module.add_function(wrap_pyfunction!(hub::is_own_host, module)?)?;
    module.add_function(wrap_pyfunction!(job::setting_keys, module)?)?;
    module.add_function(wrap_pyfunction!(job::read_settings, module)?)?;
    module.add_function(wrap_pyfunction!(job::rank_variables, module)?)?;
    module.add_function(wrap_pyfunction!(job::hosts_in_cooldown, module)?)?;
    module.add_function(wrap_pyfunction!(job::unknown_settings, module)?)?;
    module.add_function(wrap_pyfunction!(node::run_carrier, module)?)?;
    module.add_function(wrap_pyfunction!(node::run_node, module)?)?;
    module.add_function(wrap_pyfunction!(pool::serve_guard, module)?)?;
    module.add_function(wrap_pyfunction!(pool::use_huge_pages, module)?)?;
    module.add_function(wrap_pyfunction!(pool::pool_usage, module)?)?;
    module.add_function(wrap_pyfunction!(pool::end_pools, module)?)?;
    page::add_to(module)?;
    scoring::add_to(module)?;
    preflight::add_to(module)
}
