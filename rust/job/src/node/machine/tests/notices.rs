//! Orders of the hub about a host that is to go.

use super::*;

/// A node that has its place, and so many of its helpers back.
fn placed(helpers: usize) -> World {
    let mut world = World::new();
    (0..2).for_each(|_| world.back(0, true));
    world.order(HubMessage::Place(Box::new(placement(false))));
    (0..helpers).for_each(|_| world.back(0, true));
    world
}

fn asked(world: &mut World, order: HubMessage) -> Vec<Action> {
    let mut out = Vec::new();
    world.machine.on(world.now, Event::Line(Heard::Order(order)), &mut out);
    out
}

#[test]
fn a_node_freezes_its_ranks_once_they_run_and_not_before() {
    let freeze = HubMessage::Freeze { number: 5 };
    for helpers in 0..3 {
        assert!(asked(&mut placed(helpers), freeze.clone()).is_empty(), "NODE-61");
    }
    let mut world = placed(3);
    assert!(world.launched);
    let out = asked(&mut world, freeze);
    assert!(matches!(out[..], [Action::Freeze { number: 5 }]), "NODE-61: {out:?}");
}

#[test]
fn ranks_are_thawed_when_the_hub_says_so_and_at_no_other_time() {
    let mut world = placed(3);
    asked(&mut world, HubMessage::Freeze { number: 5 });
    for event in [Event::Tick, Event::Line(Heard::Renewed), Event::Reported] {
        world.now += Duration::from_secs(600);
        let mut out = Vec::new();
        world.machine.on(world.now, event, &mut out);
        assert!(!out.iter().any(|action| matches!(action, Action::Thaw { .. })), "NODE-62: {out:?}");
    }
    let out = asked(&mut world, HubMessage::Thaw { number: 5 });
    assert!(matches!(out[..], [Action::Thaw { number: 5 }]), "NODE-62: {out:?}");
}

#[test]
fn a_node_tells_of_its_own_host_once_the_hub_knows_which_that_is() {
    let notice = Notice { in_ms: Some(7), reason: "spot".into() };
    let tells = |world: &mut World| {
        let mut out = Vec::new();
        world.machine.on(world.now, Event::Noticed(notice.clone()), &mut out);
        out.iter().any(|action| matches!(action, Action::Tell(_, NodeMessage::Notice(_))))
    };
    assert!(!tells(&mut World::new()));
    assert!(tells(&mut placed(0)) && tells(&mut placed(3)));
}
