//! Hosts and executors that are to go, and the step from which on ranks are told: what is known, and what is to be done
//! about it.
//!
//! - DRIVER-53 (one-step): the step is above each that a rank of the generation has begun. It is chosen when every node
//!   with ranks has frozen its own, and said what they asked for. So all ranks are told at the same step.
//! - DRIVER-54 (half-a-second): what isn't chosen within [`CHOICE_WAIT`] is taken back, and tried again, less and less
//!   often: ranks wait meanwhile.
//! - DRIVER-73 (executors): where Spark decommissions an executor, its tasks go, and no others of the host.

mod going;
mod preempting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_types::{Notice, RankNotice, host_digest};

pub(super) use going::{Going, Place};

/// How long nodes may take to freeze their ranks.
pub(super) const CHOICE_WAIT: Duration = Duration::from_millis(500);
/// How long after a choice that was taken back the next begins, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MOST_PAUSE: Duration = Duration::from_secs(8);
/// A host that goes sooner by less goes at the same time.
const SAME_TIME: Duration = Duration::from_secs(1);

/// A choice that is under way.
#[derive(Debug)]
struct Choice {
    until: Instant,
    nodes: BTreeSet<u32>,
    /// Those that haven't frozen their ranks yet.
    waiting: BTreeSet<u32>,
}

/// What a choice came to.
#[derive(Debug, PartialEq)]
pub(super) enum Chosen {
    /// These nodes' ranks are told from this step on.
    Step(u64, BTreeSet<u32>),
    /// These nodes let their ranks go on.
    TakenBack(BTreeSet<u32>),
}

/// What is known of places that are to go, and what ranks are told.
#[derive(Debug, Default)]
pub(super) struct Notices {
    hosts: BTreeMap<String, Going>,
    /// The executors of these tasks, each with its host: Spark decommissions them.
    executors: BTreeMap<u64, (String, Going)>,
    /// The number of the last choice; they are counted over all attempts.
    number: u32,
    choice: Option<Choice>,
    /// When the next choice begins, while ranks are to be told something.
    choose_at: Option<Instant>,
    pause: Duration,
    /// What ranks of the generation are told, oldest first, as long as there are nodes that haven't said that they are.
    told: Vec<(RankNotice, BTreeSet<u32>)>,
    /// The last step that a rank of the generation asked for, as far as is known.
    asked: Option<u64>,
    /// When the ranks that haven't left their work yet are ended, once one has.
    pub(super) others_until: Option<Instant>,
}

impl Notices {
    /// A place is to go. Whether that is news: that it goes sooner is, and that it goes later isn't, since a program
    /// that looks again and again may say each time in how many seconds it goes. Nor is it any of an executor whose
    /// host is known to go.
    pub(super) fn announce(
        &mut self,
        now: Instant,
        unix_ms: u64,
        place: Place<'_>,
        notice: Notice,
        grace: Duration,
    ) -> bool {
        self.forget_stayed(now);
        let left = notice.in_ms.map(Duration::from_millis);
        let due = left.and_then(|left| now.checked_add(left));
        let goes_anyway =
            place.task.is_some() && self.hosts.get(place.host).is_some_and(|host| !host.is_spent);
        let before = match place.task {
            None => self.hosts.get_mut(place.host),
            Some(task) => self.executors.get_mut(&task).map(|(_, going)| going),
        };
        let is_sooner = before.is_none_or(|before| {
            before.said = now;
            match (before.due, due) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(before), Some(due)) => due + SAME_TIME <= before,
            }
        });
        if !is_sooner || goes_anyway {
            return false;
        }
        // Who hears of it when the time is over can only wait.
        let in_time = left.filter(|left| *left >= SAME_TIME);
        let ranks_until = in_time.and_then(|left| now.checked_add(left.saturating_sub(grace).max(left / 2)));
        let going = Going {
            due,
            ranks_until,
            deadline_ms: notice.in_ms.map(|ms| unix_ms.saturating_add(ms)),
            reason: notice.reason,
            since: now,
            said: now,
            is_told: false,
            is_spent: false,
            is_taken: false,
        };
        match place.task {
            None => _ = self.hosts.insert(place.host.into(), going),
            Some(task) => _ = self.executors.insert(task, (place.host.into(), going)),
        }
        self.choose_at.get_or_insert(now);
        true
    }

    /// Those that were to go long ago have stayed.
    fn forget_stayed(&mut self, now: Instant) {
        self.hosts.retain(|_, going| !going.has_stayed(now));
    }

    /// New tasks of those that have stayed are taken; whether they were not.
    pub(super) fn take_stayed(&mut self, now: Instant) -> bool {
        let stayed = self.hosts.values_mut().filter(|going| going.may_have_tasks() && going.has_stayed(now));
        stayed.map(|going| going.is_taken = true).count() > 0
    }

    /// The host for which this stands, if it goes at a known time and Spark may give new tasks to it. DRIVER-72
    pub(super) fn leaving(&self, now: Instant, digest: u64) -> Option<(&str, &Going)> {
        let leaves = |(_, going): &(&String, &Going)| going.may_have_tasks() && !going.has_stayed(now);
        let found = self.hosts.iter().filter(leaves).find(|(host, _)| host_digest(host) == digest);
        found.map(|(host, going)| (host.as_str(), going))
    }

    /// New tasks of a host that is to go are taken; whether they were not.
    pub(super) fn take(&mut self, host: &str) -> bool {
        let going = self.hosts.get_mut(host).filter(|going| going.may_have_tasks());
        going.map(|going| going.is_taken = true).is_some()
    }

    /// When the next host has stayed whose tasks may wait.
    pub(super) fn stays_from(&self) -> Option<Instant> {
        let waits = self.hosts.values().filter(|going| going.may_have_tasks());
        waits.filter_map(Going::stays_from).min()
    }

    /// What is known of a place: of its host, unless that was to go long ago, and of its executor.
    pub(super) fn at<'a>(
        &'a self,
        now: Instant,
        place: Place<'a>,
    ) -> impl Iterator<Item = (Place<'a>, &'a Going)> {
        let host = self.hosts.get(place.host).filter(|going| !going.has_stayed(now));
        let executor = place.task.and_then(|task| self.executors.get(&task)).map(|(_, going)| (place, going));
        host.map(|going| (Place { task: None, ..place }, going)).into_iter().chain(executor)
    }

    /// All: hosts, and then executors.
    pub(super) fn all(&self) -> impl Iterator<Item = (Place<'_>, &Going)> {
        let hosts = self.hosts.iter().map(|(host, going)| (Place { host, task: None }, going));
        let executors = self.executors.iter();
        hosts.chain(executors.map(|(task, (host, going))| (Place { host, task: Some(*task) }, going)))
    }

    /// Those because of which no rank has left its work yet.
    pub(super) fn unspent(&self) -> impl Iterator<Item = (Place<'_>, &Going)> {
        self.all().filter(|(_, going)| !going.is_spent)
    }

    /// Whether a choice is to begin.
    pub(super) fn wants_choice(&self, now: Instant) -> bool {
        self.choice.is_none() && self.choose_at.is_some_and(|at| at <= now)
    }

    /// There is nothing to tell the ranks.
    pub(super) fn settle(&mut self) {
        self.choose_at = None;
    }

    /// The number of the last choice.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Begins a choice; the number of the order to these nodes.
    pub(super) fn choose(&mut self, now: Instant, nodes: BTreeSet<u32>) -> u32 {
        self.number += 1;
        self.choose_at = None;
        self.choice = Some(Choice { until: now + CHOICE_WAIT, waiting: nodes.clone(), nodes });
        self.number
    }

    /// A node has frozen its ranks.
    pub(super) fn frozen(&mut self, partition: u32, number: u32, asked: Option<u64>) {
        self.asked(asked);
        if let Some(choice) = self.choice.as_mut().filter(|_| self.number == number) {
            choice.waiting.remove(&partition);
        }
    }

    /// A rank has asked for this step.
    pub(super) fn asked(&mut self, step: Option<u64>) {
        self.asked = self.asked.max(step);
    }

    /// Whether a rank of the generation has asked, as far as is known.
    pub(super) fn is_asked_for(&self) -> bool {
        self.asked.is_some()
    }

    /// A node has no ranks any more.
    pub(super) fn gone(&mut self, partition: u32) {
        if let Some(choice) = &mut self.choice {
            choice.waiting.remove(&partition);
            choice.nodes.remove(&partition);
        }
        self.told.iter_mut().for_each(|(_, waiting)| _ = waiting.remove(&partition));
        self.told.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// What came of the choice, once it is made or its time is over.
    pub(super) fn conclude(&mut self, now: Instant) -> Option<Chosen> {
        let choice = self.choice.take_if(|choice| choice.waiting.is_empty() || now >= choice.until)?;
        if choice.waiting.is_empty() && now < choice.until {
            self.pause = Duration::ZERO;
            return Some(Chosen::Step(self.asked.map_or(0, |step| step.saturating_add(1)), choice.nodes));
        }
        self.pause = (2 * self.pause).clamp(FIRST_PAUSE, MOST_PAUSE);
        self.choose_at = Some(now + self.pause);
        Some(Chosen::TakenBack(choice.nodes))
    }

    /// What is told the ranks of these nodes; `running` are the ranks that run, by the place of their task. `None`
    /// where none of them is to go.
    pub(super) fn tell(
        &mut self,
        step: u64,
        nodes: BTreeSet<u32>,
        running: &[(Place<'_>, Vec<u32>)],
    ) -> Option<RankNotice> {
        let (mut hosts, mut leaving) = (BTreeSet::new(), BTreeSet::new());
        let mut first: Option<(bool, Option<Instant>, Option<u64>, String)> = None;
        for (place, ranks) in running.iter().filter(|(_, ranks)| !ranks.is_empty()) {
            let executor = place.task.and_then(|task| self.executors.get_mut(&task)).map(|(_, going)| going);
            let going = self.hosts.get_mut(place.host).into_iter().chain(executor);
            for going in going.filter(|going| !going.is_spent) {
                going.is_told = true;
                hosts.insert(place.host.to_string());
                leaving.extend(ranks.iter().copied());
                if first
                    .as_ref()
                    .is_none_or(|(unknown, due, ..)| (going.due.is_none(), going.due) < (*unknown, *due))
                {
                    first = Some((going.due.is_none(), going.due, going.deadline_ms, going.reason.clone()));
                }
            }
        }
        let (.., deadline_ms, reason) = first?;
        let (hosts, ranks) = (hosts.into_iter().collect(), leaving.into_iter().collect());
        let notice = RankNotice { number: self.number, step, hosts, ranks, deadline_ms, reason };
        self.told.push((notice.clone(), nodes));
        Some(notice)
    }

    /// A node has told its ranks.
    pub(super) fn confirmed(&mut self, partition: u32, number: u32) {
        let of = self.told.iter_mut().filter(|(told, _)| told.number == number);
        of.for_each(|(_, waiting)| _ = waiting.remove(&partition));
        self.told.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// What this node is to tell its ranks, and hasn't said that it has, oldest first.
    pub(super) fn untold(&self, partition: u32) -> impl Iterator<Item = &RankNotice> {
        self.told.iter().filter(move |(_, waiting)| waiting.contains(&partition)).map(|(notice, _)| notice)
    }

    /// A host has gone as it was announced to.
    pub(super) fn has_gone(&mut self, host: &str) {
        self.hosts.remove(host);
    }

    /// Only these tasks are still the job's.
    pub(super) fn keep_executors(&mut self, stays: impl Fn(u64) -> bool) {
        self.executors.retain(|task, _| stays(*task));
    }

    /// Whether this node's ranks may wait for a choice of before that nobody makes any more.
    pub(super) fn may_be_frozen(&self, partition: u32) -> bool {
        self.number > 0 && self.choice.as_ref().is_none_or(|choice| !choice.nodes.contains(&partition))
    }

    /// Another attempt begins; whether because ranks have left their work for those that are to go.
    pub(super) fn begin_attempt(&mut self, now: Instant, is_preemption: bool) {
        self.forget_stayed(now);
        for going in self.hosts.values_mut().chain(self.executors.values_mut().map(|(_, going)| going)) {
            let is_known = going.is_told || going.ranks_until.is_some_and(|until| until <= now);
            going.is_spent |= is_preemption && is_known;
            going.is_told = false;
        }
        (self.choice, self.asked, self.others_until) = (None, None, None);
        self.told.clear();
        self.pause = Duration::ZERO;
        let is_unspent = self.unspent().next().is_some();
        self.choose_at = is_unspent.then_some(now);
    }

    /// When something is due next.
    pub(super) fn due(&self) -> impl Iterator<Item = Instant> {
        let choice = self.choice.as_ref().map(|choice| choice.until);
        let ends = self.unspent().filter_map(|(_, going)| going.ranks_until);
        choice.into_iter().chain(self.choose_at).chain(self.others_until).chain(ends)
    }
}

#[cfg(test)]
mod tests;
