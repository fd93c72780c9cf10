//! The first connection of a line: each way in turn, until one leads to the hub (NODE-7, NODE-10).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx_io::pause;
use phalanx_types::message::Role;
use phalanx_types::{Attempt, Deadline, Error, ErrorKind, Policy, Result, SparkTask};

use crate::node::line::control::Control;
use crate::node::line::ways::Ways;
use crate::node::process::INTERRUPT_EVERY;

/// What opens a way.
const WHAT_TO_DO: &str = "Open the driver's port (spark.phalanx.hub.port says which) to the executors, or add \
     PhalanxPlugin to spark.plugins (on Spark Connect the server's plugin, from Spark 4.0 on)";

/// What it takes to call the hub.
pub(super) struct Caller {
    pub(super) ways: Ways,
    pub(super) job: String,
    pub(super) policy: Policy,
    pub(super) partition: u32,
    pub(super) task: SparkTask,
    pub(super) host: String,
    pub(super) attempt: Attempt,
    /// Whether the node wants the line no more: then nothing is connected any more.
    pub(super) over: Arc<AtomicBool>,
}

impl Caller {
    /// A connection by the way that is taken.
    ///
    /// # Errors
    /// As [`Control::open`].
    pub(super) fn connection(&self, deadline: Deadline) -> Result<Control> {
        Control::open(&self.ways, self.role(), deadline, &self.over)
    }

    fn role(&self) -> Role {
        Role::Control { partition: self.partition, attempt: self.attempt, task: self.task }
    }

    /// A connection by the first way that leads to the hub. All of the node's connections take that way from then on.
    ///
    /// # Errors
    /// Why none does; [`ErrorKind::Cancelled`] if the node is over meanwhile.
    pub(super) fn first_connection(&self) -> Result<Control> {
        let mut barred = Vec::new();
        loop {
            match self.by_the_way_taken() {
                Ok(control) => {
                    if let Some((_, why)) = barred.last() {
                        let how = self.ways.taken().how();
                        log::info!("job {}: {why}; the driver is reached {how}", self.job);
                    }
                    return Ok(control);
                }
                Err(e) if is_final(&e) => return Err(e),
                Err(e) => barred.push((self.ways.taken().how(), e)),
            }
            if !self.ways.take_next() {
                return Err(self.not_reached(&barred));
            }
        }
    }

    /// NODE-10
    fn by_the_way_taken(&self) -> Result<Control> {
        let within = self.ways.taken().patience(self.policy.connect_timeout);
        let deadline = Deadline::after(within);
        for tries in 1_u32.. {
            match self.connection(deadline.min(Deadline::after(within * 2 / 3))) {
                Err(e) if self.may_try_again(&e, tries, deadline) => pause(INTERRUPT_EVERY, deadline),
                tried => return tried,
            }
            if self.over.load(Ordering::Acquire) {
                break;
            }
        }
        Err(Error::new(ErrorKind::Cancelled, "the node is over"))
    }

    fn may_try_again(&self, why: &Error, tries: u32, deadline: Deadline) -> bool {
        // What carries connections through Spark is there before the task is, and is only slow: what it says is so.
        let is_said = tries > 1 && why.kind() != ErrorKind::Timeout && !self.ways.is_direct();
        !is_final(why) && !is_said && deadline.left().is_some_and(|left| left > INTERRUPT_EVERY)
    }

    /// Why a task fails that reaches the hub by no way, and what to do about it.
    fn not_reached(&self, barred: &[(&str, Error)]) -> Error {
        let who = format!("the task of partition {} on {} can't reach the driver", self.partition, self.host);
        let is_closed = |(_, e): &(&str, Error)| e.kind() == ErrorKind::Closed;
        // By the direct way, the first.
        let refused = if barred.first().is_some_and(is_closed) {
            "; the job is over, or a firewall refuses connections to its driver"
        } else {
            ""
        };
        let said = match barred {
            [(_, e)] if !refused.is_empty() => format!("{who}: {e}{refused}. {WHAT_TO_DO}"),
            [(_, e)] => format!("{who}: {e}, and it has no other way. {WHAT_TO_DO}"),
            all => {
                let each: Vec<String> = all.iter().map(|(how, e)| format!("{how}: {e}")).collect();
                format!("{who}, {}{refused}", each.join("; nor "))
            }
        };
        let kind = if barred.iter().all(is_closed) { ErrorKind::Closed } else { ErrorKind::Unreachable };
        Error::new(kind, said)
    }
}

/// Whether trying again, or by another way, would not help.
pub(super) fn is_final(e: &Error) -> bool {
    use ErrorKind::{Cancelled, Invalid, Protocol, Refused};
    matches!(e.kind(), Refused | Protocol | Invalid | Cancelled)
}
