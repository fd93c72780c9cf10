//! Hosts as network namespaces, joined by a pair of virtual interfaces: real TCP with delay, loss, and a cut. Skipped,
//! with a reason, where namespaces can't be made.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "for tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, options, program};
use phalanx_collective::{DirectoryExchange, Group, GroupOptions, ReduceOp};
use phalanx_testkit::{eventually, eventually_some, temp_dir};

/// The variable that makes [`acts_as_rank`] one: what to do, its number, how many there are, address, directory.
const RANK: &str = "PHALANX_TEST_NETWORK_RANK";
/// A silent link is given up after 5 seconds; the rest is for a machine that is busy with other tests.
const CUT_NOTICE: Duration = Duration::from_secs(12);

/// Not a test of its own: the tests below run this test program again, in a namespace.
#[test]
fn acts_as_rank() {
    let Ok(role) = std::env::var(RANK) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [what, rank, ranks, address, directory] = words[..] else { panic!("{role}") };
    let (rank, ranks, directory) = (rank.parse().unwrap(), ranks.parse().unwrap(), Path::new(directory));
    let options = GroupOptions { address: address.parse().unwrap(), ..options(rank, ranks) };
    let mut group = Group::join(options, &mut DirectoryExchange::new(directory)).unwrap();
    let hosts = format!("{:?}", group.topology().hosts);
    let outcome = if what == "program" {
        program::run(&mut group, 3, 10);
        hosts
    } else {
        group.barrier().unwrap();
        fs::write(directory.join(format!("ready.{rank}")), "").unwrap();
        loop {
            if let Err(error) = group.all_reduce_of(&mut vec![0.0f32; 100_000], ReduceOp::Sum) {
                break error.to_string();
            }
        }
    };
    fs::write(directory.join(format!("unfinished.{rank}")), outcome).unwrap();
    fs::rename(directory.join(format!("unfinished.{rank}")), directory.join(format!("outcome.{rank}")))
        .unwrap();
}

/// Two namespaces, a and b, with an interface each.
struct Network {
    names: [String; 2],
}

const ADDRESSES: [[&str; 2]; 2] = [["10.203.7.1", "10.203.7.2"], ["fd00:203:7::1", "fd00:203:7::2"]];

fn ip(arguments: &str) -> Result<(), String> {
    run("ip", arguments)
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output =
        Command::new(program).args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Network {
    /// None, and says why, where it can't be made. `tag` tells the networks of this test program apart.
    fn new(tag: char) -> Option<Network> {
        let names = ["a", "b"].map(|end| format!("phxc{}{tag}{end}", std::process::id()));
        let network = Network { names };
        match network.build(tag) {
            Ok(()) => Some(network),
            Err(error) => {
                eprintln!("skipped: no network namespaces here: {error}");
                None
            }
        }
    }

    fn build(&self, tag: char) -> Result<(), String> {
        let [a, b] = &self.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        // Names of interfaces are short: 15 characters.
        let (one, other) =
            (format!("px{}{tag}a", std::process::id()), format!("px{}{tag}b", std::process::id()));
        ip(&format!("link add {one} netns {a} type veth peer name {other} netns {b}"))?;
        for (end, (name, interface)) in [(a, one), (b, other)].into_iter().enumerate() {
            ip(&format!("-n {name} link set {interface} name eth0"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", ADDRESSES[0][end]))?;
            // Without a search for others with the same address, which takes a second.
            ip(&format!("-n {name} addr add {}/64 dev eth0 nodad", ADDRESSES[1][end]))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(())
    }

    fn start(&self, what: &str, ranks: usize, addresses: [&str; 2]) -> World {
        let directory = temp_dir("network");
        let start = |rank: usize| {
            let role =
                format!("{what} {rank} {ranks} {} {}", addresses[rank % 2], directory.path().display());
            Command::new("ip")
                .args(["netns", "exec", &self.names[rank % 2]])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "acts_as_rank", "--nocapture"])
                .env(RANK, role)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        };
        World { ranks: (0..ranks).map(start).collect(), directory }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

struct World {
    ranks: Vec<Child>,
    directory: tempfile::TempDir,
}

impl World {
    fn outcomes(&self, within: Duration) -> Vec<String> {
        let path = |rank| self.directory.path().join(format!("outcome.{rank}"));
        let outcome = |rank| {
            eventually_some(&format!("rank {rank} ends"), within, || fs::read_to_string(path(rank)).ok())
        };
        (0..self.ranks.len()).map(outcome).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

#[test]
fn namespaces_are_found_to_be_hosts_over_either_protocol() {
    let Some(network) = Network::new('p') else { return };
    for addresses in ADDRESSES {
        let outcomes = network.start("program", 2, addresses).outcomes(LONG);
        assert_eq!(outcomes, ["[[0], [1]]"; 2]);
    }
    let outcomes = network.start("program", 4, ADDRESSES[0]).outcomes(LONG);
    assert_eq!(outcomes, ["[[0, 2], [1, 3]]"; 4]);
}

#[test]
fn delay_and_loss_cost_time_but_no_correctness() {
    let Some(network) = Network::new('d') else { return };
    let shape = |how: &str| {
        network
            .names
            .iter()
            .try_for_each(|name| run("tc", &format!("-n {name} qdisc add dev eth0 root {how}")))
    };
    // Kernels without netem have a token bucket: its short queue delays, and drops what doesn't fit.
    let shaped =
        shape("netem delay 2ms loss 1%").or_else(|_| shape("tbf rate 400mbit burst 16kb limit 40kb"));
    if let Err(error) = shaped {
        eprintln!("skipped: no shaping of traffic here: {error}");
        return;
    }
    assert_eq!(network.start("program", 3, ADDRESSES[0]).outcomes(LONG * 2).len(), 3);
    let told =
        Command::new("tc").args(["-n", &network.names[0], "-s", "qdisc", "show", "dev", "eth0"]).output();
    let told = String::from_utf8(told.unwrap().stdout).unwrap();
    assert!(!told.contains("dropped 0,"), "nothing was lost: {told}");
}

#[test]
fn a_cut_fails_both_sides_once_the_link_has_been_silent() {
    let Some(network) = Network::new('c') else { return };
    let world = network.start("loop", 2, ADDRESSES[0]);
    for rank in 0..2 {
        let path = world.directory.path().join(format!("ready.{rank}"));
        eventually("the ranks have joined", LONG, || path.exists());
    }
    let cut = Instant::now();
    // Packets vanish, as with a dead switch; neither side is told.
    let vanish = |name: &String| run("tc", &format!("-n {name} qdisc add dev eth0 root netem loss 100%"));
    if network.names.iter().try_for_each(vanish).is_err() {
        network.names.iter().try_for_each(|name| ip(&format!("-n {name} link set eth0 down"))).unwrap();
    }
    let outcomes = world.outcomes(LONG);
    let took = cut.elapsed();
    for (rank, outcome) in outcomes.iter().enumerate() {
        assert!(outcome.contains(&format!("rank {} died or can't be reached", 1 - rank)), "{outcome}");
    }
    assert!(took < CUT_NOTICE, "{took:?}");
}
