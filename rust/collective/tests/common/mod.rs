//! Worlds of ranks for the tests: as threads of this process, each with a group of its own.
#![allow(dead_code, reason = "each test program needs some of it")]

pub mod links;
pub mod processes;
pub mod program;
pub mod reference;

use std::time::Duration;

use phalanx_collective::{Group, GroupOptions, HashStore, Store};
use phalanx_types::{Generation, Key};

/// Far longer than anything here takes.
pub const LONG: Duration = Duration::from_secs(30);

/// What the ranks of a job have from their node.
pub fn key() -> Key {
    Key::of_groups(&[7; 32], "tests", Generation::new(0))
}

pub fn options(rank: usize, world_size: usize) -> GroupOptions {
    GroupOptions { timeout: LONG, key: Some(key()), ..GroupOptions::new(rank, world_size, "world") }
}

/// Runs one rank a thread; their results in the order of ranks.
pub fn world<T: Send>(world_size: usize, run: impl Fn(&mut Group) -> T + Sync) -> Vec<T> {
    world_with(world_size, |options| options, run)
}

/// The same with options of their own.
pub fn world_with<T: Send>(
    world_size: usize,
    change: impl Fn(GroupOptions) -> GroupOptions + Sync,
    run: impl Fn(&mut Group) -> T + Sync,
) -> Vec<T> {
    let store = HashStore::default();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let mut store = store.clone();
                let (change, run) = (&change, &run);
                scope.spawn(move || {
                    let mut group = join(change(options(rank, world_size)), &mut store);
                    run(&mut group)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect()
    })
}

fn join(options: GroupOptions, store: &mut dyn Store) -> Group {
    Group::join(options, store).expect("joins")
}
