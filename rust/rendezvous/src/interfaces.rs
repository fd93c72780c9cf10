//! Which address and interface of this host lead to another host.
//!
//! The kernel's routing table decides. It is asked by connecting a UDP socket, which sends no packet. So on a host with
//! several interfaces the one that really reaches the peer is found. The host's name may lead to any of them.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};

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
        Error::new(ErrorKind::Invalid, format!("{text:?} is not host:port (IPv6 addresses go into brackets)"))
    })
}

/// Joins what [`split_host_port`] splits; Spark writes an IPv6 address with brackets, others without.
pub fn join_host_port(host: &str, port: u16) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") }
}

/// All addresses of `host:port`. Blocks for as long as the system's resolver does.
///
/// # Errors
/// [`ErrorKind::Unreachable`] if the name has none.
#[allow(clippy::disallowed_methods, reason = "resolve_in_time calls it, in a thread")]
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let unknown = |why: String| Error::new(ErrorKind::Unreachable, format!("{host:?} has no address: {why}"));
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> =
        (bare, port).to_socket_addrs().map_err(|e| unknown(e.to_string()))?.collect();
    if found.is_empty() { Err(unknown("the resolver knows none".into())) } else { Ok(found) }
}

/// As [`resolve`], but no longer than the deadline (a minute where it is never). The resolver has none of its own, so
/// it runs in a thread that may outlive this call.
///
/// # Errors
/// [`ErrorKind::Timeout`], or those of [`resolve`].
pub fn resolve_in_time(host: &str, port: u16, deadline: Deadline) -> Result<Vec<SocketAddr>> {
    let (tx, rx) = crossbeam_channel::bounded(1);
    let owned = host.to_string();
    std::thread::Builder::new()
        .name("phalanx-resolve".into())
        .spawn(move || tx.send(resolve(&owned, port)))
        .map_err(|e| Error::io("start a thread", &e))?;
    let timed_out = |_| Error::new(ErrorKind::Timeout, format!("no answer for the name {host:?} in time"));
    rx.recv_timeout(deadline.left().unwrap_or(Duration::from_secs(60))).map_err(timed_out)?
}

/// The address of this host to which its name leads, as far as other hosts can use it: one of an interface, and the
/// loopback only if the name is that number. `None` if there is none, or the resolver doesn't say in time.
pub fn own_address(host: &str, deadline: Deadline) -> Option<IpAddr> {
    let own = all_addresses();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(number) = bare.parse::<IpAddr>() {
        return own.contains(&number.to_canonical()).then_some(number.to_canonical());
    }
    // A host's own name often leads to its loopback (127.0.1.1), which other hosts don't reach.
    let found = resolve_in_time(host, 0, deadline).ok()?;
    found.iter().map(|a| a.ip().to_canonical()).find(|ip| !ip.is_loopback() && own.contains(ip))
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
    fn a_hosts_name_leads_to_an_address_that_it_has_and_other_hosts_can_use() {
        let soon = Deadline::after(Duration::from_secs(2));
        for address in all_addresses() {
            assert_eq!(own_address(&address.to_string(), soon), Some(address));
        }
        assert_eq!(own_address("192.0.2.9", soon), None, "an address of another host");
        assert_eq!(own_address("localhost", soon), None, "other hosts have one, too");
    }

    #[test]
    fn hosts_and_ports_are_split_for_names_and_both_families() {
        assert_eq!(split_host_port("driver.example:70").unwrap(), ("driver.example", 70));
        assert_eq!(split_host_port("10.0.0.1:70").unwrap(), ("10.0.0.1", 70));
        assert_eq!(split_host_port("[fd00::1]:70").unwrap(), ("fd00::1", 70));
        for host in ["fd00::1", "[fd00::1]"] {
            assert_eq!(join_host_port(host, 70), "[fd00::1]:70");
        }
        for bad in ["fd00::1:70", ":70", "host", "host:", "host:70000", ""] {
            assert_eq!(split_host_port(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
    }
}
