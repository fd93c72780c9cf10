//! What a pool's imports depend on. Ranks with another fingerprint are not forked from the pool.

use std::collections::BTreeMap;
use std::ffi::OsString;

use phalanx_types::contract::{ENV_PY_FILES, ENV_SPARK_FILES, ENV_VISIBLE_GPUS};

use super::options::PoolOptions;

/// How the jemalloc that is part of Arrow is set up; it reads this when it is loaded.
pub(super) const ARROW_JEMALLOC: &str = "JE_ARROW_MALLOC_CONF";

/// Variables that shape what is imported, and what the imports do, by how their names begin.
const SHAPING: [&str; 25] = [
    "PYTHON",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "KMP_",
    "GOMP_",
    "LD_",
    "TORCH_",
    "PYTORCH_",
    "ATEN_",
    "NPY_",
    "NUMPY_",
    "MALLOC_",
    ARROW_JEMALLOC,
    "GLIBC_TUNABLES",
    "LANG",
    "LC_",
    "TZ",
    "HOME",
    "TMPDIR",
    "CUDA_",
    "VIRTUAL_ENV",
    ENV_SPARK_FILES,
    ENV_PY_FILES,
];

/// Variables of one rank or one run among them, which nothing reads when it is imported.
const OF_A_RANK: [&str; 2] = [ENV_VISIBLE_GPUS, "TORCH_NCCL_"];

/// Whether a variable is part of a pool's fingerprint.
pub fn shapes(name: &str) -> bool {
    SHAPING.iter().any(|start| name.starts_with(start))
        && !OF_A_RANK.iter().any(|start| name.starts_with(start))
}

/// Equal for ranks that may come from the same pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint {
    program: Vec<String>,
    imports: Vec<String>,
    variables: BTreeMap<OsString, OsString>,
    /// What a process inherits besides: limits, umask, processors.
    inherited: Vec<String>,
}

impl Fingerprint {
    pub(super) fn of(options: &PoolOptions) -> Fingerprint {
        let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        variables.retain(|name, _| name.to_str().is_some_and(shapes));
        variables.extend(options.env.iter().map(|(name, value)| (name.into(), value.into())));
        Fingerprint {
            program: options.program.clone(),
            imports: options.imports.clone(),
            variables,
            inherited: inherited(),
        }
    }
}

fn inherited() -> Vec<String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let mut found = vec![read("/proc/self/limits")];
    let kept = ["Umask:", "Cpus_allowed:", "Mems_allowed:", "NoNewPrivs:", "CapEff:", "Uid:", "Gid:"];
    let status = read("/proc/self/status");
    found.extend(
        status.lines().filter(|line| kept.iter().any(|start| line.starts_with(start))).map(Into::into),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(env: &[(&str, &str)]) -> PoolOptions {
        let env = env.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())).collect();
        PoolOptions { program: vec!["python".into()], env, ..PoolOptions::default() }
    }

    #[test]
    fn what_shapes_imports_tells_pools_apart_and_what_is_a_rank_s_own_does_not() {
        let plain = Fingerprint::of(&options(&[]));
        for (name, value) in [("PYTHONPATH", "/x"), ("OMP_NUM_THREADS", "7"), ("PHALANX_PY_FILES", "a.zip")] {
            assert_ne!(Fingerprint::of(&options(&[(name, value)])), plain, "POOL-12: {name}");
        }
        for name in ["RANK", "CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        {
            assert!(!shapes(name), "{name}");
        }
        let other = PoolOptions { imports: vec!["json".into()], ..options(&[]) };
        assert_ne!(Fingerprint::of(&other), plain);
    }
}
