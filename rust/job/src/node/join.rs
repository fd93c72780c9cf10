//! How a node gets its place: it joins the hub, which gives places when every task has joined.
//!
//! - JOIN-1 (ends): every wait ends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use phalanx_io::Identity;
use phalanx_rendezvous::blocks::host_name;
use phalanx_rendezvous::{interfaces, listen_at};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Join, NodePlacement, Result};

use crate::node::line::Line;
use crate::node::line::SEND_TIMEOUT;
use crate::node::options::Options;
use crate::node::process::{INTERRUPT_EVERY, Process};
use crate::node::store::StoreSocket;

/// How long this host's own name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node that knows its place.
pub(crate) struct Joined {
    pub(crate) placement: NodePlacement,
    pub(crate) store: StoreSocket,
    pub(crate) line: Line,
}

/// What came of joining.
pub(crate) enum Joining {
    /// The node has its place.
    Placed(Box<Joined>),
    /// The job was over before its ranks began.
    Over,
    /// This attempt is over; the next one has this number.
    Again(u32),
}

/// Joins for `attempt` and waits for the place.
pub(crate) fn join(options: &Options<'_>, attempt: u32, process: &Process) -> Result<Joining> {
    let line = Line::open(options, attempt, process)?;
    let address = line.local_address().unwrap_or_else(|| own_address(options));
    let (join, store) = join_at(options, address).map_err(|e| line.fails(e))?;
    line.tell(Instant::now(), NodeMessage::Join(join));
    // The hub has the deadline for joining; this one is for a hub that hangs.
    let deadline = Deadline::after(options.spec.job.policy.join_timeout + SEND_TIMEOUT);
    let done = |interrupted| NodeMessage::Done { problem: None, interrupted, output: Vec::new() };
    loop {
        match line.orders().recv_timeout(INTERRUPT_EVERY) {
            Ok(HubMessage::Place(placement)) => {
                line.forget();
                return Ok(Joining::Placed(Box::new(Joined { placement: *placement, store, line })));
            }
            Ok(HubMessage::Again { attempt, .. }) => return Ok(Joining::Again(attempt)),
            Ok(HubMessage::Stop { .. } | HubMessage::Released) => {
                line.send(done(None));
                return Ok(Joining::Over);
            }
            // A line that has broken is mended below, or given up.
            Ok(
                HubMessage::Pong
                | HubMessage::Part
                | HubMessage::Stacks { .. }
                | HubMessage::Read { .. }
                | HubMessage::Carried(_),
            )
            | Err(_) => {}
        }
        if let Some(reason) = process.interrupted() {
            // The hub is not to take the end of the connection for a lost host.
            line.send(done(Some(reason.clone())));
            return Err(Error::new(ErrorKind::Cancelled, reason));
        }
        if deadline.passed() {
            let late = "the driver did not say in time which ranks to start";
            return Err(Error::new(ErrorKind::Timeout, late));
        }
        if let Some(why) = line.given_up() {
            let said = format!("the job ended before every task had joined: {why}");
            return Err(Error::new(ErrorKind::Closed, said));
        }
    }
}

/// What this node tells the hub, and the socket for the store.
fn join_at(options: &Options<'_>, address: IpAddr) -> Result<(Join, StoreSocket)> {
    let policy = &options.spec.job.policy;
    // Only the first partition gets the store (PLACE-4), so others of its host leave the port to it.
    let may_serve = options.here.partition == 0;
    let port = if may_serve { policy.store_port()? } else { 0 };
    let listener = listen_at("the store", address, port)?;
    let store_port = listener.local_addr().map_err(|e| Error::io("read the store's port", &e))?.port();
    let identity = (may_serve && policy.encryption.is_on()).then(Identity::new).transpose()?;
    let store = StoreSocket { listener, identity };
    let join = Join {
        partition: options.here.partition,
        instance: getrandom::u64()
            .map_err(|e| Error::new(ErrorKind::Io, format!("get a random number: {e}")))?,
        name: host_name(),
        host: options.here.host.clone(),
        address,
        interface: interfaces::interface_of(address),
        addresses: interfaces::all_addresses(),
        store_port,
        store_key: store.key(),
        gpus: options.gpus.clone(),
        folder: options.here.work_dir.to_string_lossy().into_owned(),
    };
    Ok((join, store))
}

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
