//! Hosts that failed, by name, and for how long each is left alone.
//!
//! - DRIVER-62 (twice-then-once): after its second failure a host is in cooldown. Once it has been, each further
//!   failure begins another. What has ended a cooldown, time or a run that had no other host, forgets no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_types::host_digest;

/// How many failures the first cooldown takes.
const FAILURES: u32 = 2;

/// What is known of a host that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BadHost {
    pub(in crate::driver::state) failures: u32,
    /// The last one, in a sentence.
    pub(in crate::driver::state) why: String,
    /// When its cooldown ends, if it is in one.
    pub(in crate::driver::state) until: Option<Instant>,
}

/// The hosts that failed.
#[derive(Debug, Clone, Default)]
pub struct BadHosts(BTreeMap<String, BadHost>);

impl BadHosts {
    /// None.
    pub const fn none() -> BadHosts {
        BadHosts(BTreeMap::new())
    }

    /// Takes what others know; of each host what is known of more failures.
    pub fn learn(&mut self, others: BadHosts) {
        for (host, bad) in others.0 {
            if self.0.get(&host).is_none_or(|known| known.failures <= bad.failures) {
                self.0.insert(host, bad);
            }
        }
    }

    /// Those in cooldown: name, failures, seconds until it ends, the last failure.
    pub fn in_cooldown(&self, now: Instant) -> Vec<(String, u32, f64, String)> {
        let left = |bad: &BadHost| bad.until.map_or(0.0, |until| (until - now).as_secs_f64());
        self.all(now)
            .map(|(host, bad)| (host.to_string(), bad.failures, left(bad), bad.why.clone()))
            .collect()
    }

    /// A host failed by its own fault; what is known of it now.
    pub(in crate::driver::state) fn failed(
        &mut self,
        now: Instant,
        host: &str,
        why: &str,
        cooldown: Duration,
    ) -> &BadHost {
        let bad = self.0.entry(host.to_string()).or_default();
        bad.failures = bad.failures.saturating_add(1);
        bad.why = why.to_string();
        bad.until = (bad.failures >= FAILURES && !cooldown.is_zero())
            .then_some(now)
            .and_then(|now| now.checked_add(cooldown));
        bad
    }

    /// The host in cooldown that this stands for.
    pub(in crate::driver::state) fn cooling(&self, now: Instant, digest: u64) -> Option<&str> {
        self.all(now).map(|(host, _)| host).find(|host| host_digest(host) == digest)
    }

    /// Those in cooldown, by name.
    pub(in crate::driver::state) fn all(&self, now: Instant) -> impl Iterator<Item = (&str, &BadHost)> {
        let cools = move |bad: &BadHost| bad.until.is_some_and(|until| now < until);
        self.0.iter().filter(move |(_, bad)| cools(bad)).map(|(host, bad)| (host.as_str(), bad))
    }

    /// When the next cooldown ends that has not been ended yet.
    pub(in crate::driver::state) fn due(&self) -> Option<Instant> {
        self.0.values().filter_map(|bad| bad.until).min()
    }

    /// Ends the cooldowns whose time is over; whether there were any.
    pub(in crate::driver::state) fn end_due(&mut self, now: Instant) -> bool {
        let over = self.0.values_mut().filter_map(|bad| bad.until.take_if(|until| *until <= now));
        over.count() > 0
    }

    /// Ends the cooldown of a host before its time.
    pub(in crate::driver::state) fn end(&mut self, host: &str) {
        if let Some(bad) = self.0.get_mut(host) {
            bad.until = None;
        }
    }
}

/// What a job makes of hosts that failed.
#[derive(Debug, Default)]
pub(in crate::driver::state) struct Cooldown {
    pub(in crate::driver::state) hosts: BadHosts,
    /// The partitions and stages of tasks that wait aside, each of which had another submitted.
    pub(in crate::driver::state) beside: BTreeSet<(u32, u32)>,
    /// The partitions that have had several jobs in the present stage.
    pub(in crate::driver::state) several: BTreeSet<u32>,
    /// The hosts from which tasks came, in the present attempt, for seats that nobody has, and wait aside.
    pub(in crate::driver::state) came: BTreeSet<String>,
    /// The hosts from which tasks have joined.
    pub(in crate::driver::state) joined: BTreeSet<String>,
    /// The hosts of which the caller knows that they are left alone.
    pub(in crate::driver::state) told: BTreeSet<String>,
    /// Whether more is known of hosts than before.
    pub(in crate::driver::state) has_learned: bool,
}

impl Cooldown {
    /// The Spark stage is submitted again: no other seats are beside the new ones.
    pub(in crate::driver::state) fn begin_stage(&mut self) {
        self.beside.clear();
        self.several.clear();
    }

    /// A task of this host has joined.
    pub(in crate::driver::state) fn joined(&mut self, host: &str) {
        if !self.joined.contains(host) {
            self.joined.insert(host.to_string());
        }
    }

    /// Another attempt begins.
    pub(in crate::driver::state) fn begin_attempt(&mut self) {
        self.came.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COOLDOWN: Duration = Duration::from_secs(60);

    #[derive(Debug, Clone)]
    enum Event {
        Failed(usize),
        Ended(usize),
        Looked,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (0..3_usize).prop_map(Event::Failed),
            1 => (0..3_usize).prop_map(Event::Ended),
            2 => Just(Event::Looked),
        ]
    }

    proptest! {
        #[test]
        fn a_host_cools_after_its_second_failure_and_each_later_one_until_its_time_is_over(
            events in proptest::collection::vec((0..50_u64, event()), 0..40),
            is_off in any::<bool>(),
        ) {
            let (began, cooldown) = (Instant::now(), if is_off { Duration::ZERO } else { COOLDOWN });
            let (mut hosts, mut at) = (BadHosts::default(), 0);
            let name = |host: usize| format!("host-{host}");
            // Of each host: its failures, and until when it cools.
            let mut known = [(0_u32, 0_u64); 3];
            for (pause, event) in events {
                at += pause;
                let now = began + Duration::from_secs(at);
                match event {
                    Event::Failed(host) => {
                        let (failures, until) = &mut known[host];
                        *failures += 1;
                        *until = if *failures < 2 || is_off { 0 } else { at + COOLDOWN.as_secs() };
                        let told = hosts.failed(now, &name(host), "why", cooldown).clone();
                        prop_assert_eq!(told.failures, *failures, "DRIVER-62");
                    }
                    Event::Ended(host) => {
                        known[host].1 = 0;
                        hosts.end(&name(host));
                    }
                    Event::Looked => {
                        let has_ended = hosts.end_due(now);
                        prop_assert!(!hosts.end_due(now), "each ends once");
                        prop_assert!(!has_ended || known.iter().any(|(_, until)| (1..=at).contains(until)));
                        prop_assert!(hosts.due().is_none_or(|due| due > now));
                    }
                }
                for (host, (_, until)) in known.iter().enumerate() {
                    let cools = hosts.cooling(now, host_digest(&name(host))).is_some();
                    prop_assert_eq!(cools, at < *until, "DRIVER-62: {} at {}", host, at);
                }
            }
        }
    }
}
