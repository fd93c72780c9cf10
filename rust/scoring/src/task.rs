//! A task's end.

use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use phalanx_io::pause;
use phalanx_supervisor::OomWatch;
use phalanx_supervisor::python_program;
use phalanx_supervisor::warm_pool::{IMPORTS, Kept, PoolOptions, meet, start_kept};
use phalanx_types::contract::{ENV_ENTRY, ENV_MODEL};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::batch::{Batch, MOST_SLOTS, NewColumn};
use crate::pace::Pace;
use crate::shared::{Room, SharedMemory, Slot};
use crate::socket::{receive, send, wait_readable, wait_writable};
use crate::wire::{FromModel, FromTask, Trouble, VERSION};

/// The modules whose `main` the pool of models and the process of one run.
const POOL: &str = "phalanx.warm_pool.entry";
const MODEL: &str = "phalanx.scoring.model_process";

/// How often who waits looks whether the task is still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a pool of models may take for its imports before a model's process starts without.
const POOL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the pool of models stays without a model.
const POOL_IDLE: Duration = Duration::from_secs(600);
/// A model's process has nothing to write down at its end.
const GRACE: Duration = Duration::from_secs(5);
/// How often a process may go before it has taken the task in: one that was about to end when it was met.
const MOST_MISSED: u32 = 3;

/// How the process of a model is met, or started where there is none.
#[derive(Debug, Clone)]
pub struct Start {
    /// Which model it has, on which device: the same text is the same process.
    pub name: String,
    /// What the process is told, as JSON.
    pub told: String,
    /// Variables of its own, such as the GPUs that it sees.
    pub env: Vec<(String, String)>,
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
    /// The folder that has the Python package `phalanx` in it.
    pub package: PathBuf,
    /// The Python that runs it.
    pub python: String,
    /// Whether it belongs to this process's parent, as a Python worker's of Spark does.
    pub shared: bool,
}

/// Who waits: a task.
pub trait Caller {
    /// Whether the task is still wanted; asked 20 times a second.
    fn is_wanted(&mut self) -> bool;
    /// The model, as a file to be read from its beginning.
    ///
    /// # Errors
    /// If there is none.
    fn model(&mut self) -> Result<OwnedFd>;
    /// Where the process's output goes.
    ///
    /// # Errors
    /// If it can't be told.
    fn output(&mut self) -> Result<OwnedFd>;
}

/// What became of a batch.
#[derive(Debug)]
pub enum Answer {
    /// What the model made of it.
    Done(Done),
    /// The model failed with it.
    Refused(Trouble),
    /// The model can't be had.
    NoModel(Trouble),
}

/// What the model made of a batch.
#[derive(Debug)]
pub struct Done {
    /// The columns.
    pub batch: Batch,
    /// Their memory; the same as in this slot's last answer where it isn't there.
    pub results: Option<Results>,
    /// How long the process took for it.
    pub took: Duration,
}

/// The memory of results, to be mapped.
#[derive(Debug)]
pub struct Results {
    /// The memory.
    pub file: OwnedFd,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A task's connection to the process of its model. It is opened with the first batch.
#[derive(Debug)]
pub struct Connection {
    start: Start,
    socket: Option<OwnedFd>,
    slots: [Slot; MOST_SLOTS as usize],
    results: [u64; MOST_SLOTS as usize],
    /// The slots of the batches that have no answer yet, in their order.
    under_way: VecDeque<u32>,
    pace: Pace,
    /// Whether a process has gone with batches of this task's since it had an answer (SCORE-4).
    went: bool,
    oom: OomWatch,
}

impl Connection {
    /// A connection that is not open yet.
    pub fn new(start: Start) -> Connection {
        Connection {
            start,
            socket: None,
            slots: Default::default(),
            results: Default::default(),
            under_way: VecDeque::new(),
            pace: Pace::new(),
            went: false,
            oom: OomWatch::new(),
        }
    }

    /// How many rows to give at once: those of one batch of so many rows for the model, or of several (SCORE-25).
    pub fn rows_at_once(&mut self, batch_size: u64) -> u64 {
        self.pace.rows(batch_size)
    }

    /// Makes room for the next batch in a slot that has none under way; `asked` is as in [`Batch`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if the slot has one or no memory could hold the batch, [`ErrorKind::Io`] without memory.
    pub fn lay_out(&mut self, slot: u32, rows: u64, columns: Vec<NewColumn>, asked: String) -> Result<Room> {
        if self.under_way.contains(&slot) {
            return Err(Error::new(ErrorKind::Invalid, format!("the batch {slot} is under way")));
        }
        self.slot(slot)?.lay_out(slot, rows, columns, asked)
    }

    /// Gives the model the batch that was written into a slot; `Some` if there is no model.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] if the task isn't wanted any more; [`ErrorKind::Closed`] if the process ended twice.
    pub fn give(&mut self, slot: u32, caller: &mut dyn Caller) -> Result<Option<Trouble>> {
        self.slot(slot)?;
        self.under_way.push_back(slot);
        if self.socket.is_none() {
            return self.open(caller);
        }
        match self.send(slot, caller) {
            Err(error) if error.kind() == ErrorKind::Closed => self.open_again(caller),
            sent => sent.map(|()| None),
        }
    }

    /// Waits for what becomes of the oldest batch under way.
    ///
    /// # Errors
    /// As [`Connection::give`]; [`ErrorKind::Protocol`] if the answer can't be.
    pub fn take(&mut self, caller: &mut dyn Caller) -> Result<Answer> {
        loop {
            let (Some(&slot), Some(socket)) = (self.under_way.front(), &self.socket) else {
                return Err(Error::new(ErrorKind::Invalid, "no batch is under way"));
            };
            wait_readable(socket, LOOK_EVERY);
            self.oom.sample(Instant::now());
            match receive(socket) {
                Ok(None) => still_wanted(caller)?,
                Ok(Some((answer, file))) => {
                    self.under_way.pop_front();
                    return self.answered(slot, answer, file);
                }
                Err(error) if error.kind() == ErrorKind::Closed => {
                    if let Some(trouble) = self.open_again(caller)? {
                        return Ok(Answer::NoModel(trouble));
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Lets go of the process, and of the memory of what is under way.
    pub fn close(&mut self) {
        self.socket = None;
        self.slots = Default::default();
        self.under_way.clear();
    }

    fn answered(&mut self, slot: u32, answer: FromModel, file: Option<OwnedFd>) -> Result<Answer> {
        let other = |what: &dyn std::fmt::Debug| {
            Error::new(ErrorKind::Protocol, format!("the process of the model answered {what:?}"))
        };
        match answer {
            FromModel::Done { batch, micros } if batch.slot == slot => {
                let results = file.map(SharedMemory::received).transpose()?;
                let bytes = &mut self.results[slot as usize];
                *bytes = results.as_ref().map_or(*bytes, SharedMemory::bytes);
                batch.check(*bytes)?;
                let took = Duration::from_micros(micros);
                self.went = false;
                if let Some(given) = self.slots[slot as usize].batch() {
                    self.pace.learn(given.rows, given.columns.iter().map(|column| column.bytes).sum(), took);
                }
                let results =
                    results.map(|memory| Results { bytes: memory.bytes(), file: memory.into_file() });
                Ok(Answer::Done(Done { batch, results, took }))
            }
            FromModel::Refused { slot: of, trouble } if of == slot => Ok(Answer::Refused(trouble)),
            unexpected => Err(other(&unexpected)),
        }
    }

    fn slot(&mut self, slot: u32) -> Result<&mut Slot> {
        let none = || Error::new(ErrorKind::Invalid, format!("a task has no batch {slot} under way"));
        self.slots.get_mut(slot as usize).ok_or_else(none)
    }

    fn send(&mut self, slot: u32, caller: &mut dyn Caller) -> Result<()> {
        let (Some(socket), Some(from)) = (&self.socket, self.slots.get_mut(slot as usize)) else {
            return Err(Error::new(ErrorKind::Closed, "there is no connection"));
        };
        let (batch, file) = from
            .to_send()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("the batch {slot} was not written")))?;
        let message = FromTask::Batch(batch);
        while !send(socket, &message, file)? {
            still_wanted(caller)?;
            wait_writable(socket, LOOK_EVERY);
        }
        from.told(true);
        Ok(())
    }

    /// Once more after the process has gone, with all batches that are under way.
    fn open_again(&mut self, caller: &mut dyn Caller) -> Result<Option<Trouble>> {
        self.socket = None;
        if self.went {
            let why = if self.oom.killed_before(Instant::now()) {
                "the kernel killed a process here for want of memory"
            } else {
                "the executor's log has what it wrote"
            };
            let text = format!("the process of the model ended in the midst of its batches, twice: {why}");
            return Err(Error::new(ErrorKind::Closed, text));
        }
        self.went = true;
        log::warn!("the process of a model ended in the midst of its batches; it is started again");
        self.open(caller)
    }

    /// Meets the process, and gives it all batches that are under way.
    fn open(&mut self, caller: &mut dyn Caller) -> Result<Option<Trouble>> {
        match self.met(caller)? {
            Met::NoModel(trouble) => return Ok(Some(trouble)),
            Met::Ready(socket) => self.socket = Some(socket),
        }
        for slot in &mut self.slots {
            slot.told(false);
        }
        for slot in self.under_way.clone() {
            match self.send(slot, caller) {
                Err(error) if error.kind() == ErrorKind::Closed => return self.open_again(caller),
                sent => sent?,
            }
        }
        Ok(None)
    }

    fn met(&mut self, caller: &mut dyn Caller) -> Result<Met> {
        let mut missed = 0;
        loop {
            still_wanted(caller)?;
            let Some(socket) = meet(&self.start.name, self.start.shared)? else {
                let output = caller.output()?;
                if !self.start.start(output, caller)? {
                    pause(Duration::from_millis(5), Deadline::never()); // somebody else is starting it
                }
                continue;
            };
            match greeted(socket, caller) {
                Err(error) if error.kind() == ErrorKind::Closed => {
                    missed += 1;
                    if missed >= MOST_MISSED {
                        let why = format!(
                            "the process of the model ended {missed} times before it had the model; the executor's log \
                             has what it wrote"
                        );
                        return Err(Error::new(ErrorKind::Closed, why));
                    }
                }
                met => return met,
            }
        }
    }
}

enum Met {
    Ready(OwnedFd),
    NoModel(Trouble),
}

/// Waits until the process at the other end takes batches, and brings it the model if it wants it.
fn greeted(socket: OwnedFd, caller: &mut dyn Caller) -> Result<Met> {
    send(&socket, &FromTask::Hello { version: VERSION }, None)?;
    loop {
        wait_readable(&socket, LOOK_EVERY);
        match receive(&socket)? {
            None => still_wanted(caller)?,
            Some((FromModel::Wanted, _)) => {
                let model = caller.model()?;
                while !send(&socket, &FromTask::Model, Some(model.as_fd()))? {
                    still_wanted(caller)?;
                    wait_writable(&socket, LOOK_EVERY);
                }
            }
            Some((FromModel::Ready, _)) => return Ok(Met::Ready(socket)),
            Some((FromModel::Failed(trouble), _)) => return Ok(Met::NoModel(trouble)),
            Some((other, _)) => {
                return Err(Error::new(ErrorKind::Protocol, format!("a model's process said {other:?}")));
            }
        }
    }
}

fn still_wanted(caller: &mut dyn Caller) -> Result<()> {
    if caller.is_wanted() { Ok(()) } else { Err(Error::new(ErrorKind::Cancelled, "the task is to end")) }
}

impl Start {
    /// Starts the process; false if somebody else has.
    fn start(&self, output: OwnedFd, caller: &mut dyn Caller) -> Result<bool> {
        let program = |module| python_program(&self.python, module, &self.package);
        // Threads that wait for work must not take the tasks' processors.
        let mut of_pool = vec![("OMP_WAIT_POLICY".into(), "PASSIVE".into())];
        of_pool.extend(self.env.iter().filter(|(name, _)| name == "PYTHONPATH").cloned());
        let pool = PoolOptions {
            guard: self.guard.clone(),
            program: program(POOL),
            imports: IMPORTS.map(String::from).into(),
            later: Vec::new(),
            env: of_pool,
            idle_timeout: POOL_IDLE,
            shared: self.shared,
        };
        let mut env = self.env.clone();
        env.extend(pool.env.clone());
        env.push((ENV_ENTRY.into(), MODEL.into()));
        env.push((ENV_MODEL.into(), self.told.clone()));
        let kept = Kept { name: &self.name, pool: &pool, program: &program(MODEL), env: &env, grace: GRACE };
        start_kept(&kept, output, Deadline::after(POOL_TIMEOUT), &mut || caller.is_wanted())
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::shared::capacity_for;

    struct Wanted(u32);

    impl Caller for Wanted {
        fn is_wanted(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            self.0 > 0
        }

        fn model(&mut self) -> Result<OwnedFd> {
            Err(Error::new(ErrorKind::Invalid, "there is none"))
        }

        fn output(&mut self) -> Result<OwnedFd> {
            Err(Error::new(ErrorKind::Invalid, "there is none"))
        }
    }

    fn connected() -> (Connection, OwnedFd) {
        let start = Start {
            name: format!("test {}", std::process::id()),
            told: String::new(),
            env: Vec::new(),
            guard: PathBuf::new(),
            package: PathBuf::new(),
            python: String::new(),
            shared: false,
        };
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Connection { socket: Some(ours), ..Connection::new(start) }, theirs)
    }

    fn column(rows: u64) -> Vec<NewColumn> {
        vec![("x".into(), "uint8".into(), vec![rows], rows)]
    }

    #[test]
    fn memory_is_sent_once_and_again_where_a_batch_needs_more() {
        let (mut connection, model) = connected();
        let large = capacity_for(1) + 1;
        for (rows, is_new) in [(1, true), (2, false), (large, true), (1, false)] {
            let room = connection.lay_out(1, rows, column(rows), "asked".into()).unwrap();
            assert_eq!(room.is_new, is_new);
            assert!(connection.give(1, &mut Wanted(100)).unwrap().is_none());
            let (message, file) = receive(&model).unwrap().unwrap();
            let FromTask::Batch(mut batch) = message else { panic!("{message:?}") };
            assert_eq!((batch.rows, batch.asked.as_str(), file.is_some()), (rows, "asked", is_new));
            assert!(connection.lay_out(1, 1, column(1), String::new()).is_err(), "SCORE-2");
            batch.columns.clear();
            send(&model, &FromModel::Done { batch, micros: 7 }, None).unwrap();
            let Answer::Done(done) = connection.take(&mut Wanted(100)).unwrap() else { panic!("no answer") };
            assert!(done.results.is_none() && done.took == Duration::from_micros(7));
        }
    }

    #[test]
    fn a_model_that_answers_soon_is_given_more_at_once_and_no_more_than_the_time_allows() {
        let (mut connection, model) = connected();
        let mut given = Vec::new();
        for micros in [7, 7, 7, 20_000_000] {
            let rows = connection.rows_at_once(1);
            given.push(rows);
            connection.lay_out(0, rows, column(rows), String::new()).unwrap();
            connection.give(0, &mut Wanted(100)).unwrap();
            let (message, _) = receive(&model).unwrap().unwrap();
            let FromTask::Batch(mut batch) = message else { panic!("{message:?}") };
            batch.columns.clear();
            send(&model, &FromModel::Done { batch, micros }, None).unwrap();
            connection.take(&mut Wanted(100)).unwrap();
        }
        assert_eq!(given, [1, 2, 4, 8], "SCORE-25");
        assert_eq!(connection.rows_at_once(1), 1, "SCORE-25");
    }

    #[test]
    fn an_answer_that_is_not_within_its_memory_is_refused() {
        let (mut connection, model) = connected();
        connection.lay_out(0, 1, column(1), String::new()).unwrap();
        connection.give(0, &mut Wanted(100)).unwrap();
        let (batch, _) = Batch::laid_out(0, 1, column(1), String::new()).unwrap();
        send(&model, &FromModel::Done { batch, micros: 0 }, None).unwrap();
        let refused = connection.take(&mut Wanted(100)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "SCORE-6");
    }

    #[test]
    fn a_task_that_is_to_end_waits_no_longer() {
        let (mut connection, _model) = connected();
        connection.lay_out(0, 1, column(1), String::new()).unwrap();
        connection.give(0, &mut Wanted(100)).unwrap();
        let began = Instant::now();
        assert_eq!(connection.take(&mut Wanted(3)).unwrap_err().kind(), ErrorKind::Cancelled);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_process_that_goes_after_an_answer_is_not_the_second_in_a_row() {
        let (mut connection, model) = connected();
        connection.went = true;
        connection.lay_out(0, 1, column(1), String::new()).unwrap();
        connection.give(0, &mut Wanted(100)).unwrap();
        let (batch, _) = Batch::laid_out(0, 1, Vec::new(), String::new()).unwrap();
        send(&model, &FromModel::Done { batch, micros: 0 }, None).unwrap();
        connection.take(&mut Wanted(100)).unwrap();
        let error = connection.open_again(&mut Wanted(100)).unwrap_err();
        assert_eq!(error.to_string(), "there is none", "SCORE-4: it is started again");
    }

    #[test]
    fn batches_of_a_process_that_went_twice_are_an_error_that_says_so() {
        let (mut connection, model) = connected();
        connection.lay_out(0, 1, column(1), String::new()).unwrap();
        connection.give(0, &mut Wanted(100)).unwrap();
        drop(model);
        // Nothing is there to be met, and nothing can be started.
        assert_eq!(connection.take(&mut Wanted(100)).unwrap_err().to_string(), "there is none");
        let error = connection.open_again(&mut Wanted(100)).unwrap_err();
        assert!(error.kind() == ErrorKind::Closed && error.to_string().contains("twice"), "SCORE-4: {error}");
    }
}
