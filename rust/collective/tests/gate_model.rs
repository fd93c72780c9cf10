//! The gate under loom: GROUP-33, GROUP-35 and GROUP-36, over every interleaving that the memory model allows.
#![allow(clippy::unwrap_used, reason = "for tests")]

/// loom's stand-ins for what `src/forks/gate.rs` uses.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::sync::{Condvar, Mutex};

    loom::lazy_static! {
        /// The kernel's side of a futex.
        static ref BED: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) fn wake_all(_: &AtomicU32) {
        let _guard = BED.0.lock().unwrap();
        BED.1.notify_all();
    }

    pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
        let guard = BED.0.lock().unwrap();
        // As the kernel does: compares under its lock, then sleeps.
        if word.load(Ordering::Relaxed) == value {
            drop(BED.1.wait(guard).unwrap());
        }
    }
}

#[path = "../src/forks/gate.rs"]
mod gate;

use std::sync::Arc as StdArc;

use gate::{Gate, Side};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};

use Side::{Forking, Opening};

/// What the gate keeps apart. loom fails the test if a thread writes a cell while another reads or writes it.
struct World {
    gate: Gate,
    /// Of each thread, what it has opened.
    open: Vec<UnsafeCell<u32>>,
}

impl World {
    /// What a thread does inside: who opens writes its own cell, and who forks reads them all.
    fn pass(&self, me: usize, side: Side) {
        self.gate.enter(side);
        match side {
            // SAFETY: loom checks exactly this claim: nobody who forks is inside.
            Opening => self.open[me].with_mut(|cell| unsafe { *cell += 1 }),
            Forking => self.open.iter().for_each(|cell| {
                // SAFETY: loom checks exactly this claim: nobody who opens is inside.
                cell.with(|cell| assert!(unsafe { *cell } <= 2));
            }),
        }
        self.gate.leave(side);
    }
}

/// Each thread passes the gate as its list says. loom reports a deadlock if one is never woken.
fn beside(preemptions: Option<usize>, threads: &'static [&'static [Side]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let run = StdArc::new(move || {
        let open = threads.iter().map(|_| UnsafeCell::new(0)).collect();
        let gate = Gate::new(AtomicU64::new(0), AtomicU32::new(0));
        let world = Arc::new(World { gate, open });
        let pass = |me: usize, world: &World| threads[me].iter().for_each(|side| world.pass(me, *side));
        let others: Vec<_> = (1..threads.len())
            .map(|me| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || pass(me, &world))
            })
            .collect();
        pass(0, &world);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        // Nobody is left inside.
        world.pass(0, Forking);
        world.pass(0, Opening);
    });
    builder.check(move || run());
}

#[test]
fn who_opens_and_who_forks_are_never_inside_together_and_nobody_sleeps_for_ever() {
    // GROUP-33, GROUP-35
    beside(Some(3), &[&[Opening], &[Forking]]);
    beside(Some(2), &[&[Opening, Forking], &[Forking, Opening]]);
    beside(Some(1), &[&[Opening], &[Forking], &[Forking]]);
    beside(Some(1), &[&[Forking], &[Opening], &[Opening]]);
}

#[test]
fn a_gate_that_is_reset_is_open_whoever_was_inside() {
    // GROUP-36: as in a child, whose other threads are gone wherever they were.
    loom::model(|| {
        let gate = Gate::new(AtomicU64::new(0), AtomicU32::new(0));
        gate.enter(Forking);
        gate.enter(Forking);
        gate.reset();
        gate.enter(Opening);
        gate.leave(Opening);
        gate.enter(Forking);
        gate.leave(Forking);
    });
}
