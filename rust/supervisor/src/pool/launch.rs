//! A launch with everything that a program would have inherited from the host, for a rank that is forked elsewhere.

use std::collections::BTreeMap;

use phalanx_types::{Error, ErrorKind, Result};

use crate::guard::Launch;

/// `launch` with the whole environment and the working directory.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a variable of the host's that is no UTF-8, or a working directory that has gone.
pub(crate) fn whole(launch: &Launch) -> Result<Launch> {
    let mut env = host_environment()?;
    for name in &launch.env_remove {
        env.remove(name);
    }
    env.extend(launch.env.iter().cloned());
    env.insert("PHALANX_NOTES_FD".into(), crate::sys::NOTES_FD.to_string());
    let cwd = match &launch.cwd {
        Some(cwd) => cwd.clone(),
        None => std::env::current_dir().map_err(|error| Error::io("tell the working directory", &error))?,
    };
    Ok(Launch { env: env.into_iter().collect(), env_remove: Vec::new(), cwd: Some(cwd), ..launch.clone() })
}

/// This process's environment.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a variable that is no UTF-8.
pub(super) fn host_environment() -> Result<BTreeMap<String, String>> {
    std::env::vars_os()
        .map(|(name, value)| match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            (name, _) => {
                let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                Err(Error::new(ErrorKind::Invalid, format!("the variable {name} is no UTF-8 text")))
            }
        })
        .collect()
}
