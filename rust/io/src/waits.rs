//! Waits that have an end.

use std::io::{self, ErrorKind as IoKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

/// How long a connection attempt may take where its deadline is never: the kernel would try for minutes.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);
/// How often a connection that is being made looks whether it is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Connects by the deadline, or within a minute where that is never.
///
/// # Errors
/// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Unreachable`] if nothing listens there.
pub fn connect(address: SocketAddr, deadline: Deadline) -> Result<TcpStream> {
    let refused =
        || Error::new(ErrorKind::Unreachable, format!("can't connect to {address}: connection refused"));
    connect_unless_refused(address, deadline)?.ok_or_else(refused)
}

/// As [`connect`]; `None` if the host answers that nothing listens there.
///
/// # Errors
/// [`ErrorKind::Timeout`] at the deadline, [`ErrorKind::Unreachable`] if the host does not answer.
pub fn connect_unless_refused(address: SocketAddr, deadline: Deadline) -> Result<Option<TcpStream>> {
    connect_unless(&AtomicBool::new(false), address, deadline)
}

/// As [`connect_unless_refused`], and ends soon after `stop` is set.
///
/// # Errors
/// As there; [`ErrorKind::Cancelled`] once `stop` is set.
pub fn connect_unless(
    stop: &AtomicBool,
    address: SocketAddr,
    deadline: Deadline,
) -> Result<Option<TcpStream>> {
    let deadline = deadline.min(Deadline::after(LONGEST_CONNECT));
    if deadline.passed() {
        return Err(Error::new(ErrorKind::Timeout, format!("no time is left to connect to {address}")));
    }
    match connected(stop, address, deadline) {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if error.kind() == IoKind::ConnectionRefused => Ok(None),
        Err(error) if error.kind() == IoKind::Interrupted => Err(Error::new(
            ErrorKind::Cancelled,
            format!("the connection to {address} is not wanted any more"),
        )),
        Err(error) => Err(Error::io(format_args!("connect to {address}"), &error)),
    }
}

fn connected(stop: &AtomicBool, address: SocketAddr, deadline: Deadline) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if let Err(e) = socket.connect(&address.into())
        && e.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error())
    {
        return Err(e);
    }
    loop {
        let patience = deadline.left().map_or(LOOK_EVERY, |left| left.min(LOOK_EVERY));
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(&socket, PollFlags::OUT)];
        match poll(&mut ready, Some(&patience)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(e) => return Err(e.into()),
        }
        if stop.load(Ordering::Acquire) {
            return Err(IoKind::Interrupted.into());
        }
        if deadline.passed() {
            return Err(IoKind::TimedOut.into());
        }
    }
    socket.take_error()?.map_or(Ok(()), Err)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
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
    fn a_connection_that_nobody_accepts_ends_when_it_is_not_wanted_any_more() {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let _waiting = TcpStream::connect(address).unwrap();
        let (stop, began) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let tried = scope.spawn(|| connect_unless(&stop, address, Deadline::never()));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!tried.is_finished(), "nobody answers");
            stop.store(true, Ordering::Release);
            assert_eq!(tried.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        });
        assert!(began.elapsed() < LONGEST_CONNECT / 2);
        let late = connect(address, Deadline::after(Duration::from_millis(100))).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    }

    #[test]
    fn a_pause_ends_with_its_deadline() {
        let began = Instant::now();
        pause(Duration::from_secs(3600), Deadline::after(Duration::from_millis(10)));
        pause(Duration::from_millis(10), Deadline::never());
        assert!(began.elapsed() >= Duration::from_millis(20) && began.elapsed() < LONGEST_CONNECT);
    }
}
