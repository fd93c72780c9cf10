//! Where the hub listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use phalanx_types::{Error, Result};

use crate::hub::HubOptions;
use crate::interfaces;

/// Binds by Spark's rules: the bind address if one is set, else the advertised one, else (a name that is another
/// host's, as behind NAT) every address.
pub(crate) fn socket(options: &HubOptions) -> Result<TcpListener> {
    let host = if options.bind.is_empty() { &options.advertise } else { &options.bind };
    let listener = match interfaces::resolve(host, 0).and_then(|all| bind(&all)) {
        Ok(listener) => listener,
        Err(e) if options.bind.is_empty() => {
            log::warn!(
                "{e}; the hub listens on all addresses (every connection must prove that it knows the token)"
            );
            bind(&[SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))])?
        }
        Err(e) => return Err(e),
    };
    listener.set_nonblocking(true).map_err(|e| Error::io("prepare the hub's socket", &e))?;
    Ok(listener)
}

fn bind(candidates: &[SocketAddr]) -> Result<TcpListener> {
    TcpListener::bind(candidates).map_err(|e| {
        let tried: Vec<IpAddr> = candidates.iter().map(SocketAddr::ip).collect();
        Error::io(format!("bind the hub to {tried:?}"), &e)
    })
}
