//! A hub to measure, and a load to measure it with, in one process.
//!
//! ```text
//! hub_load join CLIENTS      every client connects, proves itself, tells a fact and hears the answer
//! hub_load result BYTES      one client brings a result, which the hub keeps in a file
//! ```
//! Both print `{"seconds": ..., "cpu_s": ...}`: the time, and the processor time of hub and clients together,
//! encryption included.

#[path = "../tests/common/mod.rs"]
mod common;

use std::error::Error;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Disk, Heard, serve};
use phalanx_rendezvous::wire::{Frame, MAX_DATA_BYTES};
use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Attempt, Deadline, SparkTask};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// How many threads the clients of a join share.
const THREADS: u32 = 8;
/// A hub that doesn't answer for so long is broken.
const PATIENCE: Duration = Duration::from_secs(60);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Fallible<()> {
    raise_file_limit()?;
    let disk = Disk { file: Some(Arc::new(tempfile::tempfile()?)), ..Disk::default() };
    let (_server, hub) = serve(&Heard { disk, ..Heard::default() });
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (began, cpu_began) = (Instant::now(), cpu_time());
    match arguments[..] {
        ["join", clients] => join(&hub, clients.parse()?)?,
        ["result", bytes] => bring(&hub, bytes.parse()?)?,
        _ => return Err("usage: hub_load join CLIENTS | result BYTES".into()),
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), (cpu_time() - cpu_began).as_secs_f64());
    writeln!(io::stdout(), r#"{{"seconds": {seconds:.6}, "cpu_s": {cpu:.6}}}"#)?;
    Ok(())
}

/// A thousand clients and the hub's ends of their connections need more files than the usual soft limit allows.
fn raise_file_limit() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let wanted = Some(maximum.unwrap_or(1 << 20));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum })?)
}

/// Of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn join(hub: &HubAddress, clients: u32) -> Fallible<()> {
    let joined = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|first| {
                let joined = &joined;
                scope.spawn(move || -> Fallible<()> {
                    for partition in (first..clients).step_by(THREADS as usize) {
                        let deadline = Deadline::after(PATIENCE);
                        let role = Role::Control {
                            partition,
                            attempt: Attempt::first(),
                            task: SparkTask::default(),
                        };
                        let mut node = HubConnection::open(hub, role, deadline)?;
                        node.send(&NodeMessage::Ping, deadline)?;
                        let HubMessage::Pong = node.receive(deadline)? else { return Err("no pong".into()) };
                        // All stay, as nodes do.
                        joined.lock().map_err(|_| "a thread panicked")?.push(node);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?)
    })
}

fn bring(hub: &HubAddress, bytes: u64) -> Fallible<()> {
    let role = Role::Result { rank: 0, attempt: Attempt::first(), upload: 0, bytes };
    let mut node = HubConnection::open(hub, role, Deadline::after(PATIENCE))?;
    let mut sender = node.sender();
    let chunk = vec![7; MAX_DATA_BYTES];
    let mut left = bytes;
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        sender.send_frame(&Frame::Data(&chunk[..n]), Deadline::after(PATIENCE))?;
        left -= n as u64;
    }
    match node.receive(Deadline::after(PATIENCE))? {
        HubMessage::Released => Ok(()),
        other => Err(format!("the hub answered {other:?}").into()),
    }
}
