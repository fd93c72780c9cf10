//! Ranks that leave, each a process of its own: what they sent before arrives, and nobody waits for them any more
//! (GROUP-65, GROUP-66, GROUP-41). Inside a host and between hosts, plain and encrypted.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use common::processes::{NOTICE, Processes, in_words, is_ready, leave_outcome};
use common::{LONG, options};
use phalanx_collective::{FileStore, Group, GroupOptions};
use phalanx_testkit::eventually;

/// The variable that makes [`acts_as_rank`] one: what to do, its number, hosts or none, whether they encrypt, and a
/// directory.
const RANK: &str = "PHALANX_TEST_LEAVING_RANK";
/// More than any buffer on the way holds.
const LETTER: usize = 1 << 20;
const PAGES: usize = 64;
const PAGE: usize = 256 << 10;
/// For how long a receiver does something else first, and for how long one that takes a page now and then takes them.
const BUSY: Duration = Duration::from_secs(7);

/// Not a test of its own: the tests below run this test program again.
#[test]
fn acts_as_rank() {
    let Ok(role) = std::env::var(RANK) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let [what, rank, hosts, encryption, directory] = words[..] else { panic!("{role}") };
    let (rank, directory) = (rank.parse().unwrap(), Path::new(directory));
    let options = GroupOptions {
        pretended_host: hosts.parse::<u32>().ok().map(|hosts| rank as u32 % hosts),
        encryption: encryption == "true",
        ..options(rank, 3)
    };
    let mut group = Group::join(options, &mut FileStore::new(directory)).unwrap();
    group.barrier().unwrap();
    let said = match what {
        "late" => takes_late(group),
        "gone" => goes_on_without(group, directory),
        "untaken" => is_not_taken(group, directory),
        _ => panic!("what is {what}?"),
    };
    leave_outcome(directory, rank, SystemTime::now(), &said);
}

fn start(what: &str, hosts: Option<usize>, encryption: bool) -> Processes {
    let hosts = hosts.map_or("none".into(), |hosts| hosts.to_string());
    Processes::start(3, |rank, directory| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "acts_as_rank", "--nocapture"]);
        command.env(RANK, format!("{what} {rank} {hosts} {encryption} {}", directory.display()));
        command
    })
}

fn page(number: usize, bytes: usize) -> Vec<u8> {
    vec![number as u8 + 1; bytes]
}

/// Rank 0 sends and leaves. Rank 1 computes, and rank 2 takes a page now and then.
fn takes_late(mut group: Group) -> String {
    let start = Instant::now();
    match group.rank() {
        0 => {
            group.send(&page(0, LETTER), 1, 0).unwrap();
            (0..PAGES).for_each(|number| group.send(&page(number, PAGE), 2, 0).unwrap());
            drop(group);
            return "has left".into();
        }
        1 => {
            std::thread::sleep(BUSY);
            let mut letter = vec![0; LETTER];
            if let Err(error) = group.recv(&mut letter, Some(0), 0) {
                return in_words(&error);
            }
            assert!(letter == page(0, LETTER));
        }
        _ => {
            for number in 0..PAGES {
                let due = BUSY.mul_f64(number as f64 / PAGES as f64);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                let mut taken = vec![0; PAGE];
                if let Err(error) = group.recv(&mut taken, Some(0), 0) {
                    return format!("page {number}: {}", in_words(&error));
                }
                assert!(taken == page(number, PAGE));
            }
        }
    }
    "has all of it".into()
}

#[test]
fn what_was_sent_by_a_rank_that_leaves_arrives_however_late_it_is_taken() {
    // GROUP-65
    for (hosts, encryption) in [(None, false), (Some(3), false), (Some(3), true)] {
        let world = start("late", hosts, encryption);
        let said: Vec<String> = world.outcomes(LONG).into_iter().map(|outcome| outcome.text).collect();
        assert_eq!(said, ["has left", "has all of it", "has all of it"], "GROUP-65: {hosts:?} {encryption}");
    }
}

/// Rank 2 sends a letter and leaves. Rank 0 waits for that, for one that never comes, and for one of rank 1.
fn goes_on_without(mut group: Group, directory: &Path) -> String {
    let has = |what: &str| directory.join(what).exists();
    match group.rank() {
        0 => {
            let messenger = group.messenger();
            let (mut letter, mut never, mut other) = (vec![0; LETTER], [0; 8], [0; 8]);
            assert_eq!(messenger.try_recv(&mut never, Some(2), 5).unwrap(), None);
            is_ready(directory, 0);
            let mut received = false;
            let error = loop {
                // As a binding does it.
                let rings = messenger.rings();
                received |= messenger.try_recv(&mut letter, Some(2), 4).is_ok_and(|from| from.is_some());
                match messenger.take(&mut never, Some(2), 5) {
                    Ok(None) => messenger.wait(rings, LONG).unwrap(),
                    ended => break ended.unwrap_err(),
                }
            };
            let at = SystemTime::now();
            assert!(received && letter == page(0, LETTER), "GROUP-66: what it sent before is received");
            let new = [
                group.recv(&mut never, Some(2), 4).unwrap_err(),
                messenger.try_recv(&mut never, Some(2), 4).unwrap_err(),
                group.send(&never, 2, 0).unwrap_err(),
            ];
            is_ready(directory, 1);
            group.recv(&mut other, Some(1), 5).unwrap();
            group.send(&other, 1, 5).unwrap();
            let texts = new.iter().chain([&error]).map(in_words);
            let odd: Vec<String> =
                texts.filter(|text| !text.starts_with("peer_lost") || !text.contains(LEFT)).collect();
            leave_outcome(directory, 3, at, &format!("{odd:?}"));
        }
        1 => {
            eventually("rank 0 knows of it", LONG, || has("ready.1"));
            group.send(&[1; 8], 0, 5).unwrap();
            group.recv(&mut [0; 8], Some(0), 5).unwrap();
        }
        _ => {
            eventually("rank 0 waits", LONG, || has("ready.0"));
            group.send(&page(0, LETTER), 0, 4).unwrap();
            group.leave().unwrap();
            leave_outcome(directory, 4, SystemTime::now(), "");
        }
    }
    "has left".into()
}

const LEFT: &str = "rank 2 has left the group";

#[test]
fn a_message_from_a_rank_that_has_left_is_not_waited_for_and_the_others_go_on() {
    // GROUP-66, GROUP-70
    for (hosts, encryption) in [(None, false), (Some(3), false), (Some(2), false), (Some(3), true)] {
        let world = start("gone", hosts, encryption);
        for rank in 0..3 {
            assert_eq!(world.outcome(rank, LONG).text, "has left", "GROUP-66: {hosts:?} {encryption}");
        }
        let (known, left) = (world.outcome(3, LONG), world.outcome(4, LONG));
        assert_eq!(known.text, "[]", "GROUP-66: {hosts:?} {encryption}");
        assert!(known.after(left.at) < NOTICE, "GROUP-66: {hosts:?} {encryption} {:?}", known.after(left.at));
    }
}

/// Rank 0 sends to both others, of which one takes nothing and the other leaves without having taken anything.
fn is_not_taken(mut group: Group, directory: &Path) -> String {
    match group.rank() {
        0 => {
            group.set_timeout(SHORT);
            group.send(&page(0, MUCH), 1, 0).unwrap();
            (0..2).for_each(|number| group.send(&page(number, MUCH), 2, 0).unwrap());
            is_ready(directory, 0);
            eventually("rank 2 has left", LONG, || directory.join("outcome.2").exists());
            let said = in_words(&group.leave().unwrap_err());
            is_ready(directory, 1);
            return said;
        }
        1 => eventually("rank 0 has left", LONG, || directory.join("ready.1").exists()),
        _ => {
            eventually("rank 0 has sent", LONG, || directory.join("ready.0").exists());
            group.leave().unwrap();
        }
    }
    "has left".into()
}

/// More than kernels hold of a connection.
const MUCH: usize = 32 << 20;
const SHORT: Duration = Duration::from_millis(1500);

#[test]
fn a_rank_that_leaves_says_to_whom_it_could_not_deliver_what_and_for_how_long_it_waited() {
    // GROUP-41
    for hosts in [None, Some(3)] {
        let world = start("untaken", hosts, false);
        let said = world.outcome(0, LONG).text;
        let parts = [
            "timeout: rank 0, in leave(",
            "rank 2 has left without receiving 2 messages of 67108864 bytes in all; ",
            "rank 1 has received nothing of a message of 33554432 bytes for ",
        ];
        assert!(parts.iter().all(|part| said.contains(part)), "GROUP-41: {hosts:?}: {said}");
        // The wait is looked at from time to time, so it may have been a little longer.
        let waited = said.rsplit(' ').nth(1).and_then(|seconds| seconds.parse::<f64>().ok());
        assert!(waited.is_some_and(|seconds| seconds >= SHORT.as_secs_f64()), "GROUP-41: {hosts:?}: {said}");
    }
}
