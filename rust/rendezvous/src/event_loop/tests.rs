//! The loop with a service that says everything back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream as Client};

use phalanx_testkit::eventually;

use super::*;
use crate::unsent::{Unsent, read};

const PATIENCE: Duration = Duration::from_secs(30);
/// What may wait for a client before no more is read from it.
const MAX_WAITING_BYTES: usize = 64 << 10;
/// A client that says this is closed.
const CLOSE_ME: u8 = b'!';
/// Who says this has all others closed.
const CLOSE_THEM: u8 = b'?';
/// Who says this has more to do at the end of each turn.
const ENDLESS: u8 = b'*';

/// What has happened.
#[derive(Default)]
struct Seen {
    /// Those that are open.
    open: BTreeSet<usize>,
    /// Why connections were closed, by their order.
    closed: Vec<String>,
    /// The most bytes that waited for one.
    most_waiting: usize,
}

/// Says back what it hears. A client proves itself by its first byte.
struct Echo {
    sockets: Sockets<Heard>,
    seen: Arc<Mutex<Seen>>,
}

struct Heard {
    stream: TcpStream,
    is_proved: bool,
    has_ended: bool,
    is_endless: bool,
    back: Unsent,
}

impl Drop for Echo {
    /// It ends slowly, as one does whose last connections are many.
    fn drop(&mut self) {
        phalanx_io::pause(Duration::from_millis(100), phalanx_types::Deadline::never());
    }
}

impl Connection for Heard {
    fn streams(&mut self) -> Vec<&mut TcpStream> {
        vec![&mut self.stream]
    }

    fn is_proved(&self) -> bool {
        self.is_proved
    }
}

fn over(why: &str) -> Error {
    Error::new(ErrorKind::Closed, why)
}

impl Service for Echo {
    type Connection = Heard;

    fn sockets(&mut self) -> &mut Sockets<Heard> {
        &mut self.sockets
    }

    fn begin(&mut self, id: usize, _: usize, stream: TcpStream, _: SocketAddr) -> Result<Heard> {
        assert!(self.seen.lock().unwrap().open.insert(id), "a number that nobody has");
        Ok(Heard { stream, is_proved: false, has_ended: false, is_endless: false, back: Unsent::default() })
    }

    fn turn(&mut self, id: usize, _: Option<&Event>) -> Result<bool> {
        let mut seen = self.seen.lock().unwrap();
        assert!(seen.open.contains(&id), "HUB-7");
        assert!(self.sockets.again.len() <= self.sockets.connections.len(), "HUB-6: one turn each");
        let heard = self.sockets.get_mut(id).unwrap();
        let (mut buffer, mut came) = ([0; 4096], 0);
        if !heard.has_ended && heard.back.len() < MAX_WAITING_BYTES {
            match read(&mut heard.stream, &mut buffer).map_err(|e| Error::io("read", &e))? {
                None => {}
                Some(0) => heard.has_ended = true,
                Some(count) => came = count,
            }
        }
        heard.is_proved |= came > 0;
        heard.is_endless |= buffer[..came].contains(&ENDLESS);
        heard.back.tail().extend_from_slice(&buffer[..came]);
        seen.most_waiting = seen.most_waiting.max(heard.back.len());
        let wrote = heard.back.flush(&mut heard.stream).map_err(|e| Error::io("write", &e))?;
        let has_more = heard.is_endless || came > 0 || wrote;
        drop(seen);
        if heard.has_ended && heard.back.len() == 0 {
            return Err(over("it is done"));
        }
        if buffer[..came].contains(&CLOSE_ME) {
            return Err(over("it wants to be closed"));
        }
        if buffer[..came].contains(&CLOSE_THEM) {
            let others: Vec<usize> = self.seen.lock().unwrap().open.iter().copied().collect();
            for other in others.into_iter().filter(|other| *other != id) {
                self.close(other, &"another wants it");
            }
        }
        Ok(has_more)
    }

    fn closed(&mut self, id: usize, _: Heard, why: &dyn Display) {
        let mut seen = self.seen.lock().unwrap();
        assert!(seen.open.remove(&id), "HUB-7: closed once");
        seen.closed.push(why.to_string());
    }
}

fn limits() -> Limits {
    Limits {
        connections: usize::MAX,
        unproved: usize::MAX,
        crowded: "a crowd",
        proved_within: Duration::from_secs(600),
        late: "it is late".into(),
    }
}

fn serve(limits: Limits) -> (EventLoop, Arc<Mutex<Seen>>) {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sockets = Sockets::new("the test", [listener], limits).unwrap();
    let echo = Echo { sockets, seen: Arc::clone(&seen) };
    (EventLoop::start("test", echo).unwrap(), seen)
}

fn client(server: &EventLoop) -> Client {
    let client = Client::connect(server.address()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.set_write_timeout(Some(PATIENCE)).unwrap();
    client
}

/// One that was heard.
fn proved(server: &EventLoop) -> Client {
    let mut client = client(server);
    assert_is_served(&mut client);
    client
}

fn assert_is_served(client: &mut Client) {
    client.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

/// Whether the server closes it, well or by a reset.
fn is_closed(client: &mut Client) -> bool {
    match client.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(e) => e.kind() == IoKind::ConnectionReset,
    }
}

fn closed(seen: &Mutex<Seen>) -> Vec<String> {
    seen.lock().unwrap().closed.clone()
}

#[test]
fn a_peer_that_has_said_everything_hears_the_rest() {
    let (server, seen) = serve(limits());
    let mut client = client(&server);
    let all = vec![7; 8 << 20];
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        let mut there = client.try_clone().unwrap();
        let all = &all;
        scope.spawn(move || {
            there.write_all(all).unwrap();
            there.shutdown(Shutdown::Write).unwrap();
        });
        client.read_to_end(&mut back).unwrap();
    });
    assert!(back == all, "{} bytes came back", back.len());
    assert_eq!(closed(&seen), ["it is done"]);
}

#[test]
fn half_open_and_silent_peers_go_in_time_and_hold_up_nobody() {
    let (server, seen) = serve(Limits { proved_within: Duration::from_secs(1), ..limits() });
    let mut silent: Vec<Client> = (0..20).map(|_| client(&server)).collect();
    let mut other = proved(&server);
    assert!(silent.iter_mut().all(is_closed), "HUB-8");
    assert_is_served(&mut other);
    assert_eq!(closed(&seen), ["it is late"; 20], "HUB-8: who has proved itself stays");
}

#[test]
fn one_that_sends_and_never_reads_costs_little_and_holds_up_nobody() {
    let (server, seen) = serve(limits());
    let mut greedy = client(&server);
    greedy.set_nonblocking(true).unwrap();
    let mut other = proved(&server);
    let piece = vec![1; 1 << 20];
    // What it says is taken until the sockets between them are full.
    eventually("nothing more is taken of it", PATIENCE, || {
        while greedy.write(&piece).is_ok() {
            assert_is_served(&mut other);
        }
        seen.lock().unwrap().most_waiting >= MAX_WAITING_BYTES
    });
    assert_is_served(&mut other);
    assert!(seen.lock().unwrap().most_waiting < MAX_WAITING_BYTES + 4096);
}

#[test]
fn one_that_always_has_more_to_do_leaves_the_others_their_turns() {
    let (server, _seen) = serve(limits());
    let (mut endless, mut other) = (proved(&server), proved(&server));
    endless.write_all(&[ENDLESS]).unwrap();
    endless.read_exact(&mut [0]).unwrap();
    // HUB-6
    for _ in 0..100 {
        assert_is_served(&mut other);
        assert_is_served(&mut proved(&server));
        assert_is_served(&mut endless);
    }
}

#[test]
fn one_that_is_closed_in_its_own_turn_has_no_other_and_its_number_is_used_again() {
    let (server, seen) = serve(limits());
    for turn in 1..=50 {
        let mut client = client(&server);
        // More to read, and an end: events for one that is gone.
        client.write_all(&[CLOSE_ME, 1, 2]).unwrap();
        let _ = client.write_all(&[3; 100]);
        let _ = client.shutdown(Shutdown::Write);
        assert!(is_closed(&mut client), "HUB-7");
        assert_eq!(closed(&seen), vec!["it wants to be closed"; turn], "HUB-7");
    }
    let _last = proved(&server);
    assert_eq!(seen.lock().unwrap().open, BTreeSet::from([0]), "numbers are small");
}

#[test]
fn those_that_are_closed_in_anothers_turn_have_none_although_they_have_more_to_say() {
    let (server, seen) = serve(limits());
    for _ in 0..20 {
        let mut others: Vec<Client> = (0..20).map(|_| proved(&server)).collect();
        let mut one = proved(&server);
        for other in &mut others {
            other.write_all(&[1; 10_000]).unwrap();
        }
        one.write_all(&[CLOSE_THEM]).unwrap();
        assert!(others.iter_mut().all(is_closed), "HUB-7");
        one.read_exact(&mut [0]).unwrap();
        assert_is_served(&mut one);
        one.write_all(&[CLOSE_ME]).unwrap();
        assert!(is_closed(&mut one));
    }
    eventually("all are closed", PATIENCE, || seen.lock().unwrap().open.is_empty());
    assert_eq!(closed(&seen).len(), 20 * 21);
}

#[test]
fn of_a_flood_so_many_are_taken_and_the_others_are_served() {
    let (server, seen) = serve(Limits { connections: 50, ..limits() });
    let mut first: Vec<Client> = (0..50).map(|_| proved(&server)).collect();
    for _ in 0..500 {
        assert!(is_closed(&mut client(&server)), "it is one too many");
    }
    first.iter_mut().for_each(assert_is_served);
    assert_eq!(closed(&seen), [""; 0], "who was never let in isn't closed");
    first.truncate(49);
    eventually("there is room for one again", PATIENCE, || {
        let mut next = client(&server);
        next.write_all(b"x").is_ok() && next.read_exact(&mut [0]).is_ok()
    });
}

#[test]
fn a_flood_of_strangers_crowds_out_the_oldest_of_them() {
    let (server, seen) = serve(Limits { unproved: 20, ..limits() });
    let mut known = proved(&server);
    let mut strangers: Vec<Client> = (0..400).map(|_| client(&server)).collect();
    let newest = strangers.split_off(380);
    assert!(strangers.iter_mut().all(is_closed), "HUB-8");
    assert_eq!(closed(&seen), ["a crowd"; 380], "HUB-8");
    assert_is_served(&mut known);
    newest.into_iter().for_each(|mut newest| assert_is_served(&mut newest));
}

#[test]
fn one_that_stops_with_connections_open_closes_them_all() {
    let (server, seen) = serve(limits());
    let mut clients: Vec<Client> = (0..100).map(|_| proved(&server)).collect();
    clients.extend((0..100).map(|_| client(&server)));
    let address = server.address();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                server.stop();
                // The service, which has the other one, is gone.
                assert_eq!(Arc::strong_count(&seen), 1, "STORE-8, STORE-4, HUB-9");
            });
        }
    });
    assert!(clients.iter_mut().all(is_closed), "HUB-9");
    // A process that another test starts has the socket, too, until it is another program.
    eventually("HUB-9: the port is free", PATIENCE, || TcpListener::bind(address).is_ok());
    server.stop();
}
