//! Hosts as network namespaces, joined by a pair of virtual interfaces: real TCP with delay, loss, and a cut. Skipped,
//! with a reason, where namespaces can't be made.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "for tests")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::processes::{Processes, in_words, is_ready, leave_outcome};
use common::{LONG, options, program};
use phalanx_collective::{FileStore, Group, GroupOptions, ReduceOp};

/// The variable that makes [`acts_as_rank`] one: what to do, its number, how many there are, address, directory.
const RANK: &str = "PHALANX_TEST_NETWORK_RANK";
/// After which a silent peer is given up, in the tests of that.
const CUT: Duration = Duration::from_millis(500);
/// In which those that wait fail: two probes of the kernel, a second apart, and what a busy machine adds.
const CUT_NOTICE: Duration = Duration::from_millis(2300);
/// Longer than that takes.
const LATE: Duration = Duration::from_secs(3);
/// As a link's failover, or the move of a virtual machine.
const OUTAGE: Duration = Duration::from_millis(2500);

/// Not a test of its own: the tests below run this test program again, in a namespace.
#[test]
fn acts_as_rank() {
    let Ok(role) = std::env::var(RANK) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [what, rank, ranks, address, directory] = words[..] else { panic!("{role}") };
    let (rank, ranks, directory) = (rank.parse().unwrap(), ranks.parse().unwrap(), Path::new(directory));
    let (encryption, what) = what.strip_prefix("encrypted-").map_or((false, what), |what| (true, what));
    let cut_timeout = (what != "outlives").then_some(CUT);
    let address = address.parse().unwrap();
    let options = GroupOptions { address, cut_timeout, encryption, ..options(rank, ranks) };
    let mut group = Group::join(options, &mut FileStore::new(directory)).unwrap();
    let hosts = format!("{:?}", group.topology().hosts);
    if what == "program" {
        program::run(&mut group, 3, 10);
        return leave_outcome(directory, rank, SystemTime::now(), &hosts);
    }
    group.barrier().unwrap();
    is_ready(directory, rank);
    let mut numbers = vec![0.0f32; if what == "short" { 10 } else { 1_000_000 }];
    let error = loop {
        if what == "late" && rank == 1 {
            std::thread::sleep(LATE);
            group.barrier().unwrap();
            return leave_outcome(directory, rank, SystemTime::now(), "came");
        }
        if what == "late" {
            let result = group.barrier();
            let text = result.map_or_else(|error| error.to_string(), |()| "waited".to_owned());
            return leave_outcome(directory, rank, SystemTime::now(), &text);
        }
        if what == "outlives" {
            // Rank 0 says when it is over, so that both leave after the same operation.
            let mut is_over = [f32::from(u8::from(rank == 0 && directory.join("healed").exists()))];
            if let Err(error) = group.all_reduce_of(&mut is_over, ReduceOp::Sum) {
                break error;
            }
            if is_over == [1.0] {
                return leave_outcome(directory, rank, SystemTime::now(), "outlived");
            }
        }
        if what == "opening" && !directory.join("cut").exists() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        if what == "absent" && rank == 1 {
            std::thread::sleep(LATE);
        }
        if let Err(error) = group.all_reduce_of(&mut numbers, ReduceOp::Sum) {
            break error;
        }
    };
    leave_outcome(directory, rank, SystemTime::now(), &in_words(&error));
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

    fn start(&self, what: &str, ranks: usize, addresses: [&str; 2]) -> Processes {
        Processes::start(ranks, |rank, directory| {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &self.names[rank % 2]]).arg(std::env::current_exe().unwrap());
            command.args(["--exact", "acts_as_rank", "--nocapture"]);
            command
                .env(RANK, format!("{what} {rank} {ranks} {} {}", addresses[rank % 2], directory.display()));
            command
        })
    }

    /// Shapes what leaves both interfaces.
    fn tc(&self, how: &str) -> Result<(), String> {
        self.names.iter().try_for_each(|name| run("tc", &format!("-n {name} qdisc add dev eth0 root {how}")))
    }

    /// Packets vanish both ways, as with a dead switch; neither side is told. They go to an interface that isn't there.
    fn vanish(&self) {
        self.neighbours("replace", " lladdr 02:00:00:00:00:01 nud permanent");
    }

    /// Ends what [`Network::vanish`] began.
    fn heal(&self) {
        self.neighbours("del", "");
    }

    fn neighbours(&self, what: &str, how: &str) {
        for (addresses, end) in ADDRESSES.iter().flat_map(|addresses| [(addresses, 0), (addresses, 1)]) {
            let (name, other) = (&self.names[end], addresses[1 - end]);
            ip(&format!("-n {name} neigh {what} {other} dev eth0{how}")).unwrap();
        }
    }

    /// Runs a program in both namespaces.
    fn inside(&self, program: &str) -> Result<(), String> {
        self.names.iter().try_for_each(|name| ip(&format!("netns exec {name} {program}")))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn namespaces_are_found_to_be_hosts_over_either_protocol() {
    // GROUP-6: one machine, one name and one kernel, but no socket leads from one to the other.
    let Some(network) = Network::new('p') else { return };
    for addresses in ADDRESSES {
        let outcomes = network.start("program", 2, addresses).outcomes(LONG);
        assert!(outcomes.iter().all(|outcome| outcome.text == "[[0], [1]]"), "{outcomes:?}");
    }
    let outcomes = network.start("program", 4, ADDRESSES[0]).outcomes(LONG);
    assert!(outcomes.iter().all(|outcome| outcome.text == "[[0, 2], [1, 3]]"), "{outcomes:?}");
}

/// Loses some of the packets that leave both namespaces; how many are lost is counted. Not every kernel, nor every
/// machine, has all that can do it.
fn lose(network: &Network, percent: u32) -> Result<(), String> {
    let rule =
        format!("-A OUTPUT -m statistic --mode random --probability {} -j DROP", f64::from(percent) / 100.0);
    let netem = || network.tc(&format!("netem loss {percent}%"));
    netem().or_else(|netem| {
        let rules = network
            .inside(&format!("iptables {rule}"))
            .and_then(|()| network.inside(&format!("ip6tables {rule}")));
        rules.map_err(|iptables| format!("{netem}; {iptables}"))
    })
}

#[test]
fn loss_costs_time_but_no_correctness() {
    let Some(network) = Network::new('d') else { return };
    // A token bucket's short queue drops what doesn't fit.
    let lost = lose(&network, 2).or_else(|_| network.tc("tbf rate 400mbit burst 16kb limit 40kb"));
    if let Err(error) = lost {
        eprintln!("skipped: nothing here loses packets: {error}");
        return;
    }
    let outcomes = network.start("program", 3, ADDRESSES[0]).outcomes(LONG * 4);
    assert!(outcomes.iter().all(|outcome| outcome.text == "[[0, 2], [1]]"), "{outcomes:?}");
}

/// Whatever the ranks are doing, and whichever of them is busy elsewhere.
#[test]
fn a_cut_fails_those_that_wait_within_two_seconds() {
    // GROUP-71
    let Some(network) = Network::new('c') else { return };
    for what in ["short", "long", "absent", "opening", "encrypted-long", "encrypted-absent"] {
        let world = network.start(what, 2, ADDRESSES[0]);
        world.wait_until_ready();
        std::thread::sleep(Duration::from_millis(300));
        network.vanish();
        let cut = SystemTime::now();
        // Only now are connections asked for, and they can't be opened.
        std::fs::write(world.directory.path().join("cut"), "").unwrap();
        let outcomes = world.outcomes(LONG);
        for (rank, outcome) in outcomes.iter().enumerate() {
            let gone = format!("rank {} died or can't be reached", 1 - rank);
            let is_told = outcome.text.starts_with("peer_lost: ") && outcome.text.contains(&gone);
            assert!(is_told, "{what}: {outcome:?}");
            // Who is busy elsewhere notices when it comes.
            let late = if what.ends_with("absent") && rank == 1 { LATE } else { Duration::ZERO };
            assert!(outcome.after(cut) < CUT_NOTICE + late, "{what}: {:?}: {outcome:?}", outcome.after(cut));
        }
        drop(world);
        network.heal();
    }
}

#[test]
fn a_rank_that_is_late_is_waited_for_however_long_it_says_nothing() {
    // GROUP-71
    let Some(network) = Network::new('l') else { return };
    let outcomes = network.start("late", 2, ADDRESSES[0]).outcomes(LONG);
    assert_eq!([&outcomes[0].text, &outcomes[1].text], ["waited", "came"]);
}

#[test]
fn an_outage_that_ends_costs_time_and_nothing_else() {
    // GROUP-72
    let Some(network) = Network::new('o') else { return };
    let world = network.start("outlives", 2, ADDRESSES[0]);
    world.wait_until_ready();
    network.vanish();
    std::thread::sleep(OUTAGE);
    network.heal();
    std::fs::write(world.directory.path().join("healed"), "").unwrap();
    for outcome in world.outcomes(LONG) {
        assert_eq!(outcome.text, "outlived");
    }
}
