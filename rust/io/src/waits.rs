//! Waits that have an end.

use std::io::ErrorKind as IoKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};

/// How long a connection attempt may take where its deadline is never: the kernel would try for minutes.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// Connects by the deadline, or within a minute where that is never.
///
/// # Errors
/// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Unreachable`] if nobody listens there.
pub fn connect(address: SocketAddr, deadline: Deadline) -> Result<TcpStream> {
    let refused = || Error::new(ErrorKind::Unreachable, format!("can't connect to {address}: it refuses"));
    connect_unless_refused(address, deadline)?.ok_or_else(refused)
}

/// As [`connect`]; `None` if the host answers that nobody listens there.
///
/// # Errors
/// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Unreachable`] if the host does not answer.
pub fn connect_unless_refused(address: SocketAddr, deadline: Deadline) -> Result<Option<TcpStream>> {
    let left = deadline.left().unwrap_or(LONGEST_CONNECT);
    if left.is_zero() {
        return Err(Error::new(ErrorKind::Timeout, format!("no time is left to connect to {address}")));
    }
    match TcpStream::connect_timeout(&address, left) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == IoKind::ConnectionRefused => Ok(None),
        Err(error) => Err(Error::io(format_args!("connect to {address}"), &error)),
    }
}

/// Rests for `time`, but no longer than until `deadline`: for who has to look again at what nothing announces.
#[allow(clippy::disallowed_methods, reason = "this is what others call instead")]
pub fn pause(time: Duration, deadline: Deadline) {
    std::thread::sleep(deadline.left().map_or(time, |left| left.min(time)));
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_connection_is_there_or_the_reason_why_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(connect(address, Deadline::never()).unwrap().peer_addr().unwrap(), address);
        let passed = Deadline::after(Duration::ZERO);
        assert_eq!(connect(address, passed).unwrap_err().kind(), ErrorKind::Timeout);
        drop(listener);
        let nobody = connect(address, Deadline::after(LONGEST_CONNECT)).unwrap_err();
        assert_eq!(nobody.kind(), ErrorKind::Unreachable, "{nobody}");
        assert!(connect_unless_refused(address, Deadline::after(LONGEST_CONNECT)).unwrap().is_none());
    }

    #[test]
    fn a_pause_ends_with_its_deadline() {
        let began = Instant::now();
        pause(Duration::from_secs(3600), Deadline::after(Duration::from_millis(10)));
        pause(Duration::from_millis(10), Deadline::never());
        assert!(began.elapsed() >= Duration::from_millis(20) && began.elapsed() < LONGEST_CONNECT);
    }
}
