//! Where the hub listens, and a port for whoever else needs one that firewalls know.

use std::io::ErrorKind as IoKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use phalanx_types::{Error, Result};
use socket2::{Domain, Socket, Type};

use crate::interfaces;

/// How many ports are tried from the first on, as for Spark's own servers (`spark.port.maxRetries`).
const PORTS: u16 = 16;
/// How many connections may wait to be accepted: the tasks of a large job come at once.
const BACKLOG: i32 = 4096;

/// Listens by Spark's rules: at the address `bind_to` if one is set, else at the advertised one, else (a name that is
/// another host's, as behind NAT) at every address of both families. At `port` or one of the next, 0 for any.
pub(crate) fn listen(bind_to: &str, advertise: &str, port: u16) -> Result<TcpListener> {
    let host = if bind_to.is_empty() { advertise } else { bind_to };
    let listener = match interfaces::resolve(host, 0).and_then(|all| bind("the hub", &all, port)) {
        Ok(listener) => listener,
        Err(e) if bind_to.is_empty() => {
            log::warn!(
                "{e}; the hub listens on all addresses (every connection must prove that it knows the token)"
            );
            let all = [IpAddr::from(Ipv6Addr::UNSPECIFIED), Ipv4Addr::UNSPECIFIED.into()];
            bind("the hub", &all.map(|ip| SocketAddr::new(ip, 0)), port)?
        }
        Err(e) => return Err(e),
    };
    listener.set_nonblocking(true).map_err(|e| Error::io("prepare the hub's socket", &e))?;
    Ok(listener)
}

/// A socket for `what` that listens at `address`, at `port` or one of the 15 after it, 0 for any.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if none of them is free.
pub fn listen_at(what: &str, address: IpAddr, port: u16) -> Result<TcpListener> {
    bind(what, &[SocketAddr::new(address, 0)], port)
}

/// At the first of `candidates` where it can.
fn bind(what: &str, candidates: &[SocketAddr], port: u16) -> Result<TcpListener> {
    let ports = if port == 0 { 0..=0 } else { port..=port.saturating_add(PORTS - 1) };
    let mut last = IoKind::AddrNotAvailable.into();
    for candidate in candidates {
        for port in ports.clone() {
            match bind_one(SocketAddr::new(candidate.ip(), port)) {
                Ok(listener) => return Ok(listener),
                Err(e) => last = e,
            }
            if last.kind() != IoKind::AddrInUse {
                break;
            }
        }
    }
    let tried: Vec<IpAddr> = candidates.iter().map(SocketAddr::ip).collect();
    let at = if port == 0 { String::new() } else { format!(", ports {} to {}", ports.start(), ports.end()) };
    Err(Error::io(format!("bind {what} to {tried:?}{at}"), &last))
}

fn bind_one(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.ip().is_unspecified() && address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // A port whose connections of an earlier run are still being forgotten is free.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn the_port_that_was_asked_for_or_one_of_the_next_is_taken() {
        let first = listen("127.0.0.1", "", 0).unwrap().local_addr().unwrap().port().min(u16::MAX - PORTS);
        let held: Vec<TcpListener> = (0..PORTS)
            .map_while(|_| listen("127.0.0.1", "", first).ok())
            .inspect(|listener| {
                let port = listener.local_addr().unwrap().port();
                assert!((first..first + PORTS).contains(&port), "{port}");
            })
            .collect();
        assert!(!held.is_empty());
        let error = listen("127.0.0.1", "", first).unwrap_err().to_string();
        assert!(error.contains(&format!("ports {first} to {}", first + PORTS - 1)), "{error}");
    }

    #[test]
    fn a_driver_behind_anothers_name_is_reached_by_both_families() {
        // Of the addresses for documentation (RFC 5737, RFC 3849) no host has one.
        for elsewhere in ["198.51.100.7", "2001:db8::7", "[2001:db8::7]"] {
            let listener = listen("", elsewhere, 0).unwrap();
            let port = listener.local_addr().unwrap().port();
            TcpStream::connect(("127.0.0.1", port)).unwrap();
            if TcpListener::bind("[::1]:0").is_ok() {
                TcpStream::connect(("::1", port)).unwrap();
            }
        }
    }
}
