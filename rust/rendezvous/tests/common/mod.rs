//! A hub that counts what it hears.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use phalanx_rendezvous::wire;
use phalanx_rendezvous::{Arriving, Handler, HubAddress, HubServer, HubServerOptions, Opening, Outbox, Seat};
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Attempt, Deadline, Error, Result, SparkTask};

/// No test waits longer for anything.
pub const LONG: Duration = Duration::from_secs(30);
pub const TOKEN: wire::Token = [7; 32];

/// Counts what it hears, and takes output when it is told to.
#[derive(Default, Clone)]
pub struct Heard {
    pub takes_output: Arc<AtomicBool>,
    pub output: Arc<AtomicUsize>,
    /// How many facts were told.
    pub pings: Arc<AtomicUsize>,
    /// The present attempt.
    pub attempt: Arc<AtomicU32>,
    /// Where results go.
    pub disk: Disk,
    /// How many results could not be kept.
    pub lost: Arc<AtomicUsize>,
    /// Who has the seat.
    pub holder: Arc<Mutex<Option<SparkTask>>>,
    /// The version of the seats.
    pub seats: Arc<AtomicU64>,
    /// Whether spares wait in vain.
    pub is_over: Arc<AtomicBool>,
    /// What was told, and by whom.
    pub told: Arc<Mutex<Vec<NodeMessage>>>,
}

/// A disk that takes everything until it is full, but hangs for as long as somebody holds its lock.
#[derive(Debug, Default, Clone)]
pub struct Disk {
    pub hangs: Arc<Mutex<()>>,
    pub is_full: Arc<AtomicBool>,
    pub bytes: Arc<AtomicUsize>,
    /// Where it keeps what it takes, if it does.
    pub file: Option<Arc<File>>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _hangs = self.hangs.lock().unwrap();
        if self.is_full.load(Ordering::Acquire) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let taken = self.file.as_deref().map_or(Ok(bytes.len()), |mut file| file.write(bytes))?;
        self.bytes.fetch_add(taken, Ordering::AcqRel);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Arriving for Disk {
    fn keep(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Handler for Heard {
    type Command = ();

    fn admits(&self, _attempt: Attempt) -> bool {
        true
    }

    fn is_present(&self, attempt: Attempt) -> bool {
        attempt == Attempt::new(self.attempt.load(Ordering::Acquire))
    }

    fn seat(&mut self, _now: Instant, _partition: u32, task: SparkTask, _out: &mut Outbox) -> Seat {
        let mut holder = self.holder.lock().unwrap();
        match *holder {
            None => {
                *holder = Some(task);
                Seat::Yours
            }
            Some(before) if before.instance == task.instance => Seat::Yours,
            Some(_) if self.is_over.load(Ordering::Acquire) => Seat::Over("enough".into()),
            Some(_) => Seat::Spare,
        }
    }

    fn is_seated(&self, _partition: u32, _instance: u64) -> bool {
        true
    }

    fn seats(&self) -> u64 {
        self.seats.load(Ordering::Acquire)
    }

    fn message(
        &mut self,
        _now: Instant,
        partition: u32,
        _attempt: Attempt,
        message: NodeMessage,
        out: &mut Outbox,
    ) {
        self.told.lock().unwrap().push(message);
        self.pings.fetch_add(1, Ordering::AcqRel);
        out.send(partition, HubMessage::Pong);
    }

    fn disconnected(&mut self, _now: Instant, _partition: u32, _out: &mut Outbox) {}

    fn logs_opened(&mut self, _partition: u32) -> Vec<(u32, u64)> {
        Vec::new()
    }

    fn logs_closed(&mut self, _partition: u32) {}

    fn output(&mut self, _partition: u32, _attempt: Attempt, _rank: u32, _offset: u64, bytes: &[u8]) {
        self.output.fetch_add(bytes.len(), Ordering::AcqRel);
    }

    fn skip(&mut self, _: u32, _: Attempt, _: u32, _: u64, _: &str) {}

    fn takes_output(&self) -> bool {
        self.takes_output.load(Ordering::Acquire)
    }

    fn result_begins(&mut self, _rank: u32, attempt: Attempt) -> Result<Option<Opening>> {
        if !self.is_present(attempt) {
            return Ok(None);
        }
        let disk = self.disk.clone();
        Ok(Some(Box::new(move || {
            drop(disk.hangs.lock().unwrap());
            Ok(Some(Box::new(disk)))
        })))
    }

    fn result_lost(&mut self, _now: Instant, _rank: u32, _why: &Error, _out: &mut Outbox) {
        self.lost.fetch_add(1, Ordering::AcqRel);
    }

    fn command(&mut self, _now: Instant, _command: (), _out: &mut Outbox) {}

    fn tick(&mut self, _now: Instant, _out: &mut Outbox) -> Option<Instant> {
        None
    }
}

pub fn soon() -> Deadline {
    Deadline::after(LONG)
}

pub fn serve(heard: &Heard) -> (HubServer<()>, HubAddress) {
    let options = HubServerOptions {
        bind: "127.0.0.1".into(),
        advertise: "127.0.0.1".into(),
        port: 0,
        job: "job".into(),
        token: TOKEN,
    };
    let server = HubServer::open(options, heard.clone()).unwrap();
    let address = HubAddress {
        address: server.address().into(),
        job: "job".into(),
        token: TOKEN,
        key: server.key().clone(),
    };
    (server, address)
}

pub fn control() -> Role {
    Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() }
}
