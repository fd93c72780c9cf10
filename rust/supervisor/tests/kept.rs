//! A process that a client keeps for itself, without a pool, as POOL-15 says.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use phalanx_supervisor::warm_pool::{Kept, PoolOptions, end_kept, meet, start_kept};
use phalanx_testkit::{descendants, eventually, guard_binary, leaks};
use phalanx_types::Deadline;

const LONG: Duration = Duration::from_secs(20);

/// Starts a shell under this name; whether it was not there yet.
fn start(name: &str, script: &str) -> bool {
    let output = OwnedFd::from(File::create("/dev/null").unwrap());
    let pool = PoolOptions {
        guard: guard_binary(),
        program: vec!["/no/such/pool".into()],
        ..PoolOptions::default()
    };
    let program: Vec<String> = ["sh", "-c", script].map(String::from).to_vec();
    let kept = Kept { name, pool: &pool, program: &program, env: &[], grace: Duration::from_millis(300) };
    start_kept(&kept, output, Deadline::after(LONG), &mut || true).unwrap()
}

fn below() -> usize {
    descendants(std::process::id()).into_iter().filter(|process| process.runs()).count()
}

#[test]
fn a_process_that_a_client_keeps_is_met_by_name_and_its_guard_goes_with_it() {
    let _leaks = leaks();
    let folder: PathBuf = phalanx_testkit::temp_dir("kept").keep();
    let end = folder.join("end");
    let wait = format!("while ! [ -e {} ]; do sleep 0.05; done", end.display());
    assert!(meet("first", false).unwrap().is_none());
    assert!(start("first", &wait) && start("second", "exec sleep 1000"));
    assert!(!start("first", "sleep 1000"), "there is one of this name");
    assert!(meet("first", false).unwrap().is_some());
    File::create(&end).unwrap();
    eventually("nobody is met whose process has ended", LONG, || meet("first", false).unwrap().is_none());
    eventually("its guard has gone, and not the other's", LONG, || below() == 2);
    end_kept();
    eventually("nothing is left", LONG, || below() == 0);
    std::fs::remove_dir_all(folder).unwrap();
}
