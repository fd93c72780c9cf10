//! The whole store without I/O: bytes of many clients in, bytes for them out.
//!
//! The caller moves bytes between [`Machine`] and its sockets, and closes what the machine asks it to close. A client
//! whose replies pile up is stalled: its requests wait, unparsed, until its replies have been sent. So a client that
//! never reads costs one reply beyond [`HIGH_WATER_BYTES`] and what it sent in one read; of the long values in it, the
//! store's own memory is all that there is (STORE-11).

use std::io::IoSlice;
use std::sync::Arc;

use super::protocol::{self, Parser, Request, Violation};
use super::replies::Replies;
use super::state::{Keys, Refusal};
use super::waits::ClientId;

/// Requests of a client wait while more bytes than this wait to be sent to it.
pub const HIGH_WATER_BYTES: usize = 1024 * 1024;
/// A client is closed rather than given more unsent bytes than this. Gloo reads all addresses of a group with one
/// `MULTI_GET`: 128 bytes for each two ranks, which is 128 MB with 1,000 ranks and 2 GB with 4,000.
pub const MAX_UNSENT_BYTES: usize = 4 * 1024 * 1024 * 1024;
/// A client is closed rather than have more memory than this for what is not shared with others.
const MAX_HELD_BYTES: usize = 256 * 1024 * 1024;
/// A buffer that grew beyond this is given back once it is empty.
const KEPT_CAPACITY: usize = 64 * 1024;

/// Many clients' connections and the store behind them.
#[derive(Debug, Default)]
pub struct Machine {
    keys: Keys,
    clients: Vec<Option<Client>>,
    /// Clients with unsent bytes that the caller hasn't been told of.
    dirty: Vec<ClientId>,
}

#[derive(Debug, Default)]
struct Client {
    parser: Parser,
    /// Bytes that arrived and are not yet parsed.
    input: Vec<u8>,
    /// Bytes to send.
    replies: Replies,
    dirty: bool,
}

impl Machine {
    /// A new client, of a number that no other has. There is room for all numbers below it.
    pub fn connect(&mut self, id: ClientId) {
        let number = id as usize;
        if number >= self.clients.len() {
            self.clients.resize_with(number + 1, || None);
        }
        self.clients[number] = Some(Client::default());
    }

    /// Forgets a client and what it waits for. What it stored stays.
    pub fn disconnect(&mut self, id: ClientId) {
        if self.clients.get_mut(id as usize).and_then(Option::take).is_some() {
            self.keys.cancel(id);
        }
    }

    /// Takes bytes that a client sent. After an error the client has to be closed; earlier replies may be sent.
    pub fn receive(&mut self, id: ClientId, bytes: &[u8]) -> Result<(), Violation> {
        let Some(client) = self.client(id) else { return Ok(()) };
        if client.input.is_empty() && !client.is_stalled() {
            let used = self.parse(id, bytes)?;
            if let Some(client) = self.client(id) {
                client.input.extend_from_slice(&bytes[used..]);
            }
            return Ok(());
        }
        client.input.extend_from_slice(bytes);
        self.resume(id)
    }

    /// Goes on with requests that waited until the client has fewer unsent bytes.
    pub fn resume(&mut self, id: ClientId) -> Result<(), Violation> {
        let Some(client) = self.client(id) else { return Ok(()) };
        let mut input = std::mem::take(&mut client.input);
        let used = self.parse(id, &input)?;
        if used == input.len() && input.capacity() > KEPT_CAPACITY {
            input = Vec::new();
        } else {
            input.drain(..used);
        }
        if let Some(client) = self.client(id) {
            client.input = input;
        }
        Ok(())
    }

    /// Whether the client gets no further before its bytes are sent: the caller need not read from it.
    pub fn is_stalled(&self, id: ClientId) -> bool {
        self.clients.get(id as usize).and_then(Option::as_ref).is_some_and(Client::is_stalled)
    }

    /// A client with new bytes to send; each once, until there are new ones.
    pub fn next_dirty(&mut self) -> Option<ClientId> {
        while let Some(id) = self.dirty.pop() {
            if let Some(client) = self.client(id)
                && std::mem::take(&mut client.dirty)
            {
                return Some(id);
            }
        }
        None
    }

    /// Whether there are bytes to send to a client.
    pub fn has_unsent(&self, id: ClientId) -> bool {
        self.replies(id).is_some_and(|replies| replies.len() > 0)
    }

    /// The bytes to send to a client, in pieces that are not empty.
    pub fn unsent(&self, id: ClientId) -> impl Iterator<Item = &[u8]> {
        self.replies(id).into_iter().flat_map(Replies::pieces)
    }

    /// Fills `slices` with the first of [`Machine::unsent`]; how many these are.
    pub fn fill<'a>(&'a self, id: ClientId, slices: &mut [IoSlice<'a>]) -> usize {
        self.replies(id).map_or(0, |replies| replies.fill(slices))
    }

    /// Tells that the first `count` bytes of [`Machine::unsent`] are sent.
    pub fn sent(&mut self, id: ClientId, count: usize) {
        if let Some(client) = self.client(id) {
            client.replies.sent(count);
        }
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How many bytes are kept for a client: not yet parsed, and not yet sent.
    pub fn buffered(&self, id: ClientId) -> (usize, usize) {
        let client = self.clients.get(id as usize).and_then(Option::as_ref);
        client.map_or((0, 0), |client| (client.input.len(), client.replies.len()))
    }

    fn replies(&self, id: ClientId) -> Option<&Replies> {
        self.clients.get(id as usize).and_then(Option::as_ref).map(|client| &client.replies)
    }

    fn client(&mut self, id: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(id as usize)?.as_mut()
    }

    /// Carries out the requests at the beginning of `bytes`; how many bytes they took.
    fn parse(&mut self, id: ClientId, bytes: &[u8]) -> Result<usize, Violation> {
        let mut used = 0;
        while let Some(client) = self.client(id) {
            if client.is_stalled() {
                break;
            }
            let Some((request, length)) = client.parser.next(&bytes[used..])? else { break };
            used += length;
            if let Some(request) = request {
                self.carry_out(id, request)?;
            }
        }
        Ok(used)
    }

    fn carry_out(&mut self, id: ClientId, request: Request<'_>) -> Result<(), Violation> {
        match request {
            Request::Set { key, value } => self.keys.set(key, value),
            Request::Append { key, value } => self.keys.append(key, value),
            Request::QueuePush { key, value } => self.keys.push(key, value),
            Request::Add { key, delta } => {
                let sum = self.keys.add(key, delta)?;
                self.wake();
                self.reply(id, &sum.to_le_bytes());
            }
            Request::CompareSet { key, expected, desired } => {
                let mut reply = Vec::new();
                protocol::put_bytes(&mut reply, self.keys.compare_set(key, expected, desired));
                self.wake();
                self.reply(id, &reply);
            }
            Request::Barrier { key, world_size } => {
                let open = self.keys.barrier(id, key, world_size)?;
                self.wake();
                if open {
                    self.reply(id, &[protocol::STOP_WAITING]);
                }
            }
            Request::Wait(mut keys) => {
                if self.keys.wait(id, &mut keys)? {
                    self.reply(id, &[protocol::STOP_WAITING]);
                }
            }
            Request::Check(mut keys) => {
                let ready = keys.all(|key| self.keys.exists(key));
                self.reply(id, &[if ready { protocol::READY } else { protocol::NOT_READY }]);
            }
            Request::CancelWait => {
                self.keys.cancel(id);
                self.reply(id, &[protocol::WAIT_CANCELED]);
            }
            Request::Get(key) => self.reply_with(id, |keys, out| put_value(keys, key, out))?,
            Request::MultiGet(mut list) => {
                self.reply_with(id, |keys, out| list.try_for_each(|key| put_value(keys, key, out)))?;
            }
            Request::ListKeys => self.reply_with(id, |keys, out| {
                out.put(&(keys.count() as u64).to_le_bytes());
                keys.names().try_for_each(|key| put_limited(&Arc::new(key.to_vec()), out))
            })?,
            Request::NumKeys => self.reply_count(id, self.keys.count()),
            Request::QueueLen(key) => self.reply_count(id, self.keys.queue_len(key)),
            Request::DeleteKey(key) => {
                let deleted = self.keys.delete(key);
                self.reply_count(id, usize::from(deleted));
            }
            Request::QueuePop(key) => {
                let (length, value) = self.keys.pop(key);
                self.reply_count(id, length);
                if let Some(value) = value {
                    self.reply_with(id, |_, out| put_limited(&Arc::new(value), out))?;
                }
            }
            Request::Ping { nonce } => self.reply(id, &nonce.to_le_bytes()),
        }
        self.wake();
        Ok(())
    }

    /// Answers the waits that ended. Before the request that ended them is answered: it may be the same client's.
    fn wake(&mut self) {
        for id in self.keys.woken() {
            if let Some(client) = self.clients.get_mut(id as usize).and_then(Option::as_mut) {
                client.replies.put(&[protocol::STOP_WAITING]);
                client.mark_dirty(id, &mut self.dirty);
            }
        }
    }

    fn reply(&mut self, id: ClientId, bytes: &[u8]) {
        if let Some(client) = self.clients.get_mut(id as usize).and_then(Option::as_mut) {
            client.replies.put(bytes);
            client.mark_dirty(id, &mut self.dirty);
        }
    }

    fn reply_count(&mut self, id: ClientId, count: usize) {
        self.reply(id, &(count as u64).to_le_bytes());
    }

    fn reply_with(
        &mut self,
        id: ClientId,
        write: impl FnOnce(&Keys, &mut Replies) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let Some(client) = self.clients.get_mut(id as usize).and_then(Option::as_mut) else { return Ok(()) };
        client.mark_dirty(id, &mut self.dirty);
        write(&self.keys, &mut client.replies)
    }
}

impl Client {
    fn is_stalled(&self) -> bool {
        self.replies.len() > HIGH_WATER_BYTES
    }

    fn mark_dirty(&mut self, id: ClientId, dirty: &mut Vec<ClientId>) {
        if !std::mem::replace(&mut self.dirty, true) {
            dirty.push(id);
        }
    }
}

impl From<Refusal> for Violation {
    fn from(refusal: Refusal) -> Self {
        Violation(match refusal {
            Refusal::NotANumber => "ADD or BARRIER on a key whose value is not a number",
            Refusal::TooManyWaits => "waits for too many keys at once",
        })
    }
}

fn put_value(keys: &Keys, key: &[u8], out: &mut Replies) -> Result<(), Violation> {
    match keys.shared(key) {
        Some(value) => put_limited(value, out),
        None => put_limited(&Arc::default(), out),
    }
}

fn put_limited(value: &Arc<Vec<u8>>, out: &mut Replies) -> Result<(), Violation> {
    if out.len() + value.len() > MAX_UNSENT_BYTES || out.held_bytes() > MAX_HELD_BYTES {
        return Err(Violation("a reply is too long"));
    }
    out.put(&(value.len() as u64).to_le_bytes());
    out.put_value(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::protocol::{
        MAX_VALUE_BYTES, NOT_READY, Query, READY, put_bytes, put_greeting, put_list, put_query,
    };
    use super::*;

    /// A machine with `count` clients that have been greeted.
    fn machine(count: usize) -> (Machine, Vec<ClientId>) {
        let mut machine = Machine::default();
        let clients: Vec<ClientId> = (0..count as ClientId).collect();
        for &id in &clients {
            machine.connect(id);
            let mut bytes = Vec::new();
            put_greeting(&mut bytes, 77);
            machine.receive(id, &bytes).unwrap();
            assert_eq!(take(&mut machine, id), 77_u32.to_le_bytes());
        }
        (machine, clients)
    }

    fn take(machine: &mut Machine, id: ClientId) -> Vec<u8> {
        let bytes = unsent(machine, id);
        machine.sent(id, bytes.len());
        bytes
    }

    fn unsent(machine: &Machine, id: ClientId) -> Vec<u8> {
        machine.unsent(id).collect::<Vec<_>>().concat()
    }

    fn query(query: Query, fields: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![query as u8];
        for field in fields {
            put_bytes(&mut bytes, field);
        }
        bytes
    }

    fn with_i64(mut bytes: Vec<u8>, number: i64) -> Vec<u8> {
        bytes.extend(number.to_le_bytes());
        bytes
    }

    #[test]
    fn every_query_gets_the_reply_of_the_protocol() {
        let (mut machine, clients) = machine(1);
        let id = clients[0];
        let mut ask = |bytes: Vec<u8>| {
            machine.receive(id, &bytes).unwrap();
            take(&mut machine, id)
        };
        let sized = |bytes: &[u8]| {
            let mut out = Vec::new();
            put_bytes(&mut out, bytes);
            out
        };
        let list = |query, keys: &[&str]| {
            let mut out = Vec::new();
            put_list(&mut out, query, keys);
            out
        };
        let count = |n: i64| n.to_le_bytes().to_vec();
        assert_eq!(ask(query(Query::Get, &[b"/k"])), sized(b""));
        assert_eq!(ask(query(Query::Set, &[b"/k", b"v"])), b"");
        assert_eq!(ask(query(Query::Get, &[b"/k"])), sized(b"v"));
        assert_eq!(ask(query(Query::CompareSet, &[b"/k", b"v", b"w"])), sized(b"w"));
        assert_eq!(ask(query(Query::Append, &[b"/k", b"x"])), b"");
        assert_eq!(ask(with_i64(query(Query::Add, &[b"/n"]), -3)), count(-3));
        assert_eq!(ask(list(Query::MultiGet, &["/k", "/none", "/n"])), {
            [sized(b"wx"), sized(b""), sized(b"-3")].concat()
        });
        assert_eq!(ask(list(Query::Check, &["/k", "/n"])), [READY]);
        assert_eq!(ask(list(Query::Check, &["/k", "/none"])), [NOT_READY]);
        assert_eq!(ask(list(Query::Wait, &["/k", "/n"])), [protocol::STOP_WAITING]);
        assert_eq!(ask(list(Query::Wait, &["/none"])), b"");
        assert_eq!(ask(vec![Query::CancelWait as u8]), [protocol::WAIT_CANCELED]);
        assert_eq!(ask(vec![Query::NumKeys as u8]), count(2));
        assert_eq!(ask(query(Query::DeleteKey, &[b"/k"])), count(1));
        assert_eq!(ask(query(Query::DeleteKey, &[b"/k"])), count(0));
        assert_eq!(ask(vec![Query::ListKeys as u8]), [count(1), sized(b"/n")].concat());
        assert_eq!(ask(query(Query::QueuePush, &[b"/q", b"1"])), b"");
        assert_eq!(ask(query(Query::QueuePush, &[b"/q", b"2"])), b"");
        assert_eq!(ask(query(Query::QueueLen, &[b"/q"])), count(2));
        assert_eq!(ask(query(Query::QueuePop, &[b"/q"])), [count(2), sized(b"1")].concat());
        assert_eq!(ask(query(Query::QueuePop, &[b"/none"])), count(0));
        assert_eq!(ask(with_i64(query(Query::Barrier, &[b"/b"]), 1)), [protocol::STOP_WAITING]);
        assert_eq!(ask(vec![Query::Ping as u8, 1, 2, 3, 4]), [1, 2, 3, 4]);
    }

    #[test]
    fn a_client_that_is_closed_while_it_waits_is_not_answered() {
        let (mut machine, clients) = machine(3);
        let mut wait = Vec::new();
        put_list(&mut wait, Query::Wait, &["/a"]);
        machine.receive(clients[0], &wait).unwrap();
        machine.receive(clients[1], &wait).unwrap();
        machine.disconnect(clients[0]);
        // Numbers are used again.
        let newcomer = clients[0];
        machine.connect(newcomer);
        machine.receive(clients[2], &query(Query::Set, &[b"/a", b""])).unwrap();
        assert_eq!(unsent(&machine, newcomer), b"");
        assert_eq!(unsent(&machine, clients[1]), [protocol::STOP_WAITING]);
        machine.keys().assert_consistent();
    }

    #[test]
    fn a_client_that_wakes_itself_hears_of_the_wait_first() {
        let (mut machine, clients) = machine(1);
        let mut bytes = Vec::new();
        put_list(&mut bytes, Query::Wait, &["/n"]);
        bytes.extend(with_i64(query(Query::Add, &[b"/n"]), 5));
        machine.receive(clients[0], &bytes).unwrap();
        assert_eq!(take(&mut machine, clients[0]), [&[0][..], &5_i64.to_le_bytes()].concat());
    }

    #[test]
    fn a_client_that_never_reads_costs_one_reply_beyond_the_high_water() {
        let (mut machine, clients) = machine(2);
        let value = vec![1; MAX_VALUE_BYTES];
        machine.receive(clients[0], &query(Query::Set, &[b"/big", &value])).unwrap();
        let get = query(Query::Get, &[b"/big"]);
        machine.receive(clients[1], &get.repeat(100)).unwrap();
        assert!(machine.is_stalled(clients[1]));
        let (unparsed, unsent) = machine.buffered(clients[1]);
        assert_eq!((unparsed, unsent), (99 * get.len(), 8 + MAX_VALUE_BYTES));
        let mut answers = 0;
        while machine.is_stalled(clients[1]) {
            answers += usize::from(take(&mut machine, clients[1]).ends_with(&value));
            machine.resume(clients[1]).unwrap();
        }
        assert_eq!(answers, 100);
        assert_eq!(machine.buffered(clients[1]), (0, 0));
    }

    #[test]
    fn a_violation_keeps_the_replies_before_it() {
        let (mut machine, clients) = machine(1);
        let mut bytes = Vec::new();
        put_query(&mut bytes, Query::QueueLen, b"/q");
        bytes.push(200);
        assert!(machine.receive(clients[0], &bytes).is_err());
        assert_eq!(unsent(&machine, clients[0]), 0_i64.to_le_bytes());
        machine.disconnect(clients[0]);
        machine.disconnect(clients[0]);
        assert_eq!(machine.next_dirty(), None);
    }

    #[test]
    fn a_reply_over_the_limit_is_refused() {
        let (mut machine, clients) = machine(1);
        let value = vec![1; MAX_VALUE_BYTES];
        machine.receive(clients[0], &query(Query::Set, &[b"/big", &value])).unwrap();
        let mut bytes = Vec::new();
        put_list(&mut bytes, Query::MultiGet, &["/big"; 513]);
        assert!(machine.receive(clients[0], &bytes).is_err());
    }

    #[test]
    fn a_thousand_slow_readers_of_a_group_of_a_thousand_cost_no_copies_of_its_addresses() {
        const RANKS: usize = 1000;
        let (mut machine, clients) = machine(RANKS);
        let names: Vec<String> = (0..RANKS).map(|rank| format!("/gloo/{rank}")).collect();
        let addresses = |rank: usize, byte: u8| vec![byte ^ rank as u8; 128 * RANKS];
        for (rank, name) in names.iter().enumerate() {
            machine.receive(clients[0], &query(Query::Set, &[name.as_bytes(), &addresses(rank, 0)])).unwrap();
        }
        let mut ask = Vec::new();
        put_list(&mut ask, Query::MultiGet, &names);
        for &id in &clients {
            machine.receive(id, &ask).unwrap();
            assert_eq!(machine.buffered(id).1, RANKS * (8 + 128 * RANKS));
        }
        let held: usize = clients.iter().map(|&id| machine.replies(id).unwrap().held_bytes()).sum();
        assert!(held <= 48 * RANKS * RANKS, "STORE-11: {held} bytes, where 128 GB are to be sent");
        // What they asked for is what they get, though the keys have other values now.
        for (rank, name) in names.iter().enumerate().take(10) {
            machine.receive(clients[0], &query(Query::Set, &[name.as_bytes(), &addresses(rank, 1)])).unwrap();
        }
        let last = clients[RANKS - 1];
        let mut rest = machine.unsent(last);
        for rank in 0..RANKS {
            assert_eq!(rest.next().unwrap(), (128 * RANKS as u64).to_le_bytes());
            assert_eq!(rest.next().unwrap(), addresses(rank, 0), "STORE-11");
        }
        assert_eq!(rest.next(), None);
    }
}
