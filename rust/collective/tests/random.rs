//! Random programs in random worlds, as threads.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use common::{program, world_with};
use phalanx_collective::GroupOptions;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_operations_gives_what_the_reference_does(
        ranks in 1usize..=9,
        hosts in proptest::option::of(1u32..4),
        connections in 1u32..4,
        seed in any::<u64>(),
    ) {
        let change = |options: GroupOptions| {
            // Which rank is on which host has no order.
            let host = hosts.map(|hosts| (options.rank as u32 * 7 + seed as u32 % 5) % hosts);
            GroupOptions { pretended_host: host, connections, ..options }
        };
        world_with(ranks, change, |group| program::run(group, seed, 12));
    }
}
