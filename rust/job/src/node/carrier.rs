//! A carrier: a Spark task without ranks that serves the blocks of its host, where the run has no node, to the ranks of
//! one attempt.
//!
//! It tells the hub where it serves, over a connection like a node's, and the hub has the ranks told (NBLOCKS-2). So
//! nothing listens here but the server of blocks, whose clients prove that they know the attempt's key.
//!
//! - CARRIER-1 (only-where-needed): on a host where nobody wants it, it does nothing. Of several on a host the hub
//!   keeps one.
//! - CARRIER-2 (ends): it ends with the attempt, with the hub, and when its process wants it to. Its thread and its
//!   sockets are gone then.

use phalanx_io::{Identity, raise_descriptor_limit};
use phalanx_rendezvous::blocks::{BlockServer, host_name};
use phalanx_rendezvous::{HubAddress, listen_at};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Carrier, Error, ErrorKind, Key, NodeSpec, Result};

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use crate::node::callbacks::NodeCallbacks;
use crate::node::home::Home;
use crate::node::join::own_address;
use crate::node::line::Line;
use crate::node::line::ways::{Way, Ways};
use crate::node::options::{Here, Options, Payload};
use crate::node::process::{INTERRUPT_EVERY, Process, beside};

/// Serves the blocks of this host, if its name is among those `wanted`, until the attempt of `spec` is over. `number`
/// is this carrier's own in the run; `other_ways` as in [`Here`].
///
/// Returns whether it served.
///
/// # Errors
/// If it could not do its part: [`ErrorKind::Unreachable`] without the hub, [`ErrorKind::Cancelled`] where its process
/// wanted the end.
pub fn run_carrier(
    spec: &NodeSpec,
    number: u32,
    wanted: &[String],
    other_ways: Vec<Way>,
    callbacks: &mut dyn NodeCallbacks,
) -> Result<bool> {
    let host = host_name();
    if !wanted.contains(&host) {
        return Ok(false); // CARRIER-1
    }
    raise_descriptor_limit();
    let hub = HubAddress {
        address: spec.hub.clone(),
        job: spec.job.id.clone(),
        token: spec.token,
        key: spec.hub_key.clone(),
    };
    let here = Here {
        partition: spec.job.tasks.saturating_add(number),
        host,
        gpus: None,
        work_dir: PathBuf::new(),
        home: Home::default(),
        other_ways,
    };
    let options = Options {
        ways: Ways::to(hub, &here.other_ways),
        spec,
        here: &here,
        payload: Payload::Bytes(&[]),
        gpus: Vec::new(),
        program: Vec::new(),
        pool: Vec::new(),
        env: BTreeMap::new(),
    };
    beside(callbacks, None, |process| serve(&options, process)).map(|()| true)
}

fn serve(options: &Options<'_>, process: &Process) -> Result<()> {
    let (spec, job) = (options.spec, &options.spec.job);
    let line = Line::open(options, spec.attempt, process)?;
    let address = line.local_address().unwrap_or_else(|| own_address(options));
    let identity = Identity::new()?;
    let listener = listen_at("the server of blocks", address, 0)?;
    let key = Key::of_blocks(&spec.token, &job.id, spec.generation);
    let server = BlockServer::start(listener, &identity, key, &job.data_folder)?;
    let carrier = Carrier {
        host: options.here.host.clone(),
        address: server.address(),
        key: identity.public_key().clone(),
    };
    log::info!("job {}: serving the blocks of {} at {}", job.id, carrier.host, carrier.address);
    line.tell(Instant::now(), NodeMessage::Carries(carrier));
    // CARRIER-2
    while line.given_up().is_none() {
        let order = line.orders().recv_timeout(INTERRUPT_EVERY);
        if matches!(order, Ok(HubMessage::Released | HubMessage::Stop { .. } | HubMessage::Again { .. })) {
            return Ok(());
        }
        if let Some(reason) = process.interrupted() {
            let interrupted = Some(reason.clone());
            line.send(NodeMessage::Done { problem: None, interrupted, output: Vec::new() });
            return Err(Error::new(ErrorKind::Cancelled, reason));
        }
    }
    Ok(())
}
