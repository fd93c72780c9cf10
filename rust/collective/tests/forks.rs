//! What this process does around its forks: GROUP-29 to GROUP-32. `python/tests/test_group_forks_at_once.py` really
//! forks.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::fs;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use common::{LONG, options};
use phalanx_collective::{Group, HashStore, forks};
use phalanx_testkit::eventually;

/// There is one gate a process: tests take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn joining<'scope>(
    scope: &'scope Scope<'scope, '_>,
    rank: usize,
    store: &HashStore,
) -> ScopedJoinHandle<'scope, Group> {
    let mut store = store.clone();
    scope.spawn(move || Group::join(options(rank, 2), &mut store).unwrap())
}

fn is_open(descriptor: &RawFd) -> bool {
    fs::read_link(format!("/proc/self/fd/{descriptor}")).is_ok()
}

#[test]
fn while_a_process_forks_nothing_is_opened_however_it_nests_and_then_groups_come_together() {
    // GROUP-29, GROUP-32
    let _alone = alone();
    let store = HashStore::default();
    std::thread::scope(|scope| {
        forks::before();
        // A fork within a fork, which fails.
        forks::before();
        forks::after_in_parent();
        let joined = [joining(scope, 0, &store), joining(scope, 1, &store)];
        for _ in 0..1000 {
            assert!(forks::descriptors().is_empty(), "GROUP-29");
            std::thread::yield_now();
        }
        forks::after_in_parent();
        // One that was not announced ends nothing.
        forks::after_in_parent();
        let groups = joined.map(|thread| thread.join().unwrap());
        forks::before();
        let known = forks::descriptors();
        assert!(!known.is_empty() && known.iter().all(is_open), "GROUP-29: {known:?}");
        forks::after_in_parent();
        let [mut one, mut other] = groups;
        let barrier = scope.spawn(move || one.barrier().unwrap());
        other.barrier().unwrap();
        barrier.join().unwrap();
    });
    assert!(forks::descriptors().is_empty(), "GROUP-29");
}

#[test]
fn a_rank_that_waits_for_the_others_keeps_no_fork_waiting() {
    // GROUP-31
    let _alone = alone();
    let store = HashStore::default();
    std::thread::scope(|scope| {
        let waits = joining(scope, 0, &store);
        eventually("it listens", LONG, || !forks::descriptors().is_empty());
        for _ in 0..100 {
            forks::before();
            forks::after_in_parent();
        }
        assert!(!waits.is_finished());
        let other = joining(scope, 1, &store);
        drop([waits, other].map(|thread| thread.join().unwrap()));
    });
}

#[test]
fn what_a_child_has_closed_is_not_closed_again_by_what_it_drops() {
    // GROUP-30
    let _alone = alone();
    let store = HashStore::default();
    let groups = std::thread::scope(|scope| {
        [joining(scope, 0, &store), joining(scope, 1, &store)].map(|thread| thread.join().unwrap())
    });
    forks::before();
    // This process plays the child, in which these numbers are other files' by now.
    let told = forks::after_in_child();
    assert!(!told.is_empty());
    drop(groups);
    assert!(told.iter().all(is_open), "GROUP-30: {told:?}");
    // It can have groups of its own, whose descriptors are closed.
    let store = HashStore::default();
    std::thread::scope(|scope| {
        let joined = [joining(scope, 0, &store), joining(scope, 1, &store)];
        drop(joined.map(|thread| thread.join().unwrap()));
    });
    assert!(forks::descriptors().is_empty());
    assert!(forks::after_in_child().is_empty());
}
