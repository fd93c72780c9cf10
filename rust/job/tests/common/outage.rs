//! A network between nodes and hub that can fail: a proxy that passes bytes on, and stops doing so when it is told.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use phalanx_testkit::eventually;

use crate::common::LONG;

/// How a network fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Connections are reset, and new ones refused.
    Reset,
    /// Nothing passes; what was sent waits, and passes when the outage is over.
    Pause,
    /// Nothing passes, nobody is told, and the connections that there were stay dead when new ones pass.
    Forget,
}

#[derive(Default)]
struct State {
    outage: Option<Outage>,
    /// How many outages have begun, each of which ended (or silenced) the connections before it.
    epoch: usize,
    /// Everything ends.
    over: bool,
    streams: Vec<TcpStream>,
}

/// The proxy; ends with this value.
pub struct Network {
    pub address: String,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Network {
    /// In front of `hub`.
    pub fn before(hub: &str) -> Network {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let (shared, hub) = (Arc::clone(&state), hub.to_string());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let outage = {
                    let state = shared.0.lock().unwrap();
                    if state.over {
                        return;
                    }
                    state.outage
                };
                if outage == Some(Outage::Reset) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(&hub) else { continue };
                let mut state = shared.0.lock().unwrap();
                let epoch = state.epoch;
                state.streams.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
                drop(state);
                for (from, to) in
                    [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let shared = Arc::clone(&shared);
                    std::thread::spawn(move || pass(from, to, epoch, &shared));
                }
            }
        });
        Network { address, state }
    }

    /// Waits until so many connections have been made through it.
    pub fn has_connected(&self, count: usize) {
        eventually("nodes connect", LONG, || self.state.0.lock().unwrap().streams.len() >= 2 * count);
    }

    /// Fails from now on.
    pub fn fails(&self, outage: Outage) {
        let mut state = self.state.0.lock().unwrap();
        state.outage = Some(outage);
        if outage != Outage::Pause {
            state.epoch += 1;
        }
        if outage == Outage::Reset {
            close(&mut state);
        }
    }

    /// Works again.
    pub fn works(&self) {
        self.state.0.lock().unwrap().outage = None;
        self.state.1.notify_all();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let mut state = self.state.0.lock().unwrap();
        state.over = true;
        close(&mut state);
        drop(state);
        self.state.1.notify_all();
        // Wakes the listener.
        let _ = TcpStream::connect(&self.address);
    }
}

fn close(state: &mut State) {
    for stream in state.streams.drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, epoch: usize, shared: &(Mutex<State>, Condvar)) {
    let mut buffer = [0; 4096];
    loop {
        let n = from.read(&mut buffer).unwrap_or(0);
        let waits =
            |state: &mut State| !state.over && (state.outage.is_some() || (state.epoch > epoch && n > 0));
        let state = shared.1.wait_while(shared.0.lock().unwrap(), waits).unwrap();
        if n == 0 || state.over {
            break;
        }
        drop(state);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
