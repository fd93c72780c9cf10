//! The ranks of a node, from their launch until the hub was told how each ended.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_supervisor::{ExitStatus, GuardEvent};
use phalanx_types::message::NodeMessage;
use phalanx_types::{NodePlacement, RankState};

use super::told::{Action, Ended, Evidence, Exit, ProcessEnd};

/// How long a rank's output may still come after its exit: a process that it left behind may hold the pipe.
pub(super) const OUTPUT_GRACE: Duration = Duration::from_millis(300);
/// How long a disk may take to answer with what a rank left there, from the question or its last answer on.
pub(super) const DISK_PATIENCE: Duration = Duration::from_secs(5);
/// How often news of steps go to the hub, at the most.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The ranks, and what else a node has while they live.
#[derive(Debug)]
pub(super) struct NodeRanks {
    lives: BTreeMap<u32, Life>,
    /// Whether ranks of other nodes may need this one: it serves the store, or blocks.
    pub(super) serves: bool,
    /// Whether the hub has said that nobody needs it any more.
    pub(super) may_stop_serving: bool,
    /// Whether a rank ended otherwise than well.
    pub(super) has_failed: bool,
    /// Why this node could not do its part.
    pub(super) problem: Option<String>,
    /// How many results are on their way.
    pub(super) uploads: usize,
    /// The hub has all output, or is not waited for.
    pub(super) relayed: bool,
    /// The executor's log has what goes there, or is not waited for.
    pub(super) logged: bool,
    /// When the disk last answered.
    answered: Instant,
    /// When the hub is told next what the ranks do.
    tell_activity_at: Instant,
}

#[derive(Debug)]
struct Life {
    process: Process,
    /// All of its output is in.
    output_ended: bool,
}

/// Where a rank's process is.
#[derive(Debug, Clone)]
enum Process {
    /// The guard was asked to start it.
    Launched,
    Running {
        pid: u32,
    },
    /// Its output may still come.
    Ended {
        pid: Option<u32>,
        end: ProcessEnd,
    },
    /// What it left is looked at since then.
    Gathering(Ended, Instant),
    /// The hub was told how it ended.
    Told,
}

impl Process {
    /// One of which no end was known has ended so, if it had only been launched or if it ran.
    fn ended(&mut self, of_launched: &ProcessEnd, of_running: &ProcessEnd) {
        match *self {
            Process::Launched => *self = Process::Ended { pid: None, end: of_launched.clone() },
            Process::Running { pid } => *self = Process::Ended { pid: Some(pid), end: of_running.clone() },
            Process::Ended { .. } | Process::Gathering(..) | Process::Told => {}
        }
    }
}

impl NodeRanks {
    pub(super) fn new(placement: &NodePlacement, serves: bool, now: Instant) -> NodeRanks {
        let life = || Life { process: Process::Launched, output_ended: false };
        NodeRanks {
            lives: placement.ranks.iter().map(|place| (place.rank, life())).collect(),
            serves,
            may_stop_serving: false,
            has_failed: false,
            problem: None,
            uploads: 0,
            relayed: false,
            logged: false,
            answered: now,
            tell_activity_at: now,
        }
    }

    pub(super) fn blame(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// Whether no rank has a process, or will have one.
    pub(super) fn is_over(&self) -> bool {
        let lives = |life: &Life| matches!(life.process, Process::Launched | Process::Running { .. });
        !self.lives.values().any(lives)
    }

    /// Whether the hub was told of each end.
    pub(super) fn all_told(&self) -> bool {
        self.lives.values().all(|life| matches!(life.process, Process::Told))
    }

    pub(super) fn runs(&self, rank: u32) -> bool {
        let runs = |life: &Life| matches!(life.process, Process::Launched | Process::Running { .. });
        self.lives.get(&rank).is_some_and(runs)
    }

    /// The ranks that have not ended, with the process of each that is known.
    pub(super) fn living(&self) -> Vec<(u32, Option<u32>)> {
        let pid = |life: &Life| match life.process {
            Process::Launched => Some(None),
            Process::Running { pid } => Some(Some(pid)),
            Process::Ended { .. } | Process::Gathering(..) | Process::Told => None,
        };
        self.lives.iter().filter_map(|(rank, life)| Some((*rank, pid(life)?))).collect()
    }

    pub(super) fn started(&mut self, rank: u32, pid: u32, now: Instant) {
        if let Some(life) = self.lives.get_mut(&rank)
            && matches!(life.process, Process::Launched)
        {
            life.process = Process::Running { pid };
        }
        // A note may have come before this.
        self.reported(now);
    }

    /// A rank has something to report: the hub is told soon.
    pub(super) fn reported(&mut self, now: Instant) {
        self.tell_activity_at = self.tell_activity_at.min(now + REPORT_EVERY);
    }

    pub(super) fn ended(&mut self, rank: u32, end: &ProcessEnd) {
        if let Some(life) = self.lives.get_mut(&rank) {
            life.process.ended(end, end);
        }
    }

    /// Nothing of the ranks is left: those of which nothing was heard have ended so.
    fn all_ended(&mut self, of_launched: &ProcessEnd, of_running: &ProcessEnd) {
        for life in self.lives.values_mut() {
            life.process.ended(of_launched, of_running);
        }
    }

    pub(super) fn output_ended(&mut self, rank: u32) {
        if let Some(life) = self.lives.get_mut(&rank) {
            life.output_ended = true;
        }
    }

    /// What is due: to look at what ranks left whose output is in, and not to wait for a disk that hangs.
    pub(super) fn gather(&mut self, now: Instant, stopped: Option<Instant>, out: &mut Vec<Action>) {
        for (rank, life) in &mut self.lives {
            match &life.process {
                Process::Ended { pid, end } if life.output_ended || now >= end.at() + OUTPUT_GRACE => {
                    let ended = Ended { rank: *rank, pid: *pid, end: end.clone(), stopped };
                    out.push(Action::Gather(ended.clone()));
                    life.process = Process::Gathering(ended, now);
                }
                Process::Gathering(ended, since) if now >= self.answered.max(*since) + DISK_PATIENCE => {
                    out.push(Action::GatherWithoutDisk(ended.clone()));
                    life.process = Process::Told;
                    self.has_failed = true;
                }
                Process::Launched
                | Process::Running { .. }
                | Process::Ended { .. }
                | Process::Gathering(..)
                | Process::Told => {}
            }
        }
    }

    /// What a rank left is known. What comes after its disk was given up is passed over.
    pub(super) fn gathered(&mut self, evidence: Box<Evidence>, now: Instant, out: &mut Vec<Action>) {
        self.answered = now;
        let rank = evidence.exit.rank;
        let Some(life) = self.lives.get_mut(&rank) else { return };
        if !matches!(life.process, Process::Gathering(..)) {
            return;
        }
        life.process = Process::Told;
        let is_failure = evidence.exit.failure().is_some();
        self.has_failed |= is_failure;
        if evidence.has_result && evidence.exit.state == RankState::Finished {
            self.uploads += 1;
            out.push(Action::Upload { rank });
        }
        out.push(Action::TellExit(evidence));
    }

    /// Has the hub told what the ranks do, if it is time for that.
    pub(super) fn tell_activity(&mut self, now: Instant, every: Duration, out: &mut Vec<Action>) {
        if now >= self.tell_activity_at {
            self.tell_activity_at = now + every;
            let run = self.living().into_iter().filter_map(|(rank, pid)| Some((rank, pid?)));
            let run: Vec<(u32, u32)> = run.collect();
            if !run.is_empty() {
                out.push(Action::TellActivity(run));
            }
        }
    }

    /// What the guard says of one rank.
    pub(super) fn hear(&mut self, event: GuardEvent, now: Instant, out: &mut Vec<Action>) {
        match event {
            GuardEvent::Started { rank, pid, at } => {
                self.started(rank, pid, now);
                out.push(Action::Started { rank, at });
                let started = NodeMessage::RankStarted { rank, pid, age_us: 0 };
                out.push(Action::Tell(at, started));
            }
            GuardEvent::NotStarted { rank, reason, at } => {
                self.ended(rank, &ProcessEnd::NotStarted { reason, at });
            }
            GuardEvent::Ended { rank, how, by_itself, at } => {
                self.ended(rank, &ProcessEnd::Exited(Exit { how, by_itself, at }));
            }
            GuardEvent::Empty => {
                let reason = "its task did not start it".to_string();
                let killed = Exit { how: ExitStatus::Signal(9), by_itself: false, at: now };
                self.all_ended(&ProcessEnd::NotStarted { reason, at: now }, &ProcessEnd::Exited(killed));
            }
            GuardEvent::Gone { reason } => {
                let why = format!(
                    "phalanx-guard, the process above the ranks, has ended ({reason}), and the ranks with it"
                );
                let with_guard = ProcessEnd::WithGuard { reason: why.clone(), at: now };
                self.all_ended(&with_guard, &with_guard);
                self.blame(why);
            }
        }
    }
}
