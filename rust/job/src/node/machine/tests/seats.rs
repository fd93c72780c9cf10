//! Nodes whose seat another task has, or is to have.

use super::*;

proptest! {
    #[test]
    fn a_spare_waits_without_a_limit_and_any_other_as_long_as_the_hub_may_take(is_spare: bool, gets_place: bool) {
        let mut world = World::new();
        world.back(0, true);
        world.back(0, true);
        if is_spare {
            world.order(HubMessage::Spare);
        }
        world.passes(29_000);
        prop_assert_eq!(world.outcomes, 0);
        world.passes(3_600_000);
        prop_assert_eq!(world.outcomes, usize::from(!is_spare), "NODE-59");
        if is_spare && gets_place {
            world.order(HubMessage::Place(Box::new(placement(false))));
            prop_assert!(world.away.contains(&Away::Guard), "NODE-59");
        } else if is_spare {
            world.order(HubMessage::Stop { reason: "the job is over".into() });
            prop_assert!(world.done && world.outcomes == 1, "NODE-59");
        }
    }

    #[test]
    fn a_node_that_is_given_up_ends_its_ranks_and_fails_as_one_without_a_hub(helpers in 0..20_usize) {
        let mut world = World::new();
        (0..2).for_each(|_| world.back(0, true));
        if helpers > 0 {
            world.order(HubMessage::Place(Box::new(placement(false))));
            (0..helpers).for_each(|_| world.back(0, true));
        }
        world.order(HubMessage::GivenUp { reason: "given up".into() });
        while world.outcome.is_none() {
            (0..world.away.len()).for_each(|_| world.back(0, true));
            (0..RANKS).for_each(|rank| world.ends(rank, 0));
            world.passes(1000);
        }
        let error = world.outcome.unwrap().unwrap_err();
        prop_assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unreachable, "given up".into()), "NODE-60");
    }
}
