//! How long ranks take to form a group: each a process of its own, which meet at a store as torch's.
//!
//! ```text
//! forming RANKS RANKS_OF_A_HOST      the hosts are pretended: between them all goes over TCP
//! ```
//! Prints a JSON object: seconds from the word to join until the last rank has (`formed_s`), the processor time of all
//! ranks for it (`cpu_s`), how many keys all of them asked for (`keys`), how many bytes the store answered with
//! (`answered`), and the descriptors that the rank with most has open then (`descriptors`). Then how long the slowest
//! rank is in an all-reduce of 4 MiB, the first, which opens connections, and the next ones (`sums_s`); the same of a
//! reduce-scatter of a few bytes a rank (`scatters_s`), and the processor time of all ranks for each
//! (`scatters_cpu_s`). Starting the processes isn't counted.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_collective::{DType, Group, GroupOptions, ReduceOp, Store};
use phalanx_rendezvous::store::{StoreClient, StoreServer};
use phalanx_types::{Deadline, Key, Result};
use rustix::time::{ClockId, clock_gettime};

/// A group that isn't there by then is broken.
const PATIENCE: Duration = Duration::from_secs(300);
/// How many sums there are, of how many bytes.
const SUMS: usize = 4;
const SUM_BYTES: usize = 4 << 20;
/// How many reduce-scatters there are.
const SCATTERS: usize = 20;

type Fallible<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["rank", rank, ranks, of_a_host, store] => {
            join(rank.parse()?, ranks.parse()?, of_a_host.parse()?, store.parse()?)
        }
        [ranks, of_a_host] => measure(ranks, of_a_host),
        _ => Err("usage: forming RANKS RANKS_OF_A_HOST".into()),
    }
}

/// Counts what is asked of it.
struct Counted {
    store: StoreClient,
    keys: usize,
    /// Bytes of the values.
    answered: usize,
}

impl Store for Counted {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.keys += 1;
        self.store.set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.keys += 1;
        let value = self.store.get(key, deadline)?;
        self.answered += value.len();
        Ok(value)
    }
}

/// A rank: says that it is there, joins when it is told to, says what that took, sums or scatters with the others each
/// time that it is told to, and stays until its input ends.
fn join(rank: usize, ranks: usize, of_a_host: usize, store: SocketAddr) -> Fallible<()> {
    let mut store =
        Counted { store: StoreClient::connect(store, Deadline::after(PATIENCE))?, keys: 0, answered: 0 };
    let mut out = io::stdout();
    writeln!(out, "here")?;
    io::stdin().lock().read_line(&mut String::new())?;
    let before = processor_seconds();
    let options = GroupOptions {
        timeout: PATIENCE,
        key: Some(Key::from_bytes([1; 32])),
        pretended_host: Some((rank / of_a_host) as u32),
        ..GroupOptions::new(rank, ranks, "forming")
    };
    let mut group = Group::join(options, &mut store)?;
    let open = std::fs::read_dir("/proc/self/fd")?.count();
    writeln!(out, "{} {} {} {open}", processor_seconds() - before, store.keys, store.answered)?;
    let (mut numbers, mut word) = (vec![1.0f32; SUM_BYTES / 4], String::new());
    while io::stdin().lock().read_line(&mut word)? > 0 {
        let (start, before) = (Instant::now(), processor_seconds());
        if word == "sum\n" {
            group.all_reduce_of(&mut numbers, ReduceOp::Average)?;
        } else {
            group.reduce_scatter(&vec![0; 8 * ranks], &mut [0; 8], DType::F32, ReduceOp::Sum)?;
        }
        writeln!(out, "{} {}", start.elapsed().as_secs_f64(), processor_seconds() - before)?;
        word.clear();
    }
    Ok(())
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The processes of the ranks; they end with this value.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn measure(ranks: &str, of_a_host: &str) -> Fallible<()> {
    let server = StoreServer::start(TcpListener::bind("127.0.0.1:0")?, None)?;
    let store = server.address().to_string();
    let mut children = Ranks(Vec::new());
    for rank in 0..ranks.parse::<usize>()? {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["rank", &rank.to_string(), ranks, of_a_host, &store]);
        children.0.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
    }
    let said = children.0.iter_mut().map(|child| child.stdout.take().map(BufReader::new));
    let mut said = said.collect::<Option<Vec<_>>>().ok_or("no output")?;
    let mut line = String::new();
    for rank in &mut said {
        rank.read_line(&mut line)?;
    }
    let start = Instant::now();
    for child in &mut children.0 {
        child.stdin.as_mut().ok_or("no input")?.write_all(b"join\n")?;
    }
    let (mut cpu, mut keys, mut answered, mut descriptors) = (0.0, 0, 0, 0);
    for (rank, out) in said.iter_mut().enumerate() {
        line.clear();
        out.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or_else(|| format!("rank {rank} has not joined"));
        cpu += word()?.parse::<f64>()?;
        keys += word()?.parse::<usize>()?;
        answered += word()?.parse::<usize>()?;
        descriptors = descriptors.max(word()?.parse::<usize>()?);
    }
    let formed = start.elapsed().as_secs_f64();
    let mut turns = |word: &str, count: usize| -> Fallible<(Vec<f64>, Vec<f64>)> {
        let (mut slowest, mut cpu) = (vec![0f64; count], vec![0f64; count]);
        for turn in 0..count {
            for child in &mut children.0 {
                child.stdin.as_mut().ok_or("no input")?.write_all(word.as_bytes())?;
            }
            for out in &mut said {
                let mut line = String::new();
                out.read_line(&mut line)?;
                let (seconds, of_processor) = line.trim().split_once(' ').ok_or("a rank has ended")?;
                slowest[turn] = slowest[turn].max(seconds.parse()?);
                cpu[turn] += of_processor.parse::<f64>()?;
            }
        }
        Ok((slowest, cpu))
    };
    let (sums, _) = turns("sum\n", SUMS)?;
    let (scatters, scatters_cpu) = turns("scatter\n", SCATTERS)?;
    let figures = serde_json::json!({
        "formed_s": formed, "cpu_s": cpu, "keys": keys, "answered": answered, "descriptors": descriptors,
        "sums_s": sums, "scatters_s": scatters, "scatters_cpu_s": scatters_cpu,
    });
    writeln!(io::stdout(), "{figures}")?;
    Ok(())
}
