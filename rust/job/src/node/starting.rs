//! How an attempt of a node begins: its logs, its line to the hub, and its ranks' environment and processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use phalanx_supervisor::{Guard, Launch, OomWatch, RankLog, notes, pump, stacks_signal};
use phalanx_types::{Error, ErrorKind, NodePlacement, Result};

use super::{Kept, Node, NodeOptions};
use crate::activity::Activity;
use crate::board::Board;
use crate::environment::rank_environment;
use crate::folder::private_file;
use crate::link::Link;
use crate::ranks::Rank;
use crate::relay::Relay;
use crate::results::Uploads;

impl<'a> Node<'a> {
    /// Has every rank of an attempt started, or about to be told as not started.
    pub(super) fn start(
        options: &'a NodeOptions,
        attempt: u32,
        kept: &'a mut Kept,
        guard: Guard,
        placement: NodePlacement,
        mut link: Link<'a>,
    ) -> Result<Node<'a>> {
        let Kept { folder: Some(folder), logs: kept_logs, meter } = kept else {
            return Err(Error::new(ErrorKind::Invalid, "a node needs a folder"));
        };
        let payload = folder.private.join("payload");
        private_file(&payload, &options.payload).map_err(|e| link.fails(e))?;
        let (notes_sender, notes) = crossbeam_channel::bounded(1024);
        let (wake, woken) = crossbeam_channel::unbounded();
        let mut logs = Vec::new();
        for place in &placement.ranks {
            let log = match kept_logs.get(&place.rank) {
                Some(log) => Arc::clone(log),
                None => {
                    let path = folder.log(place.rank, options.attempt);
                    RankLog::create(&path, options.job.logs.max_file_bytes).map_err(|e| link.fails(e))?
                }
            };
            kept_logs.insert(place.rank, Arc::clone(&log));
            logs.push((place.rank, log));
        }
        let live = link.reached() && options.job.logs.live;
        let relay = if live {
            let lag = options.job.logs.max_live_lag_bytes;
            let relay = Relay::start(options.hub.clone(), options.partition, attempt, logs.clone(), lag);
            Some(relay.map_err(|e| link.fails(e))?)
        } else {
            None
        };
        let mut node = Node {
            options,
            attempt,
            guard,
            link,
            board: None,
            ranks: Vec::new(),
            relay,
            notes,
            notes_sender,
            uploads: Uploads::to(options.hub.clone(), attempt, wake.clone()),
            wake,
            woken,
            meter,
            oom: OomWatch::new(),
            stopped: None,
            problem: None,
            interrupted: None,
            empty: false,
            asked: None,
            tell_activity_at: Instant::now(),
        };
        for (place, (rank, log)) in placement.ranks.iter().zip(logs) {
            let dir = folder.rank(rank).map_err(|e| node.link.fails(e))?;
            let torch_error = dir.join("torch-error.json");
            let is_set = |name: &str| options.env.contains_key(name) || std::env::var_os(name).is_some();
            let mut env = rank_environment(
                &options.job,
                &placement,
                place,
                attempt,
                &torch_error.to_string_lossy(),
                is_set,
            );
            env.extend(options.env.clone());
            env.insert("PHALANX_PAYLOAD".into(), payload.to_string_lossy().into_owned());
            env.insert("PHALANX_RANK_DIR".into(), dir.to_string_lossy().into_owned());
            let most = options.job.policy.max_other_result_bytes;
            env.insert("PHALANX_STACKS_SIGNAL".into(), stacks_signal().to_string());
            env.insert("PHALANX_MAX_RESULT_BYTES".into(), most.to_string());
            node.launch(rank, dir, log, env).map_err(|e| node.link.fails(e))?;
        }
        Ok(node)
    }

    pub(super) fn with(self, board: Option<Board>) -> Node<'a> {
        Node { board, ..self }
    }

    fn launch(
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
        let (ended, wake) = (Arc::clone(&log), self.wake.clone());
        let on_output = move || {
            if let Some(relay) = &relay {
                relay();
            }
            if ended.finished() {
                // Nobody waits for it any more when the node is over.
                let _ = wake.send(());
            }
        };
        let sender = self.notes_sender.clone();
        let readers = vec![
            pump(pipes.output, Arc::clone(&log), Box::new(on_output))?,
            notes(
                pipes.notes,
                // A rank that notes faster than this node reads loses notes, not time.
                Box::new(move |note| drop(sender.try_send((rank, note)))),
            )?,
        ];
        self.ranks.push(Rank {
            rank,
            dir,
            log,
            activity: Activity::new(),
            readers,
            exit: None,
            not_started: None,
            noted_error: None,
            phases: 0,
            reported: false,
        });
        Ok(())
    }
}
