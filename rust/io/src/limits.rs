//! What the system allows a process that many connect to.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many connections may wait to be accepted: all nodes or ranks of a job connect at once. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 16 * 1024;

/// Raises the number of descriptors that this process may have open to what it may raise it to: a job of a thousand
/// ranks needs more than the 1,024 that is usual. What cannot be raised stays.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        log::debug!("the limit of open descriptors stays as it is: {errno}");
    }
}

/// Has a socket that listens keep as many connections as the system allows until they are accepted.
///
/// # Errors
/// Those of `listen(2)`.
pub fn widen_backlog(listener: impl AsFd) -> io::Result<()> {
    rustix::net::listen(listener, BACKLOG).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "asks the system")]
    fn the_limit_of_descriptors_is_as_high_as_it_may_be() {
        raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
