//! A server, and tasks that say what they like.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with};

use super::*;
use crate::socket::wait_readable;

/// A server, and where it is met.
fn served(name: &str, idle: Duration) -> (ModelServer, SocketAddrUnix) {
    let (listener, address) = listening(name);
    (ModelServer::new(listener, idle).unwrap(), address)
}

/// How long the model of a server may work for a task that has gone, in these tests.
const SHORT: Duration = Duration::from_millis(40);

/// The same, with what tells that the process would have ended.
fn impatient(name: &str) -> (ModelServer, SocketAddrUnix, Receiver<Duration>) {
    let (listener, address) = listening(name);
    let (gave_up, given_up) = channel();
    let watchdog = Watchdog::start(SHORT, move |time| gave_up.send(time).unwrap()).unwrap();
    (ModelServer::watched(listener, Duration::from_secs(60), watchdog).unwrap(), address, given_up)
}

fn listening(name: &str) -> (OwnedFd, SocketAddrUnix) {
    let name = format!("phalanx-test-{}-{name}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let listener = seqpacket();
    bind(&listener, &address).unwrap();
    listen(&listener, 16).unwrap();
    (listener, address)
}

fn seqpacket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A task that has said hello.
fn task(address: &SocketAddrUnix) -> OwnedFd {
    let socket = seqpacket();
    connect(&socket, address).unwrap();
    say(&socket, &FromTask::Hello { version: VERSION }, None);
    socket
}

fn say(socket: &OwnedFd, message: &FromTask, file: Option<&SharedMemory>) {
    assert!(send(socket, message, file.map(SharedMemory::file)).unwrap());
}

fn heard(socket: &OwnedFd) -> Result<Option<(FromModel, Option<OwnedFd>)>> {
    wait_readable(socket, Duration::from_secs(5));
    receive(socket)
}

fn batch(slot: u32, rows: u64) -> FromTask {
    let column = ("x".into(), "uint8".into(), vec![rows], rows);
    FromTask::Batch(Batch::laid_out(slot, rows, vec![column], String::new()).unwrap().0)
}

fn bring_model(server: &mut ModelServer, task: &OwnedFd) {
    server.look(Duration::ZERO);
    assert!(matches!(heard(task).unwrap(), Some((FromModel::Wanted, None))));
    say(task, &FromTask::Model, Some(&SharedMemory::new(1).unwrap()));
    assert!(server.model(&mut || true).is_some());
    server.ready();
    assert!(matches!(heard(task).unwrap(), Some((FromModel::Ready, None))));
}

#[test]
fn the_model_is_asked_of_one_task_and_of_another_where_that_goes() {
    let (mut server, address) = served("asked", Duration::from_secs(60));
    let (first, second) = (task(&address), task(&address));
    server.look(Duration::ZERO);
    assert!(matches!(heard(&first).unwrap(), Some((FromModel::Wanted, _))));
    assert!(receive::<FromModel>(&second).unwrap().is_none());
    drop(first);
    server.look(Duration::from_secs(5));
    assert!(matches!(heard(&second).unwrap(), Some((FromModel::Wanted, _))));
    say(&second, &FromTask::Model, Some(&SharedMemory::new(3).unwrap()));
    assert!(server.model(&mut || true).is_some());
    server.failed(Trouble { error: "é".repeat(1 << 20), traceback: "t".repeat(1 << 20) });
    match heard(&second).unwrap() {
        Some((FromModel::Failed(trouble), _)) => {
            assert!(trouble.error.starts_with('é') && trouble.error.ends_with('é'));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tasks_take_turns_and_get_what_is_theirs() {
    let (mut server, address) = served("turns", Duration::from_secs(60));
    let first = task(&address);
    bring_model(&mut server, &first);
    let second = task(&address);
    server.look(Duration::from_secs(5));
    assert!(matches!(heard(&second).unwrap(), Some((FromModel::Ready, _))));
    let memory = SharedMemory::new(100).unwrap();
    for (socket, rows) in [(&first, 1), (&second, 3)] {
        say(socket, &batch(0, rows), Some(&memory));
        say(socket, &batch(1, rows + 1), Some(&memory));
    }
    let mut rows = Vec::new();
    for _ in 0..4 {
        assert!(server.wait(&mut || true));
        let work = server.next_work().unwrap();
        rows.push(work.batch.rows);
        let column = ("y".into(), "uint8".into(), vec![work.batch.rows], work.batch.rows);
        let room = server.lay_out(work.task, work.batch.slot, work.batch.rows, vec![column]).unwrap();
        assert!(room.unwrap().is_new);
        server.done(work.task, work.batch.slot);
    }
    assert_eq!(rows, [1, 3, 2, 4], "SCORE-5");
    for (socket, expected) in [(&first, [1, 2]), (&second, [3, 4])] {
        for rows in expected {
            match heard(socket).unwrap() {
                Some((FromModel::Done { batch, .. }, Some(_))) => assert_eq!(batch.rows, rows, "SCORE-1"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_task_that_says_what_it_can_t_is_dropped_and_the_others_are_served() {
    let (mut server, address) = served("wrong", Duration::from_secs(60));
    let good = task(&address);
    bring_model(&mut server, &good);
    let small = SharedMemory::new(1).unwrap();
    let wrong: [(FromTask, Option<&SharedMemory>); 4] = [
        (FromTask::Hello { version: VERSION }, None),
        (FromTask::Model, Some(&small)),
        (batch(0, 2), Some(&small)), // SCORE-6
        (batch(0, 1), None),
    ];
    for (message, file) in wrong {
        let other = task(&address);
        server.look(Duration::from_secs(5));
        assert!(matches!(heard(&other).unwrap(), Some((FromModel::Ready, _))));
        say(&other, &message, file);
        server.look(Duration::from_secs(5));
        assert_eq!(heard(&other).unwrap_err().kind(), ErrorKind::Closed, "{message:?}");
    }
    // Two batches in one slot (SCORE-2).
    let greedy = task(&address);
    server.look(Duration::from_secs(5));
    say(&greedy, &batch(0, 1), Some(&small));
    say(&greedy, &batch(0, 1), None);
    say(&good, &batch(1, 1), Some(&small));
    assert!(server.wait(&mut || true));
    let work = server.next_work().unwrap();
    assert_eq!((work.batch.slot, server.tasks.len()), (1, 1));
    server.refused(work.task, 1, Trouble { error: "no".into(), traceback: String::new() });
    assert!(matches!(heard(&good).unwrap(), Some((FromModel::Refused { slot: 1, .. }, None))));
}

#[test]
fn a_process_without_tasks_ends_after_its_idle_time_and_what_gone_tasks_had_is_forgotten() {
    let (mut server, address) = served("idle", Duration::from_millis(1200));
    let first = task(&address);
    bring_model(&mut server, &first);
    say(&first, &batch(0, 1), Some(&SharedMemory::new(1).unwrap()));
    drop(first);
    let left = Instant::now();
    assert!(server.wait(&mut || true), "a task has gone");
    assert!(server.next_work().is_none() && !server.has(0));
    assert!(!server.wait(&mut || true), "SCORE-3");
    assert!(left.elapsed() >= Duration::from_millis(1200), "SCORE-3");
    assert!(server.lay_out(0, 0, 1, Vec::new()).unwrap().is_none());
    server.done(0, 0);
}

#[test]
fn a_process_without_idle_time_waits_for_the_task_that_has_started_it_and_a_moment_for_the_next() {
    let (mut server, address) = served("no-idle", Duration::ZERO);
    let mut first = None;
    let mut says = || {
        match &first {
            None => first = Some(task(&address)),
            Some(task) => say(task, &FromTask::Model, Some(&SharedMemory::new(1).unwrap())),
        }
        true
    };
    assert!(server.model(&mut says).is_some(), "SCORE-3");
    server.ready();
    drop(first);
    let left = Instant::now();
    assert!(server.wait(&mut || true), "a task has gone");
    assert!(!server.wait(&mut || true) && left.elapsed() >= LEAST_IDLE, "SCORE-3");
}

#[test]
fn a_process_that_nobody_has_met_ends_where_the_task_that_has_started_it_can_t_come_any_more() {
    let (mut server, _) = served("unmet", Duration::ZERO);
    let ago = |seconds| Instant::now().checked_sub(UNMET - Duration::from_secs(seconds)).unwrap();
    server.alone_since = ago(5);
    assert!(!server.is_over(), "SCORE-3");
    server.alone_since = ago(0);
    assert!(server.model(&mut || panic!("it is over")).is_none(), "SCORE-3");
}

#[test]
fn a_task_for_which_there_is_no_descriptor_waits_and_holds_nobody_up() {
    let (mut server, address) = served("full", Duration::from_secs(60));
    let first = task(&address);
    bring_model(&mut server, &first);
    let _second = task(&address);
    // None of this test's own time counts.
    server.full_since = Some(Instant::now() + Duration::from_secs(3600));
    say(&first, &batch(0, 1), Some(&SharedMemory::new(1).unwrap()));
    let began = Instant::now();
    server.look(Duration::from_secs(60));
    assert!(began.elapsed() < Duration::from_secs(30) && !server.turns.is_empty(), "the first task is heard");
    server.look(Duration::from_secs(60));
    assert_eq!(server.tasks.len(), 1, "nobody is accepted meanwhile");
    assert!(began.elapsed() < Duration::from_secs(30), "it looks again soon");
    server.full_since = Instant::now().checked_sub(ACCEPT_AGAIN);
    server.look(Duration::ZERO);
    assert_eq!((server.tasks.len(), server.full_since), (2, None));
}

#[test]
fn a_process_without_tasks_ends_early_where_memory_is_short() {
    let (mut server, address) = served("short", Duration::from_secs(60));
    let first = task(&address);
    bring_model(&mut server, &first);
    let meminfo = std::env::temp_dir().join(format!("phalanx-test-{}-meminfo", std::process::id()));
    let left = |kib: u64| {
        std::fs::write(&meminfo, format!("MemTotal: 1000 kB\nMemAvailable: {kib} kB\n")).unwrap();
        MemoryWatch::new(meminfo.clone())
    };
    server.memory = left(50);
    assert!(!server.is_over(), "a task is connected");
    drop(first);
    assert!(server.wait(&mut || true), "a task has gone");
    server.alone_since = Instant::now();
    assert!(!server.is_over(), "the next task may come at once");
    server.alone_since -= LOOK_AT_MEMORY;
    assert!(server.is_over(), "SCORE-3");
    server.memory = left(500);
    assert!(!server.is_over(), "SCORE-3");
    std::fs::remove_file(meminfo).unwrap();
}

#[test]
fn a_process_ends_where_its_model_hangs_while_it_is_made_and_the_task_has_gone() {
    let (mut server, address, given_up) = impatient("making");
    let first = task(&address);
    server.look(Duration::ZERO);
    say(&first, &FromTask::Model, Some(&SharedMemory::new(1).unwrap()));
    assert!(server.model(&mut || true).is_some());
    assert_eq!(given_up.recv_timeout(5 * SHORT), Err(RecvTimeoutError::Timeout), "SCORE-27: the task waits");
    drop(first);
    assert!(given_up.recv_timeout(Duration::from_secs(20)).is_ok(), "SCORE-27");
}

#[test]
fn a_process_ends_where_its_model_hangs_in_a_batch_of_a_task_that_has_gone() {
    let (mut server, address, given_up) = impatient("hanging");
    let quiet =
        |why: &str| assert_eq!(given_up.recv_timeout(5 * SHORT), Err(RecvTimeoutError::Timeout), "{why}");
    let (first, memory) = (task(&address), SharedMemory::new(1).unwrap());
    bring_model(&mut server, &first);
    let second = task(&address);
    server.look(Duration::from_secs(5));
    for socket in [&first, &second] {
        say(socket, &batch(0, 1), Some(&memory));
        say(socket, &batch(1, 1), Some(&memory));
    }
    assert!(server.wait(&mut || true));
    // The second task's is begun ahead (SCORE-26).
    assert_eq!([0, 1], [(); 2].map(|()| server.next_work().unwrap().task), "SCORE-5");
    drop(second);
    quiet("SCORE-27: the oldest batch is that of a task that waits");
    server.refused(0, 0, Trouble { error: "no".into(), traceback: String::new() });
    server.done(1, 0);
    quiet("SCORE-27: no batch is under way");
    assert!(server.wait(&mut || true));
    assert_eq!(server.next_work().unwrap().task, 0);
    // One that is served no more has gone, and learns so, whatever the model does.
    say(&first, &FromTask::Model, None);
    server.look(Duration::from_secs(5));
    assert!(matches!(heard(&first).unwrap(), Some((FromModel::Refused { .. }, None))));
    assert_eq!(heard(&first).unwrap_err().kind(), ErrorKind::Closed);
    assert!(given_up.recv_timeout(Duration::from_secs(20)).is_ok(), "SCORE-27");
}
