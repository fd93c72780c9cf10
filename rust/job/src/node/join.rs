//! How a node gets its place: through the hub, or through Spark if any task can't reach the hub.
//!
//! - JOIN-1 (one-way): all tasks take the same way. The hub gives places only when every task has joined there. A task
//!   that can't reach it never joins there in this attempt, and tells the others so through Spark. If there is such a
//!   task, all take the places that follow from what they told one another.
//! - JOIN-2 (ends): every wait ends.
//! - JOIN-3 (late-is-fine): while the tasks exchange, a node obeys the hub's orders as before. A task that is only late
//!   costs no more than its lateness.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use phalanx_io::{Identity, pause};
use phalanx_rendezvous::blocks::host_name;
use phalanx_rendezvous::{interfaces, listen_at, wire};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Join, NodePlacement, Result, place};
use serde::{Deserialize, Serialize};

use crate::node::control::{INTERRUPT_EVERY, SEND_TIMEOUT};
use crate::node::link::Link;
use crate::node::options::Options;
use crate::node::process::{Process, not_exchanged};
use crate::node::store::StoreSocket;

/// How long this host's own name may take to resolve.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A node that knows its place.
pub(crate) struct Joined<'a> {
    pub(crate) placement: NodePlacement,
    pub(crate) store: StoreSocket,
    pub(crate) link: Link<'a>,
    /// Whether the tasks met through Spark: some may be without the hub.
    pub(crate) through_spark: bool,
}

/// What came of joining.
pub(crate) enum Joining<'a> {
    /// The node has its place.
    Placed(Box<Joined<'a>>),
    /// The job was over before its ranks began. It has a place only where others may count on its word (FALLBACK-3).
    Over(Option<Box<Joined<'a>>>),
    /// This attempt is over; the next one has this number.
    Again(u32),
}

/// What a task tells the others through Spark.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vote {
    attempt: u32,
    /// Whether it has joined at the hub.
    at_hub: bool,
    join: Join,
}

/// Joins for `attempt` and waits for the place.
pub(crate) fn join<'a>(options: &'a Options<'a>, attempt: u32, process: &mut Process) -> Result<Joining<'a>> {
    let link = Link::open(options, attempt)?;
    let towards_hub = link.local_address();
    let mut waiting = Waiting { options, attempt, link, here: None, elsewhere: None, asked: false };
    if waiting.link.reached() {
        let address = towards_hub.unwrap_or_else(|| address_without_hub(options, None));
        let here = join_at(options, address).map_err(|e| waiting.link.fails(e))?;
        waiting.link.tell(Instant::now(), NodeMessage::Join(here.0.clone()));
        waiting.here = Some(here);
    } else {
        waiting.exchange(process)?;
    }
    waiting.for_place(process)
}

/// A node that has yet to get its place.
struct Waiting<'a> {
    options: &'a Options<'a>,
    attempt: u32,
    link: Link<'a>,
    /// What it told the hub, and the socket for the store where that gives the places.
    here: Option<(Join, StoreSocket)>,
    /// What it told the other tasks, where that is something else.
    elsewhere: Option<(Join, StoreSocket)>,
    /// Whether it has begun to exchange with the others.
    asked: bool,
}

impl<'a> Waiting<'a> {
    fn for_place(mut self, process: &mut Process) -> Result<Joining<'a>> {
        // The hub has the deadline for joining; this one is for a hub that hangs.
        let deadline = Deadline::after(self.options.spec.job.policy.join_timeout + SEND_TIMEOUT);
        loop {
            match self.link.orders().recv_timeout(INTERRUPT_EVERY) {
                Ok(HubMessage::Place(placement)) => return self.placed_by_hub(*placement),
                Ok(HubMessage::UseFallback) => self.exchange(process)?,
                Ok(HubMessage::Again { attempt, .. }) => return Ok(Joining::Again(attempt)),
                Ok(HubMessage::Stop { .. } | HubMessage::Released) => return self.over(process),
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
            if let Some(all) = process.gathered()
                && let Some(placement) = self.agreed(&all?)?
            {
                return self.placed_by_all(placement).map(Joining::Placed);
            }
            if let Some(reason) = process.interrupted() {
                // The hub is not to take the end of the connection for a lost host.
                let interrupted = Some(reason.clone());
                self.link.send(&NodeMessage::Done { problem: None, interrupted, output: Vec::new() });
                return Err(Error::new(ErrorKind::Cancelled, reason));
            }
            if deadline.passed() {
                let late = "the driver did not say in time which ranks to start";
                return Err(Error::new(ErrorKind::Timeout, late));
            }
            self.link.tend();
            if let Some(why) = self.link.given_up() {
                let said = format!("the job ended before every task had joined: {why}");
                return Err(Error::new(ErrorKind::Closed, said));
            }
        }
    }

    /// Begins to exchange with the other tasks, once, who can reach the hub, and where they are if one can't.
    fn exchange(&mut self, process: &mut Process) -> Result<()> {
        if std::mem::replace(&mut self.asked, true) {
            return Ok(());
        }
        // Who can't reach the hub may not reach the address of this host that leads there, either.
        let towards_hub = self.here.as_ref().map(|(join, _)| join.address);
        let address = address_without_hub(self.options, towards_hub);
        if towards_hub != Some(address) {
            self.elsewhere = Some(join_at(self.options, address).map_err(|e| self.link.fails(e))?);
        }
        let join = self.elsewhere.as_ref().or(self.here.as_ref()).map(|(join, _)| join.clone());
        let join = join.ok_or_else(|| not_exchanged("this node has nothing to say"))?;
        let vote = Vote { attempt: self.attempt, at_hub: self.here.is_some(), join };
        process.gather(serde_json::to_string(&vote).map_err(not_exchanged)?);
        Ok(())
    }

    /// The place that follows from what the tasks exchanged, where the hub gives none.
    fn agreed(&self, all: &[String]) -> Result<Option<NodePlacement>> {
        let votes: Vec<Vote> = all
            .iter()
            .map(|text| wire::message(text.as_bytes()))
            .collect::<Result<_>>()
            .map_err(not_exchanged)?;
        if votes.iter().any(|vote| vote.attempt != self.attempt) {
            return Err(not_exchanged("they are of different attempts"));
        }
        if votes.iter().all(|vote| vote.at_hub) {
            return Ok(None);
        }
        let joins: Vec<Join> = votes.into_iter().map(|vote| vote.join).collect();
        let (placement, partition) = (place(&self.options.spec.job, &joins)?, self.options.here.partition);
        let mine = placement.nodes.into_iter().find(|node| node.partition == partition);
        mine.map(Some).ok_or_else(|| not_exchanged(format!("partition {partition} has no place")))
    }

    fn placed_by_hub(mut self, placement: NodePlacement) -> Result<Joining<'a>> {
        self.link.forget();
        let (_, store) = self.here.ok_or_else(|| {
            Error::new(ErrorKind::Protocol, "the hub gives a place to a node that has not joined")
        })?;
        let joined = Joined { placement, store, link: self.link, through_spark: false };
        Ok(Joining::Placed(Box::new(joined)))
    }

    fn placed_by_all(self, placement: NodePlacement) -> Result<Box<Joined<'a>>> {
        let (join, store) = self
            .elsewhere
            .or(self.here)
            .ok_or_else(|| not_exchanged("this node has no socket for the store"))?;
        let mut link = self.link;
        link.forget();
        // The hub takes no place from a node that is done.
        link.tell(Instant::now(), NodeMessage::Placed(join));
        Ok(Box::new(Joined { placement, store, link, through_spark: true }))
    }

    /// The hub lets this node go. Where it exchanges with the others, they may have their places by that, and wait for
    /// its word: its process can't leave before the exchange has ended, either.
    fn over(mut self, process: &mut Process) -> Result<Joining<'a>> {
        self.link.send(&NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() });
        while self.asked && process.is_gathering() && process.interrupted().is_none() {
            // An exchange that fails, or that nobody can read, has given nobody a place.
            if let Some(Ok(all)) = process.gathered()
                && let Ok(Some(placement)) = self.agreed(&all)
            {
                return self.placed_by_all(placement).map(|joined| Joining::Over(Some(joined)));
            }
            pause(INTERRUPT_EVERY, Deadline::never());
        }
        Ok(Joining::Over(None))
    }
}

/// What this node tells the others, and the socket for the store.
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

/// Where the other nodes reach this one if not all reach the hub: at the address by which Spark's executors do.
pub(crate) fn address_without_hub(options: &Options<'_>, towards_hub: Option<IpAddr>) -> IpAddr {
    interfaces::own_address(&options.here.host, Deadline::after(RESOLVE_TIMEOUT))
        .or(towards_hub)
        .or_else(|| route_to_hub(options))
        .unwrap_or(LOOPBACK)
}

fn route_to_hub(options: &Options<'_>) -> Option<IpAddr> {
    let (hub, port) = interfaces::split_host_port(&options.hub.direct.address).ok()?;
    // Only numbers: a resolver that doesn't answer must not hold up the fallback.
    let hub: IpAddr = hub.parse().ok()?;
    interfaces::local_address_towards(SocketAddr::new(hub, port))
}
