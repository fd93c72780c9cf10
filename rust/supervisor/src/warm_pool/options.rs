//! Which pool to start.

use std::path::PathBuf;
use std::time::Duration;

/// What every pool imports.
pub const IMPORTS: [&str; 4] = ["torch", "torch.distributed", "numpy", "cloudpickle"];

/// Which pool to start.
#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
    /// The pool's command line.
    pub program: Vec<String>,
    /// The modules to import; those that are not there are skipped.
    pub imports: Vec<String>,
    /// What its ranks have beyond the client's variables, those that are different for each left out.
    pub env: Vec<(String, String)>,
    /// It ends when it has had no job for so long.
    pub idle_timeout: Duration,
    /// Whether all children of this process's parent share it, and it ends with that: a Python worker's is to be there
    /// for the worker that Spark starts next.
    pub shared: bool,
}
