//! The hub among strangers: who has not its key or not the token, who sits in the middle, who plays old bytes again,
//! who speaks something else, or drips.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Heard, LONG, TOKEN, control, serve, soon};
use phalanx_io::{FrameBuffer, Identity, PublicKey, TlsChannel, TlsServer};
use phalanx_rendezvous::hub_server::PROOF_TIMEOUT;
use phalanx_rendezvous::wire::{self, Frame};
use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_testkit::warnings;
use phalanx_types::message::{Hello, HubMessage, NodeMessage, Role, Welcome};
use phalanx_types::{Attempt, Deadline, ErrorKind, Result};

/// One end of a connection, by hand.
struct End {
    stream: TcpStream,
    tls: TlsChannel,
    received: FrameBuffer,
}

impl End {
    fn new(stream: TcpStream, tls: TlsChannel) -> End {
        stream.set_read_timeout(Some(LONG)).unwrap();
        End { stream, tls, received: FrameBuffer::default() }
    }

    /// That of who connects to a hub with this key.
    fn to(address: &str, key: &PublicKey) -> End {
        let tls = TlsChannel::connect(key, &wire::protocol_name()).unwrap();
        End::new(TcpStream::connect(address).unwrap(), tls)
    }

    /// That of who serves with this key.
    fn from(listener: &TcpListener, identity: &Identity) -> End {
        let tls = TlsServer::new(identity, &wire::protocol_name()).unwrap().accept().unwrap();
        End::new(listener.accept().unwrap().0, tls)
    }

    fn drain(&mut self) {
        let mut out = Vec::new();
        self.tls.drain(&mut out).unwrap();
        // A peer that has gone hears nothing.
        let _ = self.stream.write_all(&out);
    }

    /// Reads once; false at the end of the stream.
    fn read(&mut self) -> Result<bool> {
        let mut bytes = [0; 4096];
        let n = self.stream.read(&mut bytes).unwrap_or(0);
        let taken = self.tls.receive(&bytes[..n], |said| self.received.push(said));
        self.drain();
        taken.map(|()| n > 0)
    }

    /// Whether the handshake ends well.
    fn shakes_hands(&mut self) -> Result<bool> {
        self.drain();
        while !self.tls.is_ready() {
            if !self.read()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next frame; `None` at the end of the stream.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(body) = self.received.next_frame(wire::MAX_FRAME_BYTES).unwrap() {
                return Some(body.to_vec());
            }
            if !self.read().ok()? {
                return None;
            }
        }
    }

    fn say(&mut self, frame: &[u8]) {
        let mut out = Vec::new();
        self.tls.send(frame, &mut out).unwrap();
        let _ = self.stream.write_all(&out);
    }
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    phalanx_io::write_frame(&mut out, |out| out.extend_from_slice(body));
    out
}

fn json<T: serde::Serialize>(message: &T) -> Vec<u8> {
    let mut out = Vec::new();
    wire::encode_json(message, &mut out);
    out
}

fn message<T: serde::de::DeserializeOwned>(body: &[u8]) -> T {
    let Frame::Json(json) = wire::parse(body).unwrap() else { panic!("no message") };
    wire::message(json).unwrap()
}

/// The address at `listener` of a hub with this key.
fn address_of(listener: &TcpListener, key: &PublicKey) -> HubAddress {
    let address = listener.local_addr().unwrap().to_string();
    HubAddress { address, job: "the-job".into(), token: TOKEN, key: key.clone() }
}

#[test]
fn who_sits_in_the_middle_with_a_key_of_his_own_is_told_nothing() {
    let (_server, hub) = serve(&Heard::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = address_of(&listener, &hub.key);
    let impostor = std::thread::spawn(move || {
        let mut end = End::from(&listener, &Identity::new().unwrap());
        (end.shakes_hands().unwrap_or(false), end.received.next_frame(4096).unwrap().is_some())
    });
    let error = HubConnection::open(&between, control(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "HUB-2: {error}");
    assert!(error.to_string().contains("its key is not the expected one"), "{error}");
    assert_eq!(impostor.join().unwrap(), (false, false), "HUB-2: not even the job's id");
}

#[test]
fn a_hub_with_the_key_and_without_the_token_is_told_the_jobs_id_and_no_more() {
    let identity = Identity::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = address_of(&listener, identity.public_key());
    let impostor = std::thread::spawn(move || {
        let mut end = End::from(&listener, &identity);
        assert!(end.shakes_hands().unwrap());
        let hello = end.next().unwrap();
        end.say(&json(&Welcome { mac: "00".repeat(32), received: vec![] }));
        (hello, end.next())
    });
    let error = HubConnection::open(&hub, control(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "HUB-2: {error}");
    let (hello, rest) = impostor.join().unwrap();
    assert_eq!(rest, None, "HUB-2: nothing follows the proof");
    assert_eq!(message::<Hello>(&hello).job, "the-job");
    let token: String = TOKEN.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!String::from_utf8_lossy(&hello).contains(&token), "HUB-2");
}

#[test]
fn a_proof_that_is_passed_on_over_another_connection_proves_nothing() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    // As if the node had been told the impostor's key for the hub's: only the proof is between them.
    let identity = Identity::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let between = HubAddress { job: "job".into(), ..address_of(&listener, identity.public_key()) };
    let impostor = std::thread::spawn(move || {
        let (mut node, mut beyond) = (End::from(&listener, &identity), End::to(&hub.address, &hub.key));
        assert!(node.shakes_hands().unwrap() && beyond.shakes_hands().unwrap());
        let hello = node.next().unwrap();
        beyond.say(&frame(&hello));
        let answer = beyond.next().unwrap();
        node.say(&frame(&answer));
        beyond.say(&json(&NodeMessage::Ping));
        (message::<Welcome>(&answer), beyond.next())
    });
    let error = HubConnection::open(&between, control(), soon()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "HUB-21: {error}");
    assert_eq!(impostor.join().unwrap(), (Welcome::refusal(), None), "HUB-21: the hub closes the connection");
    assert_eq!(heard.pings.load(Ordering::Acquire), 0, "HUB-10");
}

/// A proxy before a hub. It keeps what each client has sent, and flips a bit at `flip` of what goes to the hub (`true`)
/// or comes from it.
fn proxy(hub: &str, flip: Option<(bool, usize)>) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (hub, kept) = (hub.to_string(), Arc::<Mutex<Vec<u8>>>::default());
    let keeps = Arc::clone(&kept);
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(&hub).unwrap();
        let ends =
            [(true, client.try_clone().unwrap(), server.try_clone().unwrap()), (false, server, client)];
        for (to_hub, mut from, mut to) in ends {
            let keeps = Arc::clone(&keeps);
            std::thread::spawn(move || {
                let (mut bytes, mut passed) = ([0; 4096], 0);
                while let Ok(n) = from.read(&mut bytes)
                    && n > 0
                {
                    let at = flip.filter(|(there, _)| *there == to_hub).map(|(_, at)| at);
                    if let Some(at) = at.filter(|at| (passed..passed + n).contains(at)) {
                        bytes[at - passed] ^= 4;
                    }
                    passed += n;
                    if to_hub {
                        keeps.lock().unwrap().extend_from_slice(&bytes[..n]);
                    }
                    let _ = to.write_all(&bytes[..n]);
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    (address, kept)
}

/// Opens a connection, and asks whether the hub is there.
fn ping(hub: &HubAddress, patience: Duration) -> Result<HubMessage> {
    let deadline = Deadline::after(patience);
    let mut node = HubConnection::open(hub, control(), deadline)?;
    node.send(&NodeMessage::Ping, deadline)?;
    node.receive(deadline)
}

#[test]
fn bytes_that_are_changed_on_the_way_are_never_heard_and_end_their_connection() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let (between, kept) = proxy(&hub.address, None);
    let whole = HubAddress { address: between, ..hub.clone() };
    assert_eq!(ping(&whole, LONG).unwrap(), HubMessage::Pong, "who only passes bytes on is a network");
    let bytes = kept.lock().unwrap().len();
    assert_eq!(heard.pings.load(Ordering::Acquire), 1);
    // In the handshake, in the proof, in the message; a changed length may only be found at the deadline.
    for (to_hub, at) in
        [(true, 40), (true, 200), (true, bytes / 2), (true, bytes - 3), (false, 60), (false, 200)]
    {
        let (between, _) = proxy(&hub.address, Some((to_hub, at)));
        let changed = HubAddress { address: between, ..hub.clone() };
        ping(&changed, Duration::from_secs(2)).expect_err("HUB-10");
    }
    assert_eq!(heard.pings.load(Ordering::Acquire), 1, "HUB-10");
    assert_eq!(ping(&hub, LONG).unwrap(), HubMessage::Pong, "the others go on");
}

#[test]
fn who_listens_on_the_way_reads_nothing() {
    let heard = Heard::default();
    heard.takes_output.store(true, Ordering::Release);
    let (_server, hub) = serve(&heard);
    let (between, kept) = proxy(&hub.address, None);
    let through = HubAddress { address: between, ..hub };
    let logs = HubConnection::open(
        &through,
        Role::Logs { partition: 0, attempt: Attempt::first(), instance: 0 },
        soon(),
    )
    .unwrap();
    let line = b"what a rank prints";
    let output = Frame::Output { rank: 0, offset: 0, bytes: line };
    logs.sender().send_frame(&output, soon()).unwrap();
    let until = Instant::now() + LONG;
    while heard.output.load(Ordering::Acquire) < line.len() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let passed = kept.lock().unwrap().clone();
    assert!(passed.len() > line.len());
    for said in [&line[..], b"\"logs\"", b"\"mac\""] {
        assert!(!passed.windows(said.len()).any(|part| part == said), "{said:?} can be read");
    }
}

#[test]
fn a_connection_that_was_recorded_and_is_played_again_changes_nothing() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let (between, kept) = proxy(&hub.address, None);
    ping(&HubAddress { address: between, ..hub.clone() }, LONG).unwrap();
    let recorded = kept.lock().unwrap().clone();
    let mut again = TcpStream::connect(&hub.address).unwrap();
    again.write_all(&recorded).unwrap();
    // It ends, maybe by a reset: the hub has not read all of it.
    let _ = again.read_to_end(&mut Vec::new());
    assert_eq!(heard.pings.load(Ordering::Acquire), 1, "HUB-21");
}

#[test]
fn who_speaks_without_encryption_is_refused_in_a_sentence() {
    drop(warnings());
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let mut plain = TcpStream::connect(&hub.address).unwrap();
    let here = plain.local_addr().unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut told = Vec::new();
    let _ = plain.read_to_end(&mut told);
    assert!(told.len() < 16, "an alert of TLS at most, not {told:?}");
    let expected = format!("the hub closes its connection to {here}: it doesn't speak TLS");
    let said = warnings().clone();
    assert!(said.contains(&expected), "{said:?}");
    // The others say so to nobody.
    for _ in 0..20 {
        let mut plain = TcpStream::connect(&hub.address).unwrap();
        plain.write_all(&json(&NodeMessage::Ping)).unwrap();
        plain.write_all(&[0; 64]).unwrap();
        let _ = plain.read_to_end(&mut Vec::new());
    }
    let told = warnings().iter().filter(|line| line.contains("doesn't speak TLS")).count();
    assert_eq!(told, 1, "strangers don't fill the log");
    assert_eq!(heard.pings.load(Ordering::Acquire), 0, "HUB-10");
    assert_eq!(ping(&hub, LONG).unwrap(), HubMessage::Pong, "HUB-11");
}

#[test]
fn who_has_not_proved_itself_may_send_little() {
    let (_server, hub) = serve(&Heard::default());
    let mut stranger = End::to(&hub.address, &hub.key);
    assert!(stranger.shakes_hands().unwrap());
    stranger.say(&u32::try_from(wire::MAX_HELLO_BYTES + 1).unwrap().to_le_bytes());
    assert_eq!(stranger.next(), None, "HUB-5: the length alone closes it");
    // Nor is a frame of an allowed length put together from records of a byte each.
    let mut stranger = End::to(&hub.address, &hub.key);
    assert!(stranger.shakes_hands().unwrap());
    let began = Instant::now();
    stranger.say(&u32::try_from(wire::MAX_HELLO_BYTES).unwrap().to_le_bytes());
    for _ in 0..wire::MAX_HELLO_BYTES - 1 {
        stranger.say(b"x");
    }
    assert_eq!(stranger.next(), None, "HUB-5");
    assert!(began.elapsed() < PROOF_TIMEOUT, "HUB-5: the number of its bytes closes it");
}

#[test]
fn a_handshake_that_drips_ends_with_the_time_for_the_proof() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let mut first = Vec::new();
    TlsChannel::connect(&hub.key, &wire::protocol_name()).unwrap().drain(&mut first).unwrap();
    // Each byte is in time by itself; all of them take more than twice the time.
    let pause = 2 * PROOF_TIMEOUT / u32::try_from(first.len()).unwrap();
    let mut drips = TcpStream::connect(&hub.address).unwrap();
    drips.set_read_timeout(Some(pause)).unwrap();
    let sent = first.iter().take_while(|byte| {
        let closed = matches!(drips.read(&mut [0; 16]), Ok(0)) || drips.write_all(&[**byte]).is_err();
        !closed
    });
    assert!(sent.count() < first.len(), "HUB-10: closed while it still speaks");
    assert_eq!(ping(&hub, LONG).unwrap(), HubMessage::Pong, "HUB-11: nobody has waited for it");
}

#[test]
fn another_role_than_the_one_that_was_proved_is_refused() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let mut stranger = End::to(&hub.address, &hub.key);
    assert!(stranger.shakes_hands().unwrap());
    let logs = Role::Logs { partition: 0, attempt: Attempt::first(), instance: 0 };
    let proved = wire::hello(&TOKEN, &stranger.tls.binding().unwrap(), "job", logs);
    stranger.say(&json(&Hello { role: control(), ..proved }));
    assert_eq!(message::<Welcome>(&stranger.next().unwrap()), Welcome::refusal(), "HUB-21");
    stranger.say(&json(&NodeMessage::Ping));
    assert_eq!(stranger.next(), None, "HUB-10");
    assert_eq!(heard.pings.load(Ordering::Acquire), 0, "HUB-10");
}
