//! What waits to be sent to one client: short answers by themselves, long values where the store has them.
//!
//! STORE-11 (shared-values): a value of [`SHARED_BYTES`] or more is in memory once, however many clients are being
//! answered with it. It stays as it was when they asked, also if the key has another value meanwhile.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

/// Values from this length on are not copied: to point at one costs a tenth of that.
pub(super) const SHARED_BYTES: usize = 256;
/// A buffer that grew beyond this is given back once it is empty.
const KEPT_CAPACITY: usize = 64 * 1024;
/// What was sent is dropped from a buffer that never runs empty once it is so much.
const MAX_SENT_BYTES: usize = 1024 * 1024;

/// Bytes for one client, in order.
#[derive(Debug, Default)]
pub(super) struct Replies {
    own: Vec<u8>,
    /// How much of `own` is sent.
    own_sent: usize,
    values: VecDeque<Shared>,
    /// How much of the first of `values` is sent.
    value_sent: usize,
    unsent: usize,
}

#[derive(Debug)]
struct Shared {
    /// How much of `own` comes before it.
    after: usize,
    value: Arc<Vec<u8>>,
}

impl Replies {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
        self.unsent += bytes.len();
    }

    /// As `put`, without a copy where that pays.
    pub(super) fn put_value(&mut self, value: &Arc<Vec<u8>>) {
        if value.len() < SHARED_BYTES {
            return self.put(value);
        }
        self.values.push_back(Shared { after: self.own.len(), value: Arc::clone(value) });
        self.unsent += value.len();
    }

    /// How many bytes wait.
    pub(super) fn len(&self) -> usize {
        self.unsent
    }

    /// How much memory is this client's alone.
    pub(super) fn held_bytes(&self) -> usize {
        self.own.len() + self.values.len() * size_of::<Shared>()
    }

    /// What waits, in pieces that are not empty.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let (mut from, mut skip) = (self.own_sent, self.value_sent);
        let last = self.values.back().map_or(self.own_sent, |shared| shared.after);
        let pairs = self.values.iter().flat_map(move |shared| {
            let own = &self.own[std::mem::replace(&mut from, shared.after)..shared.after];
            [own, &shared.value[std::mem::take(&mut skip)..]]
        });
        pairs.chain([&self.own[last..]]).filter(|piece| !piece.is_empty())
    }

    /// Fills `slices` with what waits; how many it took.
    pub(super) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(self.pieces());
        filled.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    /// The first `count` bytes are sent.
    pub(super) fn sent(&mut self, mut count: usize) {
        self.unsent -= count;
        while let Some(first) = self.values.front() {
            let own = count.min(first.after - self.own_sent);
            self.own_sent += own;
            count -= own;
            let of_value = count.min(first.value.len() - self.value_sent);
            self.value_sent += of_value;
            count -= of_value;
            if self.value_sent < first.value.len() {
                return self.give_back();
            }
            self.value_sent = 0;
            self.values.pop_front();
        }
        self.own_sent += count;
        self.give_back();
    }

    fn give_back(&mut self) {
        if self.unsent == 0 {
            self.own_sent = 0;
            self.own.clear();
            self.own.shrink_to(KEPT_CAPACITY);
            self.values.shrink_to(KEPT_CAPACITY / size_of::<Shared>());
        } else if self.own_sent > MAX_SENT_BYTES && self.own_sent * 2 > self.own.len() {
            // A client that reads slowly but always asks for more never lets the buffer run empty.
            self.own.drain(..self.own_sent);
            let gone = std::mem::take(&mut self.own_sent);
            self.values.iter_mut().for_each(|shared| shared.after -= gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_come_in_order_however_they_are_sent(
            puts in proptest::collection::vec((any::<bool>(), 0_usize..600), 0..40),
            sends in proptest::collection::vec(1_usize..900, 1..40),
        ) {
            let (mut replies, mut expected, mut heard) = (Replies::default(), Vec::new(), Vec::new());
            let mut sends = sends.into_iter().cycle();
            for (i, (is_value, length)) in puts.into_iter().enumerate() {
                let bytes = vec![i as u8; length];
                expected.extend_from_slice(&bytes);
                match is_value {
                    true => replies.put_value(&Arc::new(bytes)),
                    false => replies.put(&bytes),
                }
                if i.is_multiple_of(3) {
                    send(&mut replies, sends.next().unwrap(), &mut heard);
                }
            }
            while replies.len() > 0 {
                send(&mut replies, sends.next().unwrap(), &mut heard);
            }
            prop_assert_eq!(heard, expected);
            prop_assert_eq!((replies.held_bytes(), replies.pieces().count()), (0, 0));
        }
    }

    /// Sends as much as a socket that takes `room` bytes.
    fn send(replies: &mut Replies, room: usize, heard: &mut Vec<u8>) {
        let mut slices = [IoSlice::new(&[]); 3];
        let filled = replies.fill(&mut slices);
        let bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).take(room).collect();
        assert!(replies.len() >= bytes.len() && (replies.len() == 0) == bytes.is_empty());
        replies.sent(bytes.len());
        heard.extend(bytes);
    }
}
