//! Waits without an answer: which keys each still misses, which client it belongs to, and which have been woken.
//!
//! A wait is named by a number and a generation. The number is used again, the generation isn't. So a registration that
//! a finished wait left behind can be told from a live one by looking at the wait alone.

use super::protocol::MAX_KEYS;

/// A client, by the number that the machine gave it.
pub type ClientId = u32;

/// A registration of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiter {
    wait: u32,
    generation: u32,
}

/// All waits of a store.
#[derive(Debug, Default)]
pub struct Waits {
    waits: Vec<Wait>,
    free: Vec<u32>,
    /// Indexed by client.
    held: Vec<Held>,
    woken: Vec<ClientId>,
}

/// One `WAIT` or `BARRIER` without an answer, or a free place for one.
#[derive(Debug)]
struct Wait {
    generation: u32,
    client: ClientId,
    /// Where `Held::waits` of the client names this wait.
    place: usize,
    /// Registrations that have not come true yet.
    missing: usize,
    /// Where it registered, one a registration.
    slots: Vec<u32>,
}

/// What one client waits for.
#[derive(Debug, Default)]
struct Held {
    waits: Vec<u32>,
    registrations: usize,
}

impl Waits {
    /// Begins a wait for all of `slots`, where the caller puts the waiter that is returned, one each. `None` if the
    /// client would then wait for more keys than one message may name.
    pub fn begin(&mut self, client: ClientId, slots: Vec<u32>) -> Option<Waiter> {
        let index = client as usize;
        if index >= self.held.len() {
            self.held.resize_with(index + 1, Held::default);
        }
        let held = &mut self.held[index];
        if held.registrations + slots.len() > MAX_KEYS as usize {
            return None;
        }
        held.registrations += slots.len();
        let place = held.waits.len();
        let number = self.free.pop().unwrap_or_else(|| {
            self.waits.push(Wait { generation: 0, client, place: 0, missing: 0, slots: Vec::new() });
            (self.waits.len() - 1) as u32
        });
        held.waits.push(number);
        let wait = &mut self.waits[number as usize];
        let generation = wait.generation;
        *wait = Wait { generation, client, place, missing: slots.len(), slots };
        Some(Waiter { wait: number, generation })
    }

    /// Whether the wait of a registration is not over.
    pub fn is_live(&self, waiter: Waiter) -> bool {
        self.waits[waiter.wait as usize].generation == waiter.generation
    }

    /// One registration has come true; whether that ended its wait, whose client is woken then.
    pub fn arrived(&mut self, waiter: Waiter) -> bool {
        let wait = &mut self.waits[waiter.wait as usize];
        if wait.generation != waiter.generation {
            return false;
        }
        wait.missing -= 1;
        if wait.missing > 0 {
            return false;
        }
        wait.generation = wait.generation.wrapping_add(1);
        let (client, place) = (wait.client, wait.place);
        let registrations = std::mem::take(&mut wait.slots).len();
        self.free.push(waiter.wait);
        let held = &mut self.held[client as usize];
        held.registrations -= registrations;
        held.waits.swap_remove(place);
        if let Some(&moved) = held.waits.get(place) {
            self.waits[moved as usize].place = place;
        }
        self.woken.push(client);
        true
    }

    /// Ends all waits of a client; where they had registered, one a registration that may have come true since.
    pub fn cancel(&mut self, client: ClientId) -> Vec<u32> {
        let Some(held) = self.held.get_mut(client as usize) else { return Vec::new() };
        let mut slots = Vec::new();
        for number in std::mem::take(held).waits {
            let wait = &mut self.waits[number as usize];
            wait.generation = wait.generation.wrapping_add(1);
            slots.append(&mut wait.slots);
            self.free.push(number);
        }
        slots
    }

    /// The clients whose waits ended since the last call, each as often as waits ended.
    pub fn woken(&mut self) -> std::vec::Drain<'_, ClientId> {
        self.woken.drain(..)
    }

    /// Panics unless every wait has exactly the registrations it misses, given all that are kept with their slots.
    pub fn assert_consistent(&self, registered: impl Iterator<Item = (u32, Waiter)>) {
        let mut found = vec![0; self.waits.len()];
        for (slot, waiter) in registered.filter(|&(_, waiter)| self.is_live(waiter)) {
            found[waiter.wait as usize] += 1;
            assert!(self.waits[waiter.wait as usize].slots.contains(&slot));
        }
        let mut live = 0;
        for (client, held) in self.held.iter().enumerate() {
            let mut registrations = 0;
            for (place, &number) in held.waits.iter().enumerate() {
                let wait = &self.waits[number as usize];
                assert_eq!((wait.client as usize, wait.place), (client, place));
                assert_eq!(wait.missing, found[number as usize], "a wait lost a registration");
                assert!(wait.missing > 0, "a wait that is over was not answered");
                registrations += wait.slots.len();
                live += 1;
            }
            assert_eq!(registrations, held.registrations);
        }
        assert_eq!(live + self.free.len(), self.waits.len());
    }
}
