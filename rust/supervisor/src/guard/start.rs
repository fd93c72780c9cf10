//! How a guard starts a rank: as a program or, if the guard was forked from a warm pool, by a fork of itself.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use phalanx_types::contract::ENV_NOTES_FD;
use rustix::process::{Pid, getpid};

use super::launch::Launch;
use crate::sys;

/// Makes a copy of this process: the child's id, or `None` in the child.
pub(super) type Fork<'f> = &'f mut dyn FnMut() -> io::Result<Option<Pid>>;

/// One side of a fork.
pub(super) enum Side {
    /// In the guard: the rank's process id.
    Guard(Pid),
    /// In the rank: what it is to do, or why it can't.
    Rank(io::Result<Launch>),
}

/// Forks a rank; in words, why it can't be.
pub(super) fn fork_rank(
    fork: Fork<'_>,
    launch: Launch,
    output: &OwnedFd,
    notes: &OwnedFd,
) -> Result<Side, String> {
    let cannot = |why: &str| format!("can't fork a rank: {why}");
    if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(cannot(&format!("its working directory {} does not exist", cwd.display())));
    }
    let texts = launch.args.iter().chain(launch.env.iter().flat_map(|(name, value)| [name, value]));
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(cannot("an argument or a variable contains a NUL byte"));
    }
    let guard = getpid();
    match fork() {
        Ok(Some(pid)) => Ok(Side::Guard(pid)),
        Ok(None) => {
            let entered = sys::enter_rank(output.as_raw_fd(), notes.as_raw_fd(), guard).and_then(|()| {
                launch.cwd.as_ref().map_or(Ok(()), std::env::set_current_dir).map(|()| launch)
            });
            Ok(Side::Rank(entered))
        }
        Err(error) => Err(cannot(&error.to_string())),
    }
}

/// Starts a rank as a program; in words, why it can't be.
pub(super) fn start_program(launch: &Launch, output: OwnedFd, notes: &OwnedFd) -> Result<Pid, String> {
    let cannot = |why: &str| format!("can't start {:?}: {why}", launch.program);
    if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(cannot(&format!("its working directory {} does not exist", cwd.display())));
    }
    let errors = output.try_clone().map_err(|error| cannot(&error.to_string()))?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).stdin(Stdio::null()).stdout(output).stderr(errors);
    for name in &launch.env_remove {
        command.env_remove(name);
    }
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env(ENV_NOTES_FD, sys::NOTES_FD.to_string());
    if let Some(cwd) = &launch.cwd {
        command.current_dir(cwd);
    }
    sys::make_rank(&mut command, notes.as_raw_fd(), getpid());
    match command.spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => Err(cannot(&start_error(launch, &error))),
    }
}

fn start_error(launch: &Launch, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if launch.program.contains('/') => {
            "no such file, or the interpreter that its first line names does not exist".to_string()
        }
        io::ErrorKind::NotFound => {
            let set = launch.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
            let inherited = || {
                std::env::var("PATH").ok().filter(|_| !launch.env_remove.iter().any(|name| name == "PATH"))
            };
            let path = set.or_else(inherited).unwrap_or_default();
            format!("no such program on the rank's PATH ({path})")
        }
        io::ErrorKind::PermissionDenied => "permission denied".to_string(),
        io::ErrorKind::ArgumentListTooLong => "its arguments and environment are too long".to_string(),
        io::ErrorKind::InvalidInput => "an argument or a variable contains a NUL byte".to_string(),
        _ => error.to_string(),
    }
}
