//! Hosts and executors that are to go, and the step from which on ranks are told: what is known, and what is to be done about it.
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

    /// What is told the ranks of these nodes; `running` are the ranks that run, by the place of their task. `None` where
    /// none of them is to go.
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Duration = Duration::from_secs(30);

    const HOST: Place<'_> = Place { host: "h", task: None };

    fn told(in_ms: Option<u64>) -> Notice {
        Notice { in_ms, reason: "spot".into() }
    }

    #[test]
    fn ranks_have_their_grace_before_the_host_goes_and_half_of_the_time_before_that() {
        let now = Instant::now();
        for (in_s, until_s) in [(120, 90), (60, 30), (40, 20), (10, 5), (1, 0)] {
            let mut notices = Notices::default();
            assert!(notices.announce(now, 5, HOST, told(Some(in_s * 1000)), GRACE));
            let (_, going) = notices.at(now, HOST).next().unwrap();
            let until = now + Duration::from_secs(until_s);
            assert!(going.ranks_until.is_some_and(|at| at - until < SAME_TIME), "DRIVER-55");
            assert_eq!(going.deadline_ms, Some(5 + in_s * 1000));
        }
    }

    #[test]
    fn what_is_said_again_is_no_news_and_another_time_is() {
        let now = Instant::now();
        let later = |s| now + Duration::from_secs(s);
        let mut notices = Notices::default();
        let mut says = |at, in_ms| notices.announce(later(at), 0, HOST, told(in_ms), GRACE);
        assert!(says(0, None) && !says(1, None));
        assert!(
            says(2, Some(100_000)) && !says(3, Some(98_100)) && !says(4, None) && !says(5, Some(500_000))
        );
        assert!(says(5, Some(10_000)), "it goes sooner");
        assert!(!says(14, Some(1000)) && !says(15 + 59, Some(60_000)));
        assert!((0..9).all(|nth| !says(80 + 50 * nth, Some(0))), "who says so for ever says nothing new");
        assert!(says(480 + 60, None), "it has stayed, and is announced again");
        let mut late = Notices::default();
        assert!(late.announce(now, 0, HOST, told(Some(0)), GRACE));
        assert_eq!(
            late.at(now, HOST).next().unwrap().1.ranks_until,
            None,
            "DRIVER-55: there is no time left to end them in"
        );
    }

    #[test]
    fn an_executor_goes_by_itself_and_once_and_is_no_news_where_its_host_goes() {
        let now = Instant::now();
        let mut notices = Notices::default();
        let of = |task| Place { host: "h", task: Some(task) };
        let says = |notices: &mut Notices, place| notices.announce(now, 0, place, told(None), GRACE);
        assert!(says(&mut notices, of(1)) && !says(&mut notices, of(1)));
        let goes = |notices: &Notices, place| notices.at(now, place).count();
        assert_eq!([of(1), of(2), HOST].map(|place| goes(&notices, place)), [1, 0, 0], "DRIVER-73");
        assert!(notices.leaving(now, host_digest("h")).is_none(), "DRIVER-73: new tasks are taken");
        notices.choose(now, BTreeSet::new());
        let running = [(of(0), vec![0, 1]), (of(1), vec![2, 3])];
        let notice = notices.tell(0, BTreeSet::new(), &running).unwrap();
        assert_eq!((notice.hosts, notice.ranks), (vec!["h".to_string()], vec![2, 3]), "DRIVER-73");
        notices.begin_attempt(now, true);
        assert!(!says(&mut notices, of(1)) && says(&mut notices, of(2)));
        notices.keep_executors(|task| task == 2);
        assert_eq!([of(1), of(2)].map(|place| goes(&notices, place)), [0, 1]);
        assert!(says(&mut notices, HOST) && !says(&mut notices, of(7)));
        assert_eq!([of(2), of(7)].map(|place| goes(&notices, place)), [2, 1]);
    }

    /// A rank that asks for its steps, as `rank_words.rs` has it.
    #[derive(Debug, Clone, Default)]
    struct Rank {
        asked: Option<u64>,
        frozen: bool,
        /// What it was told: from which step on, by number.
        told: Vec<(u64, u32)>,
        /// What it had at each step that it has begun.
        begun: BTreeMap<u64, Option<u32>>,
        next: u64,
    }

    impl Rank {
        fn asks(&mut self, every: u64) {
            self.asked = self.asked.max(Some(self.next));
            if !self.frozen {
                let known =
                    self.told.iter().filter(|(step, _)| *step <= self.next).map(|(_, number)| *number);
                self.begun.insert(self.next, known.max());
                self.next += every;
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Asks(usize),
        /// A node hears its next order.
        Hears(usize),
        /// The hub hears the next answer of a node.
        Answers(usize),
        Announced(u8),
        Passes(u64),
    }

    #[derive(Debug, Clone)]
    enum Order {
        Freeze(u32),
        Thaw,
        Tell(RankNotice),
    }

    const RANKS: usize = 4;

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            6 => (0..RANKS).prop_map(Step::Asks),
            4 => (0..RANKS).prop_map(Step::Hears),
            4 => (0..RANKS).prop_map(Step::Answers),
            1 => (0..3_u8).prop_map(Step::Announced),
            1 => (0..700_u64).prop_map(Step::Passes),
        ];
        prop::collection::vec(step, 0..600)
    }

    proptest! {
        /// DRIVER-53: ranks of one node each, which ask for each step, every second and every tenth, and one that never
        /// asks. Orders and answers take any time; what the ranks do meanwhile is theirs.
        #[test]
        fn what_a_rank_knows_at_a_step_is_the_same_in_every_rank(steps in steps()) {
            let mut now = Instant::now();
            let mut notices = Notices::default();
            let mut ranks = vec![Rank::default(); RANKS];
            let mut orders: Vec<std::collections::VecDeque<Order>> = vec![Default::default(); RANKS];
            let mut answers: Vec<std::collections::VecDeque<(u32, Option<u64>)>> = vec![Default::default(); RANKS];
            let running = ["h0", "h1", "h2"].map(|host| (Place { host, task: None }, vec![0]));
            let (mut announced, mut chosen) = (0, 0);
            for step in steps {
                match step {
                    Step::Asks(3) => {}
                    Step::Asks(rank) => ranks[rank].asks([1, 2, 10][rank]),
                    Step::Hears(node) => match orders[node].pop_front() {
                        Some(Order::Freeze(number)) => {
                            ranks[node].frozen = true;
                            answers[node].push_back((number, ranks[node].asked));
                        }
                        Some(Order::Thaw) => ranks[node].frozen = false,
                        Some(Order::Tell(notice)) => {
                            ranks[node].told.push((notice.step, notice.number));
                            ranks[node].frozen = false;
                        }
                        None => {}
                    },
                    Step::Answers(node) => {
                        if let Some((number, asked)) = answers[node].pop_front() {
                            notices.frozen(u32::try_from(node).unwrap(), number, asked);
                        }
                    }
                    Step::Announced(host) => {
                        announced += 1;
                        let in_ms = Some(100_000_000 - announced * 5000);
                        let host = &format!("h{host}");
                        notices.announce(now, 0, Place { host, task: None }, told(in_ms), GRACE);
                    }
                    Step::Passes(ms) => now += Duration::from_millis(ms),
                }
                let nodes: BTreeSet<u32> = (0..4).collect();
                if notices.wants_choice(now) {
                    let number = notices.choose(now, nodes);
                    orders.iter_mut().for_each(|orders| orders.push_back(Order::Freeze(number)));
                }
                match notices.conclude(now) {
                    Some(Chosen::Step(step, nodes)) => {
                        chosen += 1;
                        let notice = notices.tell(step, nodes, &running).unwrap();
                        orders.iter_mut().for_each(|orders| orders.push_back(Order::Tell(notice.clone())));
                    }
                    Some(Chosen::TakenBack(_)) => {
                        orders.iter_mut().for_each(|orders| orders.push_back(Order::Thaw));
                    }
                    None => {}
                }
            }
            for step in ranks.iter().flat_map(|rank| rank.begun.keys()) {
                let known: BTreeSet<_> = ranks.iter().filter_map(|rank| rank.begun.get(step)).collect();
                prop_assert!(known.len() <= 1, "DRIVER-53: at step {step} of {chosen} notices: {known:?}");
            }
        }
    }
}
