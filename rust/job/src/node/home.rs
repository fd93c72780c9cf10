//! Where Phalanx and Python are on a machine, and the variables that only the machine knows.

use std::collections::BTreeMap;
use std::path::PathBuf;

const PYTHON_PATH: &str = "PYTHONPATH";

/// Where Phalanx and Python are on a machine, for the process that a node runs in.
#[derive(Debug, Clone, Default)]
pub struct Home {
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
    /// The folder that has the Python package `phalanx` in it.
    pub package: PathBuf,
    /// This process's Python; empty in a JVM, where the driver says which.
    pub python: String,
    /// Variables that only this machine knows. Its PYTHONPATH goes before the application's and this process's own.
    pub env: BTreeMap<String, String>,
    /// Whether this process is one of Spark's Python workers.
    pub in_python_worker: bool,
}

impl Home {
    /// Whether a warm pool is that of all children of this process's parent, and ends with that. Spark ends a Python
    /// worker after a minute without a task; what starts the next one stays.
    pub(crate) fn shares_pool(&self) -> bool {
        self.in_python_worker
    }

    /// The ranks' variables: the application's, which the driver told, and this machine's.
    pub(crate) fn environment(
        &self,
        application: &BTreeMap<String, String>,
        own: impl Fn(&str) -> Option<String>,
    ) -> BTreeMap<String, String> {
        let mut env = application.clone();
        env.extend(self.env.clone());
        if let Some(first) = self.env.get(PYTHON_PATH) {
            let path = [Some(first.clone()), application.get(PYTHON_PATH).cloned(), own(PYTHON_PATH)];
            let path: Vec<String> =
                path.into_iter().flatten().filter(|entries| !entries.is_empty()).collect();
            env.insert(PYTHON_PATH.into(), path.join(":"));
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machines_pythonpath_goes_before_the_applications_and_the_process_s_own() {
        let env = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
        };
        let home =
            Home { env: env(&[("PYTHONPATH", "/spark/pyspark.zip"), ("A", "here")]), ..Home::default() };
        let own = |_: &str| Some("/executor".to_string());
        let made = home.environment(&env(&[("PYTHONPATH", "/app"), ("A", "there"), ("B", "1")]), own);
        assert_eq!(made["PYTHONPATH"], "/spark/pyspark.zip:/app:/executor");
        assert_eq!((made["A"].as_str(), made["B"].as_str()), ("here", "1"));
        let plain = Home::default().environment(&env(&[("PYTHONPATH", "/app")]), own);
        assert_eq!(plain["PYTHONPATH"], "/app", "a Python worker has Spark's path in its own");
    }
}
