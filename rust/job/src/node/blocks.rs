//! What a node does for data sets whose blocks lie on several hosts: it serves those of its host to the others' ranks,
//! and tells its own how to find and convince the others.
//!
//! - NBLOCKS-1 (served-as-needed): only where the run has data sets and ranks on several hosts is there a server.
//! - NBLOCKS-2 (stays): a node whose ranks have ended well serves until every node's have. It doesn't, where a rank
//!   failed, the hub wants the end, or the store is gone.

use std::net::IpAddr;
use std::time::Duration;

use phalanx_io::{Identity, pause};
use phalanx_rendezvous::blocks::{BlockAccess, BlockServer, host_name, publish};
use phalanx_rendezvous::listen_at;
use phalanx_types::message::HubMessage;
use phalanx_types::{Deadline, Key, NodePlacement, Result};

use crate::node::attempt::Attempt;
use crate::node::fallback::Fallback;
use crate::node::options::Options;
use crate::node::process::Process;

/// How often a node that stays looks whether it may go.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A node's server of blocks.
pub(crate) struct NodeBlocks {
    pub(crate) access: BlockAccess,
    /// Serves as long as it is there.
    _server: BlockServer,
    parting: Fallback,
}

impl NodeBlocks {
    /// Serves at `address`, where the other nodes reach this one, and tells so on the job's store, which this host
    /// finds at `store`.
    pub(crate) fn open(
        options: &Options<'_>,
        placement: &NodePlacement,
        attempt: u32,
        address: IpAddr,
        store: std::net::SocketAddr,
    ) -> Result<Option<NodeBlocks>> {
        let job = &options.spec.job;
        if job.data_folder.is_empty() || placement.host_ranks == [0, placement.world_size - 1] {
            return Ok(None); // NBLOCKS-1
        }
        let (token, identity) = (&options.spec.token, Identity::new()?);
        let key = Key::of_blocks(token, &job.id, attempt);
        let access = BlockAccess { store, key: *key.bytes(), nodes: job.tasks };
        let listener = listen_at("the server of blocks", address, 0)?;
        let server = BlockServer::start(listener, &identity, key, &job.data_folder)?;
        publish(&access, &host_name(), server.address(), identity.public_key())?;
        let parting = Fallback::at(store, Key::of_notes(token, &job.id, attempt));
        Ok(Some(NodeBlocks { access, _server: server, parting }))
    }
}

impl Attempt<'_> {
    /// NBLOCKS-2: the node of the store waits for all, and the others for its word, so that each asks little.
    pub(crate) fn serve_to_the_end(&mut self, blocks: NodeBlocks, serves_store: bool, process: &Process) {
        let mut parting = blocks.parting;
        let (job, partition) = (&self.options.spec.job, self.options.here.partition);
        if self.phase.stopped().is_some() || self.ended().any(|exit| exit.failure().is_some()) {
            return;
        }
        if let Err(problem) = parting.say_over(partition) {
            log::debug!("job {}: partition {partition} can't say that it is over: {problem}", job.id);
        }
        while self.interrupted.is_none() && self.link.given_up().is_none() {
            let over = if serves_store { parting.all_over(job.tasks) } else { parting.heard_all_over() };
            match over {
                Ok(false) => {}
                Ok(true) if serves_store => return parting.say_all_over(),
                Ok(true) => return,
                Err(problem) => {
                    self.problem.get_or_insert(problem);
                    return;
                }
            }
            if let Ok(HubMessage::Stop { .. }) = self.link.orders().try_recv() {
                return;
            }
            self.heed(process);
            pause(LOOK_EVERY, Deadline::never());
        }
    }
}
