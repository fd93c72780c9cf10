//! A node as the driver sees it in one attempt: the phase that it is in, with what belongs to that phase.
//!
//! Each event takes a node to its next phase, which is a pure function of node, event and time.
//!
//! DRIVER-26 (silence-is-loss): a node that has joined, has its place, is held for the next attempt, or was called to
//! it, is lost when nothing was heard of it for the node time-out. If it has its place or is held, it is also lost when
//! its connection has been broken for [`RECONNECT_GRACE`]. Without a place it is not: Spark may start its task again.
//! DRIVER-27 (lost-stays-lost): a lost node takes no further part in its attempt, whatever it says later. It gets
//! answers to what it says, and no orders.

use std::time::{Duration, Instant};

use phalanx_types::Join;

/// How long a node whose connection broke may take to come back.
pub(super) const RECONNECT_GRACE: Duration = Duration::from_secs(2);

/// The connection of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contact {
    Open { heard: Instant },
    Broken { heard: Instant, since: Instant },
}

impl Contact {
    fn heard(self) -> Instant {
        match self {
            Contact::Open { heard } | Contact::Broken { heard, .. } => heard,
        }
    }

    fn broken_since(self) -> Option<Instant> {
        match self {
            Contact::Open { .. } => None,
            Contact::Broken { since, .. } => Some(since),
        }
    }

    pub(super) fn broken(self, now: Instant) -> Contact {
        Contact::Broken { heard: self.heard(), since: now }
    }

    /// When it counts as lost, if nothing is heard of it until then.
    pub(super) fn loss(self, node_timeout: Duration) -> Loss {
        let silent = Loss { due: self.heard() + node_timeout, since: self.heard() };
        match self {
            Contact::Broken { since, .. } => silent.min(Loss { due: since + RECONNECT_GRACE, since }),
            Contact::Open { .. } => silent,
        }
    }
}

/// When a node counts as lost, if nothing is heard of it until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Loss {
    pub(super) due: Instant,
    /// Since when nothing is heard.
    pub(super) since: Instant,
}

/// The phases of a node.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Node {
    /// Nothing is known of its task.
    #[default]
    Absent,
    /// Its task was there for the attempt before, and is to join again over a new connection.
    Called {
        host: String,
        heard: Instant,
        /// When its connection ended, if it has.
        left: Option<Instant>,
    },
    /// It waits for its place; where its connection is broken, it or another task may come in its stead.
    Joined { join: Join, contact: Contact },
    /// It has its place: its ranks start, run or end.
    Placed { join: Join, contact: Contact },
    /// Its ranks have ended, and it waits for what comes next.
    Held { join: Option<Join>, contact: Contact },
    /// Its ranks have ended, and it may go.
    Done { join: Option<Join> },
    /// It is gone.
    Lost { join: Option<Join> },
}

/// What a join amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It waits for its place.
    New,
    /// It had its place already, and may not have read it.
    Again,
    /// It comes too late.
    Late,
}

impl Node {
    /// Any word, over a connection of the present attempt.
    pub(super) fn heard(self, now: Instant) -> Node {
        let contact = Contact::Open { heard: now };
        match self {
            Node::Called { host, .. } => Node::Called { host, heard: now, left: None },
            Node::Joined { join, .. } => Node::Joined { join, contact },
            Node::Placed { join, .. } => Node::Placed { join, contact },
            Node::Held { join, .. } => Node::Held { join, contact },
            Node::Absent | Node::Done { .. } | Node::Lost { .. } => self,
        }
    }

    /// Any word, over the connection of an attempt before.
    pub(super) fn heard_from_the_past(self, now: Instant) -> Node {
        match self {
            Node::Called { host, left, .. } => Node::Called { host, heard: now, left },
            other => other,
        }
    }

    pub(super) fn joined(self, now: Instant, join: Join) -> (Node, Arrival) {
        let contact = Contact::Open { heard: now };
        match self {
            Node::Absent | Node::Called { .. } | Node::Joined { .. } => {
                (Node::Joined { join, contact }, Arrival::New)
            }
            Node::Lost { .. } => (self, Arrival::Late),
            Node::Placed { .. } => (Node::Placed { join, contact }, Arrival::Again),
            Node::Held { .. } | Node::Done { .. } => (self, Arrival::Late),
        }
    }

    /// The hub has given it its place.
    pub(super) fn placed(self) -> Node {
        match self {
            Node::Joined { join, contact } => Node::Placed { join, contact },
            other => other,
        }
    }

    /// Its task has ended before it had its place, and said so: another is expected.
    pub(super) fn left(self) -> Node {
        match self {
            Node::Joined { .. } | Node::Called { .. } => Node::Absent,
            other => other,
        }
    }

    /// Its ranks have ended. It is kept for another attempt if `holds`, else it may go.
    pub(super) fn done(self, now: Instant, holds: bool) -> Node {
        match self {
            Node::Lost { .. } | Node::Done { .. } => self,
            other => {
                let join = other.into_join();
                if holds {
                    Node::Held { join, contact: Contact::Open { heard: now } }
                } else {
                    Node::Done { join }
                }
            }
        }
    }

    /// The job needs it no more.
    pub(super) fn released(self) -> Node {
        match self {
            Node::Held { join, .. } => Node::Done { join },
            other => other,
        }
    }

    /// Its connection broke.
    pub(super) fn disconnected(self, now: Instant) -> Node {
        match self {
            Node::Joined { join, contact } => Node::Joined { join, contact: contact.broken(now) },
            Node::Placed { join, contact } => Node::Placed { join, contact: contact.broken(now) },
            Node::Held { join, contact } => Node::Held { join, contact: contact.broken(now) },
            Node::Called { host, heard, .. } => Node::Called { host, heard, left: Some(now) },
            other => other,
        }
    }

    /// The next attempt begins in the same task: one that is held, or waits, is called, any other begins anew.
    pub(super) fn called(self) -> Node {
        match self {
            Node::Held { ref contact, .. }
            | Node::Joined { contact: ref contact @ Contact::Open { .. }, .. } => {
                let host = self.host().to_string();
                Node::Called { host, heard: contact.heard(), left: contact.broken_since() }
            }
            _ => Node::Absent,
        }
    }

    pub(super) fn lost(self) -> Node {
        Node::Lost { join: self.into_join() }
    }

    /// When it counts as lost; `None` if it is not waited for, or by another deadline.
    pub(super) fn loss(&self, node_timeout: Duration) -> Option<Loss> {
        let silent = |heard: Instant| Loss { due: heard + node_timeout, since: heard };
        match self {
            Node::Placed { contact, .. } | Node::Held { contact, .. } => Some(contact.loss(node_timeout)),
            // It opens another connection: that the old one ends says nothing.
            Node::Called { heard, .. } => Some(silent(*heard)),
            Node::Joined { contact, .. } => Some(silent(contact.heard())),
            Node::Absent | Node::Done { .. } | Node::Lost { .. } => None,
        }
    }

    /// When it last said something, where that is known.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        match self {
            Node::Joined { contact, .. } | Node::Placed { contact, .. } | Node::Held { contact, .. } => {
                Some(contact.heard())
            }
            Node::Called { heard, .. } => Some(*heard),
            Node::Absent | Node::Done { .. } | Node::Lost { .. } => None,
        }
    }

    /// Whether nothing more is to come of it in this attempt.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Node::Held { .. } | Node::Done { .. } | Node::Lost { .. })
    }

    /// Whether it is not there, and nobody waits for it once the ranks are being ended.
    pub(super) fn is_away(&self) -> bool {
        matches!(
            self,
            Node::Absent | Node::Called { .. } | Node::Joined { contact: Contact::Broken { .. }, .. }
        )
    }

    /// Until when one that was called is waited for, `limit` at most: it opens another connection when it leaves the
    /// old one. `None` for any other.
    pub(super) fn joins_until(&self, limit: Instant) -> Option<Instant> {
        match self {
            Node::Called { left, .. } => Some(left.map_or(limit, |at| limit.min(at + RECONNECT_GRACE))),
            _ => None,
        }
    }

    /// Since when the connection of one that has its place is broken.
    pub(super) fn broken_since(&self) -> Option<Instant> {
        match self {
            Node::Placed { contact, .. } => contact.broken_since(),
            _ => None,
        }
    }

    /// Whether it had its place, and went without a word.
    pub(super) fn is_gone(&self) -> bool {
        self.is_lost() || self.broken_since().is_some()
    }

    /// Whether it has its place and its connection is there: it says itself when it is done.
    pub(super) fn speaks(&self) -> bool {
        matches!(self, Node::Placed { contact: Contact::Open { .. }, .. })
    }

    /// Whether its task is at the hub, or was when it had its place.
    pub(super) fn is_known(&self) -> bool {
        self.join().is_some() && !self.is_away()
    }

    /// Whether its task is there, as far as is known.
    pub(super) fn has_task(&self) -> bool {
        let contact = match self {
            Node::Joined { contact, .. } | Node::Placed { contact, .. } | Node::Held { contact, .. } => {
                contact
            }
            Node::Called { .. } => return true,
            Node::Absent | Node::Done { .. } | Node::Lost { .. } => return false,
        };
        matches!(contact, Contact::Open { .. })
    }

    /// Its join, where it waits for its place at the hub.
    pub(super) fn waits(&self) -> Option<&Join> {
        match self {
            Node::Joined { join, contact: Contact::Open { .. } } => Some(join),
            _ => None,
        }
    }

    /// Whether its task was there, and went before it had its place.
    pub(super) fn has_vanished(&self) -> bool {
        matches!(self, Node::Joined { contact: Contact::Broken { .. }, .. } | Node::Called { .. })
    }

    /// Whether it has its place or had it, and is not lost.
    pub(super) fn had_its_place(&self) -> bool {
        matches!(self, Node::Placed { .. } | Node::Held { .. } | Node::Done { .. })
    }

    /// Whether it has no place yet.
    pub(super) fn is_unplaced(&self) -> bool {
        matches!(self, Node::Joined { .. })
    }

    /// Whether it can be told to begin again: it is held, and its connection is there.
    pub(super) fn is_ready_again(&self) -> bool {
        matches!(self, Node::Held { contact: Contact::Open { .. }, .. })
    }

    /// Whether it goes on in the next attempt where that begins in place: it is ready again, or waits for a place.
    pub(super) fn stays_in_place(&self) -> bool {
        self.is_ready_again() || self.waits().is_some()
    }

    /// Whether it is given up.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Node::Lost { .. })
    }

    /// Whether it is held, and it isn't clear whether it is still there: its connection broke, or it should have said
    /// something. Nodes speak four times within the node time-out.
    pub(super) fn is_overdue(&self, now: Instant, node_timeout: Duration) -> bool {
        match self {
            Node::Held { contact: Contact::Broken { .. }, .. } => true,
            Node::Held { contact, .. } => now >= contact.heard() + node_timeout / 2,
            _ => false,
        }
    }

    /// What it told of its task.
    pub(super) fn join(&self) -> Option<&Join> {
        match self {
            Node::Absent | Node::Called { .. } => None,
            Node::Joined { join, .. } | Node::Placed { join, .. } => Some(join),
            Node::Held { join, .. } | Node::Done { join } | Node::Lost { join } => join.as_ref(),
        }
    }

    /// The host of its task, for people; empty if not known.
    pub(super) fn host(&self) -> &str {
        match self {
            Node::Called { host, .. } => host,
            other => other.join().map_or("", |join| &join.host),
        }
    }

    fn into_join(self) -> Option<Join> {
        match self {
            Node::Absent | Node::Called { .. } => None,
            Node::Joined { join, .. } | Node::Placed { join, .. } => Some(join),
            Node::Held { join, .. } | Node::Done { join } | Node::Lost { join } => join,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    fn join() -> Join {
        Join {
            partition: 0,
            name: "h".into(),
            host: "h".into(),
            address: [127, 0, 0, 1].into(),
            interface: String::new(),
            addresses: Vec::new(),
            store_port: 1,
            store_key: Vec::new(),
            gpus: Vec::new(),
            folder: String::new(),
        }
    }

    fn placed(now: Instant) -> Node {
        Node::Absent.joined(now, join()).0.placed()
    }

    #[test]
    fn a_node_that_is_needed_is_lost_by_silence_whatever_its_phase() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(5));
        let held = placed(now).done(now, true);
        let called = held.clone().called();
        let joined = Node::Absent.joined(now, join()).0;
        for node in [joined.clone(), joined.disconnected(later), placed(now), held.clone(), called.clone()] {
            assert_eq!(node.loss(TIMEOUT).unwrap().due, now + TIMEOUT, "DRIVER-26: {node:?}");
            assert_eq!(node.heard(later).loss(TIMEOUT).unwrap().due, later + TIMEOUT, "DRIVER-26");
        }
        for node in [placed(now), held.clone()] {
            let broken = node.disconnected(later);
            assert_eq!(broken.loss(TIMEOUT).unwrap().due, later + RECONNECT_GRACE, "DRIVER-26: {broken:?}");
        }
        assert_eq!(
            called.clone().disconnected(later).loss(TIMEOUT),
            called.loss(TIMEOUT),
            "DRIVER-26: it opens another connection"
        );
        assert_eq!(held.released().loss(TIMEOUT), None);
    }

    #[test]
    fn a_lost_node_stays_lost() {
        let now = Instant::now();
        let lost = placed(now).lost();
        let events: [fn(Node, Instant) -> Node; 4] = [
            |node, now| node.heard(now),
            |node, now| node.joined(now, join()).0,
            |node, now| node.done(now, true),
            |node, now| node.disconnected(now),
        ];
        for event in events {
            assert_eq!(event(lost.clone(), now), lost, "DRIVER-27");
        }
    }
}
