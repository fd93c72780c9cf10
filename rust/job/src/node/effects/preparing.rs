//! What is there before ranks start: a place in the job, files, a guard, the store.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use phalanx_io::Identity;
use phalanx_rendezvous::blocks::host_name;
use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::{interfaces, listen_at};
use phalanx_types::{Attempt, Deadline, Error, ErrorKind, Join, NodePlacement, Result};

use super::Effects;
use crate::node::address::own_address;
use crate::node::kept::Kept;
use crate::node::machine::Event;
use crate::node::news::{Made, News};
use crate::node::options::{Here, Options};
use crate::node::setup::blocks::NodeBlocks;
use crate::node::setup::files::NodeFiles;
use crate::node::setup::prepared::Prepared;
use crate::node::setup::store::{NodeStore, StoreSocket};
use crate::node::setup::warm::guard_for;

/// How long the store, whose node may begin later than this one, may take to say whether it takes this node's
/// connections.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

impl<'env> Effects<'_, 'env> {
    /// Has a thread of the node's own do `work`, and `tell` of it. It is waited for when the node ends.
    fn beside<T: Send + 'env>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'env,
        tell: impl Fn(Result<T>) -> News + Send + Copy + 'env,
    ) {
        let news = self.tell.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn_scoped(self.scope, move || {
            let _ = news.send(tell(outcome_of(name, work)));
        });
        if let Err(e) = thread {
            let _ = self.tell.send(tell(Err(Error::io("start a thread", &e))));
        }
    }

    pub(super) fn locate(&self) {
        let options = self.options;
        match self.direct_address {
            Some(address) => _ = self.tell.send(News::Located(join_at(options, address))),
            // A name is looked up.
            None => self.beside("phalanx-locate", || join_at(options, own_address(options)), News::Located),
        }
    }

    pub(super) fn prepare(&mut self, placement: Box<NodePlacement>) {
        self.metrics.joined(self.began);
        let (options, attempt, why) = (self.options, self.attempt, self.why.take());
        let socket = self.socket.take();
        // The store listens before any rank starts, else the first connects in vain and backs off.
        let opened = own_store(options, &placement, socket);
        let (store, own_address) = match opened {
            Ok((opened, own_address)) => (self.store.insert(opened).address(), own_address),
            Err(e) => {
                let (files, guard) = (Event::FilesMade(Err(e.clone())), Event::Guarded(Err(e.clone())));
                return [files, guard, Event::StoreTried(Err(e))]
                    .into_iter()
                    .for_each(|event| self.say(event));
            }
        };
        let before = self.kept.take().map(Box::new);
        let executor_log = if before.is_none() { self.process.take_executor_log() } else { None };
        let place = placement.clone();
        let files = move || {
            let kept = match before {
                Some(kept) => Ok(kept),
                None => {
                    let (here, spec) = (options.here, options.spec);
                    NodeFiles::make(&here.work_dir, &spec.job.id, here.partition, spec.attempt)
                        .map(|files| Box::new(Kept { files, logs: BTreeMap::new(), executor_log }))
                }
            };
            Ok(match kept {
                Ok(mut kept) => {
                    let made = make(options, &place, &mut kept, attempt, why.as_deref(), store, own_address);
                    (Some(kept), made)
                }
                Err(e) => (None, Err(e)),
            })
        };
        self.beside("phalanx-files", files, |made| match made {
            Ok((kept, made)) => News::Made(kept, made),
            Err(e) => News::Made(None, Err(e)),
        });
        let (place, is_ending) = (placement.clone(), Arc::clone(&self.is_ending));
        self.beside("phalanx-guard-start", move || guard_for(options, &place, &is_ending), News::Guarded);
        let tried = |tried| News::Event(Event::StoreTried(tried));
        self.beside("phalanx-store-try", move || check_store(options, store), tried);
        self.placement = Some(placement);
    }
}

/// What comes of `work` in the thread of that name. The node waits for it, so a panic is an outcome, too.
fn outcome_of<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let panicked = |_| Err(Error::new(ErrorKind::Io, format!("the thread {name} panicked")));
    // What it had is gone with it: nobody sees it half done.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(panicked)
}

/// What this node tells the hub, and the socket for the store.
fn join_at(options: &Options<'_>, address: IpAddr) -> Result<(Box<Join>, StoreSocket)> {
    let policy = &options.spec.job.policy;
    // Only the first partition gets the store (TYPES-17), so others of its host leave the port to it.
    let may_serve = options.here.partition == 0;
    let port = if may_serve { policy.store_port()? } else { 0 };
    let listener = listen_at("the store", address, port)?;
    let store_port = listener.local_addr().map_err(|e| Error::io("read the store's port", &e))?.port();
    let identity = (may_serve && policy.encryption.is_on()).then(Identity::new).transpose()?;
    let store = StoreSocket { listener, identity };
    let join = Join {
        partition: options.here.partition,
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
    Ok((Box::new(join), store))
}

/// The store as this node has it, and the address by which others reach the node.
fn own_store(
    options: &Options<'_>,
    placement: &NodePlacement,
    socket: Option<StoreSocket>,
) -> Result<(NodeStore, IpAddr)> {
    let socket =
        socket.ok_or_else(|| Error::new(ErrorKind::Protocol, "a place for a node that has not joined"))?;
    let address = socket.listener.local_addr().map_err(|e| Error::io("read this node's address", &e))?;
    Ok((NodeStore::open(options, placement, socket)?, address.ip()))
}

/// The files that ranks begin with. `why` there is another attempt, where the logs go on.
fn make(
    options: &Options<'_>,
    placement: &NodePlacement,
    kept: &mut Kept,
    attempt: Attempt,
    why: Option<&str>,
    store: SocketAddr,
    own_address: IpAddr,
) -> Result<Box<Made>> {
    for log in kept.logs.values().filter(|_| why.is_some()) {
        log.resume(&format!("restart {attempt}: {}", why.unwrap_or_default()));
    }
    let blocks = NodeBlocks::open(options, placement, own_address, store)?;
    let access = blocks.as_ref().map(|blocks| &blocks.access);
    let prepared = Prepared::make(options, kept, placement, access)?;
    Ok(Box::new(Made { prepared, blocks }))
}

/// NODE-45
fn check_store(options: &Options<'_>, store: SocketAddr) -> Result<()> {
    match StoreClient::connect(store, Deadline::after(STORE_PATIENCE)) {
        Err(e) if e.kind() == ErrorKind::Refused => {
            let Here { partition, host, .. } = options.here;
            Err(e.context(format_args!("partition {partition} on {host}")))
        }
        // Whether the ranks need it at all is theirs to know.
        Err(e) => {
            log::info!("job {}: {e}", options.spec.job.id);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_panics_comes_back_with_an_error() {
        let error =
            outcome_of("phalanx-files", || -> Result<()> { panic!("as the test wants") }).unwrap_err();
        assert_eq!(error.to_string(), "the thread phalanx-files panicked", "NODE-16");
        assert_eq!(outcome_of("phalanx-files", || Ok(7)).unwrap(), 7);
    }
}
