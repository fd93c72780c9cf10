//! What a node has of data sets whose blocks lie on several hosts: it serves those of its host to the others' ranks,
//! and tells its own how to find and convince those who serve.
//!
//! - NODE-46 (served-as-needed): only where the run has data sets and ranks on several hosts is there a server.
//! - NODE-47 (carriers-told): the node that serves the store leaves a note there of each carrier, which the hub has
//!   seen prove itself: a carrier has no way to the store.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use phalanx_io::Identity;
use phalanx_rendezvous::blocks::{BlockAccess, BlockServer, host_name, leave_note, publish};
use phalanx_rendezvous::listen_at;
use phalanx_types::{Carrier, Key, NodePlacement, Result};

use crate::node::helpers::helper::Helper;
use crate::node::options::Options;

/// How long a rank waits for a carrier: its task may have to wait for a slot.
const CARRIER_WITHIN: Duration = Duration::from_secs(60);

/// A node's part in what ranks read of other hosts.
pub(crate) struct NodeBlocks {
    pub(crate) access: BlockAccess,
    /// Serves as long as it is there.
    _server: Option<BlockServer>,
}

impl NodeBlocks {
    /// Serves at `address`, where the other nodes reach this one, and tells so on the job's store, which this host
    /// finds at `store`. Nothing where the run has no data sets.
    pub(crate) fn open(
        options: &Options<'_>,
        placement: &NodePlacement,
        address: IpAddr,
        store: SocketAddr,
    ) -> Result<Option<NodeBlocks>> {
        let job = &options.spec.job;
        if job.data_folder.is_empty() {
            return Ok(None); // NODE-46
        }
        let key = Key::of_blocks(&options.spec.token, &job.id, placement.generation);
        let is_one_host = placement.host_ranks == [0, placement.world_size - 1];
        let nodes = if is_one_host { 0 } else { placement.tasks };
        let access = BlockAccess { store, key: *key.bytes(), nodes, carrier_within: CARRIER_WITHIN };
        let server = if is_one_host {
            None
        } else {
            let identity = Identity::new()?;
            let listener = listen_at("the server of blocks", address, 0)?;
            let server = BlockServer::start(listener, &identity, key, &job.data_folder)?;
            publish(&access, &host_name(), server.address(), identity.public_key())?;
            Some(server)
        };
        Ok(Some(NodeBlocks { access, _server: server }))
    }

    /// Starts the thread that leaves notes of carriers. NODE-47
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn carriers(&self, job: &str) -> Result<Helper<Carrier>> {
        let (access, job) = (self.access.clone(), job.to_string());
        let mut told: Vec<Carrier> = Vec::new();
        Helper::start("phalanx-carriers", move |carrier: Carrier| {
            if told.contains(&carrier) {
                return;
            }
            match leave_note(&access, &carrier.host, carrier.address, &carrier.key) {
                Ok(()) => told.push(carrier),
                // Ranks that need it say so, and the hub tells of it again.
                Err(e) => log::warn!(
                    "job {job}: ranks can't be told who serves the blocks of {}: {e}",
                    carrier.host
                ),
            }
        })
    }
}
