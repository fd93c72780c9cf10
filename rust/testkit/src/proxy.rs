//! A proxy before a server: it counts what passes, and cuts connections where a test says so.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Whether to cut the connection with this number, from 1, after so many bytes of its client have passed.
type MayCut = dyn Fn(usize, u64) -> bool + Send + Sync;

/// The proxy. It ends with this value, a connection with either of its ends.
pub struct Proxy {
    /// Where it listens: `host:port`.
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    may_cut: Box<MayCut>,
    passed_bytes: AtomicU64,
    cuts: AtomicU64,
    over: AtomicBool,
}

impl Proxy {
    /// In front of `server`; `cut` says when to cut a connection in both directions.
    pub fn before(server: &str, cut: impl Fn(usize, u64) -> bool + Send + Sync + 'static) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for a proxy");
        let address = listener.local_addr().expect("the port of a proxy").to_string();
        let shared = Arc::new(Shared {
            may_cut: Box::new(cut),
            passed_bytes: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let (serving, server) = (Arc::clone(&shared), server.to_string());
        std::thread::spawn(move || serving.serve(&listener, &server));
        Proxy { address, shared }
    }

    /// How many bytes the server was sent.
    pub fn passed_bytes(&self) -> u64 {
        self.shared.passed_bytes.load(Ordering::SeqCst)
    }

    /// How many connections were cut.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn serve(self: &Arc<Shared>, listener: &TcpListener, server: &str) {
        for (number, client) in (1..).zip(listener.incoming()) {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(server)) else { continue };
            let (Ok(mut back), Ok(mut to_client)) = (server.try_clone(), client.try_clone()) else {
                continue;
            };
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut to_client);
                let _ = to_client.shutdown(Shutdown::Both);
            });
            let shared = Arc::clone(self);
            std::thread::spawn(move || shared.pass(number, client, server));
        }
    }

    fn pass(&self, number: usize, mut client: TcpStream, mut server: TcpStream) {
        let mut buffer = vec![0; 16 << 10];
        let mut passed = 0;
        loop {
            let n = client.read(&mut buffer).unwrap_or(0);
            if n == 0 || server.write_all(&buffer[..n]).is_err() {
                break;
            }
            passed += n as u64;
            self.passed_bytes.fetch_add(n as u64, Ordering::SeqCst);
            if (self.may_cut)(number, passed) {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}
