//! A rank's result on its way to the driver, over a connection of its own.
//!
//! - NODE-3 (goes-on): if a connection breaks, it is opened again, and the result goes on where the hub has it.
//! - NODE-4 (patience): an upload takes as long as it moves. It fails when the hub can't be reached for [`PATIENCE`],
//!   or has got nothing more for so long although it was, or is given up.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender as ChannelSender;
use phalanx_io::pause;
use phalanx_rendezvous::Sender;
use phalanx_rendezvous::wire::{Frame, MAX_DATA_BYTES};
use phalanx_types::message::{HubMessage, Role};
use phalanx_types::{Attempt, Deadline, Error, ErrorKind, Result};

use crate::node::helpers::helper::join_or_leave;
use crate::node::line::ways::Ways;
use crate::node::machine::Event;
use crate::node::news::News;

/// How long the hub may be out of reach, or take nothing.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the hub may take to answer a new connection, which may be half open: then another is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait after a connection broke.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// The results on their way from one node, a thread each.
pub(crate) struct Uploads {
    hub: Ways,
    attempt: Attempt,
    threads: Vec<JoinHandle<()>>,
    lines: Arc<Lines>,
    news: ChannelSender<News>,
}

/// The connections over which results go now, by rank.
#[derive(Default)]
struct Lines {
    open: Mutex<BTreeMap<u32, Sender>>,
    /// End: also what is being connected.
    abandoned: AtomicBool,
}

impl Lines {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u32, Sender>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }
}

/// Says what came of an upload, however it ends.
struct End {
    rank: u32,
    came_of_it: Option<Result<()>>,
    news: ChannelSender<News>,
}

impl Drop for End {
    fn drop(&mut self) {
        let panicked =
            || Err(Error::new(ErrorKind::Io, format!("sending the result of rank {} panicked", self.rank)));
        let event = Event::Uploaded(self.came_of_it.take().unwrap_or_else(panicked));
        // Nobody waits for it any more where its node is over.
        let _ = self.news.send(News::Event(event));
    }
}

impl Uploads {
    /// To `hub`, of an attempt; `news` is told what comes of each.
    pub(crate) fn to(hub: Ways, attempt: Attempt, news: ChannelSender<News>) -> Uploads {
        Uploads { hub, attempt, threads: Vec::new(), lines: Arc::default(), news }
    }

    /// Begins to send the file at `path` as the result of `rank`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(&mut self, rank: u32, path: PathBuf) -> Result<()> {
        let failed = |e: &std::io::Error| Error::io(format!("send the result of rank {rank}"), e);
        let upload = Upload {
            hub: self.hub.clone(),
            attempt: self.attempt,
            rank,
            number: getrandom::u64()
                .map_err(|e| Error::new(ErrorKind::Io, format!("get a random number: {e}")))?,
            path,
            patience: PATIENCE,
            lines: Arc::clone(&self.lines),
        };
        let mut end = End { rank, came_of_it: None, news: self.news.clone() };
        let thread = std::thread::Builder::new()
            .name(format!("phalanx-result-{rank}"))
            .spawn(move || {
                let came_of_it = upload.run();
                end.came_of_it = Some(came_of_it);
                drop(end);
            })
            .map_err(|e| failed(&e))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Has each connection opened anew: it may be dead without a word.
    pub(crate) fn renew(&self) {
        self.lines.open().values().for_each(Sender::close);
    }

    /// The hub is gone: ends what is on its way.
    pub(crate) fn abandon(&self) {
        self.lines.abandoned.store(true, Ordering::Release);
        self.renew();
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        self.abandon();
        self.threads.drain(..).for_each(|thread| join_or_leave(thread, "phalanx-result"));
    }
}

/// One result on its way.
struct Upload {
    hub: Ways,
    attempt: Attempt,
    rank: u32,
    /// By which the hub knows it.
    number: u64,
    path: PathBuf,
    patience: Duration,
    lines: Arc<Lines>,
}

/// A result, from the same file over all connections.
struct Source {
    file: File,
    bytes: u64,
}

impl Upload {
    /// Returns once the hub has the result whole.
    ///
    /// # Errors
    /// If the hub can't be reached, or takes nothing, for as long as there is patience.
    fn run(&self) -> Result<()> {
        let told = format!("the result of rank {} did not reach the driver", self.rank);
        self.send_whole().map_err(|e| e.context(told))
    }

    fn send_whole(&self) -> Result<()> {
        let mut patience = Patience::of(self.patience);
        let source = self.open()?;
        loop {
            let sent = self.send(&source, &mut patience);
            self.lines.open().remove(&self.rank);
            let Err(e) = sent else { return Ok(()) };
            let may_pass =
                matches!(e.kind(), ErrorKind::Closed | ErrorKind::Unreachable | ErrorKind::Timeout);
            if !may_pass || self.lines.is_abandoned() || !patience.broke(Instant::now()) {
                return Err(e);
            }
            log::debug!("the result of rank {} goes on over another connection: {e}", self.rank);
            pause(RECONNECT_PAUSE, Deadline::never());
        }
    }

    fn reading(&self, e: &std::io::Error) -> Error {
        Error::io(format!("read {}", self.path.display()), e)
    }

    fn open(&self) -> Result<Source> {
        let file = File::open(&self.path).map_err(|e| self.reading(&e))?;
        let bytes = file.metadata().map_err(|e| self.reading(&e))?.len();
        Ok(Source { file, bytes })
    }

    /// Sends what the hub doesn't have yet.
    fn send(&self, source: &Source, patience: &mut Patience) -> Result<()> {
        let Upload { rank, attempt, number: upload, .. } = *self;
        let role = Role::Result { rank, attempt, upload, bytes: source.bytes };
        let mut connection = self.hub.open(&self.lines.abandoned, role, Deadline::after(CONNECT_TIMEOUT))?;
        let mut sender = connection.sender();
        self.lines.open().insert(rank, connection.sender());
        if self.lines.is_abandoned() {
            return Err(Error::new(ErrorKind::Closed, "the driver is gone"));
        }
        let received = &connection.welcome().received;
        let mut at = received.iter().find(|(of, _)| *of == rank).map_or(0, |(_, bytes)| *bytes);
        if !patience.reached(Instant::now(), at) {
            return Err(Error::new(
                ErrorKind::Timeout,
                "connections to it break before more bytes get through",
            ));
        }
        let mut chunk = vec![0; MAX_DATA_BYTES];
        while at < source.bytes {
            let n = source.file.read_at(&mut chunk, at).map_err(|e| self.reading(&e))?;
            if n == 0 {
                return Err(Error::new(ErrorKind::Io, format!("{} became shorter", self.path.display())));
            }
            let left = usize::try_from(source.bytes - at).unwrap_or(usize::MAX);
            let piece = &chunk[..n.min(left)];
            sender.send_frame(&Frame::Data(piece), Deadline::after(self.patience))?;
            at += piece.len() as u64;
        }
        match connection.receive(Deadline::after(self.patience))? {
            HubMessage::Released => Ok(()),
            other => Err(Error::new(ErrorKind::Protocol, format!("the hub answered {other:?}"))),
        }
    }
}

/// Whether a connection that breaks is followed by another: a pure decision. What moves may break as often as it likes.
#[derive(Debug)]
struct Patience {
    time: Duration,
    /// The most that the hub had when it was reached.
    received: u64,
    /// By when it must be reached; while it isn't.
    reach_by: Option<Instant>,
    /// By when it must have more, which it says when it is reached; since a connection broke.
    move_by: Option<Instant>,
    is_over: bool,
}

impl Patience {
    fn of(time: Duration) -> Patience {
        Patience { time, received: 0, reach_by: None, move_by: None, is_over: false }
    }

    /// The hub was reached, and has so much; whether to go on.
    fn reached(&mut self, now: Instant, received: u64) -> bool {
        self.reach_by = None;
        if received > self.received {
            self.received = received;
            self.move_by = None;
        }
        self.is_over = self.move_by.is_some_and(|by| now >= by);
        !self.is_over
    }

    /// A connection broke, or did not come about; whether to try another.
    fn broke(&mut self, now: Instant) -> bool {
        // What it brought is not known before the next one.
        self.move_by.get_or_insert(now + self.time);
        let reach_by = *self.reach_by.get_or_insert(now + self.time);
        self.is_over |= now >= reach_by;
        !self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use phalanx_rendezvous::HubAddress;
    use phalanx_testkit::Proxy;
    use phalanx_types::{Job, RankProgram};
    use proptest::prelude::*;

    use super::*;
    use crate::{Hub, HubOptions};

    const TIME: Duration = Duration::from_secs(3);

    fn hub() -> Hub {
        let local = "127.0.0.1".to_string();
        let options = HubOptions { bind: local.clone(), advertise: local, work_dir: std::env::temp_dir() };
        Hub::open(Job::new("results", "t", 1, 1).unwrap(), &options).unwrap()
    }

    /// The upload of a result of `bytes` bytes to `hub`, by way of `proxy`.
    fn upload(hub: &Hub, proxy: &Proxy, patience: Duration, folder: &Path, bytes: &[u8]) -> Upload {
        let path = folder.join("result");
        std::fs::write(&path, bytes).unwrap();
        let spec =
            hub.node_spec(Attempt::first(), RankProgram::Command(Vec::new()), BTreeMap::new(), Vec::new());
        let address = proxy.address.clone();
        let hub = HubAddress { address, job: spec.job.id, token: spec.token, key: spec.hub_key };
        let (hub, lines) = (Ways::to(hub, &[]), Arc::default());
        Upload { hub, attempt: Attempt::first(), rank: 0, number: 7, path, patience, lines }
    }

    #[test]
    fn an_upload_that_moves_breaks_for_longer_than_there_is_patience_and_sends_nothing_twice() {
        let (folder, hub) = (phalanx_testkit::temp_dir("upload"), hub());
        let proxy = Proxy::before(hub.address(), |_, passed| passed >= 300_000);
        let result: Vec<u8> = (0..2_000_000_u32).flat_map(u32::to_le_bytes).collect();
        upload(&hub, &proxy, TIME, folder.path(), &result).run().unwrap();
        assert!(std::fs::read(hub.result_path(0).unwrap()).unwrap() == result, "NODE-3");
        let cuts = u32::try_from(proxy.cuts()).unwrap();
        assert!(cuts * RECONNECT_PAUSE > TIME, "NODE-4: it broke {cuts} times, which took longer");
        // Of each connection its handshake, and a frame that had not arrived whole.
        let most = result.len() as u64 + 100_000 * (proxy.cuts() + 1);
        assert!(proxy.passed_bytes() <= most, "NODE-3: {} bytes for {}", proxy.passed_bytes(), result.len());
    }

    #[test]
    fn an_upload_whose_connections_bring_nothing_is_given_up() {
        let (folder, hub) = (phalanx_testkit::temp_dir("upload"), hub());
        // Enough for both to prove themselves, and less than a frame.
        let proxy = Proxy::before(hub.address(), |_, passed| passed >= 8000);
        let stuck = upload(&hub, &proxy, TIME / 3, folder.path(), &[7; 1_000_000]);
        let error = stuck.run().unwrap_err().to_string();
        assert!(error.starts_with("the result of rank 0 did not reach the driver: "), "NODE-4: {error}");
        assert_eq!(hub.result_path(0), None);
    }

    proptest! {
        #[test]
        fn an_upload_is_given_up_after_its_patience_and_never_while_it_moves(
            pieces in prop::collection::vec((1..2999_u64, 0..1_000_000_u64), 1..20),
            tries in prop::collection::vec((0..999_u64, prop::option::of(0..999_u64)), 10..40),
        ) {
            let mut now = Instant::now();
            let mut patience = Patience::of(TIME);
            let mut received = 0;
            for (out_of_reach_ms, connected_ms) in pieces {
                prop_assert!(patience.broke(now), "NODE-4: a new break");
                now += Duration::from_millis(out_of_reach_ms);
                prop_assert!(patience.broke(now), "NODE-4: not yet");
                received += 1;
                prop_assert!(patience.reached(now, received), "NODE-4: it moves");
                now += Duration::from_millis(connected_ms);
            }
            // From here on it stands still, be the hub reached or not.
            let (first, mut last) = (now, now);
            for (pause_ms, reached_after_ms) in tries {
                if !patience.broke(now) {
                    break;
                }
                now += Duration::from_millis(pause_ms);
                last = now;
                if let Some(after_ms) = reached_after_ms {
                    now += Duration::from_millis(after_ms);
                    last = now;
                    if !patience.reached(now, received) {
                        break;
                    }
                }
            }
            if patience.is_over {
                prop_assert!(last >= first + TIME, "NODE-4: not before its time");
            } else {
                prop_assert!(last < first + 2 * TIME || !patience.broke(now), "NODE-4: not long after it");
            }
        }
    }
}
