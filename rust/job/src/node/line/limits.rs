//! How long things of a line may take.

use std::time::Duration;

use phalanx_types::Policy;

use crate::node::process::INTERRUPT_EVERY;

/// How long a lost hub may take to come back before the node gives up.
pub(super) const HUB_GRACE: Duration = Duration::from_secs(2);
/// How long one message to the hub may take.
pub(crate) const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a node tells the hub that it is there, at the least.
const PING_EVERY: Duration = Duration::from_secs(5);

/// How often a node tells the hub that it is there: several times before it would count as lost.
pub(super) fn ping_every(policy: &Policy) -> Duration {
    (policy.node_timeout / 4).clamp(INTERRUPT_EVERY, PING_EVERY)
}
