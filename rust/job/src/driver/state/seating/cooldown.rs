//! Hosts whose own fault ended attempts, or that are to go: they are left alone for a while, where Spark has others.
//!
//! - DRIVER-63 (own-fault): a failure is its host's own where the host's task, its executor or the machine went
//!   unannounced. So is one that says of itself that the machine is to blame, a rank that could not be started there,
//!   or was killed since memory ran out, where another host of the same attempt had no such failure: what all hosts do
//!   alike is the run's doing. What the training code raises, a task that Spark was told to end, what was announced
//!   and a cancelled run are nobody's fault here.
//! - DRIVER-64 (waits-aside): in a gang of tasks whoever comes from a host in cooldown is a spare also for a seat that
//!   nobody has. So it holds its slot, and Spark offers others: the caller is asked to submit the seat beside it, once
//!   for each Spark job that waits so. When all tasks have their places, the caller is told whose job has the seat, and
//!   ends the others of its partition: none waits for an executor, or holds one, while the ranks run. Tasks that are
//!   there already stay. In a barrier stage no host is in cooldown, since it would wait for ever.
//! - DRIVER-65 (better-than-none): where seats are still missing when half of the time to gather is over, hosts in
//!   cooldown are taken, and those cooldowns end. So no gang fails since its hosts had failed before. Where all hosts
//!   of a run are in cooldown, two or more, the run is to blame rather than they, and none is left alone.
//! - DRIVER-72 (goes-elsewhere): whoever comes from a host that a platform has said goes at a known time waits aside
//!   in the same way, by the same setting and for as long, or until the host has stayed.
//! - DRIVER-66 (over-runs): what is known of hosts goes on to later runs of the same process.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use log::Level;
use phalanx_types::run_snapshot::{CoolingLine, MAX_LINE_BYTES};
use phalanx_types::text::cut;
use phalanx_types::{Failure, FailureKind, Gang, RankExit, SparkTask, host_digest};

use super::bad_hosts::BadHosts;
use crate::driver::state::job_state::JobState;
use crate::driver::state::news::SeatChange;
use crate::driver::state::phase::JobPhase;

/// How many seats the caller is asked to submit for one partition, at most: each holds a slot.
const MOST_SEATS: usize = 32;

impl JobState {
    /// Whether hosts are left alone. Each seat has to be a job of its own.
    fn has_cooldown(&self) -> bool {
        self.job.policy.gang == Gang::Tasks && !self.job.policy.host_cooldown.is_zero()
    }

    /// An attempt is over with this failure. DRIVER-62, DRIVER-63
    pub(in crate::driver::state) fn blame_host(&mut self, now: Instant, failure: &Failure) {
        if !self.has_cooldown() || failure.host.is_empty() || !self.is_hosts_own(failure) {
            return;
        }
        let why = &cut(failure.message.lines().next().unwrap_or_default(), MAX_LINE_BYTES);
        let wait = self.job.policy.host_cooldown;
        self.cooldown.hosts.failed(now, &failure.host, why, wait);
        self.cooldown.has_learned = true;
        let cools = |host: &String| self.cooldown.hosts.all(now).any(|(other, _)| other == host);
        if self.cooldown.joined.len() > 1 && self.cooldown.joined.iter().all(cools) {
            let joined = std::mem::take(&mut self.cooldown.joined);
            joined.iter().for_each(|host| self.cooldown.hosts.end(host));
            let line = format!("all {} hosts of the run have failed, so none is left alone", joined.len());
            return self.warn(&line);
        }
        self.cooldown.told.remove(&failure.host);
        self.tell_cooldown(now, &failure.host);
    }

    /// The host for which this stands, if tasks from there are to wait aside. DRIVER-64, DRIVER-72
    pub(in crate::driver::state) fn avoided(&self, now: Instant, digest: u64) -> Option<&str> {
        let leaving = || self.notices.leaving(now, digest).filter(|_| self.has_cooldown());
        self.cooldown.hosts.cooling(now, digest).or_else(|| leaving().map(|(host, _)| host))
    }

    fn warn(&mut self, line: &str) {
        self.reason(Level::Warn, line);
        self.announce(format!("[phalanx] {line}"));
    }

    /// Tells the caller why a host is left alone, unless it knows.
    fn warn_once(&mut self, host: &str, line: &str) {
        if self.cooldown.told.insert(host.to_string()) {
            self.warn(line);
        }
    }

    /// Tells the caller once that the tasks of a host wait aside because it is to go.
    fn tell_leaving(&mut self, now: Instant, host: &str) {
        let Some((_, going)) = self.notices.leaving(now, host_digest(host)) else { return };
        let line = format!(
            "{host} is to go ({}). Its new tasks wait (spark.phalanx.host.cooldown), and Spark is asked for others",
            going.reason
        );
        self.warn_once(host, &line);
    }

    /// Tells the caller once that a host is in cooldown, if it is.
    fn tell_cooldown(&mut self, now: Instant, host: &str) {
        let Some((_, bad)) = self.cooldown.hosts.all(now).find(|(other, _)| *other == host) else { return };
        let often = if bad.failures == 2 { "twice".into() } else { format!("{} times", bad.failures) };
        let left = bad.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let line = format!(
            "{host} has failed {often}, the last time: {}. Its new tasks wait for {} s \
             (spark.phalanx.host.cooldown), and Spark is asked for others",
            bad.why,
            left.as_secs_f64().ceil()
        );
        self.warn_once(host, &line);
    }

    fn is_hosts_own(&self, failure: &Failure) -> bool {
        let exit = failure.rank.and_then(|rank| self.ranks.get(rank)?.exit());
        match failure.kind {
            FailureKind::LostNode => {
                !self.is_ended_by_spark(failure) && !exit.is_some_and(RankExit::misses_blocks)
            }
            FailureKind::Start | FailureKind::OutOfMemory => self.others_do_better(failure),
            FailureKind::Exception => {
                exit.is_some_and(RankExit::blames_machine) && self.others_do_better(failure)
            }
            _ => false,
        }
    }

    /// Whether Spark told the task to end, though its executor lives.
    fn is_ended_by_spark(&self, failure: &Failure) -> bool {
        let interrupted = self.phase.stopping().and_then(|stopping| stopping.interrupted());
        interrupted
            .is_some_and(|(_, problem)| !problem.lost_executor && problem.failure.message == failure.message)
    }

    /// Whether ranks were also on another host, where none failed like this.
    fn others_do_better(&self, failure: &Failure) -> bool {
        let fails_so = |rank: &u32| {
            let exit = self.ranks.get(*rank).and_then(|rank| rank.exit());
            exit.is_some_and(|exit| exit.failure() == Some(failure.kind) && !exit.is_echo())
        };
        let others: BTreeSet<&str> = self.nodes.values().map(|node| node.host()).collect();
        others.into_iter().filter(|host| !host.is_empty() && *host != failure.host).any(|host| {
            let there = self.nodes.iter().filter(|(_, node)| node.host() == host);
            !there.flat_map(|(partition, _)| self.ranks.of_node(*partition)).any(fails_so)
        })
    }

    /// Whether the seats of this partition are several Spark jobs, none of which Spark starts in another's stead.
    pub(in crate::driver::state) fn has_seats_beside(&self, partition: u32) -> bool {
        self.cooldown.several.contains(&partition)
    }

    /// How many seats were submitted beside others.
    pub(in crate::driver::state) fn seats_beside(&self) -> usize {
        self.cooldown.beside.len()
    }

    /// Whether a task that could have the seat of `partition` is to wait aside. DRIVER-64
    pub(in crate::driver::state) fn waits_aside(
        &mut self,
        now: Instant,
        partition: u32,
        task: SparkTask,
    ) -> bool {
        let Some(host) = self.avoided(now, task.host).map(str::to_string) else { return false };
        // While ranks run a seat that falls free is one of an elastic job, which goes on without it.
        let is_over = self.outcome().is_some();
        let JobPhase::Joining(joining) = &mut self.phase else { return self.job.is_elastic() && !is_over };
        // Spark does bring tasks: the time to gather runs.
        joining.clock.joined(now);
        let is_new = !self.cooldown.beside.contains(&(partition, task.stage));
        let has_room =
            self.cooldown.beside.range((partition, 0)..=(partition, u32::MAX)).count() < MOST_SEATS;
        if is_new && has_room {
            self.cooldown.beside.insert((partition, task.stage));
            self.cooldown.several.insert(partition);
            self.reason(
                Level::Info,
                format!(
                    "a task of {host} waits aside; the seat of partition {partition} is submitted beside it"
                ),
            );
            self.news.seats.push(SeatChange::Wanted { attempt: self.attempts.of_stage, partition });
        }
        self.tell_cooldown(now, &host);
        self.tell_leaving(now, &host);
        self.cooldown.came.insert(host);
        true
    }

    /// All tasks have their places: nobody waits aside any more. DRIVER-64
    pub(in crate::driver::state) fn end_seats_beside(&mut self) {
        let partitions: BTreeSet<u32> =
            std::mem::take(&mut self.cooldown.beside).into_iter().map(|(partition, _)| partition).collect();
        let attempt = self.attempts.of_stage;
        for partition in partitions {
            let Some(stage) = self.seats.stage_of(partition) else { continue };
            self.news.seats.push(SeatChange::Taken { attempt, partition, stage });
        }
    }

    /// When hosts in cooldown are taken all the same. DRIVER-65
    fn better_than_none(&self) -> Option<Instant> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        let waits = !self.cooldown.came.is_empty();
        waits.then(|| joining.clock.runs_from() + self.job.policy.gang_wait / 2)
    }

    /// When something changes for hosts in cooldown.
    pub(in crate::driver::state) fn cooldown_due(&self) -> Option<Instant> {
        let stays_from = self.notices.stays_from();
        self.better_than_none().into_iter().chain(self.cooldown.hosts.due()).chain(stays_from).min()
    }

    /// Ends the cooldowns that are over by now.
    pub(in crate::driver::state) fn end_cooldowns(&mut self, now: Instant) {
        let is_over = self.cooldown.hosts.end_due(now);
        if self.notices.take_stayed(now) || is_over {
            self.seats.touch();
        }
        if self.better_than_none().is_none_or(|due| now < due) {
            return;
        }
        let half = self.job.policy.gang_wait / 2;
        for host in std::mem::take(&mut self.cooldown.came) {
            let cools = self.cooldown.hosts.all(now).any(|(other, _)| *other == host);
            let why = match (cools, self.notices.take(&host)) {
                (true, _) => "has failed",
                (false, true) => "is to go",
                (false, false) => continue,
            };
            self.cooldown.has_learned |= cools;
            self.cooldown.hosts.end(&host);
            let line = format!(
                "{host} is taken though it {why}: Spark has brought no other host within {half:.0?} (half of \
                 spark.phalanx.gang.wait)"
            );
            self.warn(&line);
        }
        self.seats.touch();
    }

    /// So many of the hosts in cooldown, as they are shown; `time` is that of an `Instant` in seconds since 1970.
    pub fn cooling_hosts(
        &self,
        now: Instant,
        most: usize,
        time: impl Fn(Instant) -> f64,
    ) -> Vec<CoolingLine> {
        let lines = self.cooldown.hosts.all(now).filter_map(|(host, bad)| {
            let until = time(bad.until?);
            let (host, reason) = (cut(host, MAX_LINE_BYTES), cut(&bad.why, MAX_LINE_BYTES));
            Some(CoolingLine { host, until, failures: bad.failures, reason })
        });
        lines.take(most).collect()
    }

    /// The run begins with what is known of hosts. DRIVER-66
    pub fn begin_with(&mut self, known: BadHosts) {
        if self.has_cooldown() {
            self.cooldown.hosts = known;
        }
    }

    /// What is known of hosts, if that is more than at the last call.
    pub fn take_learned(&mut self) -> Option<BadHosts> {
        std::mem::take(&mut self.cooldown.has_learned).then(|| self.cooldown.hosts.clone())
    }

    /// What the caller is to do with seats since the last call.
    pub fn take_seat_changes(&mut self) -> Vec<SeatChange> {
        std::mem::take(&mut self.news.seats)
    }
}
