//! How ranks start: their environment, their pipes, and who copies what they write.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_supervisor::{Launch, RankLog, RankPipes, notes, pump, stacks_signal};
use phalanx_types::message::Role;
use phalanx_types::{Error, ErrorKind, NodePlacement, RankPlace, Result, contract};

use super::Effects;
use crate::node::helpers::notice_command::NoticeCommand;
use crate::node::machine::Event;
use crate::node::news::News;
use crate::node::output::executor_log::ExecutorLogCopy;
use crate::node::output::relay::Relay;
use crate::node::rank::Rank;
use crate::node::rank::environment::{given_environment, rank_environment};
use crate::node::setup::prepared::{Prepared, PreparedRank};

/// The files that all ranks of a node have.
struct SharedFiles {
    payload: String,
    flight_recorder: String,
}

impl Effects<'_, '_> {
    /// Has the guard start every rank.
    ///
    /// # Errors
    /// If one can't be ordered.
    pub(super) fn launch(&mut self) -> Result<()> {
        let without = || Error::new(ErrorKind::Protocol, "nothing was prepared for the ranks");
        let placement = self.placement.clone().ok_or_else(without)?;
        let made = self.made.as_mut().ok_or_else(without)?;
        let Prepared { payload, flight_recorder, ranks } = std::mem::take(&mut made.prepared);
        let every_report = self.options.spec.job.every_report;
        let rank = |prepared: PreparedRank| {
            let number = prepared.rank;
            (number, Rank::new(prepared, every_report.is_of(number)))
        };
        self.ranks = ranks.into_iter().map(rank).collect();
        self.start_copies()?;
        self.watch_host();
        let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        let files = SharedFiles { payload: text(payload), flight_recorder: text(flight_recorder) };
        placement.ranks.iter().try_for_each(|place| self.launch_rank(&placement, place, &files))
    }

    /// Begins what copies the ranks' output.
    fn start_copies(&mut self) -> Result<()> {
        let job = &self.options.spec.job;
        let logs: Vec<_> = self.ranks.iter().map(|(rank, of)| (*rank, Arc::clone(&of.log))).collect();
        let most_lag = job.logs.max_live_lag_bytes;
        if let Some(to) = self.kept.as_ref().and_then(|kept| kept.executor_log.as_ref()) {
            let to = to.try_clone().map_err(|e| Error::io("open the executor's log", &e))?;
            let at_end = self.at_end(Event::LogCopied);
            let copy = ExecutorLogCopy::start(job.logs.executor, to, &job.id, &logs, most_lag, at_end)?;
            self.executor_log = Some(copy);
        }
        if job.logs.live {
            let (partition, instance) = (self.options.here.partition, self.options.task.instance);
            let role = Role::Logs { partition, attempt: self.attempt, instance };
            let at_end = self.at_end(Event::Relayed);
            self.relay = Some(Relay::start(self.options.ways.clone(), role, logs, most_lag, at_end)?);
        }
        Ok(())
    }

    /// Begins what says when this host is to go. Ranks run without it, too.
    fn watch_host(&mut self) {
        let (job, home) = (&self.options.spec.job, &self.options.here.home);
        let command = job.policy.notice_command.clone();
        if command.is_empty() {
            return;
        }
        let tell = self.tell.clone();
        let noticed = move |notice| drop(tell.send(News::Event(Event::Noticed(notice))));
        match NoticeCommand::start(command, home.guard.clone(), noticed) {
            Ok(running) => self.notice_command = Some(running),
            Err(why) => log::warn!("job {}: nothing says when this host is to go: {why}", job.id),
        }
    }

    fn at_end(&self, event: Event) -> impl FnOnce() + Send + 'static {
        let tell = self.tell.clone();
        move || drop(tell.send(News::Event(event)))
    }

    fn launch_rank(
        &mut self,
        placement: &NodePlacement,
        place: &RankPlace,
        files: &SharedFiles,
    ) -> Result<()> {
        let rank = place.rank;
        let without = || Error::new(ErrorKind::Invalid, "a job needs a program for its ranks");
        let (program, args) = self.options.program.split_first().ok_or_else(without)?;
        let env = self.environment(placement, place, files)?;
        let launch = Launch {
            rank,
            program: program.clone(),
            args: args.to_vec(),
            env: env.into_iter().collect(),
            env_remove: Vec::new(),
            cwd: None,
        };
        let (pipes, ends) = RankPipes::open(rank, placement.generation)?;
        let relay = self.relay.as_ref().map(Relay::waker);
        let executor_log = self.executor_log.as_ref().map(ExecutorLogCopy::waker);
        let (tell, of) = (self.tell.clone(), self.ranks.get_mut(&rank));
        let of = of.ok_or_else(|| Error::new(ErrorKind::Protocol, "a rank that is not this node's"))?;
        let log = Arc::clone(&of.log);
        let ended: Arc<RankLog> = Arc::clone(&log);
        let on_output = move || {
            for wake in relay.iter().chain(&executor_log) {
                wake();
            }
            if ended.finished() {
                // Nobody waits for it any more when the node is over.
                let _ = tell.send(News::Event(Event::OutputEnded { rank }));
            }
        };
        of.output = Some(pump(pipes.output, log, Box::new(on_output))?);
        let (to, tell) = (Arc::clone(&of.mailbox), self.tell.clone());
        let on_note = move |note| {
            if to.put(note) {
                let _ = tell.send(News::Noted(rank));
            }
        };
        of.socket = Some(pipes.notes.clone());
        of.notes = Some(notes(pipes.notes, Box::new(on_note))?);
        if let Some(guardian) = &self.guardian {
            guardian.launch(launch, ends);
        }
        Ok(())
    }

    fn environment(
        &self,
        placement: &NodePlacement,
        place: &RankPlace,
        files: &SharedFiles,
    ) -> Result<BTreeMap<String, String>> {
        let without = || Error::new(ErrorKind::Protocol, "a rank without files or a store");
        let (options, job) = (self.options, &self.options.spec.job);
        let dir = &self.ranks.get(&place.rank).ok_or_else(without)?.dir;
        let store = self.store_address().ok_or_else(without)?;
        let torch_error = dir.join(contract::FILE_TORCH_ERROR);
        let torch_error = torch_error.to_string_lossy();
        let has = |name: &str| options.has_variable(name);
        let mut env = rank_environment(job, placement, place, store, self.attempt, &torch_error, has);
        env.extend(options.env.clone());
        env.extend(given_environment(job));
        for name in [contract::ENV_FLIGHT_RECORDER, contract::ENV_NCCL_FLIGHT_RECORDER] {
            if !has(name) {
                env.insert(name.into(), files.flight_recorder.clone());
            }
        }
        env.insert(contract::ENV_PAYLOAD.into(), files.payload.clone());
        env.insert(contract::ENV_RANK_DIR.into(), dir.to_string_lossy().into_owned());
        env.insert(contract::ENV_STACKS_SIGNAL.into(), stacks_signal().to_string());
        let most = job.policy.max_other_result_bytes;
        env.insert(contract::ENV_MAX_RESULT_BYTES.into(), most.to_string());
        Ok(env)
    }
}
