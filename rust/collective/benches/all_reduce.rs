//! How long an all-reduce takes, by size, with ranks as processes; and a copy of the same size, for comparison.
//!
//! `cargo bench -p phalanx-collective --bench all_reduce -- [--ranks 2,4] [--bytes 4096,1048576] [--dtype float32]
//! [--seconds 1] [--hosts]` starts the ranks itself. Each prints nothing but rank 0, which prints one JSON object a
//! line: `bench impl case metric unit median min max n`. `--hosts` keeps ranks from sharing memory: all goes over TCP,
//! by `--connections N` sockets, and with `--bfloat16-wire` as half the bytes. `--encryption` measures that once more
//! with encryption, by turns, `--turns N` times each.
//!
//! Other programs start the ranks themselves, in namespaces of their own for example: with `--rank R --world N
//! --directory D` (a directory that all see) `--address A` besides the above.
//!
//! Measured as `../shared/bench/mpi_allreduce.c` does: a barrier before each call, the slowest rank counts
//! (`latency`); then as many calls back to back (`loop`), and the processor time that they take a rank (`cpu`).
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use phalanx_collective::{DType, FileStore, Group, GroupOptions, ReduceOp};
use rustix::time::{ClockId, clock_gettime};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const MOST_CALLS: usize = 2_000;
const WARM_UP: Duration = Duration::from_millis(150);

struct Arguments {
    ranks: Vec<usize>,
    bytes: Vec<usize>,
    dtype: DType,
    seconds: f64,
    hosts: bool,
    rank: Option<usize>,
    world: usize,
    directory: String,
    address: Option<IpAddr>,
    bfloat16_wire: bool,
    connections: u32,
    encryption: bool,
    turns: usize,
    /// Of a rank: whether it encrypts.
    is_encrypted: bool,
}

fn main() {
    let arguments = parse();
    if arguments.rank.is_some() {
        return run_rank(&arguments);
    }
    for ranks in &arguments.ranks {
        for _ in 0..arguments.turns {
            run_world(*ranks, &[]);
            if arguments.encryption {
                run_world(*ranks, &["--hosts", "--encrypted"]);
            }
        }
    }
    memcpy(&arguments);
}

fn parse() -> Arguments {
    let mut arguments = Arguments {
        ranks: vec![2, 4],
        bytes: SIZES.to_vec(),
        dtype: DType::F32,
        seconds: 1.0,
        hosts: false,
        rank: None,
        world: 0,
        directory: String::new(),
        address: None,
        bfloat16_wire: false,
        connections: GroupOptions::new(0, 1, "").connections,
        encryption: false,
        turns: 1,
        is_encrypted: false,
    };
    let list = |text: String| {
        text.split(',').filter(|one| !one.is_empty()).map(|one| one.parse().unwrap()).collect()
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        match word.as_str() {
            "--ranks" => arguments.ranks = list(value()),
            "--bytes" => arguments.bytes = list(value()),
            "--dtype" => arguments.dtype = DType::named(&value()).unwrap(),
            "--seconds" => arguments.seconds = value().parse().unwrap(),
            "--hosts" => arguments.hosts = true,
            "--rank" => arguments.rank = Some(value().parse().unwrap()),
            "--world" => arguments.world = value().parse().unwrap(),
            "--directory" => arguments.directory = value(),
            "--address" => arguments.address = Some(value().parse().unwrap()),
            "--connections" => arguments.connections = value().parse().unwrap(),
            "--bfloat16-wire" => arguments.bfloat16_wire = true,
            "--encryption" => arguments.encryption = true,
            "--turns" => arguments.turns = value().parse().unwrap(),
            "--encrypted" => arguments.is_encrypted = true,
            // Cargo's own.
            "--bench" => {}
            _ => panic!("what is {word}?"),
        }
    }
    arguments
}

fn run_world(ranks: usize, more: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..ranks)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(std::env::args().skip(1).filter(|word| word != "--bench"));
            command.args(more).args(["--rank", &rank.to_string(), "--world", &ranks.to_string()]);
            command.arg("--directory").arg(directory.path()).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
}

fn run_rank(arguments: &Arguments) {
    let (rank, world) = (arguments.rank.unwrap(), arguments.world);
    let options = GroupOptions {
        timeout: Duration::from_secs(120),
        pretended_host: arguments.hosts.then_some(rank as u32),
        encryption: arguments.is_encrypted,
        wire_bfloat16: arguments.bfloat16_wire,
        connections: arguments.connections,
        ..GroupOptions::new(rank, world, "bench")
    };
    let options = GroupOptions { address: arguments.address.unwrap_or(options.address), ..options };
    let mut group = Group::join(options, &mut FileStore::new(&arguments.directory)).unwrap();
    for bytes in &arguments.bytes {
        measure(&mut group, *bytes, arguments);
    }
    group.barrier().unwrap();
}

fn measure(group: &mut Group, bytes: usize, arguments: &Arguments) {
    let dtype = arguments.dtype;
    // Zeros stay what they are however often they are summed up, and take as long as other numbers.
    let mut buffer = vec![0; bytes];
    buffer.fill(black_box(0));
    let calls = calls(group, &mut buffer, arguments);
    let mut slowest = Vec::with_capacity(calls);
    for _ in 0..calls {
        group.barrier().unwrap();
        let start = Instant::now();
        group.all_reduce(&mut buffer, dtype, ReduceOp::Sum).unwrap();
        let mut took = [start.elapsed().as_secs_f64()];
        group.all_reduce_of(&mut took, ReduceOp::Max).unwrap();
        slowest.push(took[0] * 1e6);
    }
    group.barrier().unwrap();
    let (start, before) = (Instant::now(), processor_seconds());
    (0..calls).for_each(|_| group.all_reduce(&mut buffer, dtype, ReduceOp::Sum).unwrap());
    let each = |seconds: f64| [seconds / calls as f64 * 1e6];
    let (mut looped, mut used) = (each(start.elapsed().as_secs_f64()), each(processor_seconds() - before));
    group.all_reduce_of(&mut looped, ReduceOp::Max).unwrap();
    group.all_reduce_of(&mut used, ReduceOp::Average).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0));
    if group.rank() == 0 {
        let case = format!("{} ranks, {}, {bytes} bytes", group.world_size(), dtype.name());
        let name = match (arguments.is_encrypted, arguments.hosts) {
            (true, _) => "phalanx-tls",
            (false, true) => "phalanx-tcp",
            (false, false) => "phalanx",
        };
        report(name, &case, "latency", &mut slowest);
        report(name, &case, "loop", &mut looped);
        report(name, &case, "cpu", &mut used);
    }
}

/// Warms up, until the scheduler has given every rank a processor of its own where there are enough; then how many
/// calls fill the time.
fn calls(group: &mut Group, buffer: &mut [u8], arguments: &Arguments) -> usize {
    let (start, mut warm) = (Instant::now(), 0);
    let mut is_warm = [0i32];
    while is_warm == [0] {
        (0..3).for_each(|_| group.all_reduce(buffer, arguments.dtype, ReduceOp::Sum).unwrap());
        warm += 3;
        is_warm = [i32::from(start.elapsed() > WARM_UP)];
        group.broadcast_of(&mut is_warm, 0).unwrap();
    }
    let each = start.elapsed().as_secs_f64() / f64::from(warm) + 1e-6;
    let mut calls = [(arguments.seconds / each).clamp(5.0, MOST_CALLS as f64)];
    group.broadcast_of(&mut calls, 0).unwrap();
    calls[0] as usize
}

fn processor_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// One thread copies a buffer of each size; with two, each copies one.
fn memcpy(arguments: &Arguments) {
    for bytes in &arguments.bytes {
        for threads in [1, 2] {
            let once = || {
                let (from, mut to) = (vec![1u8; *bytes], vec![2u8; *bytes]);
                let calls =
                    (arguments.seconds * 2e9 / (*bytes as f64 + 1e4)).clamp(5.0, MOST_CALLS as f64) as usize;
                let one = |_| {
                    let start = Instant::now();
                    black_box(&mut to).copy_from_slice(black_box(&from));
                    start.elapsed().as_secs_f64() * 1e6
                };
                (0..calls).map(one).collect::<Vec<f64>>()
            };
            let mut times: Vec<f64> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..threads).map(|_| scope.spawn(once)).collect();
                all.into_iter().flat_map(|one| one.join().unwrap()).collect()
            });
            report("memcpy", &format!("{threads} ranks, {bytes} bytes"), "latency", &mut times);
        }
    }
}

fn report(name: &str, case: &str, metric: &str, values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
    let (median, n) = (values[values.len() / 2], values.len());
    let line = serde_json::json!({
        "bench": "all_reduce", "impl": name, "case": case, "metric": metric, "unit": "us",
        "median": median, "min": values[0], "max": values[n - 1], "n": n,
    });
    writeln!(std::io::stdout().lock(), "{line}").unwrap();
}
