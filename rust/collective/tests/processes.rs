//! Ranks as processes: the same programs as among threads, and what happens when one is killed (GROUP-29, GROUP-68,
//! GROUP-73, GROUP-52).
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use common::processes::{NOTICE, Processes, in_words, is_ready, leave_outcome};
use common::{LONG, options, program};
use phalanx_collective::{DType, FileStore, Group, GroupOptions, ReduceOp, forks, read_activity};
use phalanx_testkit::{eventually, eventually_some};
use phalanx_types::Error;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};

/// The variable that makes [`acts_as_rank`] one: what to do, its number, how many there are, hosts or none, whether
/// they encrypt, directory.
const RANK: &str = "PHALANX_TEST_RANK";

/// Not a test of its own: the tests below run this test program again.
#[test]
fn acts_as_rank() {
    let Ok(role) = std::env::var(RANK) else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap().to_owned();
    let (what, rank, ranks, hosts) = (word(), word(), word(), word());
    let (encryption, directory) = (word(), word());
    let (rank, ranks, directory) = (rank.parse().unwrap(), ranks.parse().unwrap(), Path::new(&directory));
    let options = GroupOptions {
        pretended_host: hosts.parse::<u32>().ok().map(|hosts| rank as u32 % hosts),
        encryption: encryption == "true",
        activity: Some(directory.join(format!("activity.{rank}"))),
        ..options(rank, ranks)
    };
    let before = sockets();
    let mut group = Group::join(options, &mut FileStore::new(directory)).unwrap();
    if what == "open" {
        return leave_outcome(directory, rank, SystemTime::now(), &what_is_open(&mut group, &before));
    }
    if what == "program" {
        program::run(&mut group, 7, 40);
        return leave_outcome(directory, rank, SystemTime::now(), "done");
    }
    let error = until_failure(&mut group, &what, directory);
    let at = SystemTime::now();
    // GROUP-38
    assert!(group.barrier().unwrap_err().to_string().contains("broken"));
    leave_outcome(directory, rank, at, &in_words(&error));
}

/// The numbers of the descriptors of this process that are sockets.
fn sockets() -> BTreeSet<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_socket = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let number = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
    entries.filter(is_socket).filter_map(number).collect()
}

/// What a child that is forked now would not know of the group's sockets, late ones among them, and what it would know
/// that is none.
fn what_is_open(group: &mut Group, before: &BTreeSet<RawFd>) -> String {
    group.all_reduce_of(&mut vec![1.0f32; 1 << 20], ReduceOp::Sum).unwrap();
    let other = group.world_size() - 1 - group.rank();
    group.send(&[1], other, 0).unwrap();
    group.recv(&mut [0], Some(other), 0).unwrap();
    forks::before();
    let known: BTreeSet<RawFd> = forks::descriptors().into_iter().collect();
    let unknown: Vec<RawFd> =
        sockets().difference(before).copied().filter(|socket| !known.contains(socket)).collect();
    let gone: Vec<RawFd> =
        known.iter().copied().filter(|one| fs::read_link(format!("/proc/self/fd/{one}")).is_err()).collect();
    forks::after_in_parent();
    // None has left before all have looked.
    group.barrier().unwrap();
    format!("{unknown:?} and {gone:?} that are none")
}

/// The phases in which a rank is killed: it is rank 1, and the others are in the middle of the same, or wait for it.
fn until_failure(group: &mut Group, what: &str, directory: &Path) -> Error {
    let is_victim = group.rank() == 1;
    group.barrier().unwrap();
    is_ready(directory, group.rank());
    let (mut short, mut long) = (vec![0.0f32; 16], vec![0.0f32; 1 << 20]);
    loop {
        let result = match what {
            "short" => group.all_reduce_of(&mut short, ReduceOp::Sum),
            "long" => group.all_reduce_of(&mut long, ReduceOp::Sum),
            "broadcast" => group.broadcast_of(&mut long, 1),
            "absent" | "receive" | "opening" if is_victim => {
                std::thread::sleep(LONG);
                Ok(())
            }
            "opening" if !directory.join("go").exists() => {
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            }
            // For which there are no connections yet.
            "opening" => group.all_reduce_of(&mut long, ReduceOp::Sum),
            "absent" => group.barrier(),
            "receive" => group.recv(&mut [0; 8], Some(1), 0).map(drop),
            // Only one waits, and neither for the victim nor for one that hears of its end itself.
            "aside" if is_victim => {
                std::thread::sleep(LONG);
                Ok(())
            }
            "aside" if group.rank() == WAITS => group.recv(&mut [0; 8], Some(WAITS + 3), 0).map(drop),
            "aside" => {
                let noticed = directory.join(format!("outcome.{WAITS}"));
                eventually("the one that waits has noticed", LONG, || noticed.exists());
                // It knows a moment before it has told the others.
                eventually("GROUP-69: it was told on", LONG, || group.failure().is_some());
                group.barrier()
            }
            "gather" => {
                let all = if group.rank() == 0 { long.len() * 4 * group.world_size() } else { 0 };
                group.gather(bytemuck::cast_slice(&long), &mut vec![0; all], DType::F32, 0)
            }
            _ => panic!("what is {what}?"),
        };
        if let Err(error) = result {
            break error;
        }
    }
}

/// In a ring of twelve hosts it is three further than rank 1: no neighbour (GROUP-80).
const WAITS: usize = 4;

fn start(what: &str, ranks: usize, hosts: Option<usize>) -> Processes {
    start_with(what, ranks, hosts, false)
}

fn start_with(what: &str, ranks: usize, hosts: Option<usize>, encryption: bool) -> Processes {
    let hosts = hosts.map_or("none".into(), |hosts| hosts.to_string());
    Processes::start(ranks, |rank, directory| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "acts_as_rank", "--nocapture"]);
        command.env(RANK, format!("{what} {rank} {ranks} {hosts} {encryption} {}", directory.display()));
        command
    })
}

#[test]
fn programs_give_the_same_among_processes() {
    for (ranks, hosts, encryption) in
        [(2, None, false), (5, None, false), (4, Some(2), false), (3, Some(3), false), (4, Some(2), true)]
    {
        let world = start_with("program", ranks, hosts, encryption);
        for rank in 0..ranks {
            assert_eq!(world.outcome(rank, LONG).text, "done");
        }
    }
}

#[track_caller]
fn survivors_name_the_dead(what: &str, hosts: Option<usize>, encryption: bool) {
    let mut world = start_with(what, 3, hosts, encryption);
    world.wait_until_ready();
    // In the middle of it: their activity says so.
    let path = world.directory.path().join("activity.0");
    eventually("rank 0 is at it", LONG, || read_activity(&path).unwrap().sequence >= 2);
    let killed = SystemTime::now();
    world.ranks[1].kill().unwrap();
    world.ranks[1].wait().unwrap();
    for rank in [0, 2] {
        let outcome = world.outcome(rank, LONG);
        assert!(
            outcome.text.starts_with("peer_lost: ")
                && (outcome.text.contains("rank 1 died") || outcome.text.contains("rank 1 has")),
            "{what} {hosts:?}: {outcome:?}"
        );
        let took = outcome.after(killed);
        assert!(took < NOTICE, "{what} {hosts:?}: took {took:?}");
    }
    // GROUP-73
    let left = fs::read_dir("/dev/shm").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("phalanx-collective")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn survivors_on_the_same_host_name_a_killed_rank_within_a_second() {
    for what in ["short", "long", "broadcast", "gather", "absent", "receive"] {
        survivors_name_the_dead(what, None, false);
    }
}

#[test]
fn survivors_on_other_hosts_name_a_killed_rank_within_a_second() {
    for what in ["short", "long", "broadcast", "gather", "absent", "receive"] {
        survivors_name_the_dead(what, Some(3), false);
    }
    survivors_name_the_dead("long", Some(2), false);
    survivors_name_the_dead("absent", Some(2), false);
}

#[test]
fn survivors_that_encrypt_name_a_killed_rank_within_a_second() {
    for what in ["short", "long", "broadcast", "absent", "receive"] {
        survivors_name_the_dead(what, Some(3), true);
    }
}

#[test]
fn who_waits_hears_of_a_death_by_ranks_that_compute() {
    // GROUP-68, GROUP-69: doors tell it on.
    for encryption in [false, true] {
        let mut world = start_with("aside", 12, Some(12), encryption);
        world.wait_until_ready();
        let killed = SystemTime::now();
        world.ranks[1].kill().unwrap();
        for rank in (0..12).filter(|rank| *rank != 1) {
            let outcome = world.outcome(rank, LONG);
            let told = outcome.text.starts_with("peer_lost: ") && outcome.text.contains("rank 1 died");
            assert!(told, "GROUP-69: {outcome:?}");
            assert!(rank != WAITS || outcome.after(killed) < NOTICE, "GROUP-68: {outcome:?}");
        }
    }
}

#[test]
fn a_rank_whose_socket_outlives_it_in_another_process_is_noticed_all_the_same() {
    // As a forked child of the rank would do it.
    let mut world = start("absent", 2, None);
    world.wait_until_ready();
    let victim = Pid::from_child(&world.ranks[1]);
    let pidfd = pidfd_open(victim, PidfdFlags::empty()).unwrap();
    let held: Vec<OwnedFd> = fs::read_dir(format!("/proc/{}/fd", world.ranks[1].id()))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|fd| fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")))
        .filter_map(|fd| {
            let fd = fd.file_name()?.to_str()?.parse().ok()?;
            // Not permitted in some sandboxes: then the plain case is tested all the same.
            pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()).ok()
        })
        .collect();
    let killed = SystemTime::now();
    world.ranks[1].kill().unwrap();
    world.ranks[1].wait().unwrap();
    let outcome = world.outcome(0, LONG);
    assert!(outcome.text.contains("rank 1 died") && outcome.after(killed) < NOTICE, "{outcome:?}");
    drop(held);
}

#[test]
fn a_rank_that_is_stopped_for_a_while_does_not_fail_the_group() {
    let world = start("short", 2, None);
    world.wait_until_ready();
    kill_process(Pid::from_child(&world.ranks[1]), Signal::STOP).unwrap();
    let activity = world.directory.path().join("activity.0");
    let stuck = eventually_some("rank 0 waits", LONG, || {
        let seen = read_activity(&activity).unwrap();
        (seen.is_running && seen.age > Duration::from_millis(100)).then_some(seen)
    });
    assert_eq!(stuck.call, "all_reduce(sum, float32, 64 bytes)");
    kill_process(Pid::from_child(&world.ranks[1]), Signal::CONT).unwrap();
    eventually("rank 0 goes on", LONG, || read_activity(&activity).unwrap().sequence > stuck.sequence);
}

#[test]
fn survivors_name_a_rank_that_is_killed_while_they_open_connections_to_it() {
    // GROUP-68, GROUP-52
    for encryption in [false, true] {
        let mut world = start_with("opening", 3, Some(3), encryption);
        world.wait_until_ready();
        let path = world.directory.path().join("activity.0");
        // Its door opens nothing any more.
        kill_process(Pid::from_child(&world.ranks[1]), Signal::STOP).unwrap();
        fs::write(world.directory.path().join("go"), "").unwrap();
        eventually("rank 0 is at it", LONG, || read_activity(&path).unwrap().sequence >= 2);
        let killed = SystemTime::now();
        world.ranks[1].kill().unwrap();
        world.ranks[1].wait().unwrap();
        for rank in [0, 2] {
            let outcome = world.outcome(rank, LONG);
            assert!(
                outcome.text.starts_with("peer_lost: ") && outcome.text.contains("rank 1 died"),
                "{outcome:?}"
            );
            assert!(outcome.after(killed) < NOTICE, "{outcome:?}");
        }
    }
}

#[test]
fn a_group_knows_all_sockets_that_a_forked_child_is_to_close() {
    // GROUP-29
    for hosts in [Some(2), None] {
        let world = start("open", 4, hosts);
        for outcome in world.outcomes(LONG) {
            assert_eq!(outcome.text, "[] and [] that are none", "GROUP-29");
        }
    }
}
