//! A queue. Many threads use one thing in turn, each on its own thread or on the queue's: a group, for its collectives.
//!
//! - BINDING-15 (in-order): turns are taken one at a time, in the order in which they were asked for.
//! - BINDING-16 (thread-on-demand): the queue has a thread only once something was left to it. The thread ends when the
//!   queue is closed.
//! - BINDING-17 (no-self-wait): a thread that has the turn is refused another. Python runs a signal's handler inside a
//!   collective that waits, and the handler would wait for itself.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use phalanx_types::{Error, Result};

type Task<T> = Box<dyn FnOnce(&mut T) + Send>;

/// The queue in the hands of its owner; dropping it closes the queue.
pub(crate) struct WorkQueue<T: Send + 'static>(Arc<Shared<T>>);

struct Shared<T> {
    subject: Mutex<T>,
    turns: Mutex<Turns<T>>,
    changed: Condvar,
    thread: &'static str,
}

struct Turns<T> {
    /// The number that the next one who asks gets.
    next: u64,
    /// The number whose turn it is.
    current: u64,
    /// Whose turn it is, once it has begun.
    holder: Option<ThreadId>,
    left: VecDeque<(u64, Task<T>)>,
    waiting: usize,
    has_thread: bool,
    is_closed: bool,
}

impl<T: Send + 'static> WorkQueue<T> {
    /// `thread` is the name of the queue's own.
    pub(crate) fn new(thread: &'static str, subject: T) -> WorkQueue<T> {
        let turns = Turns {
            next: 0,
            current: 0,
            holder: None,
            left: VecDeque::new(),
            waiting: 0,
            has_thread: false,
            is_closed: false,
        };
        WorkQueue(Arc::new(Shared {
            subject: Mutex::new(subject),
            turns: Mutex::new(turns),
            changed: Condvar::new(),
            thread,
        }))
    }

    /// Runs `work` on this thread when its turn has come; None if this thread has the turn already (BINDING-17).
    pub(crate) fn run<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        let shared = &*self.0;
        let mut turns = lock(&shared.turns);
        if turns.is_mine() {
            return None;
        }
        let mine = turns.next;
        turns.next += 1;
        while turns.current != mine {
            turns = shared.wait(turns);
        }
        turns.begin();
        drop(turns);
        Some(self.0.in_turn(work))
    }

    /// Whether this thread has the turn.
    pub(crate) fn is_mine(&self) -> bool {
        lock(&self.0.turns).is_mine()
    }

    /// Runs `work` on this thread if it is nobody's turn.
    pub(crate) fn run_if_idle<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.claim().then(|| self.0.in_turn(work))
    }

    /// Leaves `task` to the queue's thread.
    pub(crate) fn submit(&self, task: impl FnOnce(&mut T) + Send + 'static) -> Result<()> {
        let mut turns = lock(&self.0.turns);
        self.0.start_thread(&mut turns)?;
        let mine = turns.next;
        turns.next += 1;
        turns.left.push_back((mine, Box::new(task)));
        self.0.notify(&turns);
        Ok(())
    }
}

impl<T: Send + 'static> Drop for WorkQueue<T> {
    fn drop(&mut self) {
        let mut turns = lock(&self.0.turns);
        turns.is_closed = true;
        self.0.notify(&turns);
    }
}

impl<T: Send + 'static> Shared<T> {
    /// Runs `work`, whose turn it is, and gives the turn to the next, whatever happens in it.
    fn in_turn<R>(self: &Arc<Self>, work: impl FnOnce(&mut T) -> R) -> R {
        let _turn = Turn { shared: self };
        work(&mut lock(&self.subject))
    }

    /// Takes the turn if it is nobody's.
    fn claim(&self) -> bool {
        let mut turns = lock(&self.turns);
        let is_free = turns.current == turns.next;
        if is_free {
            turns.next += 1;
            turns.begin();
        }
        is_free
    }

    fn start_thread(self: &Arc<Self>, turns: &mut Turns<T>) -> Result<()> {
        if !turns.has_thread {
            let shared = Arc::clone(self);
            std::thread::Builder::new()
                .name(self.thread.into())
                .spawn(move || shared.serve())
                .map_err(|error| Error::io("start a thread", &error))?;
            turns.has_thread = true;
        }
        Ok(())
    }

    fn serve(self: Arc<Self>) {
        let mut turns = lock(&self.turns);
        loop {
            let is_mine = turns.left.front().is_some_and(|(number, _)| *number == turns.current);
            if is_mine && let Some((_, task)) = turns.left.pop_front() {
                turns.begin();
                drop(turns);
                self.in_turn(task);
                turns = lock(&self.turns);
            } else if turns.is_closed && turns.left.is_empty() {
                return;
            } else {
                turns = self.wait(turns);
            }
        }
    }
}

impl<T> Turns<T> {
    fn begin(&mut self) {
        self.holder = Some(std::thread::current().id());
    }

    fn is_mine(&self) -> bool {
        self.holder == Some(std::thread::current().id())
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
struct Turn<'a, T> {
    shared: &'a Shared<T>,
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut turns = lock(&self.shared.turns);
        turns.current += 1;
        turns.holder = None;
        self.shared.notify(&turns);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
