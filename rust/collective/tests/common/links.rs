//! Links between ranks that can be slowed down, stalled, cut, read along and changed: proxies of this process through
//! which the ranks' connections go. No kernel has to be asked for anything.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_collective::{HashStore, Store};
use phalanx_types::{Deadline, Result};

/// How often what stands still looks whether it may go on.
const PAUSE: Duration = Duration::from_millis(2);
/// How much is passed on at a time, and how many of these are on their way.
const CHUNK_BYTES: usize = 16 << 10;
const CHUNKS: usize = 64;

/// How long the first words of a connection may take.
const HELLO_PATIENCE: Duration = Duration::from_secs(1);

const FLOWS: u8 = 0;
const STALLED: u8 = 1;
const CUT: u8 = 2;

/// How all links behave, but for those that are stalled or cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct Speed {
    /// Each way.
    pub delay: Duration,
    /// Of each connection; no limit where zero.
    pub bytes_per_second: usize,
}

/// The links between all ranks of a world.
#[derive(Clone)]
pub struct Links(Arc<Inner>);

struct Inner {
    speed: Speed,
    store: HashStore,
    links: Mutex<HashMap<(usize, usize), Link>>,
    is_over: AtomicBool,
    /// How many bytes cross until one is changed; none where zero.
    until_change: AtomicUsize,
    /// What crossed, where somebody reads along.
    seen: Option<Mutex<Vec<u8>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Between two ranks.
#[derive(Clone)]
struct Link {
    address: SocketAddr,
    /// Where it leads.
    target: SocketAddr,
    state: Arc<AtomicU8>,
    /// What has crossed, either way.
    bytes: Arc<AtomicUsize>,
}

/// What a rank joins with: the addresses of the others lead through the links.
pub struct Through {
    rank: usize,
    links: Links,
}

impl Links {
    pub fn new(speed: Speed) -> Links {
        Links::with(speed, None)
    }

    /// Somebody reads along.
    pub fn watched() -> Links {
        Links::with(Speed::default(), Some(Mutex::default()))
    }

    fn with(speed: Speed, seen: Option<Mutex<Vec<u8>>>) -> Links {
        Links(Arc::new(Inner {
            speed,
            store: HashStore::default(),
            links: Mutex::default(),
            is_over: AtomicBool::new(false),
            until_change: AtomicUsize::new(0),
            seen,
            threads: Mutex::default(),
        }))
    }

    pub fn through(&self, rank: usize) -> Through {
        Through { rank, links: self.clone() }
    }

    /// Nothing gets through any more, and no connection ends.
    pub fn stall(&self) {
        self.set(|_| true, STALLED);
    }

    pub fn resume(&self) {
        self.set(|_| true, FLOWS);
    }

    /// Ends all connections of a rank.
    pub fn cut(&self, rank: usize) {
        self.set(|(one, other)| one == rank || other == rank, CUT);
    }

    /// Changes a bit of what crosses, after so many bytes.
    pub fn change_after(&self, bytes: usize) {
        self.0.until_change.store(bytes, Ordering::Relaxed);
    }

    /// Whether these bytes crossed, in one piece.
    pub fn saw(&self, bytes: &[u8]) -> bool {
        let seen = self.0.seen.as_ref().unwrap().lock().unwrap_or_else(PoisonError::into_inner);
        seen.windows(bytes.len()).any(|some| some == bytes)
    }

    /// Reads along what crosses, and changes it.
    fn meddle(&self, bytes: &mut [u8]) {
        if let Some(seen) = &self.0.seen {
            seen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        }
        let left = self.0.until_change.load(Ordering::Relaxed);
        if left > 0 {
            if let Some(byte) = bytes.get_mut(left - 1) {
                *byte ^= 16;
            }
            self.0.until_change.store(left.saturating_sub(bytes.len()), Ordering::Relaxed);
        }
    }

    /// How many bytes crossed between two ranks, the lower first, whichever of them connected.
    pub fn bytes(&self) -> HashMap<(usize, usize), usize> {
        let links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut crossed = HashMap::new();
        for ((one, other), link) in &*links {
            let pair = (*one.min(other), *one.max(other));
            *crossed.entry(pair).or_default() += link.bytes.load(Ordering::Relaxed);
        }
        crossed
    }

    /// Ends the threads, once the ranks have ended.
    pub fn end(self) {
        self.0.is_over.store(true, Ordering::Relaxed);
        loop {
            let thread = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(thread) = thread else { break };
            thread.join().unwrap();
        }
    }

    fn set(&self, of: impl Fn((usize, usize)) -> bool, state: u8) {
        let links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        links
            .iter()
            .filter(|(pair, _)| of(**pair))
            .for_each(|(_, link)| link.state.store(state, Ordering::Relaxed));
    }

    /// Where `from` reaches `to`, which is at `target`.
    fn address(&self, from: usize, to: usize, target: SocketAddr) -> SocketAddr {
        let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        // Rank 0 tells the others where it finds the ranks itself.
        let target =
            links.get(&(0, to)).filter(|link| link.address == target).map_or(target, |link| link.target);
        let link = links.entry((from, to)).or_insert_with(|| {
            let listener = TcpListener::bind((target.ip(), 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let link = Link { address, target, state: Arc::default(), bytes: Arc::default() };
            let (links, served) = (self.clone(), link.clone());
            self.run(move || links.serve(&listener, (from, to), &served));
            link
        });
        link.address
    }

    fn run(&self, thread: impl FnOnce() + Send + 'static) {
        self.0.threads.lock().unwrap_or_else(PoisonError::into_inner).push(std::thread::spawn(thread));
    }

    /// The link of a connection that came over another of the same host: ranks have their leader's addresses. Who
    /// encrypts doesn't say who connects; then it is that one's.
    fn of_caller(&self, near: &TcpStream, (from, to): (usize, usize), link: &Link) -> Link {
        let Some(caller) = caller(near).filter(|caller| *caller != from) else { return link.clone() };
        let mut links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        let state = || Arc::new(AtomicU8::new(link.state.load(Ordering::Relaxed)));
        let new = || Link { state: state(), bytes: Arc::default(), ..link.clone() };
        links.entry((caller, to)).or_insert_with(new).clone()
    }

    fn serve(&self, listener: &TcpListener, pair: (usize, usize), link: &Link) {
        listener.set_nonblocking(true).unwrap();
        while !self.0.is_over.load(Ordering::Relaxed) {
            let Ok((near, _)) = listener.accept() else {
                std::thread::sleep(PAUSE);
                continue;
            };
            let Ok(far) = TcpStream::connect(link.target) else { continue };
            near.set_nonblocking(false).unwrap();
            let link = self.of_caller(&near, pair, link);
            for (from, to) in [(&near, &far), (&far, &near)] {
                from.set_nonblocking(false).unwrap();
                to.set_nodelay(true).unwrap();
                let (sender, receiver) = sync_channel(CHUNKS);
                let source = from.try_clone().unwrap();
                self.run(move || read(source, &sender));
                let ends = [to.try_clone().unwrap(), from.try_clone().unwrap()];
                let (links, link) = (self.clone(), link.clone());
                self.run(move || pass_on(&ends, &receiver, &links, &link));
            }
        }
    }
}

/// The rank that connects, by its first words.
fn caller(near: &TcpStream) -> Option<usize> {
    let mut hello = [0; 12];
    near.set_read_timeout(Some(HELLO_PATIENCE)).unwrap();
    let count = near.peek(&mut hello);
    near.set_read_timeout(None).unwrap();
    let (magic, from) = hello.split_last_chunk::<4>()?;
    (count.ok()? == hello.len() && magic == b"PHXCOLL1").then(|| u32::from_le_bytes(*from) as usize)
}

/// What one side says, and when. Ends with it, or when nobody passes it on.
fn read(mut from: TcpStream, to: &SyncSender<(Instant, Vec<u8>)>) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.send((Instant::now(), bytes[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// Passes it on when it is time, and the end too.
fn pass_on([to, from]: &[TcpStream; 2], chunks: &Receiver<(Instant, Vec<u8>)>, links: &Links, link: &Link) {
    let speed = links.0.speed;
    let mut late = VecDeque::new();
    let mut is_over = false;
    loop {
        match link.state.load(Ordering::Relaxed) {
            CUT => {
                let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                return;
            }
            STALLED => {
                std::thread::sleep(PAUSE);
                continue;
            }
            _ => {}
        }
        if late.is_empty() {
            match chunks.recv_timeout(PAUSE) {
                Ok(chunk) => late.push_back(chunk),
                Err(error) => is_over = error == std::sync::mpsc::RecvTimeoutError::Disconnected,
            }
        }
        let Some((since, mut bytes)) = late.pop_front() else {
            if is_over {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            continue;
        };
        std::thread::sleep((since + speed.delay).saturating_duration_since(Instant::now()));
        if speed.bytes_per_second > 0 {
            std::thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / speed.bytes_per_second as f64));
        }
        if link.state.load(Ordering::Relaxed) != FLOWS {
            late.push_front((since, bytes));
            continue;
        }
        links.meddle(&mut bytes);
        link.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        if (&mut &*to).write_all(&bytes).is_err() {
            // That side has ended. What it said before may still be on its way, the other way.
            return;
        }
    }
}

impl Store for Through {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.links.0.store.clone().set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let value = self.links.0.store.clone().get(key, deadline)?;
        // It is a rank of the group, so it may.
        let group = super::key().of_group("world");
        let open = || serde_json::from_slice::<serde_json::Value>(group.open(key, &value).unwrap()).unwrap();
        let through = |to: usize, card: &mut serde_json::Value| {
            if to != self.rank {
                let target = card["address"].as_str().unwrap().parse().unwrap();
                card["address"] = self.links.address(self.rank, to, target).to_string().into();
            }
        };
        let changed = if key.ends_with("/cards") {
            let mut cards = open();
            let all = cards["all"].as_array_mut().unwrap().iter_mut();
            all.enumerate().for_each(|(to, card)| through(to, card));
            cards
        } else if let Some((_, to)) = key.split_once("/card/") {
            let mut card = open();
            through(to.parse().unwrap(), &mut card);
            card
        } else {
            return Ok(value);
        };
        Ok(group.seal(key, &serde_json::to_vec(&changed).unwrap()))
    }
}
