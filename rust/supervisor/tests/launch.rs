//! How ranks start and how their ends are told: GUARD-5 and GUARD-10.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{LONG, Output, empty, ended, guard, last_events, next_event, sh, started, with_guard};
use phalanx_supervisor::{ExitStatus, GuardEvent, Launch, PipeReader};
use phalanx_testkit::{eventually, leaks, temp_dir};
use phalanx_types::RankNote;

const GRACE: Duration = Duration::from_secs(5);

#[test]
fn a_rank_has_the_environment_it_was_given_and_no_other() {
    with_guard(GRACE, |guard| {
        let directory = temp_dir("cwd");
        let set_below = ["RANK", "HOME", "ODD"];
        let (unwanted, _) =
            std::env::vars().find(|(name, _)| !set_below.contains(&name.as_str()) && name != "PATH").unwrap();
        let launch = Launch {
            env: vec![
                ("RANK".into(), "3".into()),
                ("HOME".into(), "first".into()),
                ("HOME".into(), "/over".into()),
                ("ODD".into(), "a=b\nc \u{1f980}".into()),
            ],
            env_remove: vec![unwanted.clone(), "HOME".into(), "NOT_THERE".into()],
            cwd: Some(directory.path().into()),
            program: "env".into(),
            args: vec!["-0".into()],
            ..Launch::default()
        };
        let (_, output) = started(guard, &launch);
        assert_eq!(ended(guard), (0, ExitStatus::Code(0)));
        for reader in output.readers {
            reader.join();
        }
        let got: BTreeMap<String, String> = String::from_utf8(common::read_all(&output.log))
            .unwrap()
            .split_terminator('\0')
            .map(|one| one.split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap())
            .collect();
        let mut expected: BTreeMap<String, String> = std::env::vars().collect();
        expected.remove(&unwanted);
        expected.extend(launch.env);
        expected.insert("PHALANX_NOTES_FD".into(), "3".into());
        assert_eq!(got, expected, "GUARD-10");
    });
}

#[test]
fn a_rank_has_four_descriptors_default_signals_and_a_session_of_its_own() {
    let _leaks = leaks();
    // Not close-on-exec: what a careless library in the client leaves open.
    let careless = std::fs::File::open("/dev/zero").unwrap();
    rustix::io::fcntl_setfd(&careless, rustix::io::FdFlags::empty()).unwrap();
    let guard = guard(GRACE);
    // Each by a rank's own process and no shell: a shell has pipes of its own, and blocks signals while it forks.
    let run = |program: &str, args: &[&str]| {
        let args = args.iter().map(ToString::to_string).collect();
        let (pid, output) = started(&guard, &Launch { program: program.into(), args, ..Launch::default() });
        assert_eq!(ended(&guard), (0, ExitStatus::Code(0)));
        let Output { log, readers, .. } = &output;
        eventually("all is read", LONG, || readers.iter().all(PipeReader::is_finished));
        (pid, String::from_utf8(common::read_all(log)).unwrap())
    };

    let (_, text) = run("ls", &["-l", "/proc/self/fd"]);
    let mut fds: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(" -> "))
        .map(|(entry, target)| (entry.rsplit(' ').next().unwrap(), target))
        .collect();
    // The directory that ls reads.
    fds.retain(|(_, target)| !target.ends_with("/fd"));
    assert_eq!(fds.len(), 4, "GUARD-10: {text}");
    assert_eq!(fds[0], ("0", "/dev/null"));
    for (at, fd, kind) in [(1, "1", "pipe:"), (2, "2", "pipe:"), (3, "3", "socket:")] {
        assert!(fds[at].0 == fd && fds[at].1.starts_with(kind), "{text}");
    }
    assert_eq!(fds[1].1, fds[2].1, "one pipe for both outputs: {text}");

    let (_, text) = run("grep", &["-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    for signals in text.lines().map(|line| line.split('\t').nth(1).unwrap()) {
        // 32 and 33 are libc's own, and libc lets nobody change them.
        let others = u64::from_str_radix(signals, 16).unwrap() & !(0b11 << 31);
        assert_eq!(others, 0, "GUARD-10: {text}");
    }

    let (pid, text) = run("cat", &["/proc/self/stat"]);
    let session = text.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "GUARD-10");
    let (_, text) = run("pwd", &[]);
    assert_eq!(text.trim_end(), std::env::current_dir().unwrap().to_str().unwrap(), "the client's directory");
    guard.stop();
    empty(&guard);
}

#[test]
fn every_end_is_told_exactly_once() {
    let _leaks = leaks();
    let guard = guard(GRACE);
    let outputs: Vec<Output> = [
        sh(0, "exit 0"),
        sh(1, "exit 7"),
        sh(2, "kill -SEGV $$"),
        Launch { rank: 3, program: "phalanx-no-such-program".into(), ..Launch::default() },
    ]
    .iter()
    .map(|launch| Output::of(guard.launch(launch).unwrap()))
    .collect();
    let mut told: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut running = 4;
    while running > 0 {
        let (rank, what) = match next_event(&guard) {
            GuardEvent::Started { rank, .. } => (rank, "started".to_string()),
            GuardEvent::NotStarted { rank, .. } => (rank, "not started".to_string()),
            GuardEvent::Ended { rank, how, .. } => (rank, format!("{how:?}")),
            other => panic!("{other:?}"),
        };
        running -= u32::from(what != "started");
        told.entry(rank).or_default().push(what);
    }
    guard.stop();
    let (rest, _) = last_events(&guard);
    assert_eq!(rest, [GuardEvent::Empty], "GUARD-5: nothing twice");
    let expected = [["started", "Code(0)"], ["started", "Code(7)"], ["started", "Signal(11)"]];
    for (rank, expected) in (0..).zip(expected) {
        assert_eq!(told[&rank], expected, "GUARD-5");
    }
    assert_eq!(told[&3], ["not started"], "GUARD-5");
    for output in outputs {
        output.readers.into_iter().for_each(PipeReader::join);
        assert!(output.log.finished());
    }
}

#[test]
fn a_rank_that_can_not_start_says_why() {
    with_guard(GRACE, |guard| {
        let directory = temp_dir("programs");
        let file = directory.path().join("not-executable");
        std::fs::write(&file, "x").unwrap();
        let program = |program: &str| Launch { program: program.into(), ..Launch::default() };
        let path = |path: &str| vec![("PATH".to_string(), path.to_string())];
        let cases = [
            (program("/no/such/python"), "\"/no/such/python\": no such file"),
            (
                Launch { env: path("/nowhere:/else"), ..program("python") },
                "on the rank's PATH (/nowhere:/else)",
            ),
            (program(file.to_str().unwrap()), "permission denied"),
            (program("a\0b"), "contains a NUL byte"),
            (
                Launch { cwd: Some("/no/such/place".into()), ..sh(0, "true") },
                "directory /no/such/place does not exist",
            ),
            (
                Launch { args: vec!["x".repeat(8 << 20)], ..program("true") },
                "arguments and environment are too long",
            ),
        ];
        for (launch, expected) in cases {
            let pipes = guard.launch(&launch).unwrap();
            match next_event(guard) {
                GuardEvent::NotStarted { rank: 0, reason, .. } => {
                    assert!(reason.contains(expected), "{reason}")
                }
                other => panic!("{expected}: {other:?}"),
            }
            drop(pipes);
        }
    });
}

#[test]
fn notes_come_on_descriptor_three() {
    with_guard(GRACE, |guard| {
        let pipes = guard.launch(&sh(0, r#"echo "{\"phase\": \"user code\"}" >&$PHALANX_NOTES_FD"#)).unwrap();
        let (send, got) = crossbeam_channel::unbounded();
        let reader =
            phalanx_supervisor::notes(pipes.notes, Box::new(move |note| send.send(note).unwrap())).unwrap();
        reader.join();
        assert_eq!(got.iter().collect::<Vec<_>>(), [RankNote::Phase("user code".into())]);
        drop(pipes.output);
    });
}

#[test]
fn after_a_stop_nothing_starts_any_more() {
    let _leaks = leaks();
    let guard = guard(GRACE);
    let (_, output) =
        started(&guard, &sh(0, "trap 'sleep 0.2; exit 0' TERM; echo up; while :; do sleep 0.05; done"));
    output.said("up");
    guard.stop();
    let late = guard.launch(&sh(1, "echo too late"));
    let (events, _) = last_events(&guard);
    assert!(!events.iter().any(|event| matches!(event, GuardEvent::Started { .. })), "{events:?}");
    assert_eq!(
        late.is_ok(),
        events.iter().any(|e| matches!(e, GuardEvent::NotStarted { rank: 1, .. })),
        "{events:?}"
    );
    assert!(guard.launch(&sh(2, "")).is_err(), "the guard is no more");
}

#[test]
fn a_client_keeps_its_signal_handlers_and_its_children() {
    let caught = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find(|line| line.starts_with("SigCgt:")).unwrap().to_string()
    };
    let before = caught();
    let mut own = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
    let guard = guard(GRACE);
    let _output = started(&guard, &sh(0, "exit 0"));
    assert_eq!(ended(&guard), (0, ExitStatus::Code(0)));
    assert_eq!(caught(), before, "GUARD-13");
    guard.stop();
    empty(&guard);
    assert_eq!(own.wait().unwrap().code(), Some(3), "GUARD-13: nobody else has waited for it");
}

#[test]
fn two_hundred_launches_leave_nothing() {
    with_guard(GRACE, |guard| {
        for round in 0..20 {
            let outputs: Vec<Output> =
                (0..10).map(|i| Output::of(guard.launch(&sh(round * 10 + i, "echo $$")).unwrap())).collect();
            let mut ends = 0;
            while ends < 10 {
                ends += u32::from(matches!(
                    next_event(guard),
                    GuardEvent::Ended { how: ExitStatus::Code(0), .. }
                ));
            }
            for output in outputs {
                output.readers.into_iter().for_each(PipeReader::join);
            }
            assert!(phalanx_testkit::children(guard.pid()).is_empty(), "no zombies under the guard");
            let fds = std::fs::read_dir(format!("/proc/{}/fd", guard.pid())).unwrap().count();
            assert!(fds <= 6, "the guard has {fds} descriptors open");
        }
    });
}
