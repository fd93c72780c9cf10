//! A guard that was forked from a warm pool, and the ranks that it forks.
//!
//! It is the same guard, with the same orders and reports; what differs is how it came to be (its descriptors are put
//! in place by the pool) and how a rank starts: by a copy of the process instead of a program.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, getpid};

use super::server::{HostWatch, Server, serve};
use super::wire::Launch;
use crate::sys;

/// Where a forked guard finds the pidfd of its host.
const HOST_FD: i32 = 4;

/// One side of a fork.
pub(super) enum Side {
    /// In the guard: the rank's process id.
    Guard(Pid),
    /// In the rank: what it is to do, or why it can't.
    Rank(io::Result<Launch>),
}

/// Makes this process, which a pool has just forked and which has no other thread, the guard of one job's ranks.
///
/// It has to have the control socket as descriptor 0, `/dev/null` as 1 to 3, and a pidfd of the host as 4; everything
/// above is closed. `fork` makes a copy of the process. Returns `None` when the guard is over, and `Some` in a process
/// that it forked as a rank: descriptors and session are a rank's then, signals still default and blocked.
pub fn serve_forked(
    grace: Duration,
    fork: &mut dyn FnMut() -> io::Result<Option<Pid>>,
) -> Option<io::Result<Launch>> {
    let set_up = sys::close_from(HOST_FD.unsigned_abs() + 1)
        .and_then(|()| Ok((sys::inherited(sys::NOTES_FD)?, sys::inherited(HOST_FD)?)))
        .and_then(|(null, host)| Server::set_up(HostWatch::by_pidfd(host), null, grace, Some(fork)));
    serve(set_up)
}

/// Forks a rank; in words, why it can't be.
pub(super) fn start(
    fork: &mut dyn FnMut() -> io::Result<Option<Pid>>,
    launch: Launch,
    output: &OwnedFd,
    notes: &OwnedFd,
) -> Result<Side, String> {
    let cannot = |why: &str| format!("can't fork a rank: {why}");
    if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(cannot(&format!("its working directory {} is not there", cwd.display())));
    }
    let texts = launch.args.iter().chain(launch.env.iter().flat_map(|(name, value)| [name, value]));
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err(cannot("an argument or a variable holds a NUL byte"));
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
