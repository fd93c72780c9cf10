//! Sockets between hosts: how they are opened, and which options they get.

use std::net::TcpStream;
use std::time::Duration;

use phalanx_types::{Error, Result};
use socket2::{SockRef, TcpKeepalive};

/// When the kernel begins to probe a link that nothing is sent on. That also keeps the link in firewalls' tables. How
/// often it probes, and when it gives up, is the system's setting: after about eleven minutes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// How often it probes where a cut is to be noticed.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// Sets a socket up: it doesn't block, nor wait for more to send. Its buffers are left to the kernel, which sizes them
/// to the link as data flows; fixing them would only lower its limits.
pub(crate) fn prepare(stream: &TcpStream) -> Result<()> {
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER);
    stream
        .set_nonblocking(true)
        .and_then(|()| stream.set_nodelay(true))
        .and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive))
        .map_err(|error| Error::io("set up a socket", &error))
}

/// Has the kernel give up a sentinel on which something was sent, or asked, and not acknowledged for so long. Kernels
/// acknowledge, whatever the process is busy with. The clock starts when the kernel has sent it for the second time,
/// 0.2 s after the first. A sentinel carries no data: on the other connections the same limit would cut off a peer that
/// is late to read.
pub(crate) fn give_up_after(sentinel: &TcpStream, unacknowledged: Duration) -> Result<()> {
    let socket = SockRef::from(sentinel);
    let keepalive = TcpKeepalive::new().with_time(PROBE_EVERY).with_interval(PROBE_EVERY);
    socket
        .set_tcp_keepalive(&keepalive)
        .and_then(|()| socket.set_tcp_user_timeout(Some(unacknowledged)))
        .map_err(|error| Error::io("set up a socket", &error))
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nobody_gives_up_a_silent_link_for_minutes_unless_told_to() {
        // PEE-5
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        let seen = || (socket.tcp_user_timeout().unwrap(), socket.tcp_keepalive_time().unwrap());
        prepare(&stream).unwrap();
        assert_eq!(seen(), (None, PROBE_AFTER));
        let probing = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        assert!(probing > Duration::from_secs(60), "the system's: {probing:?}");
        give_up_after(&stream, Duration::from_secs(7)).unwrap();
        assert_eq!(seen(), (Some(Duration::from_secs(7)), PROBE_EVERY));
    }
}
