//! How long a node of a run with data sets stays: others read what it has, or find what they read through its store.
//!
//! - STAY-1 (to-the-end): a node whose ranks have ended well stays until every node's have. It doesn't, where a rank
//!   failed, the hub wants the end, or the store is gone.

use std::time::Duration;

use phalanx_io::pause;
use phalanx_types::message::HubMessage;
use phalanx_types::{Carrier, Deadline, Key};

use crate::node::attempt::Attempt;
use crate::node::fallback::Fallback;
use crate::node::options::Options;
use crate::node::process::Process;

/// How often a node that stays looks whether it may go.
const LOOK_EVERY: Duration = Duration::from_millis(100);

impl Attempt<'_> {
    /// Has this host's store tell the ranks of a carrier. Where it can't, those that need it say so.
    pub(crate) fn tell_of(&mut self, carrier: Carrier) {
        let Some(blocks) = &mut self.blocks else { return };
        let host = carrier.host.clone();
        if let Err(e) = blocks.tell(carrier) {
            log::warn!(
                "job {}: ranks can't be told who serves the blocks of {host}: {e}",
                self.options.spec.job.id
            );
        }
    }

    /// STAY-1: the node of the store waits for all, and the others for its word, so that each asks little.
    pub(crate) fn stay_to_the_end(&mut self, serves_store: bool, process: &Process) {
        let Options { spec, here, .. } = self.options;
        let (job, partition) = (&spec.job, here.partition);
        let Some(store) = self.blocks.as_ref().map(|blocks| blocks.access.store) else { return };
        if job.tasks == 1
            || self.phase.stopped().is_some()
            || self.ended().any(|exit| exit.failure().is_some())
        {
            return;
        }
        let mut parting = Fallback::at(store, Key::of_notes(&spec.token, &job.id, self.number));
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
            match self.link.orders().try_recv() {
                Ok(HubMessage::Stop { .. }) => return,
                Ok(HubMessage::Carried(carrier)) => self.tell_of(carrier),
                _ => {}
            }
            self.heed(process);
            pause(LOOK_EVERY, Deadline::never());
        }
    }
}
