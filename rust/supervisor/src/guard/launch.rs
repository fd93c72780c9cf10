//! What a rank is to run, and with what.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_types::contract::ENV_NOTES_FD;
use phalanx_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::sys;

/// One rank to start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The rank, for the events.
    pub rank: u32,
    /// The program: a path, or a name to look for on the rank's `PATH`.
    pub program: String,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Variables to set, over what is inherited from the client and also where `env_remove` names them. The
    /// last of a name wins.
    pub env: Vec<(String, String)>,
    /// Variables not to inherit.
    pub env_remove: Vec<String>,
    /// The working directory; `None` for the client's.
    pub cwd: Option<std::path::PathBuf>,
}

impl Launch {
    /// The launch with everything that a program would have inherited from this process, for a rank that is forked
    /// elsewhere: the whole environment and the working directory.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a variable of this process that is no UTF-8, or a working directory that has gone.
    pub(super) fn with_inherited(&self) -> Result<Launch> {
        let mut env = own_environment()?;
        for name in &self.env_remove {
            env.remove(name);
        }
        env.extend(self.env.iter().cloned());
        env.insert(ENV_NOTES_FD.into(), sys::NOTES_FD.to_string());
        let cwd = match &self.cwd {
            Some(cwd) => cwd.clone(),
            None => {
                std::env::current_dir().map_err(|error| Error::io("tell the working directory", &error))?
            }
        };
        Ok(Launch { env: env.into_iter().collect(), env_remove: Vec::new(), cwd: Some(cwd), ..self.clone() })
    }
}

/// The command line that runs `main` of a module of the Phalanx in the folder `package`, whatever other Phalanx that
/// Python has. The folder is the last on the process's path, so it shadows no module of the user's.
pub fn python_program(python: &str, module: &str, package: &Path) -> Vec<String> {
    // The path is whole again when the module's own imports begin: only `phalanx` itself is looked for in its folder.
    let boot = format!(
        "import sys; home = sys.argv.pop(); sys.path[:] = [home] + [p for p in sys.path if p]; import phalanx; \
         sys.path.append(sys.path.pop(0)); from {module} import main; main()"
    );
    vec![python.into(), "-c".into(), boot, package.to_string_lossy().into_owned()]
}

/// This process's environment.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a variable that is no UTF-8.
pub(crate) fn own_environment() -> Result<BTreeMap<String, String>> {
    std::env::vars_os()
        .map(|(name, value)| match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            (name, _) => {
                let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                Err(Error::new(ErrorKind::Invalid, format!("the variable {name} is not valid UTF-8")))
            }
        })
        .collect()
}
