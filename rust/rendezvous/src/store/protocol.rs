//! From bytes to requests: the framing of c10d's TCPStore protocol, resumable at any byte.
//!
//! A message is a query byte and its fields, little-endian; strings and values are a `u64` length and bytes, lists a
//! `u64` count and elements. There is no length in front of a message, so the parser finds its end. It never
//! allocates: requests borrow from the buffer, and no length or count from the wire is trusted with memory.

use std::net::IpAddr;

/// What the first message of a connection carries.
pub const MAGIC: u32 = 0x3C85_F7CE;
/// The longest key, as torch's server has it.
pub const MAX_KEY_BYTES: usize = 8 * 1024;
/// The longest value in one message, as torch's server has it.
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// The most keys in one message, as torch's server has it.
pub const MAX_KEYS: u64 = 128 * 1024;
/// The longest request that is buffered whole. Torch's server has no such limit; the largest request of fixed shape,
/// a `COMPARE_SET`, needs 16 MiB and 8 KiB, and a list of 131,072 keys fits with 248 bytes a key. `MULTI_SET` is
/// taken apart as it arrives, so it may be longer.
pub const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;

/// The answer to `WAIT` and `BARRIER` once what was waited for is there.
pub const STOP_WAITING: u8 = 0;
/// The answer to `CANCEL_WAIT`.
pub const WAIT_CANCELED: u8 = 1;
/// The answer to `CHECK` when every key exists.
pub const READY: u8 = 0;
/// The answer to `CHECK` when a key is missing.
pub const NOT_READY: u8 = 1;

/// The query byte in front of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)] // The protocol's own names; `Request` has the fields and replies.
pub enum Query {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    NumKeys = 7,
    DeleteKey = 8,
    Append = 9,
    MultiGet = 10,
    MultiSet = 11,
    CancelWait = 12,
    Ping = 13,
    QueuePush = 14,
    QueuePop = 15,
    QueueLen = 16,
    ListKeys = 17,
    Barrier = 18,
}

impl Query {
    /// Every query, by its number.
    pub const ALL: [Query; 19] = [
        Query::Validate,
        Query::Set,
        Query::CompareSet,
        Query::Get,
        Query::Add,
        Query::Check,
        Query::Wait,
        Query::NumKeys,
        Query::DeleteKey,
        Query::Append,
        Query::MultiGet,
        Query::MultiSet,
        Query::CancelWait,
        Query::Ping,
        Query::QueuePush,
        Query::QueuePop,
        Query::QueueLen,
        Query::ListKeys,
        Query::Barrier,
    ];
}

/// A request, borrowed from the buffer it arrived in, with the protocol's fields. The comments give the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // Of the fields.
pub enum Request<'a> {
    /// No reply. Also each pair of a `MULTI_SET`.
    Set { key: &'a [u8], value: &'a [u8] },
    /// The value that the key has now; but `expected` if the key is missing and stays so.
    CompareSet { key: &'a [u8], expected: &'a [u8], desired: &'a [u8] },
    /// The value; empty if the key is missing.
    Get(&'a [u8]),
    /// The sum, `i64`.
    Add { key: &'a [u8], delta: i64 },
    /// [`READY`] or [`NOT_READY`].
    Check(KeyList<'a>),
    /// [`STOP_WAITING`] once all exist.
    Wait(KeyList<'a>),
    /// How many keys have a value, `i64`.
    NumKeys,
    /// 1 or 0, `i64`.
    DeleteKey(&'a [u8]),
    /// No reply.
    Append { key: &'a [u8], value: &'a [u8] },
    /// The values, one after the other; empty for a missing key.
    MultiGet(KeyList<'a>),
    /// [`WAIT_CANCELED`].
    CancelWait,
    /// The nonce.
    Ping { nonce: u32 },
    /// No reply.
    QueuePush { key: &'a [u8], value: &'a [u8] },
    /// How long the queue was, `i64`; if not empty, its first value.
    QueuePop(&'a [u8]),
    /// The queue's length, `i64`.
    QueueLen(&'a [u8]),
    /// `u64` count and the keys that have a value.
    ListKeys,
    /// [`STOP_WAITING`] once `world_size` clients have come.
    Barrier { key: &'a [u8], world_size: i64 },
}

/// The keys of one message: an iterator over bytes whose framing has been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyList<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for KeyList<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (key, rest) = rest.split_at_checked(length)?;
        self.bytes = rest;
        Some(key)
    }
}

/// Why a connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// Finds the requests of one connection.
///
/// The caller passes the unconsumed bytes, always beginning at the same place, until a request is found; what has
/// been looked at is not looked at again, so that a long list which arrives in pieces costs linear time.
#[derive(Debug, Default)]
pub struct Parser {
    validated: bool,
    /// Pairs of the current `MULTI_SET` that are still to come.
    pairs_left: u64,
    /// Of the list of keys at the beginning of the buffer: how far its framing has been checked, and keys to come.
    scanned: usize,
    keys_left: u64,
}

/// Why there is no request yet.
enum Stop {
    Incomplete,
    Violation(Violation),
}

impl Parser {
    /// The first request in `bytes` and how many bytes precede the next one; `None` until more has arrived.
    ///
    /// `Some((None, n))` means that `n` bytes were consumed that ask for nothing (`VALIDATE`, the head of a
    /// `MULTI_SET`).
    pub fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Option<(Option<Request<'a>>, usize)>, Violation> {
        match self.parse(bytes) {
            Ok(found) => Ok(Some(found)),
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Violation(violation)) => Err(violation),
        }
    }

    fn parse<'a>(&mut self, bytes: &'a [u8]) -> Result<(Option<Request<'a>>, usize), Stop> {
        let mut fields = Fields { bytes, at: 0 };
        if self.pairs_left > 0 {
            let request = Request::Set { key: fields.key()?, value: fields.value()? };
            self.pairs_left -= 1;
            return Ok((Some(request), fields.at));
        }
        let query = usize::from(fields.byte()?);
        let query = *Query::ALL.get(query).ok_or(violation("there is no such query"))?;
        if self.validated == (query == Query::Validate) {
            return Err(violation("VALIDATE has to be the first message, and sent once"));
        }
        let request = match query {
            Query::Validate => {
                if fields.u32()? != MAGIC {
                    return Err(violation("not a client of this store: wrong magic"));
                }
                self.validated = true;
                return Ok((None, fields.at));
            }
            Query::MultiSet => {
                self.pairs_left = fields.count()?;
                return Ok((None, fields.at));
            }
            Query::Check | Query::Wait | Query::MultiGet => {
                let (list, end) = self.key_list(bytes)?;
                let request = match query {
                    Query::Check => Request::Check(list),
                    Query::Wait => Request::Wait(list),
                    _ => Request::MultiGet(list),
                };
                return Ok((Some(request), end));
            }
            Query::Set => Request::Set { key: fields.key()?, value: fields.value()? },
            Query::CompareSet => Request::CompareSet {
                key: fields.key()?,
                expected: fields.value()?,
                desired: fields.value()?,
            },
            Query::Get => Request::Get(fields.key()?),
            Query::Add => Request::Add { key: fields.key()?, delta: fields.i64()? },
            Query::NumKeys => Request::NumKeys,
            Query::DeleteKey => Request::DeleteKey(fields.key()?),
            Query::Append => Request::Append { key: fields.key()?, value: fields.value()? },
            Query::CancelWait => Request::CancelWait,
            Query::Ping => Request::Ping { nonce: fields.u32()? },
            Query::QueuePush => Request::QueuePush { key: fields.key()?, value: fields.value()? },
            Query::QueuePop => Request::QueuePop(fields.key()?),
            Query::QueueLen => Request::QueueLen(fields.key()?),
            Query::ListKeys => Request::ListKeys,
            Query::Barrier => Request::Barrier { key: fields.key()?, world_size: fields.i64()? },
        };
        Ok((Some(request), fields.at))
    }

    /// The list behind the query byte, and where it ends.
    fn key_list<'a>(&mut self, bytes: &'a [u8]) -> Result<(KeyList<'a>, usize), Stop> {
        const HEAD: usize = 1 + 8;
        if self.scanned == 0 {
            self.keys_left = Fields { bytes, at: 1 }.count()?;
            self.scanned = HEAD;
        }
        while self.keys_left > 0 {
            let mut fields = Fields { bytes, at: self.scanned };
            fields.key()?;
            self.scanned = fields.at;
            self.keys_left -= 1;
            if self.scanned > MAX_REQUEST_BYTES {
                return Err(violation("a list of keys is too long"));
            }
        }
        let end = std::mem::take(&mut self.scanned);
        Ok((KeyList { bytes: &bytes[HEAD..end] }, end))
    }
}

fn violation(why: &'static str) -> Stop {
    Stop::Violation(Violation(why))
}

/// Reads the fields of one message.
struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(length).ok_or(Stop::Incomplete)?;
        let field = self.bytes.get(self.at..end).ok_or(Stop::Incomplete)?;
        self.at = end;
        Ok(field)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        self.take(N)?.try_into().map_err(|_| Stop::Incomplete)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    fn i64(&mut self) -> Result<i64, Stop> {
        self.array().map(i64::from_le_bytes)
    }

    fn count(&mut self) -> Result<u64, Stop> {
        let count = self.array().map(u64::from_le_bytes)?;
        if count > MAX_KEYS { Err(violation("too many keys in one message")) } else { Ok(count) }
    }

    fn key(&mut self) -> Result<&'a [u8], Stop> {
        self.sized(MAX_KEY_BYTES, "a key is too long")
    }

    fn value(&mut self) -> Result<&'a [u8], Stop> {
        self.sized(MAX_VALUE_BYTES, "a value is too long")
    }

    fn sized(&mut self, max: usize, why: &'static str) -> Result<&'a [u8], Stop> {
        let length = self.array().map(u64::from_le_bytes)?;
        match usize::try_from(length) {
            Ok(length) if length <= max => self.take(length),
            _ => Err(violation(why)),
        }
    }
}

/// Appends bytes with their length in front.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a query with one key, the beginning of most messages.
pub fn put_query(out: &mut Vec<u8>, query: Query, key: &[u8]) {
    out.push(query as u8);
    put_bytes(out, key);
}

/// Appends a query with a list of keys.
pub fn put_list<K: AsRef<[u8]>>(out: &mut Vec<u8>, query: Query, keys: &[K]) {
    out.push(query as u8);
    out.extend_from_slice(&(keys.len() as u64).to_le_bytes());
    for key in keys {
        put_bytes(out, key.as_ref());
    }
}

/// Appends what a client sends first: the magic, and a ping that tells that the server understood it.
pub fn put_greeting(out: &mut Vec<u8>, nonce: u32) {
    out.push(Query::Validate as u8);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.push(Query::Ping as u8);
    out.extend_from_slice(&nonce.to_le_bytes());
}

/// How a refusal begins. No answer to a ping of [`super::StoreClient`] does: no process has such a number.
pub(super) const REFUSAL: [u8; 4] = *b"phal";
const REFUSES: &str = "phalanx refuses ";

/// What a peer is told that may not connect: STORE-9.
pub(super) fn refusal(peer: IpAddr) -> Vec<u8> {
    format!("{REFUSES}{}\n", peer.to_canonical()).into_bytes()
}

/// The address that a refusal tells, once it is whole.
pub(super) fn refused_as(bytes: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.strip_prefix(REFUSES)?.strip_suffix('\n')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_the_peers_address() {
        for address in ["10.0.0.9", "fd00::1"] {
            let told = refusal(address.parse().unwrap());
            assert!(told.starts_with(&REFUSAL), "STORE-9");
            assert_eq!(refused_as(&told), address.parse().ok(), "STORE-9");
            assert_eq!(refused_as(&told[..told.len() - 1]), None, "STORE-9: not yet whole");
        }
        assert_eq!(refused_as(b"phalanx refuses a joke\n"), None);
    }

    fn validated() -> Parser {
        Parser { validated: true, ..Parser::default() }
    }

    #[test]
    fn every_query_byte_is_its_place_in_the_list() {
        for (number, query) in Query::ALL.iter().enumerate() {
            assert_eq!(*query as usize, number);
        }
    }

    #[test]
    fn a_request_is_found_only_once_its_last_byte_is_there() {
        let mut bytes = Vec::new();
        put_list(&mut bytes, Query::Wait, &["/a", "", "/longer key"]);
        let mut parser = validated();
        for end in 0..bytes.len() {
            assert_eq!(parser.next(&bytes[..end]), Ok(None), "{end} bytes");
        }
        let (request, used) = parser.next(&bytes).unwrap().unwrap();
        assert_eq!(used, bytes.len());
        let Some(Request::Wait(keys)) = request else { panic!("{request:?}") };
        assert_eq!(keys.collect::<Vec<_>>(), [&b"/a"[..], b"", b"/longer key"]);
        assert_eq!(parser.next(&[]), Ok(None), "the parser begins anew");
    }

    #[test]
    fn the_pairs_of_a_multi_set_come_one_by_one() {
        let mut bytes = vec![Query::MultiSet as u8];
        bytes.extend(2_u64.to_le_bytes());
        for field in ["k1", "v1", "k2", "v2"] {
            put_bytes(&mut bytes, field.as_bytes());
        }
        let mut parser = validated();
        let mut found = Vec::new();
        let mut at = 0;
        while let Some((request, used)) = parser.next(&bytes[at..]).unwrap() {
            found.extend(request);
            at += used;
        }
        assert_eq!(at, bytes.len());
        let pair = |key: &'static str, value: &'static str| Request::Set {
            key: key.as_bytes(),
            value: value.as_bytes(),
        };
        assert_eq!(found, [pair("k1", "v1"), pair("k2", "v2")]);
    }

    #[test]
    fn lengths_over_the_limits_are_refused_before_their_bytes_arrive() {
        let too_long = |length: usize| (length as u64 + 1).to_le_bytes();
        let mut key = vec![Query::Get as u8];
        key.extend(too_long(MAX_KEY_BYTES));
        let mut value = vec![Query::Set as u8];
        put_bytes(&mut value, b"k");
        value.extend(too_long(MAX_VALUE_BYTES));
        let mut count = vec![Query::Wait as u8];
        count.extend((MAX_KEYS + 1).to_le_bytes());
        let mut absurd = vec![Query::Get as u8];
        absurd.extend([0xff; 8]);
        for bytes in [key, value, count, absurd, vec![19], vec![Query::Validate as u8]] {
            assert!(validated().next(&bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_connection_that_does_not_begin_with_the_magic_is_refused() {
        assert!(Parser::default().next(&[Query::NumKeys as u8]).is_err());
        assert!(Parser::default().next(b"\0GET ").is_err());
        assert_eq!(Parser::default().next(&[0, 0xCE]), Ok(None), "not refused before it is known");
    }
}
