//! Training with `tch` on several ranks, without Python: a [`Replica`] averages the gradients over the collective, and
//! [`run_rank`] makes a program a rank of a Phalanx job.
//!
//! Needs libtorch 2.13.0, at build and at run time; no other crate of the workspace does. The only unsafe code is the
//! slice over a tensor's memory, in `bucket.rs`.
//!
//! `tch` has no hook in the backward pass, so nothing is sent until it is over: communication is not hidden behind it.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use phalanx_torch::{Replica, run_rank, torch_error};
//! use tch::nn::{OptimizerConfig, VarStore, sgd};
//! use tch::{Device, TrainableCModule};
//!
//! fn main() -> std::process::ExitCode {
//!     run_rank(|rank| {
//!         let store = VarStore::new(Device::Cpu);
//!         let module =
//!             TrainableCModule::load("model.pt", store.root()).map_err(torch_error("load model.pt"))?;
//!         let mut optimizer = sgd(0.9, 0.0, 0.0, false).build(&store, 0.05).map_err(torch_error("begin"))?;
//!         let mut replica = Replica::of_store(rank.join("training", Duration::from_secs(600))?, &store)?;
//!         for batch in batches_of(rank.rank) {
//!             optimizer.zero_grad();
//!             let loss = module.forward_ts(&[batch]).map_err(torch_error("run the model"))?;
//!             loss.f_backward().map_err(torch_error("run the backward pass"))?;
//!             replica.average_gradients()?;
//!             optimizer.step();
//!         }
//!         replica.check_equal()?;
//!         Ok(Vec::new())
//!     })
//! }
//! # fn batches_of(_rank: usize) -> Vec<tch::Tensor> { Vec::new() }
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod agreement;
mod bucket;
mod error;
mod libtorch;
mod native;
mod plan;
mod replica;

pub use error::torch_error;
pub use native::{NativeRank, TcpStore, check_libtorch, run_rank};
pub use replica::{BUCKET_BYTES, Replica, named_parameters};
