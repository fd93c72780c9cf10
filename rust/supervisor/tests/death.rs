//! What happens when the client or the guard dies: GUARD-8 and GUARD-9.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{LONG, guard, last_events, number_in, sh, started};
use phalanx_supervisor::{ExitStatus, GuardEvent, PipeReader};
use phalanx_testkit::{alive, eventually, leaks, temp_dir};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open};

const GRACE: Duration = Duration::from_millis(300);

/// The variable that makes [`acts_as_client`] a client: the directory for what it has to tell.
const CLIENT: &str = "PHALANX_TEST_CLIENT";

/// Not a test of its own: the tests below run this test program again, as the client that dies.
#[test]
fn acts_as_client() {
    let Some(directory) = std::env::var_os(CLIENT) else { return };
    let directory = Path::new(&directory);
    let guard = guard(GRACE);
    let script = format!(
        "cd {}; trap '' TERM; (setsid sh -c 'echo $$ >daemon; sleep 1000' &) & echo $$ >rank; sleep 1000",
        directory.display()
    );
    let pipes = guard.launch(&sh(0, &script)).unwrap();
    std::fs::write(directory.join("guard"), format!("{}\n", guard.pid())).unwrap();
    // A deadline for the case that the test dies first.
    std::thread::sleep(LONG * 2);
    drop((pipes, guard));
}

struct Client {
    process: Child,
    directory: tempfile::TempDir,
    tree: [u32; 3],
}

fn client() -> Client {
    let directory = temp_dir("client");
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "acts_as_client", "--nocapture"])
        .env(CLIENT, directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let tree = ["guard", "rank", "daemon"].map(|name| number_in(&directory.path().join(name)));
    assert!(tree.iter().all(|pid| alive(*pid)));
    Client { process, directory, tree }
}

impl Client {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    #[track_caller]
    fn tree_ends_after_sigkill(mut self) {
        let killed = Instant::now();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        eventually("guard, rank and daemon have ended", LONG, || self.tree.iter().all(|pid| !alive(*pid)));
        let took = killed.elapsed();
        assert!(took >= GRACE && took < GRACE + Duration::from_secs(2), "GUARD-8: took {took:?}");
        self.directory.close().unwrap();
    }
}

#[test]
fn the_tree_ends_when_the_client_is_killed() {
    let _leaks = leaks();
    client().tree_ends_after_sigkill();
}

#[test]
fn the_tree_ends_when_the_client_is_killed_while_a_copy_of_its_socket_stays_open() {
    let _leaks = leaks();
    let client = client();
    // What a forked child of the client would have: its end of the control socket, open beyond its death.
    let pidfd = pidfd_open(client.pid(), PidfdFlags::empty()).unwrap();
    let sockets: Vec<rustix::io::Result<OwnedFd>> =
        std::fs::read_dir(format!("/proc/{}/fd", client.process.id()))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|fd| std::fs::read_link(fd).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")))
            .map(|fd| fd.file_name().unwrap().to_str().unwrap().parse().unwrap())
            .map(|fd| pidfd_getfd(&pidfd, fd, PidfdGetfdFlags::empty()))
            .collect();
    assert!(!sockets.is_empty());
    let held = sockets.iter().all(Result::is_ok);
    client.tree_ends_after_sigkill();
    if !held {
        // Nothing to print with; the plain case was tested all the same.
        assert!(matches!(sockets[0], Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS)));
    }
}

#[test]
fn the_tree_ends_when_the_client_is_killed_while_it_is_stopped() {
    let _leaks = leaks();
    let client = client();
    kill_process(client.pid(), Signal::STOP).unwrap();
    client.tree_ends_after_sigkill();
}

#[test]
fn ranks_die_with_the_guard_and_the_client_hears_of_it() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let (rank, output) = started(&guard, &sh(0, "trap '' TERM; sleep 1000 & echo child $!; wait"));
    let child = output.pid("child");
    kill_process(Pid::from_raw(guard.pid().try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    let (events, _) = last_events(&guard);
    match &events[..] {
        [GuardEvent::Gone { reason }] => assert!(reason.contains("SIGKILL"), "{reason}"),
        other => panic!("GUARD-9: {other:?}"),
    }
    eventually("the rank is gone", Duration::from_secs(2), || !alive(rank));
    assert!(guard.launch(&sh(1, "")).is_err());
    assert!(guard.events().recv().is_err(), "Gone is the last event");
    // The rank's own child is what only the guard could have ended; it holds the pipes.
    kill_process(Pid::from_raw(child.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
    output.readers.into_iter().for_each(PipeReader::join);
}

#[test]
fn ranks_live_on_when_the_thread_that_started_the_guard_ends() {
    let _leaks = leaks();
    let guard = std::thread::spawn(|| guard(LONG)).join().unwrap();
    let launch = sh(0, "read line </dev/null; echo up; while [ ! -e $GO ]; do sleep 0.02; done; exit 4");
    let directory = temp_dir("go");
    let go = directory.path().join("go");
    let launch =
        phalanx_supervisor::Launch { env: vec![("GO".into(), go.to_str().unwrap().into())], ..launch };
    let (rank, output) = std::thread::scope(|scope| scope.spawn(|| started(&guard, &launch)).join().unwrap());
    output.said("up");
    assert!(alive(rank));
    std::fs::write(&go, "").unwrap();
    assert_eq!(common::ended(&guard), (0, ExitStatus::Code(4)));
    guard.stop();
    common::empty(&guard);
}

#[test]
fn a_guard_that_is_no_guard_is_gone_at_once() {
    let _leaks = leaks();
    let options =
        |binary: &str| phalanx_supervisor::GuardOptions { binary: binary.into(), grace: Duration::ZERO };
    let error = phalanx_supervisor::Guard::spawn(&options("/no/such/guard")).unwrap_err();
    assert!(error.to_string().contains("/no/such/guard"), "{error}");
    let guard = phalanx_supervisor::Guard::spawn(&options("/bin/false")).unwrap();
    let (events, _) = last_events(&guard);
    assert_eq!(events, [GuardEvent::Gone { reason: "the guard exited with code 1".into() }]);
}

#[test]
#[ignore = "takes 15 s: as long as a guard may take to end what the kernel holds"]
fn dropping_a_guard_that_hangs_takes_a_bounded_time() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let (rank, output) = started(&guard, &sh(0, "exec sleep 1000"));
    kill_process(Pid::from_raw(guard.pid().try_into().unwrap()).unwrap(), Signal::STOP).unwrap();
    let dropped = Instant::now();
    drop(guard);
    assert!(dropped.elapsed() < Duration::from_secs(17));
    eventually("the rank died with its guard", LONG, || !alive(rank));
    drop(output);
}
