//! Tests that what has to be fast makes no system call: it runs in a process that may make none but for reading and
//! writing (seccomp's strict mode, in which the clock can't be read either), and is ended by the kernel otherwise.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{SecureComputingMode, set_secure_computing_mode};

use crate::activity::ActivityLog;
use crate::bell::Bell;
use crate::call::{Call, Operation};
use crate::intra_host::{LocalGroup, layout};
use crate::peers::Peers;
use crate::shm::{Segment, Steps};
use crate::wait::{SpinPolicy, Watch};

/// The variable that makes a test do its work, in a process of its own.
const ROLE: &str = "PHALANX_TEST_NO_SYSTEM_CALLS";
const LONG: Duration = Duration::from_secs(5);

/// Runs `work` twice in a process of its own, the second time without system calls. `test` is the name of the test.
#[track_caller]
fn makes_none(test: &str, mut work: impl FnMut()) {
    if std::env::var_os(ROLE).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("tests::system_calls::{test}"), "--nocapture"]).env(ROLE, "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let is_done = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_done);
    // This thread can't end, nor end the process, once it may make no call.
    std::thread::spawn(move || {
        let start = Instant::now();
        while !seen.load(Ordering::Acquire) && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::process::exit(i32::from(!seen.load(Ordering::Acquire)));
    });
    work();
    set_secure_computing_mode(SecureComputingMode::Strict).unwrap();
    work();
    is_done.store(true, Ordering::Release);
    loop {
        std::hint::spin_loop();
    }
}

#[test]
fn writing_activity() {
    // GROUP-3
    let log = ActivityLog::new(None, 0, 2).unwrap();
    makes_none("writing_activity", || {
        for sequence in 0..1000 {
            log.begin_at(sequence, sequence, Call::new(Operation::Barrier));
            log.end_at(sequence);
        }
    });
}

#[test]
fn a_step_for_which_the_others_have_come() {
    // GROUP-81
    let (segment, _) = Segment::create(layout(2)).unwrap();
    let segment = Arc::new(segment);
    let peers = Peers::new(0, 0, Some(Arc::clone(&segment)), (Vec::new(), Bell::new(None).unwrap()), None);
    let mut other = Steps::new(Arc::clone(&segment), 1);
    let mut local = LocalGroup::new(Steps::new(segment, 0), vec![0, 1]);
    let (call, idle) = (Call::new(Operation::Barrier), || Ok(false));
    let (start, spin_policy) = (Instant::now(), SpinPolicy::default());
    let watch = Watch { call, peers: &peers, spin_policy, start, timeout: LONG, idle: &idle };
    makes_none("a_step_for_which_the_others_have_come", || {
        for _ in 0..1000 {
            assert!(!other.publish(Some(call)), "nobody sleeps");
            local.step(&watch, Some(call)).unwrap();
        }
    });
}
