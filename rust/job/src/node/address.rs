//! Where the other nodes reach this one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use phalanx_rendezvous::interfaces;
use phalanx_types::Deadline;

use crate::node::options::Options;

/// How long this host's own name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Where the other nodes reach this one where it has no direct way to the hub: at the address by which Spark's
/// executors do.
pub(crate) fn own_address(options: &Options<'_>) -> IpAddr {
    interfaces::own_address(&options.here.host, Deadline::after(RESOLVE_TIMEOUT))
        .or_else(|| route_to_hub(options))
        .unwrap_or(LOOPBACK)
}

fn route_to_hub(options: &Options<'_>) -> Option<IpAddr> {
    let (hub, port) = interfaces::split_host_port(&options.spec.hub).ok()?;
    // Only numbers: a resolver may not answer.
    let hub: IpAddr = hub.parse().ok()?;
    interfaces::local_address_towards(SocketAddr::new(hub, port))
}
