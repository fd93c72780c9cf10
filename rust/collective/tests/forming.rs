//! What it costs to form a group, by the number of its ranks, and who is named when one ends on the way: GROUP-21,
//! GROUP-22, GROUP-23, GROUP-48.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use common::options;
use common::processes::{Processes, in_words, is_ready, leave_outcome};
use phalanx_collective::{FileStore, Group, GroupOptions, HashStore, ReduceOp, Store};
use phalanx_io::raise_descriptor_limit;
use phalanx_testkit::eventually;
use phalanx_types::{Deadline, Result};

/// The variable that makes [`acts_as_rank`] one: what to do, its number, how many there are, hosts or none, directory.
const RANK: &str = "PHALANX_TEST_FORMING_RANK";
/// As on 32 hosts of 8; here they are all on one.
const MANY: usize = 256;
/// For so many processes on a machine with other work. A quiet one takes some seconds.
const VERY_LONG: Duration = Duration::from_secs(300);
/// How long ranks wait for one that doesn't come.
const SHORT: Duration = Duration::from_secs(4);

/// Counts what is asked of it.
#[derive(Clone, Default)]
struct Counted {
    store: HashStore,
    keys: Arc<AtomicUsize>,
    /// How often a table of what all ranks said was sent.
    tables: Arc<AtomicUsize>,
}

impl Store for Counted {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.keys.fetch_add(1, Ordering::Relaxed);
        self.store.set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.keys.fetch_add(1, Ordering::Relaxed);
        let is_table = ["world/cards", "world/leaders"].contains(&key);
        self.tables.fetch_add(usize::from(is_table), Ordering::Relaxed);
        self.store.get(key, deadline)
    }
}

/// How many keys the ranks of a job ask for to form a group, how many tables are sent, and how its hosts are.
fn asked(ranks: usize, host: impl Fn(usize) -> Option<u32> + Sync) -> [usize; 3] {
    let store = Counted::default();
    let hosts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (mut store, pretended_host) = (store.clone(), host(rank));
                scope.spawn(move || {
                    let options = GroupOptions { pretended_host, timeout: VERY_LONG, ..options(rank, ranks) };
                    let mut group = Group::join(options, &mut store).unwrap();
                    group.barrier().unwrap();
                    group.topology().hosts.len()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    });
    [store.keys.load(Ordering::Relaxed), store.tables.load(Ordering::Relaxed), hosts]
}

#[test]
fn what_forming_a_group_asks_of_the_store_grows_as_its_ranks_and_not_as_their_square() {
    raise_descriptor_limit();
    type Host = fn(usize) -> Option<u32>;
    let layouts: [(Host, usize); 3] =
        [(|_| None, 32), (|rank| Some((rank / 8) as u32), 8), (|rank| Some(rank as u32), 1)];
    for (host, of_a_host) in layouts {
        for ranks in [8usize, 16, 32] {
            let hosts = ranks.div_ceil(of_a_host);
            // GROUP-21: rank 0 also leaves two tables. GROUP-23: each is read once for each host.
            let keys = 6 * ranks + 2 + 2 * hosts;
            assert_eq!(asked(ranks, host), [keys, 2 * hosts, hosts], "GROUP-21, GROUP-23");
        }
    }
}

/// A rank that dies as soon as it has something to say under one of these keys.
struct Dying(FileStore, String);

impl Store for Dying {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        if key == self.1 {
            std::process::abort();
        }
        self.0.set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.0.get(key, deadline)
    }
}

/// Not a test of its own: the tests below run this test program again.
#[test]
fn acts_as_rank() {
    let Ok(role) = std::env::var(RANK) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [what, rank, ranks, hosts, directory] = words[..] else { panic!("{role}") };
    let (rank, ranks, directory) = (rank.parse().unwrap(), ranks.parse().unwrap(), Path::new(directory));
    let pretended_host = hosts.parse::<u32>().ok().map(|hosts| rank as u32 % hosts);
    let timeout = if what == "many" { VERY_LONG } else { SHORT };
    let options = GroupOptions { timeout, pretended_host, ..options(rank, ranks) };
    let store = FileStore::new(directory);
    let said = if what == "many" {
        match Group::join(options, &mut store.clone()) {
            Ok(mut group) => {
                let open = fs::read_dir("/proc/self/fd").unwrap().count();
                let mut sum = [rank as i64];
                group.all_reduce_of(&mut sum, ReduceOp::Sum).unwrap();
                format!("{} {open} {}", group.topology().hosts.len(), sum[0])
            }
            Err(error) => in_words(&error),
        }
    } else {
        // So that the time runs for all of them at once.
        is_ready(directory, rank);
        eventually("all ranks are there", VERY_LONG, || {
            (0..ranks).all(|rank| directory.join(format!("ready.{rank}")).exists())
        });
        let mut store = Dying(store, if rank == 1 { what.to_owned() } else { String::new() });
        in_words(&Group::join(options, &mut store).err().unwrap())
    };
    leave_outcome(directory, rank, SystemTime::now(), &said);
}

fn start(what: &str, ranks: usize, hosts: Option<usize>) -> Processes {
    let hosts = hosts.map_or("none".into(), |hosts| hosts.to_string());
    Processes::start(ranks, |rank, directory| {
        // So many are to leave the processors to what else runs.
        let mut command = Command::new("nice");
        command.args(["-n", if ranks == MANY { "15" } else { "0" }]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "acts_as_rank"]);
        command.env(RANK, format!("{what} {rank} {ranks} {hosts} {}", directory.display()));
        command
    })
}

#[test]
fn two_hundred_and_fifty_six_ranks_of_one_machine_form_a_group() {
    let world = start("many", MANY, None);
    for outcome in world.outcomes(VERY_LONG) {
        let words: Vec<usize> =
            outcome.text.split(' ').map(|word| word.parse().expect(&outcome.text)).collect();
        let [hosts, open, sum] = words[..] else { panic!("{outcome:?}") };
        assert_eq!((hosts, sum), (1, MANY * (MANY - 1) / 2));
        // Of each other rank its lifeline and its process.
        assert!(open < 2 * MANY + 40, "GROUP-48: {open} descriptors");
    }
}

#[test]
fn a_rank_that_dies_while_its_group_forms_is_named_by_all_others() {
    // Before it says how it is reached, and between finding its host and saying so. It leads rank 3 where there are two
    // hosts, which hears from the store what its leader doesn't hand on.
    for (key, hosts) in [("world/card/1", None), ("world/leader/1", None), ("world/leader/1", Some(2))] {
        let world = start(key, 4, hosts);
        for rank in [0, 2, 3] {
            let outcome = world.outcome(rank, VERY_LONG);
            let sentence = format!("timeout: rank {rank}: rank 1 has not joined \"world\"");
            assert!(outcome.text.starts_with(&sentence), "GROUP-22: {key} {hosts:?} {outcome:?}");
        }
    }
}
