//! The end of a model's process. It has one thread, which computes; what tasks say meanwhile waits in their sockets.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use phalanx_supervisor::peer_uid;
use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::getuid;

use crate::batch::{Batch, MOST_SLOTS, NewColumn};
use crate::computing::Computing;
use crate::memory::MemoryWatch;
use crate::shared::{Room, SharedMemory, Slot};
use crate::socket::{receive, send, wait};
use crate::turns::Turns;
use crate::wire::{FromModel, FromTask, Trouble, VERSION};

/// How often a process without tasks looks whether memory is short, and how long it has none before it goes for that.
const LOOK_AT_MEMORY: Duration = Duration::from_secs(1);

/// A batch to compute.
#[derive(Debug)]
pub struct Work {
    /// Whose it is: a number of the connection.
    pub task: u64,
    /// The batch.
    pub batch: Batch,
    /// Its memory, where that is another than before in this slot of the task's.
    pub memory: Option<Given>,
}

/// The memory of batches, to be mapped.
#[derive(Debug)]
pub struct Given {
    /// The memory.
    pub file: OwnedFd,
    /// How many bytes it has.
    pub bytes: u64,
}

#[derive(Debug, PartialEq)]
enum State {
    /// The model is wanted; the task that was asked for it.
    Wanted(Option<u64>),
    /// The model is being made.
    Making,
    Ready,
}

#[derive(Debug)]
struct Task {
    socket: OwnedFd,
    greeted: bool,
    /// How large the memory of each slot is; `None` where there is none yet.
    bytes: [Option<u64>; MOST_SLOTS as usize],
    under_way: [bool; MOST_SLOTS as usize],
    results: [Slot; MOST_SLOTS as usize],
}

/// The tasks that share this process's model.
#[derive(Debug)]
pub struct ModelServer {
    listener: OwnedFd,
    tasks: BTreeMap<u64, Task>,
    next_task: u64,
    turns: Turns<(Batch, Option<SharedMemory>)>,
    any_gone: bool,
    state: State,
    model: Option<OwnedFd>,
    idle_timeout: Duration,
    /// Since when no task is connected.
    alone_since: Instant,
    computing: Computing,
    memory: MemoryWatch,
}

impl ModelServer {
    /// Serves whoever connects to `listener`, a socket that [`phalanx_supervisor::warm_pool::start_kept`] has made.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it is no socket.
    pub fn new(listener: OwnedFd, idle_timeout: Duration) -> Result<ModelServer> {
        rustix::io::ioctl_fionbio(&listener, true)
            .map_err(|error| Error::io("serve a model", &error.into()))?;
        Ok(ModelServer {
            listener,
            tasks: BTreeMap::new(),
            next_task: 0,
            turns: Turns::new(),
            any_gone: false,
            state: State::Wanted(None),
            model: None,
            idle_timeout,
            alone_since: Instant::now(),
            computing: Computing::new(Instant::now()),
            memory: MemoryWatch::new(),
        })
    }

    /// The model, as soon as a task has brought it, as a file to be read from its beginning; `None` if the process is
    /// to end. `go_on` is asked once a second at least.
    pub fn model(&mut self, go_on: &mut dyn FnMut() -> bool) -> Option<OwnedFd> {
        loop {
            if let Some(model) = self.model.take() {
                return Some(model);
            }
            if self.is_over() || !go_on() {
                return None;
            }
            self.look(LOOK_AT_MEMORY);
        }
    }

    /// Tells the tasks that they can give batches.
    pub fn ready(&mut self) {
        self.state = State::Ready;
        self.tell_all(&FromModel::Ready);
    }

    /// Tells all tasks, and those that come by now, that there is no model.
    pub fn failed(&mut self, trouble: Trouble) {
        self.look(Duration::ZERO);
        self.tell_all(&FromModel::Failed(trouble.shortened()));
    }

    /// Waits for a batch, or until a task goes, whose memory is of no use then; not at all while a batch is computed.
    /// False if the process is to end. `go_on` is asked once a second at least.
    pub fn wait(&mut self, go_on: &mut dyn FnMut() -> bool) -> bool {
        loop {
            // Whoever has come has a turn, and whoever has gone has none.
            self.look(Duration::ZERO);
            if std::mem::take(&mut self.any_gone) || !self.turns.is_empty() || self.computing.is_any() {
                return true;
            }
            if self.is_over() || !go_on() {
                return false;
            }
            self.look(LOOK_AT_MEMORY);
        }
    }

    /// The next batch, if there is one. Each ends by `done` or `refused`, in this order, also if its task has gone.
    pub fn next_work(&mut self) -> Option<Work> {
        let (task, (batch, memory)) = self.turns.next()?;
        self.computing.begin(Instant::now());
        let memory = memory.map(|memory| Given { bytes: memory.bytes(), file: memory.into_file() });
        Some(Work { task, batch, memory })
    }

    /// Whether the task with this number is still there; memory of one that is not is of no use.
    pub fn has(&self, task: u64) -> bool {
        self.tasks.contains_key(&task)
    }

    /// Makes room for what the model made of a batch; `None` if its task has gone.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no memory could hold it, [`ErrorKind::Io`] without memory.
    pub fn lay_out(
        &mut self,
        task: u64,
        slot: u32,
        rows: u64,
        columns: Vec<NewColumn>,
    ) -> Result<Option<Room>> {
        let Some(results) = self.tasks.get_mut(&task).and_then(|task| task.results.get_mut(slot as usize))
        else {
            return Ok(None);
        };
        results.lay_out(slot, rows, columns, String::new()).map(Some)
    }

    /// Tells a task that its batch is done, and in the memory that was laid out for it.
    pub fn done(&mut self, number: u64, slot: u32) {
        let micros = u64::try_from(self.computing.end(Instant::now()).as_micros()).unwrap_or(u64::MAX);
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.under_way[slot as usize] = false;
        let Some((batch, file)) = task.results[slot as usize].to_send() else { return };
        let sent = send(&task.socket, &FromModel::Done { batch, micros }, file);
        task.results[slot as usize].told(true);
        self.drop_unless_sent(number, sent);
    }

    /// Tells a task that the model failed with its batch.
    pub fn refused(&mut self, number: u64, slot: u32, trouble: Trouble) {
        self.computing.end(Instant::now());
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.under_way[slot as usize] = false;
        let refused = FromModel::Refused { slot, trouble: trouble.shortened() };
        let sent = send(&task.socket, &refused, None);
        self.drop_unless_sent(number, sent);
    }

    /// A task has few answers under way, so a socket that takes none is that of a task that doesn't keep to the rules.
    fn drop_unless_sent(&mut self, number: u64, sent: Result<bool>) {
        if !matches!(sent, Ok(true)) {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        self.any_gone |= self.tasks.remove(&number).is_some();
        self.turns.remove(number);
        if self.state == State::Wanted(Some(number)) {
            self.state = State::Wanted(None);
            self.ask_for_model();
        }
        if self.tasks.is_empty() {
            self.alone_since = Instant::now();
        }
    }

    fn is_over(&self) -> bool {
        let alone = self.alone_since.elapsed();
        self.tasks.is_empty()
            && (alone >= self.idle_timeout || alone >= LOOK_AT_MEMORY && self.memory.is_short())
    }

    fn tell_all(&mut self, message: &FromModel) {
        let greeted = self.tasks.iter().filter(|(_, task)| task.greeted).map(|(number, _)| *number);
        for number in greeted.collect::<Vec<u64>>() {
            let sent = send(&self.tasks[&number].socket, message, None);
            self.drop_unless_sent(number, sent);
        }
    }

    /// Asks one of the tasks for the model.
    fn ask_for_model(&mut self) {
        while self.state == State::Wanted(None) {
            let Some((number, task)) = self.tasks.iter().find(|(_, task)| task.greeted) else { return };
            let number = *number;
            let sent = send(&task.socket, &FromModel::Wanted, None);
            self.state = State::Wanted(Some(number));
            self.drop_unless_sent(number, sent);
        }
    }

    /// Takes in who has come, what was said and who has gone; waits for that as long as `time`.
    fn look(&mut self, time: Duration) {
        let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.tasks.values().map(|task| PollFd::new(&task.socket, PollFlags::IN)));
        let end = self.idle_timeout.saturating_sub(self.alone_since.elapsed()).max(Duration::from_millis(1));
        wait(&mut fds, if self.tasks.is_empty() { time.min(end) } else { time });
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let numbers: Vec<u64> = self.tasks.keys().copied().collect();
        for (number, _) in numbers.into_iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
            self.hear(number);
        }
        if ready[0] {
            self.accept_all();
        }
    }

    fn accept_all(&mut self) {
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                // SCORE-7
                Ok(socket) if peer_uid(&socket).ok() == Some(getuid().as_raw()) => {
                    let task = Task {
                        socket,
                        greeted: false,
                        bytes: Default::default(),
                        under_way: Default::default(),
                        results: Default::default(),
                    };
                    self.tasks.insert(self.next_task, task);
                    self.hear(self.next_task);
                    self.next_task += 1;
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    /// Takes in all that a task has said; one that says what it can't is dropped.
    fn hear(&mut self, number: u64) {
        loop {
            let Some(task) = self.tasks.get_mut(&number) else { return };
            let heard = match receive(&task.socket) {
                Ok(None) => return,
                Ok(Some((message, file))) => self.heard(number, message, file),
                Err(error) => Err(error),
            };
            if let Err(error) = heard {
                if error.kind() != ErrorKind::Closed {
                    log::warn!("a task is not served any more: {error}");
                }
                self.forget(number);
                return;
            }
        }
    }

    fn heard(&mut self, number: u64, message: FromTask, file: Option<OwnedFd>) -> Result<()> {
        let protocol = |what: &str| Error::new(ErrorKind::Protocol, what);
        let Some(task) = self.tasks.get_mut(&number) else { return Ok(()) };
        match message {
            FromTask::Hello { version } if version == VERSION && !task.greeted => {
                task.greeted = true;
                match self.state {
                    State::Wanted(_) => self.ask_for_model(),
                    State::Making => {}
                    State::Ready => {
                        let sent = send(task.socket.as_fd(), &FromModel::Ready, None);
                        self.drop_unless_sent(number, sent);
                    }
                }
                Ok(())
            }
            FromTask::Model if self.state == State::Wanted(Some(number)) => {
                self.model = Some(file.ok_or_else(|| protocol("a model came without its file"))?);
                self.state = State::Making;
                Ok(())
            }
            FromTask::Batch(batch) if self.state == State::Ready && task.greeted => {
                let slot = batch.slot as usize;
                let memory = file.map(SharedMemory::received).transpose()?;
                let (Some(bytes), Some(under_way)) = (task.bytes.get_mut(slot), task.under_way.get_mut(slot))
                else {
                    return Err(protocol("a batch is in a slot that there is not"));
                };
                *bytes = memory.as_ref().map(SharedMemory::bytes).or(*bytes);
                batch.check(bytes.ok_or_else(|| protocol("a batch came without its memory"))?)?;
                if std::mem::replace(under_way, true) {
                    return Err(protocol("a batch came in a slot that has one")); // SCORE-2
                }
                self.turns.add(number, (batch, memory));
                Ok(())
            }
            other => Err(protocol(&format!("a task said {other:?}"))),
        }
    }
}

impl Drop for ModelServer {
    /// Nobody is met here any more, whoever else has the listener.
    fn drop(&mut self) {
        let _: io::Result<()> =
            rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).map_err(Into::into);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket_with};

    use super::*;
    use crate::socket::wait_readable;

    /// A server, and where it is met.
    fn served(name: &str, idle: Duration) -> (ModelServer, SocketAddrUnix) {
        let name = format!("phalanx-test-{}-{name}", std::process::id());
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let listener = seqpacket();
        bind(&listener, &address).unwrap();
        listen(&listener, 16).unwrap();
        (ModelServer::new(listener, idle).unwrap(), address)
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
            Some((FromModel::Failed(trouble), _)) => assert!(trouble.error.ends_with('é')),
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
        let (mut server, address) = served("idle", Duration::from_millis(50));
        let first = task(&address);
        bring_model(&mut server, &first);
        say(&first, &batch(0, 1), Some(&SharedMemory::new(1).unwrap()));
        drop(first);
        assert!(server.wait(&mut || true), "a task has gone");
        assert!(server.next_work().is_none() && !server.has(0));
        assert!(!server.wait(&mut || true), "SCORE-3");
        assert!(server.lay_out(0, 0, 1, Vec::new()).unwrap().is_none());
        server.done(0, 0);
    }
}
