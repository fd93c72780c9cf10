//! How a node comes to its place: through the hub, or through Spark when any task can't reach the hub.
//!
//! GATHER-1: all tasks take the same way. The hub decides: it gives places only when every task is there, else it tells
//! all that are to use the fallback; a task that can't reach it uses the fallback by itself. GATHER-2: every wait ends.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use phalanx_rendezvous::{HubAddress, HubConnection, Sender, interfaces};
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Deadline, Error, ErrorKind, Join, NodePlacement, Policy, Result, place};

use crate::host::NodeHost;
use crate::node::NodeOptions;

/// How long one message to the hub may take.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long this host's own name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How often a node tells the hub that it is there, at the least.
const PING_EVERY: Duration = Duration::from_secs(5);
/// How often a blocking call looks whether its caller wants to end it.
pub(crate) const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// How often a node tells the hub that it is there: several times before it would count as lost.
pub(crate) fn ping_every(policy: &Policy) -> Duration {
    (policy.node_timeout / 4).clamp(INTERRUPT_EVERY, PING_EVERY)
}

/// The control connection, with a thread that reads it.
pub(crate) struct Control {
    sender: Sender,
    pub(crate) inbox: Receiver<HubMessage>,
    reader: Option<JoinHandle<()>>,
    pub(crate) local_address: Option<IpAddr>,
}

impl Control {
    pub(crate) fn open(
        hub: &HubAddress,
        partition: u32,
        attempt: u32,
        deadline: Deadline,
    ) -> Result<Control> {
        let mut connection = HubConnection::open(hub, Role::Control { partition, attempt }, deadline)?;
        let sender = connection.sender()?;
        let local_address = connection.local_address();
        let (tx, inbox) = crossbeam_channel::unbounded();
        let reader = std::thread::Builder::new()
            .name("phalanx-control".into())
            .spawn(move || {
                // The channel closes with the connection: that is how the node hears of it.
                while let Ok(message) = connection.receive(Deadline::never()) {
                    if tx.send(message).is_err() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("start a thread for the hub's orders", &e))?;
        Ok(Control { sender, inbox, reader: Some(reader), local_address })
    }

    pub(crate) fn send(&mut self, message: &NodeMessage) -> Result<()> {
        self.sender.send(message, Deadline::after(SEND_TIMEOUT))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.sender.close();
        if self.reader.take().is_some_and(|reader| reader.join().is_err()) {
            log::error!("the thread that reads the hub's orders panicked");
        }
    }
}

/// A node that knows its place.
pub(crate) struct Gathered {
    pub(crate) placement: NodePlacement,
    pub(crate) store: TcpListener,
    /// `None` if the hub can't be reached from here.
    pub(crate) control: Option<Control>,
    /// Whether the tasks met through Spark: some may be without the hub.
    pub(crate) through_spark: bool,
}

/// What came of joining.
pub(crate) enum Gathering {
    /// The node has its place.
    Placed(Box<Gathered>),
    /// The job was over before it had one.
    Over,
    /// This attempt is over; the next one has this number.
    Again(u32),
}

/// Joins for `attempt` and waits for the place.
pub(crate) fn gather(options: &NodeOptions, attempt: u32, host: &mut dyn NodeHost) -> Result<Gathering> {
    let placed = |gathered| Ok(Gathering::Placed(Box::new(gathered)));
    let policy = &options.job.policy;
    let deadline = Deadline::after(policy.connect_timeout);
    let connected = Control::open(&options.hub, options.partition, attempt, deadline);
    let control = match connected {
        Ok(control) => Some(control),
        // These don't get better by going round the hub.
        Err(e) if matches!(e.kind(), ErrorKind::Refused | ErrorKind::Protocol | ErrorKind::Invalid) => {
            return Err(e);
        }
        Err(e) => {
            log::warn!("{e}; the tasks meet through Spark instead");
            None
        }
    };
    let towards_hub = control.as_ref().and_then(|control| control.local_address);
    let Some(mut control) = control else {
        let (join, store) = join_at(options, address_without_hub(options, None))?;
        let placement = fallback(options, host, &join)?;
        return placed(Gathered { placement, store, control: None, through_spark: true });
    };
    let (join, store) = join_at(options, towards_hub.unwrap_or(LOOPBACK))?;
    control.send(&NodeMessage::Join(join.clone()))?;
    match wait_for_place(options, host, &mut control)? {
        HubMessage::Place(placement) => {
            placed(Gathered { placement: *placement, store, control: Some(control), through_spark: false })
        }
        HubMessage::UseFallback => {
            // Who can't reach the hub may not reach the address of this host that leads there, either.
            let (join, store) = match address_without_hub(options, towards_hub) {
                address if address == join.address => (join, store),
                address => join_at(options, address)?,
            };
            let placement = fallback(options, host, &join)?;
            control.send(&NodeMessage::Placed(join))?;
            placed(Gathered { placement, store, control: Some(control), through_spark: true })
        }
        HubMessage::Again { attempt, .. } => Ok(Gathering::Again(attempt)),
        _ => {
            control.send(&NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() })?;
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

fn wait_for_place(
    options: &NodeOptions,
    host: &mut dyn NodeHost,
    control: &mut Control,
) -> Result<HubMessage> {
    // The hub has the deadline for joining; this one is for a hub that hangs.
    let deadline = Deadline::after(options.job.policy.join_timeout + SEND_TIMEOUT);
    let every = ping_every(&options.job.policy);
    let mut ping_at = Instant::now() + every;
    loop {
        match control.inbox.recv_timeout(INTERRUPT_EVERY) {
            Ok(HubMessage::Pong | HubMessage::Stacks { .. }) | Err(RecvTimeoutError::Timeout) => {}
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::new(
                    ErrorKind::Closed,
                    "the driver ended the job before every task had joined",
                ));
            }
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
        if Instant::now() >= ping_at {
            ping_at = Instant::now() + every;
            control.send(&NodeMessage::Ping)?;
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
