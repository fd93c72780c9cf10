//! Where a run's hub binds, and what its tasks are told for it.
//!
//! - DRIVER-45 (as-the-driver): it is where Spark's driver is, unless the settings say otherwise. What a setting tells
//!   tasks may be somebody else's address, so it says nothing of where the hub listens.

use std::net::TcpListener;
use std::time::Duration;

use phalanx_rendezvous::interfaces;
use phalanx_types::Deadline;

/// How long the system may take to say where a name leads.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

/// An address to bind, and a host to tell; empty where nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Where somebody listens.
    pub bind: String,
    /// What others are told for it.
    pub host: String,
}

impl Endpoint {
    /// Of these texts, without spaces around them.
    pub fn new(bind: &str, host: &str) -> Endpoint {
        Endpoint { bind: bind.trim().into(), host: host.trim().into() }
    }

    /// The hub's, where Spark's `driver` has its own, and the settings `hub.bindAddress` and `hub.host` are `set`.
    pub fn of_hub(driver: Endpoint, set: Endpoint) -> Endpoint {
        decided(driver, set, is_own_host)
    }
}

fn decided(driver: Endpoint, set: Endpoint, is_own: impl FnOnce(&str) -> bool) -> Endpoint {
    let bind = if !set.bind.is_empty() {
        set.bind
    } else if !set.host.is_empty() && driver.bind.is_empty() && is_own(&driver.host) {
        driver.host.clone()
    } else {
        driver.bind
    };
    Endpoint { bind, host: if set.host.is_empty() { driver.host } else { set.host } }
}

/// Whether `host` is an address or a name of this host's: a socket can be bound there.
pub fn is_own_host(host: &str) -> bool {
    let found = interfaces::resolve_in_time(host, 0, Deadline::after(RESOLVE_TIMEOUT)).unwrap_or_default();
    found.into_iter().any(|address| TcpListener::bind(address).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hub_is_where_sparks_driver_is_unless_a_setting_says_what_tasks_are_told_or_where_it_listens() {
        let of = |driver: [&str; 2], set: [&str; 2], is_own: bool| {
            let new = |[bind, host]: [&str; 2]| Endpoint::new(bind, host);
            let endpoint = decided(new(driver), new(set), |_| is_own);
            (endpoint.bind, endpoint.host)
        };
        for (driver, set, is_own, bind, host) in [
            (["", "d"], ["", ""], true, "", "d"),
            (["0.0.0.0", "d"], ["", ""], true, "0.0.0.0", "d"),
            (["0.0.0.0", "d"], ["", "lb"], true, "0.0.0.0", "lb"),
            (["", "d"], ["", " lb "], true, "d", "lb"),
            (["", "d"], ["", "lb"], false, "", "lb"),
            (["", "d"], ["127.0.0.3", ""], true, "127.0.0.3", "d"),
            (["0.0.0.0", "d"], [" 127.0.0.3", "lb"], true, "127.0.0.3", "lb"),
        ] {
            assert_eq!(of(driver, set, is_own), (bind.into(), host.into()), "DRIVER-45: {driver:?} {set:?}");
        }
    }

    #[test]
    fn a_host_is_its_own_by_any_address_of_its_loopback_and_never_by_one_of_nobodys() {
        assert!(is_own_host("127.0.0.1") && is_own_host("127.0.0.9") && is_own_host("localhost"));
        assert!(!is_own_host("192.0.2.1") && !is_own_host("no.such.host.invalid") && !is_own_host(""));
    }
}
