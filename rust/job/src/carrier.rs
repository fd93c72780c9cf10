//! A carrier: a Spark task without ranks that serves the blocks of its host, where the run has no node, to the ranks of
//! one attempt.
//!
//! It tells the hub where it serves, over a connection like a node's, and the hub has the ranks told (NODE-47). So
//! nothing listens here but the server of blocks, whose clients prove that they know the generation's key.
//!
//! - JOB-1 (only-where-needed): on a host where nobody wants it, it does nothing. Of several on a host the hub
//!   keeps one.
//! - JOB-2 (ends): it ends with the attempt, with the hub, and when its process wants it to. Its thread and its
//!   sockets are gone then.

use phalanx_io::{Identity, raise_descriptor_limit};
use phalanx_rendezvous::blocks::{BlockServer, host_name};
use phalanx_rendezvous::{HubAddress, listen_at};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Carrier, Error, ErrorKind, Key, NodeSpec, Result, SparkTask};

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Instant;

use crate::node::address::own_address;
use crate::node::callbacks::NodeCallbacks;
use crate::node::home::Home;
use crate::node::line::ways::{Way, Ways};
use crate::node::line::{Heard, Line};
use crate::node::options::{Here, Options, Payload};
use crate::node::process::{Process, beside};
use crossbeam_channel::select;

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
        return Ok(false); // JOB-1
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
        task: SparkTask::default(),
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
        task: here.task,
        payload: Payload::Bytes(&[]),
        gpus: Vec::new(),
        program: Vec::new(),
        pool: Vec::new(),
        env: BTreeMap::new(),
    };
    beside(callbacks, None, |process| serve(&options, process)).map(|()| true)
}

fn serve(options: &Options<'_>, process: &Process) -> Result<()> {
    let (tell, heard) = crossbeam_channel::unbounded();
    let line = Line::open(options, options.spec.attempt, Box::new(move |word| drop(tell.send(word))))?;
    let mut server = None;
    loop {
        select! {
            recv(heard) -> word => match word {
                Ok(Heard::Up(direct)) => {
                    let address = direct.unwrap_or_else(|| own_address(options));
                    server = Some(open_server(options, address, &line)?);
                }
                Ok(Heard::NotUp(why)) => return Err(why),
                // JOB-2
                Ok(Heard::Order(HubMessage::Released | HubMessage::Stop { .. } | HubMessage::Again { .. })
                    | Heard::Gone(_))
                | Err(_) => return Ok(()),
                Ok(Heard::Order(_) | Heard::Renewed) => {}
            },
            recv(process.interruptions()) -> reason => {
                let reason = reason.unwrap_or_default();
                if server.is_some() {
                    let interrupted = Some(reason.clone());
                    line.teller().send(NodeMessage::Done { problem: None, interrupted, output: Vec::new() });
                }
                return Err(Error::new(ErrorKind::Cancelled, reason));
            }
        }
    }
}

/// Serves the blocks of this host at `address`, and tells the hub so.
fn open_server(options: &Options<'_>, address: IpAddr, line: &Line) -> Result<BlockServer> {
    let (spec, job) = (options.spec, &options.spec.job);
    let identity = Identity::new()?;
    let listener = listen_at("the server of blocks", address, 0)?;
    let key = Key::of_blocks(&spec.token, &job.id, spec.generation);
    let server = BlockServer::start(listener, &identity, key, &job.data_folder)?;
    let (host, key) = (options.here.host.clone(), identity.public_key().clone());
    let carrier = Carrier { host, address: server.address(), key };
    log::info!("job {}: serving the blocks of {} at {}", job.id, carrier.host, carrier.address);
    line.teller().tell(Instant::now(), NodeMessage::Carries(carrier));
    Ok(server)
}
