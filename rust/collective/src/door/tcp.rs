//! Sockets between hosts: how they are opened, and which options they get.

use std::net::TcpStream;
use std::time::Duration;

use phalanx_types::{Error, Result};
use socket2::{SockRef, TcpKeepalive};

/// When the kernel begins to probe a link that nothing is sent on. That also keeps the link in firewalls' tables. How
/// often it probes, and when it gives up, is the system's setting: after about eleven minutes.
const PROBE_AFTER: Duration = Duration::from_secs(60);
/// How long after the last sign of life the kernel probes a sentinel, and, where a cut is to be noticed, how often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How often it probes a sentinel that answers nothing, and when it gives up, where nobody says so: after 15 minutes,
/// about as long as it sends data again (`net.ipv4.tcp_retries2`).
const PATIENT_PROBE_EVERY: Duration = Duration::from_secs(10);
const PATIENT_PROBES: u32 = 90;

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

/// Has the kernel probe a sentinel, each second, and give it up once nothing was acknowledged for so long. The other
/// kernel acknowledges, whatever its process is busy with; one that knows of no such connection, as after a restart,
/// says so at once. A sentinel carries no data: on the other connections the same limit would cut off a peer that is
/// late to read.
pub(crate) fn watch(sentinel: &TcpStream, unacknowledged: Option<Duration>) -> Result<()> {
    let socket = SockRef::from(sentinel);
    let keepalive = TcpKeepalive::new().with_time(PROBE_EVERY);
    let keepalive = match unacknowledged {
        Some(_) => keepalive.with_interval(PROBE_EVERY),
        None => keepalive.with_interval(PATIENT_PROBE_EVERY).with_retries(PATIENT_PROBES),
    };
    socket
        .set_tcp_keepalive(&keepalive)
        .and_then(|()| socket.set_tcp_user_timeout(unacknowledged))
        .map_err(|error| Error::io("set up a socket", &error))
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn nobody_gives_up_a_silent_link_for_minutes_unless_told_to() {
        // GROUP-72
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = SockRef::from(&stream);
        let seen = || (socket.tcp_user_timeout().unwrap(), socket.tcp_keepalive_time().unwrap());
        let probing = || socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
        prepare(&stream).unwrap();
        assert_eq!(seen(), (None, PROBE_AFTER));
        assert!(probing() > Duration::from_secs(60), "the system's: {:?}", probing());
        watch(&stream, None).unwrap();
        assert_eq!((seen(), probing()), ((None, PROBE_EVERY), Duration::from_secs(15 * 60)));
        watch(&stream, Some(Duration::from_secs(7))).unwrap();
        assert_eq!(seen(), (Some(Duration::from_secs(7)), PROBE_EVERY));
    }
}
