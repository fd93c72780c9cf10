//! How trees end: GUARD-6, and who is not touched by it: GUARD-7.

mod common;

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, empty, ended, guard, last_events, sh, started};
use phalanx_supervisor::{ExitStatus, Guard, GuardEvent, PipeReader};
use phalanx_testkit::{alive, descendants, eventually, leaks, temp_dir};
use rustix::process::{Pid, Signal, kill_process};

/// What GUARD-6 allows beyond the grace.
const BEYOND: Duration = Duration::from_secs(2);

/// Ignores SIGTERM, and so does what it starts: a child, and a daemon that two forks and a session of its own hide.
const STUBBORN: &str = "trap '' TERM
    (setsid sh -c 'echo daemon $$; while :; do sleep 0.1; done' &) &
    sh -c 'echo child $$; while :; do sleep 0.1; done' &
    while :; do sleep 0.1; done";

/// Waits for `Empty` and checks when it came: not before `at_least`, and no later than that and `BEYOND`.
#[track_caller]
fn empty_after(guard: &Guard, since: Instant, at_least: Duration) -> Vec<GuardEvent> {
    let (events, at) = last_events(guard);
    assert_eq!(events.last(), Some(&GuardEvent::Empty));
    let took = at - since;
    assert!(took >= at_least && took <= at_least + BEYOND, "GUARD-6: empty after {took:?}");
    events
}

#[test]
fn a_stop_ends_a_tree_that_ignores_sigterm_within_the_grace_and_two_seconds() {
    let _leaks = leaks();
    let grace = Duration::from_millis(500);
    let guard = guard(grace);
    let (rank, output) = started(&guard, &sh(0, STUBBORN));
    let (daemon, child) = (output.pid("daemon"), output.pid("child"));
    let stopped = Instant::now();
    guard.stop();
    guard.stop();
    let events = empty_after(&guard, stopped, grace);
    assert!(matches!(events[0], GuardEvent::Ended { rank: 0, how: ExitStatus::Signal(9), .. }), "{events:?}");
    assert_eq!(events.len(), 2, "{events:?}");
    for pid in [rank, daemon, child] {
        assert!(!alive(pid), "GUARD-6");
    }
}

#[test]
fn a_rank_that_handles_sigterm_has_its_grace_and_no_more_is_waited() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let script = "trap 'sleep 0.3; echo saved; exit 5' TERM; echo up; while :; do sleep 0.02; done";
    let (_, output) = started(&guard, &sh(0, script));
    output.said("up");
    let stopped = Instant::now();
    guard.stop();
    assert_eq!(ended(&guard), (0, ExitStatus::Code(5)));
    empty_after(&guard, stopped, Duration::from_millis(300));
    output.said("saved");
}

#[test]
fn sigterm_comes_once() {
    let _leaks = leaks();
    let guard = guard(Duration::from_secs(1));
    let (_, output) = started(&guard, &sh(0, "trap 'echo term' TERM; echo up; while :; do sleep 0.01; done"));
    output.said("up");
    guard.stop();
    guard.stop();
    assert_eq!(ended(&guard), (0, ExitStatus::Signal(9)));
    empty(&guard);
    output.readers.into_iter().for_each(PipeReader::join);
    assert_eq!(output.log.last_lines(9), ["up", "term"]);
}

#[test]
fn what_is_orphaned_during_the_grace_is_asked_to_end_too() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let script =
        "sh -c 'trap \"echo orphan asked; exit\" TERM; echo orphan up; while :; do sleep 0.02; done' &
        trap 'exit 0' TERM; while :; do sleep 0.02; done";
    let (_, output) = started(&guard, &sh(0, script));
    output.said("orphan up");
    let stopped = Instant::now();
    guard.stop();
    empty_after(&guard, stopped, Duration::ZERO);
    output.said("orphan asked");
}

#[test]
fn what_ranks_left_behind_is_ended_by_the_stop_after_their_exit() {
    let _leaks = leaks();
    let guard = guard(Duration::from_millis(300));
    let (_, output) =
        started(&guard, &sh(0, "setsid sh -c 'trap \"\" TERM; echo left $$; sleep 1000' & exit 0"));
    assert_eq!(ended(&guard), (0, ExitStatus::Code(0)));
    let left = output.pid("left");
    assert!(alive(left));
    let stopped = Instant::now();
    guard.stop();
    assert_eq!(empty_after(&guard, stopped, Duration::from_millis(300)), [GuardEvent::Empty]);
    assert!(!alive(left), "GUARD-6");
    // The daemon was the last to hold the pipes.
    output.readers.into_iter().for_each(PipeReader::join);
}

#[test]
fn a_kill_waits_for_nobody_even_in_the_grace() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let (_, output) = started(&guard, &sh(0, STUBBORN));
    let daemon = output.pid("daemon");
    guard.stop();
    let killed = Instant::now();
    guard.kill();
    empty_after(&guard, killed, Duration::ZERO);
    assert!(!alive(daemon));
}

#[test]
fn a_dropped_guard_leaves_nothing() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let (rank, output) = started(&guard, &sh(0, STUBBORN));
    let (daemon, child, process) = (output.pid("daemon"), output.pid("child"), guard.pid());
    drop(guard);
    for pid in [rank, daemon, child, process] {
        assert!(!alive(pid), "GUARD-6");
    }
}

#[test]
fn a_stopped_rank_and_a_deep_tree_end_as_well() {
    let _leaks = leaks();
    let grace = Duration::from_millis(300);
    let guard = guard(grace);
    let directory = temp_dir("deep");
    let script = directory.path().join("deep.sh");
    std::fs::write(
        &script,
        "if [ $1 -gt 0 ]; then sh $0 $(($1 - 1)) & wait; else echo bottom; sleep 1000; fi",
    )
    .unwrap();
    let (_, output) = started(&guard, &sh(0, &format!("trap '' TERM; sh {} 40", script.display())));
    let (stopped_rank, _other) = started(&guard, &sh(1, "kill -STOP $$"));
    output.said("bottom");
    eventually("the rank has stopped itself", LONG, || {
        phalanx_testkit::Process::find(stopped_rank).is_some_and(|process| process.state == 'T')
    });
    assert!(descendants(guard.pid()).len() > 40);
    let stopped = Instant::now();
    guard.stop();
    empty_after(&guard, stopped, grace);
}

#[test]
fn a_stopped_rank_goes_on_to_save_its_work_and_does_not_hold_up_the_end() {
    let _leaks = leaks();
    let guard = guard(LONG * 20);
    let saves = "trap 'echo saved; exit 5' TERM; echo up; kill -STOP $$; while :; do sleep 0.02; done";
    let (saving, output) = started(&guard, &sh(0, saves));
    let (heedless, _other) = started(&guard, &sh(1, "kill -STOP $$"));
    eventually("the ranks have stopped themselves", LONG, || {
        [saving, heedless]
            .iter()
            .all(|pid| phalanx_testkit::Process::find(*pid).is_some_and(|process| process.state == 'T'))
    });
    guard.stop();
    let (mut events, _) = last_events(&guard);
    output.said("saved");
    assert_eq!(events.pop(), Some(GuardEvent::Empty));
    let mut ends: Vec<_> = events
        .into_iter()
        .map(|event| match event {
            GuardEvent::Ended { rank, how, .. } => (rank, how),
            other => panic!("{other:?}"),
        })
        .collect();
    ends.sort_by_key(|(rank, _)| *rank);
    assert_eq!(ends, [(0, ExitStatus::Code(5)), (1, ExitStatus::Signal(15))]);
}

#[test]
fn a_tree_that_forks_all_the_time_ends() {
    let _leaks = leaks();
    let grace = Duration::from_millis(300);
    let guard = guard(grace);
    let directory = temp_dir("forks");
    // Chains whose head is always somebody else, in sessions of their own, and many children of one parent.
    let chain = directory.path().join("chain.sh");
    std::fs::write(&chain, "setsid sh $0 & exit 0").unwrap();
    let wide =
        "i=0; while [ $i -lt 150 ]; do sleep 1000 & i=$((i + 1)); done; echo wide; while :; do (:); done";
    let chains = format!("for i in 1 2 3 4; do sh {} & done", chain.display());
    let (_, output) = started(&guard, &sh(0, &format!("trap '' TERM; {chains}; {wide}")));
    output.said("wide");
    let stopped = Instant::now();
    guard.stop();
    empty_after(&guard, stopped, grace);
    assert!(!phalanx_testkit::processes().iter().any(|process| {
        let line = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&*chain.to_string_lossy())
    }));
}

#[test]
fn nobody_else_is_signalled() {
    let _leaks = leaks();
    // In the client's session and process group, a sibling of the guard; it tells of every signal that can be told of.
    let script = "for s in HUP INT QUIT TERM USR1 USR2 ALRM CONT CHLD; do trap \"echo $s\" $s; done
        echo up; while read line; do [ $line = end ] && exit 7; done";
    let mut bystander =
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(bystander.stdout.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut said, &mut first).unwrap();
    assert_eq!(first, "up\n");

    for kill in [false, true] {
        let guard = guard(Duration::from_millis(200));
        let (_, output) = started(&guard, &sh(0, STUBBORN));
        output.said("daemon");
        if kill {
            guard.kill()
        } else {
            guard.stop()
        }
        empty(&guard);
    }
    drop(guard(Duration::ZERO));

    std::io::Write::write_all(bystander.stdin.as_mut().unwrap(), b"end\n").unwrap();
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).unwrap();
    let status = bystander.wait().unwrap();
    assert_eq!((rest.as_str(), status.code(), status.signal()), ("", Some(7), None), "GUARD-7");
}

#[test]
fn signals_to_the_guard_change_nothing() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let (_, output) = started(&guard, &sh(0, "trap 'exit 3' TERM; echo up; while :; do sleep 0.02; done"));
    output.said("up");
    let pid = Pid::from_raw(guard.pid().try_into().unwrap()).unwrap();
    for signal in
        [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::PIPE, Signal::TSTP]
    {
        kill_process(pid, signal).unwrap();
    }
    let late = started(&guard, &sh(1, "exit 0"));
    assert_eq!(ended(&guard), (1, ExitStatus::Code(0)), "it still serves, and rank 0 still runs");
    drop(late);
    guard.stop();
    assert_eq!(ended(&guard), (0, ExitStatus::Code(3)));
    empty(&guard);
}

#[test]
#[ignore = "takes 10 s: as long as a guard waits for what the kernel holds; needs a freezer cgroup"]
fn what_the_kernel_holds_is_given_up_and_named() {
    let _leaks = leaks();
    let freezer =
        std::path::PathBuf::from(format!("/sys/fs/cgroup/freezer/phalanx-test-{}", std::process::id()));
    if std::fs::create_dir(&freezer).is_err() {
        return;
    }
    let guard = guard(Duration::ZERO);
    let frozen = freezer.join("freezer.state");
    let script = format!("echo $$ >{}/cgroup.procs; echo up; exec sleep 1000", freezer.display());
    let (rank, output) = started(&guard, &sh(0, &script));
    output.said("up");
    std::fs::write(&frozen, "FROZEN").unwrap();
    guard.stop();
    let (events, _) = last_events(&guard);
    std::fs::write(&frozen, "THAWED").unwrap();
    match &events[..] {
        [GuardEvent::Gone { reason }] => {
            assert!(reason.contains(&format!("did not end sleep (pid {rank}")), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    eventually("the thawed rank is gone", LONG, || !alive(rank) && std::fs::remove_dir(&freezer).is_ok());
}

#[test]
fn a_signal_reaches_the_rank_that_it_is_for_and_none_that_has_ended() {
    let _leaks = leaks();
    let guard = guard(Duration::from_secs(1));
    let script = "trap 'echo signalled' USR1; echo up; while :; do sleep 0.02; done";
    let (_, one) = started(&guard, &sh(1, script));
    let (_, two) = started(&guard, &sh(2, script));
    one.said("up");
    two.said("up");
    guard.signal(2, Signal::USR1.as_raw());
    guard.signal(3, Signal::KILL.as_raw());
    two.said("signalled");
    assert!(!one.text().contains("signalled"), "GUARD-7");
    guard.stop();
    let (events, _) = last_events(&guard);
    assert_eq!(events.last(), Some(&GuardEvent::Empty));
}

#[test]
fn the_signal_for_stacks_is_a_real_time_one_that_nobody_else_has() {
    assert!((34..=64).contains(&phalanx_supervisor::stacks_signal()));
}
