//! Which pool to start.

use std::path::PathBuf;
use std::time::Duration;

/// What every pool imports.
pub const IMPORTS: [&str; 4] = ["torch", "torch.distributed", "numpy", "cloudpickle"];

/// What torch imports for the first optimizer of a process, along with `torch._dynamo`, and what takes half of that
/// time: such modules as read no variable that training code sets before. POOL-16
pub const LATER_IMPORTS: [&str; 3] = ["sympy", "torch.distributed.tensor", "torch.distributed.fsdp"];

/// Which pool to start.
#[derive(Debug, Clone, Default)]
pub struct PoolOptions {
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
    /// The pool's command line.
    pub program: Vec<String>,
    /// The modules to import; those that are not there are skipped.
    pub imports: Vec<String>,
    /// Those to import once nobody needs the pool for a while. They tell no pools apart.
    pub later: Vec<String>,
    /// What its ranks have beyond the client's variables, those that are different for each left out.
    pub env: Vec<(String, String)>,
    /// It ends when it has had no job for so long.
    pub idle_timeout: Duration,
    /// Whether all children of this process's parent share it, and it ends with that: a Python worker's is to be there
    /// for the worker that Spark starts next.
    pub shared: bool,
}
