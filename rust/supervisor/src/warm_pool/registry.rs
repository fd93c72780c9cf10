//! The pools of this process: which there are, which is started next, and which is ended.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::Deadline;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::fingerprint::Fingerprint;
use super::options::PoolOptions;
use super::process::{Pool, Refusal};
use super::sharing::Owner;
use crate::guard::{Guard, own_environment};

/// How many pools a process has at most: each holds torch's memory.
const MOST: usize = 2;
/// How long a pool that could not be made, or was discarded, is not tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// How often a caller that waits for a pool is asked whether it still wants it.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// What the pools of this process take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many there are.
    pub pools: u64,
    /// Their resident memory; what their ranks share with them counts once.
    pub resident_bytes: u64,
    /// How many guards were forked from pools since the process began.
    pub forks: u64,
}

#[derive(Debug)]
enum State {
    Starting,
    Ready { pool: Arc<Pool>, used: Instant },
    Failed { at: Instant, why: String },
    Over,
}

/// A place for one pool.
#[derive(Debug)]
struct Slot {
    fingerprint: Fingerprint,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct Registry {
    /// The process that these pools belong to; a fork of it begins anew.
    client: u32,
    slots: Vec<Arc<Slot>>,
    forks: u64,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { client: 0, slots: Vec::new(), forks: 0 });

/// A guard that was forked from a pool with these options, which is started if there is none.
///
/// Blocks until the pool is ready, at most until `deadline`, and while `go_on` (asked 20 times a second) says so.
///
/// # Errors
/// In words, why there is none: the ranks are to start cold.
pub fn warm_guard(
    options: &PoolOptions,
    grace: Duration,
    deadline: Deadline,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Guard, String> {
    guard_of(options, grace, None, deadline, go_on)
}

/// As [`warm_guard`], of one that may be left to an owner.
pub(super) fn guard_of(
    options: &PoolOptions,
    grace: Duration,
    owner: Option<Owner>,
    deadline: Deadline,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Guard, String> {
    // Would be found out rank by rank.
    own_environment().map_err(|error| error.to_string())?;
    std::env::current_dir().map_err(|error| format!("the working directory is gone: {error}"))?;
    let fingerprint = Fingerprint::of(options);
    let mut ended = String::new();
    for _ in 0..2 {
        let slot = slot_of(&fingerprint, options)?;
        let pool = slot.wait(deadline, go_on)?;
        match pool.fork_guard(grace, owner) {
            Ok(guard) => {
                slot.used();
                registry().forks += 1;
                return Ok(guard);
            }
            // One that was idle ends by itself, at any time.
            Err(Refusal::Gone(why)) => {
                slot.leave(State::Over);
                ended = why;
            }
            Err(Refusal::Unfit(why)) => {
                slot.leave(State::Failed { at: Instant::now(), why: why.clone() });
                return Err(format!("the pool is discarded: {why}"));
            }
            Err(Refusal::Other(why)) => return Err(why),
        }
    }
    Err(format!("every pool ended when it was asked for a rank: {ended}"))
}

/// Starts a pool with these options in the background, if there is none; what it does if there can't be one is log it.
pub fn prestart(options: &PoolOptions) {
    if let Err(why) = slot_of(&Fingerprint::of(options), options) {
        log::info!("no warm pool is started: {why}");
    }
}

/// Ends all pools and what was forked from them.
pub fn end_pools() {
    let slots = std::mem::take(&mut registry().slots);
    for slot in slots {
        slot.leave(State::Over);
    }
}

/// What the pools of this process take now.
pub fn pool_usage() -> Usage {
    let (slots, forks) = {
        let registry = registry();
        (registry.slots.clone(), registry.forks)
    };
    let pools: Vec<Arc<Pool>> = slots.iter().filter_map(|slot| slot.pool()).collect();
    let resident_bytes = pools.iter().map(|pool| pool.resident_bytes()).sum();
    Usage { pools: pools.len() as u64, resident_bytes, forks }
}

fn registry() -> MutexGuard<'static, Registry> {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    if registry.client != here {
        // A fork of the process has copies of pools that aren't its own: to drop one would be to wait for its threads.
        std::mem::forget(std::mem::take(&mut registry.slots));
        *registry = Registry { client: here, slots: Vec::new(), forks: 0 };
    }
    registry
}

/// The place of a pool with this fingerprint; a new one gets its pool from a thread of its own.
fn slot_of(fingerprint: &Fingerprint, options: &PoolOptions) -> Result<Arc<Slot>, String> {
    let mut registry = registry();
    registry.slots.retain(|slot| !slot.is_over());
    if let Some(slot) = registry.slots.iter().find(|slot| slot.fingerprint == *fingerprint) {
        return Ok(Arc::clone(slot));
    }
    let mut leaving = None;
    if registry.slots.len() >= MOST {
        let oldest =
            registry.slots.iter().enumerate().filter_map(|(i, slot)| Some((slot.idle_since()?, i))).min();
        match oldest {
            Some((_, i)) => leaving = Some(registry.slots.remove(i)),
            None => return Err(format!("{MOST} pools of other settings are in use")),
        }
    }
    let slot = Arc::new(Slot {
        fingerprint: fingerprint.clone(),
        state: Mutex::new(State::Starting),
        changed: Condvar::new(),
    });
    let (options, its) = (options.clone(), Arc::clone(&slot));
    std::thread::Builder::new()
        .name("phalanx-pool".into())
        .spawn(move || its.fill(&options))
        .map_err(|error| format!("can't start a thread for a pool: {error}"))?;
    registry.slots.push(Arc::clone(&slot));
    drop(registry);
    if let Some(slot) = leaving {
        slot.leave(State::Over);
    }
    Ok(slot)
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the pool and stays until it has ended.
    fn fill(&self, options: &PoolOptions) {
        let started = Pool::start(options, &self.fingerprint)
            .and_then(|(pool, missing)| Ok((pool.line().map_err(|error| error.to_string())?, pool, missing)));
        let line = match started {
            Ok((line, pool, missing)) => {
                for what in missing {
                    log::warn!("a warm pool runs without {what}");
                }
                let mut state = self.state();
                if !matches!(*state, State::Starting) {
                    drop(state);
                    return; // nobody wants it any more
                }
                *state = State::Ready { pool: Arc::new(pool), used: Instant::now() };
                line
            }
            Err(why) => {
                self.leave(State::Failed { at: Instant::now(), why });
                return;
            }
        };
        self.changed.notify_all();
        // Answers are none of this thread's business, a hang-up is, and the kernel tells that unasked.
        while poll(&mut [PollFd::new(&line, PollFlags::empty())], None) == Err(Errno::INTR) {}
        self.leave(State::Over);
    }

    /// Waits for the pool.
    fn wait(&self, deadline: Deadline, go_on: &mut dyn FnMut() -> bool) -> Result<Arc<Pool>, String> {
        let mut state = self.state();
        loop {
            match &*state {
                State::Ready { pool, .. } => return Ok(Arc::clone(pool)),
                State::Failed { why, .. } => return Err(format!("no pool could be started: {why}")),
                State::Over => return Err("the pool was ended".into()),
                State::Starting => {}
            }
            if deadline.passed() {
                return Err("the pool is not ready in time".into());
            }
            drop(state);
            if !go_on() {
                return Err("it is to end".into());
            }
            state = self.state();
            if matches!(*state, State::Starting) {
                let waited = self.changed.wait_timeout(state, ASK_EVERY);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn used(&self) {
        if let State::Ready { used, .. } = &mut *self.state() {
            *used = Instant::now();
        }
    }

    fn pool(&self) -> Option<Arc<Pool>> {
        match &*self.state() {
            State::Ready { pool, .. } => Some(Arc::clone(pool)),
            _ => None,
        }
    }

    /// Since when nothing uses it; `None` while something does.
    fn idle_since(&self) -> Option<Instant> {
        match &*self.state() {
            // The slot's own is one; each guard that was forked from it has another.
            State::Ready { pool, used } if Arc::strong_count(pool) == 1 => Some(*used),
            State::Failed { at, .. } => Some(*at),
            _ => None,
        }
    }

    fn is_over(&self) -> bool {
        match &*self.state() {
            State::Over => true,
            State::Failed { at, .. } => at.elapsed() > TRY_AGAIN_AFTER,
            _ => false,
        }
    }

    /// Goes to a state without a pool; the pool ends when the last guard that came from it has.
    fn leave(&self, next: State) {
        let before = {
            let mut state = self.state();
            // Why it failed is of more interest than that it then ended.
            if matches!(*state, State::Failed { .. }) && matches!(next, State::Over) {
                return;
            }
            std::mem::replace(&mut *state, next)
        };
        self.changed.notify_all();
        drop(before);
    }
}
