//! Which address and interface of this host lead to another host.
//!
//! The kernel's routing table decides, asked by connecting a UDP socket (no packet is sent): with several interfaces
//! the one that really reaches the peer is found, where the host's name may lead to any.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use phalanx_types::{Error, ErrorKind, Result};

/// The local address from which packets to `remote` leave; `None` if there is no route.
pub fn local_address_towards(remote: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(remote).ok()?;
    let local = socket.local_addr().ok()?.ip().to_canonical();
    (!local.is_unspecified()).then_some(local)
}

/// Every address of this host; empty if the system doesn't tell.
pub fn all_addresses() -> Vec<IpAddr> {
    let addresses: BTreeSet<IpAddr> =
        if_addrs::get_if_addrs().unwrap_or_default().iter().map(|i| i.ip().to_canonical()).collect();
    addresses.into_iter().collect()
}

/// The name of the interface that has `address`; empty if none has it (127.0.0.0/8 belongs to the loopback whole).
pub fn interface_of(address: IpAddr) -> String {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    interfaces
        .iter()
        .find(|i| i.ip().to_canonical() == address)
        .or_else(|| interfaces.iter().find(|i| address.is_loopback() && i.is_loopback()))
        .map(|i| i.name.clone())
        .unwrap_or_default()
}

/// Splits `host:port`, `[v6]:port`; the host may be a name.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it is neither.
pub fn split_host_port(text: &str) -> Result<(&str, u16)> {
    let parse = || {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = match bare {
            Some(v6) => v6,
            None if host.contains(':') => return None,
            None => host,
        };
        (!host.is_empty()).then_some((host, port.parse().ok()?))
    };
    parse().ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{text:?} is no host:port (IPv6 addresses go into brackets)"))
    })
}

/// Joins what [`split_host_port`] splits.
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// All addresses of `host:port`. Blocks for as long as the system's resolver does.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if the name has none.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let unknown = |why: String| Error::new(ErrorKind::Unreachable, format!("{host:?} has no address: {why}"));
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> =
        (bare, port).to_socket_addrs().map_err(|e| unknown(e.to_string()))?.collect();
    if found.is_empty() { Err(unknown("the resolver knows none".into())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_own_host_is_the_loopback() {
        let local = local_address_towards("127.0.0.1:9".parse().unwrap()).unwrap();
        assert!(local.is_loopback());
        assert_eq!(interface_of(local), "lo");
        assert_eq!(interface_of("127.8.8.8".parse().unwrap()), "lo");
        assert!(all_addresses().contains(&local));
    }

    #[test]
    fn hosts_and_ports_are_split_for_names_and_both_families() {
        assert_eq!(split_host_port("driver.example:70").unwrap(), ("driver.example", 70));
        assert_eq!(split_host_port("10.0.0.1:70").unwrap(), ("10.0.0.1", 70));
        assert_eq!(split_host_port("[fd00::1]:70").unwrap(), ("fd00::1", 70));
        assert_eq!(join_host_port("fd00::1", 70), "[fd00::1]:70");
        for bad in ["fd00::1:70", ":70", "host", "host:", "host:70000", ""] {
            assert_eq!(split_host_port(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
