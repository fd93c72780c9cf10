//! One rank of a node: its program, environment and files, what it tells, and how it ended. What follows from that is
//! the machine's.

pub mod environment;
pub(crate) mod evidence;
pub(crate) mod frozen;
pub(crate) mod mailbox;
pub(crate) mod program;
pub(crate) mod progress;
pub(crate) mod reports;
pub(crate) mod threads;

use std::path::PathBuf;
use std::sync::Arc;

use phalanx_supervisor::{PipeReader, RankLog, RankSocket};
use phalanx_types::message::{NodeMessage, RankActivity};
use phalanx_types::{RankError, RankNote};

use crate::node::rank::mailbox::Mailbox;
use crate::node::rank::progress::{RankProgress, is_stopped};
use crate::node::rank::reports::RankReports;
use crate::node::setup::prepared::PreparedRank;

pub(crate) struct Rank {
    pub(crate) dir: PathBuf,
    pub(crate) log: Arc<RankLog>,
    pub(crate) progress: RankProgress,
    pub(crate) output: Option<PipeReader>,
    /// Reads what it tells into `mailbox`, until it has ended.
    pub(crate) notes: Option<PipeReader>,
    /// The way for news to it, while it runs.
    pub(crate) socket: Option<RankSocket>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) reports: RankReports,
    /// What it raised, where it could not leave a file that says so.
    pub(crate) noted_error: Option<RankError>,
    /// How many phases it has told.
    pub(crate) phases: u32,
    /// The last step for which it had asked whether it is preempted, once it has ended.
    pub(crate) asked: Option<u64>,
}

impl Rank {
    /// Before it is started; whether each of its reports is wanted.
    pub(crate) fn new(prepared: PreparedRank, every_report: bool) -> Rank {
        let PreparedRank { dir, log, .. } = prepared;
        Rank {
            dir,
            log,
            progress: RankProgress::new(),
            output: None,
            notes: None,
            socket: None,
            mailbox: Arc::default(),
            reports: RankReports::new(every_report),
            noted_error: None,
            phases: 0,
            asked: None,
        }
    }

    /// Reads what it has reported: so many bytes at most where each report is wanted, and else the newest. What the
    /// hub is to be told of it.
    pub(crate) fn read_reports(&mut self, rank: u32, most: usize) -> Vec<NodeMessage> {
        if let Some(socket) = &self.socket {
            let mut reader = socket.reports();
            let (records, newest) = match self.reports.wanted {
                true => (reader.take(most), reader.newest()),
                false => (reader.take_newest().into_iter().collect(), None),
            };
            if let Some(newest) = self.reports.take(records, newest.as_ref()) {
                self.progress.take(&RankNote::Report(newest));
            }
        }
        self.reports.messages(rank)
    }

    /// Whether there are reports to be told that weren't read.
    pub(crate) fn has_unread_reports(&self) -> bool {
        self.reports.wanted && self.socket.as_ref().is_some_and(|socket| socket.reports().has_more())
    }

    /// What is told of it; `pid` is its process, if it runs.
    pub(crate) fn activity(&self, rank: u32, pid: Option<u32>) -> RankActivity {
        let RankProgress { last, doing, step, total_steps, step_us, values, collectives, returned, .. } =
            &self.progress;
        let last = self.log.last_output().map_or(*last, |output| output.max(*last));
        RankActivity {
            rank,
            idle_ms: u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX),
            stopped: pid.is_some_and(is_stopped),
            returned: *returned,
            doing: doing.clone(),
            step: *step,
            total_steps: *total_steps,
            step_us: *step_us,
            collective_permille: collectives.permille,
            values: values.clone(),
        }
    }
}
