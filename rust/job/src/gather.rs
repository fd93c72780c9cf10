//! How a node comes to its place: through the hub, or through Spark when any task can't reach the hub.
//!
//! GATHER-1: all tasks take the same way. The hub decides: it gives places only when every task is there, else it tells
//! all that are to use the fallback; a task that can't reach it uses the fallback by itself. GATHER-2: every wait ends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;
use phalanx_rendezvous::interfaces;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Join, NodePlacement, Result, place};

use crate::control::{INTERRUPT_EVERY, SEND_TIMEOUT};
use crate::host::NodeHost;
use crate::link::Link;
use crate::node::NodeOptions;

/// How long this host's own name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node that knows its place.
pub(crate) struct Gathered<'a> {
    pub(crate) placement: NodePlacement,
    pub(crate) store: TcpListener,
    pub(crate) link: Link<'a>,
    /// Whether the tasks met through Spark: some may be without the hub.
    pub(crate) through_spark: bool,
}

/// What came of joining.
pub(crate) enum Gathering<'a> {
    /// The node has its place.
    Placed(Box<Gathered<'a>>),
    /// The job was over before it had one.
    Over,
    /// This attempt is over; the next one has this number.
    Again(u32),
}

/// Joins for `attempt` and waits for the place.
pub(crate) fn gather<'a>(
    options: &'a NodeOptions,
    attempt: u32,
    host: &mut dyn NodeHost,
) -> Result<Gathering<'a>> {
    let placed = |gathered| Ok(Gathering::Placed(Box::new(gathered)));
    let mut link = Link::open(options, attempt)?;
    let towards_hub = link.local_address();
    if !link.reached() {
        let (join, store) = join_at(options, address_without_hub(options, None))?;
        let placement = fallback(options, host, &join)?;
        return placed(Gathered { placement, store, link, through_spark: true });
    }
    let (join, store) = join_at(options, towards_hub.unwrap_or(LOOPBACK))?;
    link.tell(Instant::now(), NodeMessage::Join(join.clone()));
    let order = wait_for_place(options, host, &mut link)?;
    link.forget();
    match order {
        HubMessage::Place(placement) => {
            placed(Gathered { placement: *placement, store, link, through_spark: false })
        }
        HubMessage::UseFallback => {
            // Who can't reach the hub may not reach the address of this host that leads there, either.
            let (join, store) = match address_without_hub(options, towards_hub) {
                address if address == join.address => (join, store),
                address => join_at(options, address)?,
            };
            let placement = fallback(options, host, &join)?;
            link.tell(Instant::now(), NodeMessage::Placed(join));
            placed(Gathered { placement, store, link, through_spark: true })
        }
        HubMessage::Again { attempt, .. } => Ok(Gathering::Again(attempt)),
        _ => {
            link.send(&NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() });
            Ok(Gathering::Over)
        }
    }
}

/// What this node tells the others, and the socket for the store, if it is the one that serves it.
fn join_at(options: &NodeOptions, address: IpAddr) -> Result<(Join, TcpListener)> {
    let store =
        TcpListener::bind((address, 0)).map_err(|e| Error::io(format!("bind the store to {address}"), &e))?;
    let join = Join {
        partition: options.partition,
        host: options.host.clone(),
        address,
        interface: interfaces::interface_of(address),
        addresses: interfaces::all_addresses(),
        store_port: store.local_addr().map_err(|e| Error::io("read the store's port", &e))?.port(),
        gpus: options.gpus.clone(),
    };
    Ok((join, store))
}

/// Where the other nodes reach this one if not all reach the hub: at the address by which Spark's executors do.
fn address_without_hub(options: &NodeOptions, towards_hub: Option<IpAddr>) -> IpAddr {
    interfaces::own_address(&options.host, Deadline::after(RESOLVE_TIMEOUT))
        .or(towards_hub)
        .or_else(|| route_to_hub(options))
        .unwrap_or(LOOPBACK)
}

fn route_to_hub(options: &NodeOptions) -> Option<IpAddr> {
    let (hub, port) = interfaces::split_host_port(&options.hub.address).ok()?;
    // Only numbers: a resolver that doesn't answer must not hold up the fallback.
    let hub: IpAddr = hub.parse().ok()?;
    interfaces::local_address_towards(SocketAddr::new(hub, port))
}

fn wait_for_place(options: &NodeOptions, host: &mut dyn NodeHost, link: &mut Link<'_>) -> Result<HubMessage> {
    // The hub has the deadline for joining; this one is for a hub that hangs.
    let deadline = Deadline::after(options.job.policy.join_timeout + SEND_TIMEOUT);
    loop {
        match link.orders().recv_timeout(INTERRUPT_EVERY) {
            Ok(HubMessage::Pong | HubMessage::Stacks { .. }) | Err(RecvTimeoutError::Timeout) => {}
            Ok(message) => return Ok(message),
            // Mended, or given up.
            Err(RecvTimeoutError::Disconnected) => {}
        }
        if let Some(reason) = host.interrupted() {
            return Err(Error::new(ErrorKind::Cancelled, reason));
        }
        if deadline.passed() {
            return Err(Error::new(
                ErrorKind::Timeout,
                "the driver did not say in time which ranks to start",
            ));
        }
        link.tend();
        if let Some(why) = link.given_up() {
            let said = format!("the job ended before every task had joined: {why}");
            return Err(Error::new(ErrorKind::Closed, said));
        }
    }
}

fn fallback(options: &NodeOptions, host: &mut dyn NodeHost, join: &Join) -> Result<NodePlacement> {
    let mine = serde_json::to_string(join)
        .map_err(|e| Error::new(ErrorKind::Protocol, format!("this node's join can't be written: {e}")))?;
    let all = host.all_gather(&mine)?;
    let joins: Vec<Join> = all
        .iter()
        .map(|text| phalanx_rendezvous::wire::message(text.as_bytes()))
        .collect::<Result<_>>()
        .map_err(|e| e.context("what the tasks exchanged through Spark"))?;
    let placement = place(&options.job, &joins)?;
    placement.nodes.into_iter().find(|node| node.partition == options.partition).ok_or_else(|| {
        Error::new(ErrorKind::Protocol, format!("partition {} has no place", options.partition))
    })
}
