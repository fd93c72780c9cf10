//! One thing that many threads use in turn: here, and on a thread of the lane's own.
//!
//! - LAN-1: turns are taken one at a time, in the order in which they were asked for.
//! - LAN-2: there is a thread only once something was left to it, and it ends when the lane is closed.
//! - LAN-3: what goes on in the background gets time whenever it is nobody's turn, and delays nobody by more than one
//!   look at it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use std::time::{Duration, Instant};

use phalanx_types::{Error, Result};

/// What a lane is for.
pub(crate) trait Subject: Send + 'static {
    /// Whether there is something that goes on by itself.
    fn has_background(&self) -> bool;
    /// Gives it time; whether anything came of it.
    fn background(&mut self) -> bool;
}

/// Pauses between looks at the background: while something happens, soon after, and then.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_millis(2), Duration::ZERO),
    (Duration::from_millis(200), Duration::from_micros(200)),
    (Duration::MAX, Duration::from_millis(1)),
];
const THREAD: &str = "phalanx-collective";

type Work<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The lane's end in the hands of its owner; dropping it closes the lane.
pub(crate) struct Lane<T: Subject>(Arc<Shared<T>>);

struct Shared<T> {
    subject: Mutex<T>,
    turns: Mutex<Turns<T>>,
    changed: Condvar,
}

struct Turns<T> {
    /// The number that the next one who asks gets.
    next: u64,
    /// The number whose turn it is.
    current: u64,
    left: VecDeque<(u64, Work<T>)>,
    waiting: usize,
    has_background: bool,
    has_thread: bool,
    is_closed: bool,
}

impl<T: Subject> Lane<T> {
    pub(crate) fn new(subject: T) -> Lane<T> {
        let turns = Turns {
            next: 0,
            current: 0,
            left: VecDeque::new(),
            waiting: 0,
            has_background: false,
            has_thread: false,
            is_closed: false,
        };
        Lane(Arc::new(Shared {
            subject: Mutex::new(subject),
            turns: Mutex::new(turns),
            changed: Condvar::new(),
        }))
    }

    /// Runs `work` on this thread when its turn has come.
    pub(crate) fn run<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let shared = &*self.0;
        let mut turns = lock(&shared.turns);
        let mine = turns.next;
        turns.next += 1;
        while turns.current != mine {
            turns = shared.wait(turns);
        }
        drop(turns);
        self.0.in_turn(work)
    }

    /// Runs `work` on this thread if it is nobody's turn.
    pub(crate) fn run_if_idle<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.claim().then(|| self.0.in_turn(work))
    }

    /// Leaves `work` to the lane's thread.
    pub(crate) fn leave(&self, work: impl FnOnce(&mut T) + Send + 'static) -> Result<()> {
        let mut turns = lock(&self.0.turns);
        self.0.start_thread(&mut turns)?;
        let mine = turns.next;
        turns.next += 1;
        turns.left.push_back((mine, Box::new(work)));
        self.0.notify(&turns);
        Ok(())
    }
}

impl<T: Subject> Drop for Lane<T> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.is_closed = true;
        self.0.notify(&turns);
    }
}

impl<T: Subject> Shared<T> {
    /// Runs `work`, whose turn it is, and gives the turn to the next, whatever happens in it.
    fn in_turn<R>(self: &Arc<Self>, work: impl FnOnce(&mut T) -> R) -> R {
        let mut turn = Turn { shared: self, has_background: false };
        let mut subject = lock(&self.subject);
        let result = work(&mut subject);
        turn.has_background = subject.has_background();
        drop(subject);
        result
    }

    /// Takes the turn if it is nobody's.
    fn claim(&self) -> bool {
        let mut turns = lock(&self.turns);
        let is_free = turns.current == turns.next;
        turns.next += u64::from(is_free);
        is_free
    }

    fn start_thread(self: &Arc<Self>, turns: &mut Turns<T>) -> Result<()> {
        if !turns.has_thread {
            let shared = Arc::clone(self);
            std::thread::Builder::new()
                .name(THREAD.into())
                .spawn(move || shared.serve())
                .map_err(|error| Error::io("start a thread", &error))?;
            turns.has_thread = true;
        }
        Ok(())
    }

    fn serve(self: Arc<Self>) {
        let mut moved = Instant::now();
        let mut turns = lock(&self.turns);
        loop {
            let is_mine = turns.left.front().is_some_and(|(number, _)| *number == turns.current);
            if is_mine && let Some((_, work)) = turns.left.pop_front() {
                drop(turns);
                self.in_turn(work);
                moved = Instant::now();
                turns = lock(&self.turns);
            } else if turns.is_closed && turns.left.is_empty() {
                return;
            } else if turns.has_background {
                drop(turns);
                // LAN-3
                if self.claim() && self.in_turn(T::background) {
                    moved = Instant::now();
                }
                turns = lock(&self.turns);
                let still = moved.elapsed();
                let pause = PAUSES
                    .iter()
                    .find(|(until, _)| still < *until)
                    .map_or(Duration::ZERO, |(_, pause)| *pause);
                if !pause.is_zero() && turns.current == turns.next {
                    turns.waiting += 1;
                    turns = self.changed.wait_timeout(turns, pause).unwrap_or_else(PoisonError::into_inner).0;
                    turns.waiting -= 1;
                } else if turns.current != turns.next {
                    drop(turns);
                    std::thread::yield_now();
                    turns = lock(&self.turns);
                }
            } else {
                turns = self.wait(turns);
                moved = Instant::now();
            }
        }
    }
}

impl<T> Shared<T> {
    fn wait<'a>(&'a self, mut turns: MutexGuard<'a, Turns<T>>) -> MutexGuard<'a, Turns<T>> {
        turns.waiting += 1;
        let mut turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        turns.waiting -= 1;
        turns
    }

    fn notify(&self, turns: &Turns<T>) {
        if turns.waiting > 0 {
            self.changed.notify_all();
        }
    }
}

/// Gives the turn to the next.
struct Turn<'a, T: Subject> {
    shared: &'a Arc<Shared<T>>,
    has_background: bool,
}

impl<T: Subject> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut turns = lock(&self.shared.turns);
        turns.current += 1;
        turns.has_background = self.has_background;
        if self.has_background && self.shared.start_thread(&mut turns).is_err() {
            turns.has_background = false; // without a thread, messages move with the next call
        }
        self.shared.notify(&turns);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
