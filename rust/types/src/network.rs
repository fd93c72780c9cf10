//! Networks in the notation of RFC 4632: `10.0.0.0/8`, `fd00::/8`, or one address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// Addresses that begin alike.
///
/// ```
/// let network: phalanx_types::Network = "10.1.0.0/16".parse()?;
/// assert!(network.contains([10, 1, 7, 7].into()) && !network.contains([10, 2, 0, 1].into()));
/// # phalanx_types::Result::Ok(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    /// How many leading bits count.
    prefix: u8,
}

impl Network {
    /// Whether an address is one of it. An IPv4 address counts as the same when it comes mapped into IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        masked(address.to_canonical(), self.prefix) == masked(self.address, self.prefix)
            && address.to_canonical().is_ipv4() == self.address.is_ipv4()
    }

    /// The only address of it, if there is just one.
    pub fn address(&self) -> Option<IpAddr> {
        (self.prefix == bits(self.address)).then_some(self.address)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Network {
        let address = address.to_canonical();
        Network { address, prefix: bits(address) }
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Network, Error> {
        let refused = || {
            Error::new(
                ErrorKind::Invalid,
                format!("{text:?} is not a network such as 10.0.0.0/8 or fd00::/8"),
            )
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network = Network::from(address.parse::<IpAddr>().map_err(|_| refused())?);
        let Some(prefix) = prefix else { return Ok(network) };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= bits(network.address));
        Ok(Network { prefix: prefix.ok_or_else(refused)?, ..network })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

impl TryFrom<String> for Network {
    type Error = Error;

    fn try_from(text: String) -> Result<Network, Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn a_network_has_the_addresses_that_begin_like_it() {
        for (network, address) in [
            ("10.0.0.0/8", "10.255.0.1"),
            ("10.0.0.7/8", "10.1.2.3"),
            ("192.168.3.4", "192.168.3.4"),
            ("192.168.3.4/32", "::ffff:192.168.3.4"),
            ("0.0.0.0/0", "203.0.113.9"),
            ("fd00::/8", "fd12:3456::1"),
            ("::/0", "2001:db8::1"),
        ] {
            assert!(holds(network, address), "{address} is in {network}");
        }
        for (network, address) in [
            ("10.0.0.0/8", "11.0.0.1"),
            ("10.0.0.0/31", "10.0.0.2"),
            ("192.168.3.4", "192.168.3.5"),
            ("fd00::/8", "fe00::1"),
            ("::/0", "10.0.0.1"),
            ("0.0.0.0/0", "::1"),
        ] {
            assert!(!holds(network, address), "{address} is not in {network}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_by_name() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "host/8", "10.0.0.0/", "10.0.0.0/-1", "fd00::/129"] {
            let refused = text.parse::<Network>().unwrap_err();
            assert!(refused.to_string().contains(&format!("{text:?}")), "{refused}");
        }
        let json = serde_json::to_string(&"10.0.0.0/8".parse::<Network>().unwrap()).unwrap();
        assert_eq!(json, "\"10.0.0.0/8\"");
        assert_eq!(serde_json::from_str::<Network>(&json).unwrap().address(), None);
    }
}
