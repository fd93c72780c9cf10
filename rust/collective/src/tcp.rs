//! Sockets between hosts: how they are opened and what is asked of them.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use phalanx_types::{Deadline, Error, Result};
use socket2::{SockRef, TcpKeepalive};

/// A sentinel on which something was sent and not acknowledged for so long is gone: its host was cut off or has lost
/// power. Kernels acknowledge, whatever the process is busy with. The clock starts when the kernel has sent it for the
/// second time, 0.2 s after the first; with [`crate::peers`]'s beats every 0.1 s, a cut is noticed within a second.
const UNACKNOWLEDGED: Duration = Duration::from_millis(500);
/// Links that nothing is sent on: the kernel probes them as often as it can, and gives up after so many probes.
const PROBE_EVERY: Duration = Duration::from_secs(1);
const PROBES: u32 = 4;

/// Connects by the deadline. The socket blocks, with that deadline as its limit, until [`prepare`].
pub(crate) fn connect(address: SocketAddr, deadline: Deadline) -> Result<TcpStream> {
    let failed = |error: std::io::Error| Error::io(format_args!("connect to {address}"), &error);
    let left = deadline.left().map(|left| left.max(Duration::from_millis(1)));
    let stream = match left {
        Some(left) => TcpStream::connect_timeout(&address, left),
        None => TcpStream::connect(address),
    }
    .map_err(failed)?;
    let limited = stream.set_read_timeout(left).and_then(|()| stream.set_write_timeout(left));
    limited.map_err(failed)?;
    Ok(stream)
}

/// Sets a socket up: it doesn't block, nor wait for more to send. Its buffers are left to the kernel, which sizes them
/// to the link as data flows; fixing them would only lower its limits.
///
/// A `sentinel` carries no data, so that it can also tell a dead link while something is on its way; on the others the
/// same limit would cut off a peer that is late to read.
pub(crate) fn prepare(stream: &TcpStream, is_sentinel: bool) -> Result<()> {
    let failed = |error: std::io::Error| Error::io("set up a socket", &error);
    stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true)).map_err(failed)?;
    let socket = SockRef::from(stream);
    let keepalive =
        TcpKeepalive::new().with_time(PROBE_EVERY).with_interval(PROBE_EVERY).with_retries(PROBES);
    socket.set_tcp_keepalive(&keepalive).map_err(failed)?;
    if is_sentinel {
        socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)).map_err(failed)?;
    }
    Ok(())
}
