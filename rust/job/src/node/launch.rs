//! How an attempt of a node begins: its logs, its line to the hub, and its ranks' environment and processes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use phalanx_io::write_whole;
use phalanx_rendezvous::blocks::BlockAccess;
use phalanx_supervisor::{Guard, Launch, OomWatch, RankLog, notes, pump, stacks_signal};
use phalanx_types::{Error, ErrorKind, Key, NodePlacement, Result, contract};

use crate::node::attempt::{Attempt, Kept, Phase};
use crate::node::blocks::NodeBlocks;
use crate::node::environment::{given_environment, rank_environment};
use crate::node::executor_log::ExecutorLogCopy;
use crate::node::line::Line;
use crate::node::mailbox::Mailbox;
use crate::node::metrics::Metrics;
use crate::node::options::{Options, Payload};
use crate::node::pieces::Pieces;
use crate::node::progress::RankProgress;
use crate::node::ranks::{Rank, RankProcess};
use crate::node::relay::Relay;
use crate::node::results::Uploads;

impl<'a> Attempt<'a> {
    /// Has every rank of an attempt started, or about to be told as not started.
    #[allow(clippy::too_many_arguments, reason = "all that an attempt is made of")]
    pub(crate) fn launch(
        options: &'a Options<'a>,
        number: u32,
        kept: &Kept,
        prepared: Prepared,
        metrics: &'a mut Metrics,
        guard: Guard,
        placement: &NodePlacement,
        store: SocketAddr,
        line: Line,
        blocks: Option<NodeBlocks>,
    ) -> Result<Attempt<'a>> {
        let Options { spec, here, .. } = options;
        let is_alone = placement.world_size as usize == placement.ranks.len();
        let serves = !is_alone && (placement.serves_store || blocks.is_some());
        let (wake, woken) = crossbeam_channel::unbounded();
        let logs: Vec<_> = prepared.ranks.iter().map(|rank| (rank.rank, Arc::clone(&rank.log))).collect();
        let relay = if spec.job.logs.live {
            let most_lag = spec.job.logs.max_live_lag_bytes;
            let relay = Relay::start(options.ways.clone(), here.partition, number, logs.clone(), most_lag);
            Some(relay.map_err(|e| line.fails(e))?)
        } else {
            None
        };
        let executor_log = executor_log(options, kept, &logs).map_err(|e| line.fails(e))?;
        let mut attempt = Attempt {
            options,
            number,
            guard,
            line,
            blocks,
            serves,
            has_parted: false,
            phase: Phase::Running,
            ranks: Vec::new(),
            exits: Vec::new(),
            relay,
            executor_log,
            uploads: Uploads::to(options.ways.clone(), number, wake.clone()),
            wake,
            woken,
            metrics,
            oom: OomWatch::new(),
            problem: None,
            interrupted: None,
            stacks: None,
            pieces: Pieces::new(),
            said_cold: false,
            tell_activity_at: Instant::now(),
        };
        for (place, PreparedRank { rank, dir, log }) in placement.ranks.iter().zip(prepared.ranks) {
            let torch_error = dir.join(contract::FILE_TORCH_ERROR);
            let has = |name: &str| options.has_variable(name);
            let torch_error = torch_error.to_string_lossy();
            let mut env = rank_environment(&spec.job, placement, place, store, number, &torch_error, has);
            env.extend(options.env.clone());
            env.extend(given_environment(&spec.job));
            for name in [contract::ENV_FLIGHT_RECORDER, contract::ENV_NCCL_FLIGHT_RECORDER] {
                if !has(name) {
                    env.insert(name.into(), prepared.flight_recorder.to_string_lossy().into_owned());
                }
            }
            env.insert(contract::ENV_PAYLOAD.into(), prepared.payload.to_string_lossy().into_owned());
            env.insert(contract::ENV_RANK_DIR.into(), dir.to_string_lossy().into_owned());
            let most = spec.job.policy.max_other_result_bytes;
            env.insert(contract::ENV_STACKS_SIGNAL.into(), stacks_signal().to_string());
            env.insert(contract::ENV_MAX_RESULT_BYTES.into(), most.to_string());
            attempt.launch_rank(rank, dir, log, env).map_err(|e| attempt.line.fails(e))?;
        }
        Ok(attempt)
    }

    fn launch_rank(
        &mut self,
        rank: u32,
        dir: PathBuf,
        log: Arc<RankLog>,
        env: BTreeMap<String, String>,
    ) -> Result<()> {
        let (program, args) = self
            .options
            .program
            .split_first()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "a job needs a program for its ranks"))?;
        let launch = Launch {
            rank,
            program: program.clone(),
            args: args.to_vec(),
            env: env.into_iter().collect(),
            env_remove: Vec::new(),
            cwd: None,
        };
        let pipes = self.guard.launch(&launch)?;
        let relay = self.relay.as_ref().map(Relay::waker);
        let executor_log = self.executor_log.as_ref().map(ExecutorLogCopy::waker);
        let (ended, wake) = (Arc::clone(&log), self.wake.clone());
        let on_output = move || {
            for wake in relay.iter().chain(&executor_log) {
                wake();
            }
            if ended.finished() {
                // Nobody waits for it any more when the node is over.
                let _ = wake.send(());
            }
        };
        let output = pump(pipes.output, Arc::clone(&log), Box::new(on_output))?;
        let mailbox = Arc::new(Mailbox::default());
        let (to, wake) = (Arc::clone(&mailbox), self.wake.clone());
        let on_note = move |note| {
            if to.put(note) {
                let _ = wake.send(());
            }
        };
        let notes = notes(pipes.notes, Box::new(on_note))?;
        self.ranks.push(Rank {
            rank,
            dir,
            log,
            process: RankProcess::Launched,
            progress: RankProgress::new(),
            output: Some(output),
            notes: Some(notes),
            mailbox,
            noted_error: None,
            phases: 0,
        });
        Ok(())
    }
}

/// What goes of the logs to the executor's own.
fn executor_log(
    options: &Options<'_>,
    kept: &Kept,
    logs: &[(u32, Arc<RankLog>)],
) -> Result<Option<ExecutorLogCopy>> {
    let Some(to) = &kept.executor_log else { return Ok(None) };
    let (job, to) = (&options.spec.job, to.try_clone());
    let to = to.map_err(|e| Error::io("open the executor's log", &e))?;
    ExecutorLogCopy::start(job.logs.executor, to, &job.id, logs, job.logs.max_live_lag_bytes).map(Some)
}

/// What an attempt needs on the disk.
pub(crate) struct Prepared {
    payload: PathBuf,
    /// Where the flight recorder's dumps go.
    flight_recorder: PathBuf,
    /// In the order of their places.
    ranks: Vec<PreparedRank>,
}

struct PreparedRank {
    rank: u32,
    /// Its own folder, in which nothing is but what the rank is told there.
    dir: PathBuf,
    log: Arc<RankLog>,
}

impl Prepared {
    /// Makes it. The log of a rank is that of the attempt before, or a new one.
    pub(crate) fn make(
        options: &Options<'_>,
        kept: &mut Kept,
        placement: &NodePlacement,
        blocks: Option<&BlockAccess>,
    ) -> Result<Prepared> {
        let spec = options.spec;
        let payload = match options.payload {
            Payload::File(file) => file.to_path_buf(),
            Payload::Bytes(bytes) => {
                let file = kept.files.private.join(contract::FILE_PAYLOAD);
                write_whole(&file, bytes)?;
                file
            }
        };
        let groups = Key::of_groups(&spec.token, &spec.job.id, placement.generation);
        let mut ranks = Vec::new();
        for place in &placement.ranks {
            let rank = place.rank;
            let log = match kept.logs.get(&rank) {
                Some(log) => Arc::clone(log),
                None => RankLog::create(&kept.files.log(rank, spec.attempt), spec.job.logs.max_file_bytes)?,
            };
            kept.logs.insert(rank, Arc::clone(&log));
            let dir = kept.files.rank(rank)?;
            // One of the attempt before would be taken for this one's.
            let _ = std::fs::remove_file(kept.files.flight_recorder_of(rank));
            // Not in its environment, which others may see and its children inherit.
            write_whole(&dir.join(contract::FILE_GROUPS_KEY), groups.bytes())?;
            if let Some(blocks) = blocks {
                let text = serde_json::to_vec(blocks).unwrap_or_default();
                write_whole(&dir.join(contract::FILE_BLOCKS), &text)?;
            }
            if !spec.job.data_folder.is_empty() {
                kept.files.link_fetched(&dir)?;
            }
            ranks.push(PreparedRank { rank, dir, log });
        }
        Ok(Prepared { payload, flight_recorder: kept.files.flight_recorder(), ranks })
    }
}
