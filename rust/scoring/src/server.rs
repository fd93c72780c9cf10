//! The end of a model's process. One thread computes, and what tasks say meanwhile waits in their sockets; another one
//! only looks whether the task that it computes for is still there (`watchdog.rs`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_supervisor::peer_uid;
use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use rustix::process::getuid;

use crate::batch::{Batch, MOST_SLOTS, NewColumn};
use crate::computing::Computing;
use crate::memory::MemoryWatch;
use crate::shared::{Room, SharedMemory, Slot};
use crate::socket::{receive, send, wait};
use crate::turns::Turns;
use crate::watchdog::{Watchdog, end_process};
use crate::wire::{FromModel, FromTask, Trouble, VERSION};

/// How often a process without tasks looks whether memory is short, and how long it has none before it goes for that.
const LOOK_AT_MEMORY: Duration = Duration::from_secs(1);

/// How long a process stays at least that nobody has met: the task that has started it is about to connect.
const UNMET: Duration = Duration::from_secs(10);

/// How long one stays at least that tasks have left: shorter, and the next one would meet a process that is ending.
const LEAST_IDLE: Duration = Duration::from_secs(1);

/// How long until a task is accepted again after one could not be.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long the model may work for a task that has gone, at most; less where the process would be idle for less.
const PATIENCE: Duration = Duration::from_secs(30);

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
    socket: Arc<OwnedFd>,
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
    /// Since when no task can be accepted, most likely for want of descriptors.
    full_since: Option<Instant>,
    turns: Turns<(Batch, Option<SharedMemory>)>,
    any_gone: bool,
    state: State,
    /// The model, and the socket of the task that has brought it.
    model: Option<(OwnedFd, Arc<OwnedFd>)>,
    idle_timeout: Duration,
    /// Since when no task is connected.
    alone_since: Instant,
    computing: Computing,
    watchdog: Watchdog,
    memory: MemoryWatch,
}

impl ModelServer {
    /// Serves whoever connects to `listener`, a socket that [`phalanx_supervisor::warm_pool::start_kept`] has made.
    /// `idle_timeout` is how long the process stays without a task: a second at least, and ten for the first one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it is no socket, or there is no thread.
    pub fn new(listener: OwnedFd, idle_timeout: Duration) -> Result<ModelServer> {
        let patience = idle_timeout.clamp(LEAST_IDLE, PATIENCE);
        ModelServer::watched(listener, idle_timeout, Watchdog::start(patience, end_process)?)
    }

    fn watched(listener: OwnedFd, idle_timeout: Duration, watchdog: Watchdog) -> Result<ModelServer> {
        rustix::io::ioctl_fionbio(&listener, true)
            .map_err(|error| Error::io("serve a model", &error.into()))?;
        Ok(ModelServer {
            listener,
            tasks: BTreeMap::new(),
            next_task: 0,
            full_since: None,
            turns: Turns::new(),
            any_gone: false,
            state: State::Wanted(None),
            model: None,
            idle_timeout,
            alone_since: Instant::now(),
            computing: Computing::new(Instant::now()),
            watchdog,
            memory: MemoryWatch::new("/proc/meminfo".into()),
        })
    }

    /// The model, as soon as a task has brought it, as a file to be read from its beginning; `None` if the process is
    /// to end. `go_on` is asked once a second at least. The model is made then, until `ready` or `failed`.
    pub fn model(&mut self, go_on: &mut dyn FnMut() -> bool) -> Option<OwnedFd> {
        loop {
            if let Some((model, task)) = self.model.take() {
                self.watchdog.begin(&task);
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
        self.watchdog.end();
        self.state = State::Ready;
        self.tell_all(&FromModel::Ready);
    }

    /// Tells all tasks, and those that come by now, that there is no model.
    pub fn failed(&mut self, trouble: Trouble) {
        self.watchdog.end();
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
        // Whoever has gone has no turn.
        self.watchdog.begin(&self.tasks.get(&task)?.socket);
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
        let micros = u64::try_from(self.ended().as_micros()).unwrap_or(u64::MAX);
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.under_way[slot as usize] = false;
        let Some((batch, file)) = task.results[slot as usize].to_send() else { return };
        let sent = send(&task.socket, &FromModel::Done { batch, micros }, file);
        task.results[slot as usize].told(true);
        self.drop_unless_sent(number, sent);
    }

    /// Tells a task that the model failed with its batch.
    pub fn refused(&mut self, number: u64, slot: u32, trouble: Trouble) {
        self.ended();
        let Some(task) = self.tasks.get_mut(&number) else { return };
        task.under_way[slot as usize] = false;
        let refused = FromModel::Refused { slot, trouble: trouble.shortened() };
        let sent = send(&task.socket, &refused, None);
        self.drop_unless_sent(number, sent);
    }

    /// The oldest batch is not computed any more; how long that took.
    fn ended(&mut self) -> Duration {
        self.watchdog.end();
        self.computing.end(Instant::now())
    }

    /// A task has few answers under way, so a socket that takes none is that of a task that doesn't keep to the rules.
    fn drop_unless_sent(&mut self, number: u64, sent: Result<bool>) {
        if !matches!(sent, Ok(true)) {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(task) = self.tasks.remove(&number) {
            self.any_gone = true;
            // The watchdog may have the socket for longer.
            let _ = shutdown(&task.socket, Shutdown::Both);
        }
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
        if !self.tasks.is_empty() {
            return false;
        }
        let is_unused = self.is_met() && self.alone_since.elapsed() >= LOOK_AT_MEMORY;
        self.left_alone().is_zero() || is_unused && self.memory.is_short()
    }

    /// How much longer the process stays where no task comes.
    fn left_alone(&self) -> Duration {
        let least = if self.is_met() { LEAST_IDLE } else { UNMET };
        self.idle_timeout.max(least).saturating_sub(self.alone_since.elapsed())
    }

    /// Whether a task has ever connected.
    fn is_met(&self) -> bool {
        self.next_task > 0
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
        // Who waits to be accepted must not keep this from resting, nor hold up the tasks that are there.
        let is_full = self.full_since.is_some_and(|since| since.elapsed() < ACCEPT_AGAIN);
        let (of_listener, time) =
            if is_full { (PollFlags::empty(), time.min(ACCEPT_AGAIN)) } else { (PollFlags::IN, time) };
        let mut fds = vec![PollFd::new(&self.listener, of_listener)];
        fds.extend(self.tasks.values().map(|task| PollFd::new(&task.socket, PollFlags::IN)));
        let end = self.left_alone().max(Duration::from_millis(1));
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
                        socket: Arc::new(socket),
                        greeted: false,
                        bytes: Default::default(),
                        under_way: Default::default(),
                        results: Default::default(),
                    };
                    self.full_since = None;
                    self.tasks.insert(self.next_task, task);
                    self.hear(self.next_task);
                    self.next_task += 1;
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    if self.full_since.replace(Instant::now()).is_none() {
                        log::warn!("tasks can't connect to the process of a model for now: {error}");
                    }
                    return;
                }
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
                let file = file.ok_or_else(|| protocol("a model came without its file"))?;
                self.model = Some((file, Arc::clone(&task.socket)));
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
        let _: io::Result<()> = shutdown(&self.listener, Shutdown::Both).map_err(Into::into);
    }
}

#[cfg(test)]
mod tests;
