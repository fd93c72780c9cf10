//! The keys, the queues, and who waits for them. No bytes of the protocol, no sockets.
//!
//! A wait registers once at every missing key. A key that appears takes all its waiters with it; a wait is over when
//! the last of its keys has appeared once, even if an earlier one has been deleted again (as torch's server has it).
//! A cancelled wait leaves its registrations behind as stale; a key forgets them when they could be half of its list,
//! so registering, waking and cancelling are all constant time a key, amortised.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::waits::{ClientId, Waiter, Waits};

/// Why a request can't be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The value of a key that has to be a number is none.
    NotANumber,
    /// A client waits for more keys than one message may name.
    TooManyWaits,
}

/// All keys, queues and waits of a store.
#[derive(Debug, Default)]
pub struct Keys {
    slots: FxHashMap<Arc<[u8]>, u32>,
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    with_value: usize,
    waits: Waits,
}

/// All there is under one name: a value, a queue, waiters, in any combination. Freed when none is left.
#[derive(Debug)]
struct Entry {
    key: Arc<[u8]>,
    /// Shared with the answers that are on their way.
    value: Option<Arc<Vec<u8>>>,
    queue: VecDeque<Vec<u8>>,
    waiters: Vec<Waiter>,
    /// At least how many of `waiters` belong to waits that are over.
    stale: usize,
}

impl Keys {
    /// Gives the key a value and wakes all its waiters.
    pub fn set(&mut self, key: &[u8], value: &[u8]) {
        let slot = self.slot_of(key);
        self.put(slot, |stored| stored.extend_from_slice(value));
    }

    /// Swaps `desired` in if the value is `expected`; returns the value that the key has then.
    ///
    /// A missing key takes `desired` if `expected` is empty. Otherwise it stays missing, and the answer is `expected`,
    /// which it never had: torch's server answers so, and torch's `compare_set` documents it.
    pub fn compare_set<'a>(&'a mut self, key: &[u8], expected: &'a [u8], desired: &[u8]) -> &'a [u8] {
        match self.get(key) {
            None if !expected.is_empty() => return expected,
            Some(value) if value != expected => {}
            _ => self.set(key, desired),
        }
        self.get(key).unwrap_or_default()
    }

    /// The key's value.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.shared(key).map(|value| value.as_slice())
    }

    /// The key's value, to be kept: it stays as it is now.
    pub fn shared(&self, key: &[u8]) -> Option<&Arc<Vec<u8>>> {
        self.entry(key)?.value.as_ref()
    }

    /// Adds to a number and returns the sum, which wraps. A missing key counts as 0.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, Refusal> {
        let sum = self.number(key)?.wrapping_add(delta);
        let slot = self.slot_of(key);
        self.put_number(slot, sum);
        self.wake_all(slot);
        Ok(sum)
    }

    /// Adds bytes to the end of the value and wakes all waiters.
    pub fn append(&mut self, key: &[u8], value: &[u8]) {
        let slot = self.slot_of(key);
        match &mut self.entries[slot as usize].value {
            Some(stored) => {
                Arc::make_mut(stored).extend_from_slice(value);
                self.wake_all(slot);
            }
            None => self.put(slot, |stored| stored.extend_from_slice(value)),
        }
    }

    /// Takes the key's value away; whether there was one. Queues and waiters stay.
    pub fn delete(&mut self, key: &[u8]) -> bool {
        let Some(&slot) = self.slots.get(key) else { return false };
        let deleted = self.entries[slot as usize].value.take().is_some();
        self.with_value -= usize::from(deleted);
        self.free_if_unused(slot);
        deleted
    }

    /// How many keys have a value.
    pub fn count(&self) -> usize {
        self.with_value
    }

    /// The keys that have a value, in no order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().filter(|entry| entry.value.is_some()).map(|entry| &*entry.key)
    }

    /// Whether the key has a value or its queue is not empty.
    pub fn exists(&self, key: &[u8]) -> bool {
        self.entry(key).is_some_and(Entry::exists)
    }

    /// Adds to the end of a queue and wakes the first waiter that waits for nothing else.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let slot = self.slot_of(key);
        let entry = &mut self.entries[slot as usize];
        entry.queue.push_back(value.to_vec());
        let mut waiters = std::mem::take(&mut entry.waiters);
        let woken = waiters.iter().position(|&waiter| self.waits.arrived(waiter));
        waiters.drain(..woken.map_or(waiters.len(), |at| at + 1));
        self.entries[slot as usize].waiters = waiters;
        self.drop_stale(slot);
    }

    /// The queue's length before, and its first value, which is no longer in it.
    pub fn pop(&mut self, key: &[u8]) -> (usize, Option<Vec<u8>>) {
        let Some(&slot) = self.slots.get(key) else { return (0, None) };
        let queue = &mut self.entries[slot as usize].queue;
        let popped = (queue.len(), queue.pop_front());
        self.free_if_unused(slot);
        popped
    }

    /// How long the queue is.
    pub fn queue_len(&self, key: &[u8]) -> usize {
        self.entry(key).map_or(0, |entry| entry.queue.len())
    }

    /// Whether all keys exist; if not, `client` is in [`Keys::woken`] once each has appeared.
    pub fn wait<'k>(
        &mut self,
        client: ClientId,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<bool, Refusal> {
        let mut missing = Vec::new();
        for key in keys {
            let slot = self.slot_of(key);
            if !self.entries[slot as usize].exists() {
                missing.push(slot);
            }
        }
        if missing.is_empty() {
            return Ok(true);
        }
        self.register(client, missing)?;
        Ok(false)
    }

    /// Counts a client in; whether it was the last of `world_size`. If not, it is in [`Keys::woken`] with the last.
    ///
    /// The count is the key's value, and it stays: a later barrier under the same name is open. As in torch's server,
    /// whoever waits for the key itself is woken when the barrier opens.
    pub fn barrier(&mut self, client: ClientId, key: &[u8], world_size: i64) -> Result<bool, Refusal> {
        let count = self.number(key)?.wrapping_add(1);
        let slot = self.slot_of(key);
        self.put_number(slot, count);
        if count >= world_size {
            self.wake_all(slot);
            return Ok(true);
        }
        self.register(client, vec![slot])?;
        Ok(false)
    }

    /// Forgets what the client waits for.
    pub fn cancel(&mut self, client: ClientId) {
        for slot in self.waits.cancel(client) {
            self.forget_one(slot);
        }
    }

    /// The clients whose waits ended since the last call, each as often as waits ended.
    pub fn woken(&mut self) -> std::vec::Drain<'_, ClientId> {
        self.waits.woken()
    }

    fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.slots.get(key).map(|&slot| &self.entries[slot as usize])
    }

    fn slot_of(&mut self, key: &[u8]) -> u32 {
        if let Some(&slot) = self.slots.get(key) {
            return slot;
        }
        let key: Arc<[u8]> = key.into();
        let entry =
            Entry { key: key.clone(), value: None, queue: VecDeque::new(), waiters: Vec::new(), stale: 0 };
        let slot = match self.free_entries.pop() {
            Some(slot) => {
                self.entries[slot as usize] = entry;
                slot
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.slots.insert(key, slot);
        slot
    }

    fn free_if_unused(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        let unused = !entry.exists() && entry.waiters.is_empty();
        // A slot that is free already has the empty key, which may be another slot's.
        if unused && self.slots.get(&entry.key) == Some(&slot) {
            self.slots.remove(&entry.key);
            entry.key = Arc::default();
            entry.queue = VecDeque::new();
            entry.waiters = Vec::new();
            self.free_entries.push(slot);
        }
    }

    fn put(&mut self, slot: u32, write: impl FnOnce(&mut Vec<u8>)) {
        self.store(slot, write);
        self.wake_all(slot);
    }

    /// Replaces the value without waking anyone.
    fn store(&mut self, slot: u32, write: impl FnOnce(&mut Vec<u8>)) {
        let stored = &mut self.entries[slot as usize].value;
        self.with_value += usize::from(stored.is_none());
        let stored = stored.get_or_insert_default();
        match Arc::get_mut(stored) {
            Some(stored) => {
                stored.clear();
                stored.shrink_to(KEPT_CAPACITY);
                write(stored);
            }
            // Somebody is being answered with it.
            None => {
                let mut new = Vec::new();
                write(&mut new);
                *stored = Arc::new(new);
            }
        }
    }

    fn put_number(&mut self, slot: u32, number: i64) {
        // Writing to a vector doesn't fail.
        self.store(slot, |stored| drop(write!(stored, "{number}")));
    }

    fn number(&self, key: &[u8]) -> Result<i64, Refusal> {
        self.get(key).map_or(Ok(0), |value| parse_number(value).ok_or(Refusal::NotANumber))
    }

    fn wake_all(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.waiters.is_empty() {
            return;
        }
        entry.stale = 0;
        for waiter in std::mem::take(&mut entry.waiters) {
            self.waits.arrived(waiter);
        }
    }

    fn register(&mut self, client: ClientId, slots: Vec<u32>) -> Result<(), Refusal> {
        let begun = self.waits.begin(client, slots.clone());
        for slot in slots {
            match begun {
                Some(waiter) => self.entries[slot as usize].waiters.push(waiter),
                None => self.free_if_unused(slot),
            }
        }
        begun.map(drop).ok_or(Refusal::TooManyWaits)
    }

    /// Counts one stale waiter, and cleans the list when they may be more than half of it. The slot may meanwhile be
    /// another key's: then the list is cleaned a little early.
    fn forget_one(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.waiters.is_empty() {
            return;
        }
        entry.stale += 1;
        self.drop_stale(slot);
        self.free_if_unused(slot);
    }

    fn drop_stale(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.stale * 2 > entry.waiters.len() {
            let waits = &self.waits;
            entry.waiters.retain(|&waiter| waits.is_live(waiter));
            entry.stale = 0;
        }
    }

    /// Panics if the indexes disagree: for tests and the fuzzer, slow.
    pub fn assert_consistent(&self) {
        let mut with_value = 0;
        assert_eq!(self.slots.len() + self.free_entries.len(), self.entries.len());
        for (key, &slot) in &self.slots {
            let entry = &self.entries[slot as usize];
            assert_eq!(*key, entry.key);
            with_value += usize::from(entry.value.is_some());
            let live = entry.waiters.iter().filter(|&&waiter| self.waits.is_live(waiter)).count();
            assert!(live * 2 >= entry.waiters.len(), "stale waiters pile up");
            assert!(entry.exists() || live > 0, "an unused entry was kept");
        }
        assert_eq!(with_value, self.with_value);
        let registered = (0..).zip(&self.entries);
        self.waits.assert_consistent(
            registered.flat_map(|(slot, entry)| entry.waiters.iter().map(move |&waiter| (slot, waiter))),
        );
    }
}

/// A value's buffer is used again for the next value up to this size.
const KEPT_CAPACITY: usize = 4096;

impl Entry {
    fn exists(&self) -> bool {
        self.value.is_some() || !self.queue.is_empty()
    }
}

/// What C's `strtoll` reads at the beginning of the text, as torch's server does: spaces, a sign, digits; the rest is
/// ignored. `None` if there is no digit or the number doesn't fit.
fn parse_number(text: &[u8]) -> Option<i64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let text = &text[text.iter().take_while(|byte| is_space(byte)).count()..];
    let (negative, digits) = match text.split_first()? {
        (b'-', digits) => (true, digits),
        (b'+', digits) => (false, digits),
        _ => (false, text),
    };
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    digits[..length].iter().try_fold(0_i64, |number, digit| {
        let digit = i64::from(digit - b'0');
        let tens = number.checked_mul(10)?;
        if negative { tens.checked_sub(digit) } else { tens.checked_add(digit) }
    })
}

#[cfg(test)]
mod tests;
