//! What a node does to the words of its ranks when a host is to go: it freezes them, and tells them.
//!
//! - NODE-64 (newest-freeze): ranks that were frozen by an order are not thawed for an earlier one, however late that
//!   comes or is repeated: the hub is choosing a step above all that they have begun.
//! - NODE-65 (late-once): whether a rank was late for a notice is what it was when the notice was told first.

use std::collections::BTreeMap;

use phalanx_supervisor::RankSocket;
use phalanx_types::RankNotice;

/// The orders that a node's ranks of an attempt were frozen and told by.
#[derive(Debug, Default)]
pub(crate) struct Frozen {
    /// The last that froze them.
    number: u32,
    /// By the notice's number, whether a rank was late for it.
    told: BTreeMap<u32, bool>,
}

impl Frozen {
    /// Freezes them; the last step that one of them has asked for.
    pub(crate) fn freeze<'a>(
        &mut self,
        number: u32,
        ranks: impl Iterator<Item = &'a RankSocket>,
    ) -> Option<u64> {
        self.number = self.number.max(number);
        ranks.filter_map(|rank| rank.words().freeze()).max()
    }

    /// Lets them go on, if it is for the last order.
    pub(crate) fn thaw<'a>(&self, number: u32, ranks: impl Iterator<Item = &'a RankSocket>) {
        if number >= self.number {
            ranks.for_each(|rank| rank.words().thaw());
        }
    }

    /// Tells them; whether one is late.
    pub(crate) fn notify<'a>(
        &mut self,
        notice: &RankNotice,
        ranks: impl Iterator<Item = &'a RankSocket> + Clone,
    ) -> bool {
        let late = *self.told.entry(notice.number).or_insert_with(|| {
            // Each is told, also behind one that is late.
            ranks.clone().filter(|rank| rank.notify(notice)).count() > 0
        });
        self.thaw(notice.number, ranks);
        late
    }
}

#[cfg(test)]
mod tests {
    use phalanx_types::Generation;

    use super::*;

    fn notice(number: u32, step: u64) -> RankNotice {
        RankNotice { number, step, hosts: vec![], ranks: vec![], deadline_ms: None, reason: String::new() }
    }

    #[test]
    fn ranks_stay_frozen_by_the_last_order_whatever_is_told_again() {
        let (rank, _end) = RankSocket::pair(Generation::new(3)).unwrap();
        let ranks = || std::iter::once(&rank);
        let mut frozen = Frozen::default();
        assert_eq!(frozen.freeze(1, ranks()), None);
        assert!(!frozen.notify(&notice(1, 4), ranks()));
        assert!(rank.words().ask(4), "it was thawed");
        assert_eq!(frozen.freeze(2, ranks()), Some(4));
        assert!(!frozen.notify(&notice(1, 4), ranks()));
        frozen.thaw(1, ranks());
        assert!(!rank.words().ask(5), "NODE-64");
        rank.words().go_on(5);
        assert!(!frozen.notify(&notice(1, 4), ranks()), "NODE-65");
        assert!(frozen.notify(&notice(2, 5), ranks()), "GUARD-22");
        assert!(rank.words().ask(6), "NODE-64");
        assert!(frozen.notify(&notice(2, 5), ranks()), "NODE-65");
    }
}
