//! The driver's end of one job, as its owner holds it: it opens the hub, hears events, and gives orders.
//!
//! DRIVER-7 (closing-frees): closing stops a job that still runs and leaves no thread, socket or file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Receiver;
use phalanx_io::raise_descriptor_limit;
use phalanx_rendezvous::{HubServer, HubServerOptions, Token, wire};
use phalanx_types::node_spec::PACKAGE_VERSION;
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Attempt, Deadline, Error, Job, NodeSpec, RankProgram, Result};

use crate::driver::event::{Event, MAX_WAITING_OUTPUT_BYTES};
use crate::driver::event_queue::{EventReceiver, event_queue, next_of};
use crate::driver::handler::{Command, JobHandler};
use crate::driver::present::Present;
use crate::driver::reads::PieceAnswer;
use crate::driver::results::Results;
use crate::driver::state::StageLook;
use crate::driver::view::{PATIENCE, Snapshots};
use crate::log_tail::LogTails;

/// Where the hub listens.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// The address to bind; empty for the one that `advertise` resolves to.
    pub bind: String,
    /// The host name or address under which nodes reach the driver.
    pub advertise: String,
    /// Where results wait for the caller: a folder that ends with the application, also when its driver is killed.
    pub work_dir: PathBuf,
}

/// The driver's end of one job.
pub struct Hub {
    hub: HubServer<Command>,
    events: EventReceiver,
    waiting: Arc<AtomicUsize>,
    present: Present,
    results: Results,
    tails: Arc<LogTails>,
    snapshots: Arc<Snapshots>,
    /// Removed when this is dropped.
    _folder: tempfile::TempDir,
    job: Job,
    token: Token,
}

/// What the ranks' threads are doing, once it is known.
#[derive(Debug)]
pub struct StacksAnswer(Receiver<Vec<RankStacks>>);

impl StacksAnswer {
    /// The stacks of the ranks that run; `None` at the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](phalanx_types::ErrorKind::Closed) if the hub was closed before they were there.
    pub fn wait(&self, deadline: Deadline) -> Result<Option<Vec<RankStacks>>> {
        next_of(&self.0, deadline)
    }
}

impl Hub {
    /// Opens the hub of `job`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](phalanx_types::ErrorKind::Invalid) for a job that can't work,
    /// [`ErrorKind::Io`](phalanx_types::ErrorKind::Io) if the hub can't listen.
    pub fn open(job: Job, options: &HubOptions) -> Result<Hub> {
        job.check()?;
        raise_descriptor_limit();
        let token = wire::random_token()?;
        let folder = tempfile::Builder::new()
            .prefix("phalanx-results-")
            .tempdir_in(&options.work_dir)
            .map_err(|e| Error::io("make a folder for the results", &e))?;
        let (sender, events) = event_queue();
        let waiting = Arc::new(AtomicUsize::new(0));
        let hub_options = HubServerOptions {
            bind: options.bind.clone(),
            advertise: options.advertise.clone(),
            port: job.policy.hub_port()?,
            job: job.id.clone(),
            token,
        };
        let present = Present::first();
        let results = Results::in_folder(folder.path().to_path_buf(), present.clone());
        let tails = Arc::new(LogTails::new(job.ranks));
        let snapshots = Arc::new(Snapshots::of(&job));
        let (waits, kept, shown) = (Arc::clone(&waiting), Arc::clone(&tails), Arc::clone(&snapshots));
        let handler =
            JobHandler::new(job.clone(), sender, waits, present.clone(), results.clone(), kept, shown);
        let hub = HubServer::open(hub_options, handler)?;
        Ok(Hub { hub, events, waiting, present, results, tails, snapshots, _folder: folder, job, token })
    }

    /// Where nodes reach the hub: `host:port`.
    pub fn address(&self) -> &str {
        self.hub.address()
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// What the nodes of an attempt are told: ranks run `program`, with the application's variables `env`. `local_gpus`
    /// are the driver's GPUs, where they are for its own node or for the tasks of a local master.
    pub fn node_spec(
        &self,
        attempt: Attempt,
        program: RankProgram,
        env: BTreeMap<String, String>,
        local_gpus: Vec<String>,
    ) -> NodeSpec {
        let spec = NodeSpec {
            phalanx: PACKAGE_VERSION.into(),
            job: self.job.clone(),
            hub: self.address().to_string(),
            hub_key: self.hub.key().clone(),
            token: self.token,
            attempt,
            generation: self.present.generation(),
            program,
            env,
            local_gpus,
        };
        self.snapshots.told(&spec);
        spec
    }

    /// The next event; `None` at the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`](phalanx_types::ErrorKind::Closed) after the last event.
    pub fn next(&self, deadline: Deadline) -> Result<Option<Event>> {
        let Some(event) = self.events.next(deadline)? else { return Ok(None) };
        if let Event::Output(text) = &event {
            let before = self.waiting.fetch_sub(text.len(), Ordering::AcqRel);
            if before >= MAX_WAITING_OUTPUT_BYTES && before - text.len() < MAX_WAITING_OUTPUT_BYTES {
                self.hub.wake();
            }
        }
        Ok(Some(event))
    }

    /// The file with what a rank left as its result, if it has arrived whole.
    pub fn result_path(&self, rank: u32) -> Option<PathBuf> {
        self.results.path(rank)
    }

    /// The Spark stage that was submitted for `attempt` (0, or what [`Event::Resubmit`] said) is over: well, or with
    /// this message.
    pub fn stage_ended(&self, attempt: Attempt, problem: Option<String>) {
        self.hub.command(Command::StageEnded(attempt, problem));
    }

    /// What Spark shows of the stage that was submitted for `attempt`, as long as none of its tasks runs, and once they
    /// do. Who looks tells it once a second; where nobody looks, the time to join runs from the beginning.
    pub fn stage_seen(&self, attempt: Attempt, look: StageLook) {
        self.hub.command(Command::StageSeen(attempt, look));
    }

    /// Spark decommissions the executors of these tasks, by their attempt ids; told again it is no news.
    pub fn decommissioned(&self, tasks: Vec<u64>) {
        self.hub.command(Command::Decommissioned(tasks));
    }

    /// Asks what the ranks' threads are doing. The answer comes within seconds; the ranks go on.
    pub fn ask_for_stacks(&self) -> StacksAnswer {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.hub.command(Command::Stacks(answer));
        StacksAnswer(answered)
    }

    /// Asks the node of a rank for a piece of one of the rank's files. However long the file is, this costs the hub a
    /// piece.
    pub fn read(&self, wanted: PieceWanted) -> PieceAnswer {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.hub.command(Command::Read(wanted, answer));
        PieceAnswer(answered)
    }

    /// The newest lines of the ranks that have come here. They stay when the hub is closed.
    pub fn logs(&self) -> &Arc<LogTails> {
        &self.tails
    }

    /// The run now, as the JSON of [`phalanx_types::RunSnapshot`]. However often it is asked for, it costs the run
    /// little; see [`Snapshots`]. Waits for a hub that is busy, 2 s at most, and then tells the newest that there is.
    pub fn snapshot(&self) -> String {
        if !self.snapshots.is_fresh() {
            let (made, is_made) = crossbeam_channel::bounded(1);
            self.hub.command(Command::Snapshot(made));
            // A hub that is closed or busy leaves what there is.
            let _ = is_made.recv_timeout(PATIENCE);
        }
        self.snapshots.newest()
    }

    /// The snapshots of the run. They stay when the hub is closed.
    pub fn snapshots(&self) -> &Arc<Snapshots> {
        &self.snapshots
    }

    /// Cancels the job. The outcome tells when it is over.
    pub fn stop(&self, reason: &str) {
        self.hub.command(Command::Stop(reason.to_string()));
    }

    /// Frees everything. A job that still runs loses its hub and is stopped by its nodes.
    pub fn close(&mut self) {
        self.hub.close();
    }
}
