//! What is left of jobs in the process that ran them: nothing. Alone in its program, so that no other test's threads
//! and descriptors are in the way.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use common::{open, run};
use phalanx_types::Job;

#[test]
fn jobs_that_ended_well_or_badly_leave_no_thread_descriptor_child_or_port() {
    let _leaks = phalanx_testkit::leaks();
    for script in ["echo out; printf r > $PHALANX_RANK_DIR/result", "echo out; exit 1", "sleep 60 & exit 0"] {
        let (_, mut driver, _dir) = run(&Job::new("leaks", "t", 4, 2).unwrap(), script);
        driver.close();
    }
    let mut unused = open(&Job::new("leaks", "t", 1, 1).unwrap());
    let address = unused.address().to_string();
    unused.close();
    let free = std::net::TcpListener::bind(&address);
    assert!(free.is_ok(), "HUB-13, DRIVER-7: {free:?}");
}
