//! Keys that follow from a job's token, each for one purpose, and what is sealed with them.
//!
//! The token itself only proves a node to the hub. Whatever else needs a secret has a key of its own by HKDF-SHA256
//! (RFC 5869), bound to the job and to the generation: one that gets out opens nothing else, and nothing later.
//!
//! - TYPES-6 (one-purpose): keys of different jobs, generations, purposes or groups have nothing in common.
//! - TYPES-7 (sealed-in-place): what was sealed for one place opens nowhere else, and not if a bit of it has changed.
//! - TYPES-8 (not-shown): `Debug` shows no key.

use std::fmt;

use hkdf::Hkdf;
use hkdf::hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::generation::Generation;

/// What a sealed note is longer than its text.
pub const SEAL_BYTES: usize = 32;
/// Bytes of a block of SHA-256; HMAC fills a shorter key up with zeros (RFC 2104).
const BLOCK_BYTES: usize = 64;

/// A secret that follows from a job's token.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// With which nodes of a generation prove themselves to the job's store, and the store to them.
    pub fn of_store(token: &[u8; 32], job: &str, generation: Generation) -> Key {
        derive(token, &["store", job, &generation.to_string()])
    }

    /// With which nodes and ranks of a generation find one another's servers of blocks, and prove themselves there.
    pub fn of_blocks(token: &[u8; 32], job: &str, generation: Generation) -> Key {
        derive(token, &["blocks", job, &generation.to_string()])
    }

    /// From which the process groups of a generation's ranks have their keys.
    pub fn of_groups(token: &[u8; 32], job: &str, generation: Generation) -> Key {
        derive(token, &["groups", job, &generation.to_string()])
    }

    /// One that is just these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The key itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key of the process group that its ranks know by `name`.
    pub fn of_group(&self, name: &str) -> Key {
        derive(&self.0, &["group", name])
    }

    /// HMAC-SHA256 with this key.
    pub fn mac(&self) -> Hmac<Sha256> {
        let mut key = [0; BLOCK_BYTES];
        key[..self.0.len()].copy_from_slice(&self.0);
        Hmac::new(&key.into())
    }

    /// `text` with a proof that who left it at `place` knew this key. It can be read without.
    ///
    /// ```
    /// # use phalanx_types::{Generation, Key};
    /// let key = Key::of_groups(&[7; 32], "job", Generation::new(0));
    /// let sealed = key.seal("a place", b"text");
    /// assert_eq!(key.open("a place", &sealed), Some(&b"text"[..]));
    /// assert_eq!(key.open("another", &sealed), None);
    /// ```
    pub fn seal(&self, place: &str, text: &[u8]) -> Vec<u8> {
        let mut sealed = self.seal_of(place, text).finalize().into_bytes().to_vec();
        sealed.extend_from_slice(text);
        sealed
    }

    /// The text that was sealed for `place`; `None` if this key didn't seal it for there. Takes the same time whatever
    /// is wrong.
    pub fn open<'a>(&self, place: &str, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (seal, text) = sealed.split_first_chunk::<SEAL_BYTES>()?;
        self.seal_of(place, text).verify_slice(seal).is_ok().then_some(text)
    }

    fn seal_of(&self, place: &str, text: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.mac();
        mac.update(&joined(&["seal", place]));
        mac.update(text);
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

fn derive(secret: &[u8; 32], purpose: &[&str]) -> Key {
    let mut key = [0; 32];
    let expanded = Hkdf::<Sha256>::new(Some(b"phalanx-1"), secret).expand(&joined(purpose), &mut key);
    expanded.expect("HKDF-SHA256 gives up to 8,160 bytes");
    Key(key)
}

/// Several texts as one, which no others give.
fn joined(parts: &[&str]) -> Vec<u8> {
    parts.iter().flat_map(|part| [&(part.len() as u64).to_le_bytes(), part.as_bytes()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_of_other_jobs_generations_purposes_and_groups_are_others() {
        let (token, other) = ([1; 32], [2; 32]);
        let groups = Key::of_groups(&token, "job", Generation::new(1));
        let keys = [
            Key::of_store(&token, "job", Generation::new(1)),
            Key::of_store(&token, "job", Generation::new(2)),
            Key::of_blocks(&token, "job", Generation::new(1)),
            Key::of_store(&token, "job1", Generation::new(1)),
            Key::of_store(&token, "jo", Generation::new(1)),
            Key::of_store(&other, "job", Generation::new(1)),
            groups.of_group("0"),
            groups.of_group("1"),
            Key::of_groups(&token, "job", Generation::new(2)).of_group("0"),
            groups,
        ];
        let distinct: BTreeSet<[u8; 32]> = keys.iter().map(|key| *key.bytes()).collect();
        assert_eq!(distinct.len(), keys.len(), "TYPES-6");
        assert!(!distinct.contains(&token), "TYPES-6");
    }

    #[test]
    fn a_key_is_what_the_rfc_says() {
        // By Python: hmac.digest(hmac.digest(b"phalanx-1", b"\7" * 32), info + b"\1"), info being the joined texts.
        let key = Key::of_store(&[7; 32], "job", Generation::new(0));
        assert_eq!(key.bytes()[..8], RFC_5869);
        assert_eq!(format!("{key:?}"), "Key", "TYPES-8");
    }

    const RFC_5869: [u8; 8] = [97, 205, 75, 164, 175, 159, 123, 248];

    proptest! {
        #[test]
        fn only_what_was_sealed_opens_and_only_at_its_place(
            text: Vec<u8>, place: String, other: String, flip: prop::sample::Index, bit in 0u8..8,
        ) {
            let key = Key::from_bytes([5; 32]);
            let mut sealed = key.seal(&place, &text);
            prop_assert_eq!(key.open(&place, &sealed), Some(&text[..]));
            prop_assert_eq!(key.open(&other, &sealed).is_some(), place == other, "TYPES-7");
            prop_assert_eq!(Key::from_bytes([6; 32]).open(&place, &sealed), None);
            let at = flip.index(sealed.len());
            sealed[at] ^= 1 << bit;
            prop_assert_eq!(key.open(&place, &sealed), None, "TYPES-7");
            prop_assert_eq!(key.open(&place, &sealed[..at.min(SEAL_BYTES - 1)]), None);
        }
    }
}
