//! A connection between a node and the store of another host, from its first byte on.

use std::sync::LazyLock;

use phalanx_io::{Identity, PublicKey, TlsChannel, TlsServer};
use phalanx_types::Key;

use crate::fuzz::on_the_way::{self, End};
use crate::secure::{MAX_UNPROVED_BYTES, Secure};
use crate::store::PROTOCOL;

/// What the store shows, and another key.
static STORE: LazyLock<Option<(TlsServer, PublicKey, PublicKey)>> = LazyLock::new(|| {
    let (store, other) = (Identity::new().ok()?, Identity::new().ok()?);
    Some((TlsServer::new(&store, PROTOCOL).ok()?, store.public_key().clone(), other.public_key().clone()))
});

/// Plays a script of `on_the_way` between a node and the store (end 1), after a byte that says who they are: both of
/// the job (0), one that doesn't know the generation's key (1: the node, 2: the store), one that speaks TLS and whose
/// words are the script's (3: the node, 4: the store), a node that expects another store (5) or speaks another version
/// (6). An end's first act is its end. Panics where somebody is believed who may not be, what is heard is not what was
/// said, or HUB-20 is hurt.
pub fn meet(script: &[u8]) {
    let Some((who, script)) = script.split_first() else { return };
    let Some((server, store_key, another_key)) = &*STORE else { return };
    let who = who % 7;
    let key = |is_known: bool| Key::from_bytes([if is_known { 0xa5 } else { 0xa6 }; 32]);
    let expected = if who == 5 { another_key } else { store_key };
    let node = match who {
        3 => TlsChannel::connect(expected, PROTOCOL).map(Speaker::Bare),
        6 => TlsChannel::connect(expected, "phalanx-store/another").map(Speaker::Bare),
        _ => Secure::of_client(expected, key(who != 1), PROTOCOL).map(Speaker::Secure),
    };
    let store = match who {
        4 => server.accept().map(Speaker::Bare),
        _ => Secure::of_server(server, key(who != 2)).map(Speaker::Secure),
    };
    let (Ok(node), Ok(store)) = (node, store) else { return };
    let (mut node, mut store) = (Peer::new(node), Peer::new(store));
    // The store's machine only answers. What it would say at once counts as unproved at the node.
    store.only_answers = who != 4;
    let is_untouched = on_the_way::play(script, &mut [&mut node, &mut store]);
    for (peer, other) in [(&node, &store), (&store, &node)] {
        assert!(who == 0 || !peer.is_proved(), "HUB-19");
        // The node proves itself first, to whoever shows the store's key.
        if who != 4 {
            assert!(other.said.starts_with(&peer.heard), "an end hears what the other one says");
        }
        if who == 0 && is_untouched {
            assert!(peer.is_proved() && !peer.is_gone, "both are of the job");
            assert!(peer.heard == other.said, "all is heard");
            assert_eq!(peer.has_ended(), other.is_over);
        }
    }
}

enum Speaker {
    Secure(Secure),
    Bare(TlsChannel),
}

struct Peer {
    speaker: Speaker,
    said: Vec<u8>,
    heard: Vec<u8>,
    /// A bare one's words on the wire.
    unsent: Vec<u8>,
    /// What came from the wire, and went there.
    bytes: usize,
    told_bytes: usize,
    only_answers: bool,
    /// It has said everything.
    is_over: bool,
    is_gone: bool,
}

impl Peer {
    fn new(speaker: Speaker) -> Peer {
        Peer {
            speaker,
            said: Vec::new(),
            heard: Vec::new(),
            unsent: Vec::new(),
            bytes: 0,
            told_bytes: 0,
            only_answers: false,
            is_over: false,
            is_gone: false,
        }
    }

    fn is_proved(&self) -> bool {
        matches!(&self.speaker, Speaker::Secure(secure) if secure.is_proved())
    }

    fn has_ended(&self) -> bool {
        match &self.speaker {
            Speaker::Secure(secure) => secure.has_ended(),
            Speaker::Bare(tls) => tls.has_ended(),
        }
    }

    fn may_talk(&self) -> bool {
        let is_ready = match &self.speaker {
            Speaker::Secure(secure) => secure.is_proved(),
            Speaker::Bare(tls) => tls.is_ready(),
        };
        is_ready && !self.is_over && !self.is_gone
    }
}

impl End for Peer {
    fn hear(&mut self, came: &[u8]) {
        // The server and the entrance read no more from one that has ended.
        if self.is_gone || self.has_ended() {
            return;
        }
        self.bytes += came.len();
        let heard = match &mut self.speaker {
            Speaker::Secure(secure) => secure.receive(came, &mut self.heard),
            Speaker::Bare(tls) => tls.receive(came, |said| self.heard.extend_from_slice(said)),
        };
        self.is_gone = heard.is_err();
        if let Speaker::Secure(secure) = &self.speaker
            && !secure.is_proved()
        {
            assert!(self.heard.is_empty(), "HUB-19");
            assert!(self.is_gone || self.bytes <= MAX_UNPROVED_BYTES, "HUB-20");
            assert!(
                self.told_bytes + secure.unsent_bytes() <= MAX_UNPROVED_BYTES,
                "a stranger has it say much"
            );
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        if !self.may_talk() || (self.only_answers && self.heard.is_empty()) {
            return;
        }
        let sent = match &mut self.speaker {
            Speaker::Secure(secure) => secure.send(bytes),
            Speaker::Bare(tls) => tls.send(bytes, &mut self.unsent),
        };
        assert!(sent.is_ok());
        self.said.extend_from_slice(bytes);
    }

    fn act(&mut self) {
        if !self.may_talk() {
            return;
        }
        let ended = match &mut self.speaker {
            Speaker::Secure(secure) => secure.end(),
            Speaker::Bare(tls) => tls.end(&mut self.unsent),
        };
        assert!(ended.is_ok());
        self.is_over = true;
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn take(&mut self) -> Vec<u8> {
        let mut told = std::mem::take(&mut self.unsent);
        let taken = match &mut self.speaker {
            Speaker::Secure(secure) => secure.flush(&mut told).is_ok(),
            Speaker::Bare(tls) => tls.drain(&mut told).is_ok(),
        };
        assert!(taken);
        self.told_bytes += told.len();
        told
    }
}
