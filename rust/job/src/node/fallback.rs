//! How the nodes of a job tell one another of a failure if not all of them reach the hub: by keys of the job's store.
//!
//! - FALLBACK-1 (told-by-store): when a rank fails whose node has no hub, each other node asks the store every
//!   [`LOOK_EVERY`], and so knows it. A node that has the hub tells the failure to the hub.
//! - FALLBACK-2 (bounded-waits): no node waits for the store longer than [`PATIENCE`] at a time. A store that is late
//!   is asked again after [`REST`]. A store that is gone is not asked again.
//! - FALLBACK-3 (store-stays): whenever a node begins, the store stays until every node has said that it is over. So no
//!   node finds it gone. A node that can't say so tells Spark, which then ends the others.
//! - FALLBACK-4 (sealed): what is in the store counts only if a node of this attempt sealed it there, since anybody who
//!   reaches the store can write to it. What none has sealed fails the job. It reaches neither the driver nor a parser.
//! - FALLBACK-5 (no-pickle): no pickle goes through the store. One gets to the driver with the node's own report.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::wire;
use phalanx_types::{Deadline, ErrorKind, Key, RankExit, Result};
use serde::{Deserialize, Serialize};

/// How often a node looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the store may take for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a store that did not answer in time is left alone.
const REST: Duration = Duration::from_secs(5);
/// How long a node that is over tries to say so.
const SAY_WITHIN: Duration = Duration::from_secs(10);
/// The job's own; training code has no reason to use it.
const KEY: &str = "phalanx/first failure";

/// Set, by a node that is over; idempotent, since an answer that comes late is asked for again.
fn over_key(partition: u32) -> String {
    format!("phalanx/node {partition} is over")
}

/// A rank's end, and how long ago it was when it was posted.
#[derive(Serialize, Deserialize)]
struct Posted {
    end: RankExit,
    age_us: u64,
}

/// One node's end of it.
pub(crate) struct Fallback {
    store: SocketAddr,
    /// What all nodes of the attempt know, and nobody else.
    key: Key,
    client: Option<StoreClient>,
    gone: bool,
    look_at: Instant,
    /// What has yet to be posted.
    to_post: Option<(RankExit, Instant)>,
    /// Whether a failure was posted or found here.
    known: bool,
    found: bool,
    /// How many nodes are known to be over, in the order of their partitions.
    over: u32,
}

/// What is said of a note that no node of the attempt has left.
fn forged(place: &str) -> String {
    format!("somebody who is no node of this job has written to the job's store, at {place:?}")
}

impl Fallback {
    /// On the store at `store`, with the key of the attempt's notes; connects when it is first needed, for the store's
    /// node may begin later than this one.
    pub(crate) fn at(store: SocketAddr, key: Key) -> Fallback {
        Fallback {
            store,
            key,
            client: None,
            gone: false,
            look_at: Instant::now(),
            to_post: None,
            known: false,
            found: false,
            over: 0,
        }
    }

    /// Tells the other nodes of the failure `end`, which happened at `at`.
    pub(crate) fn post(&mut self, end: &RankExit, at: Instant) {
        if !self.known {
            self.to_post = Some((without_pickle(end.clone()), at));
            self.try_post();
        }
    }

    fn try_post(&mut self) {
        let Some((end, at)) = self.to_post.take() else { return };
        let age_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&Posted { end: end.clone(), age_us }).unwrap_or_default();
        let note = self.key.seal(KEY, &text);
        match self.ask(|client| client.set(KEY, &note, Deadline::after(PATIENCE))) {
            Some(()) => self.known = true,
            None => self.to_post = Some((end, at)),
        }
    }

    /// A failure that some node has posted, and when it happened; once.
    ///
    /// # Errors
    /// In words, if somebody else has written there (FALLBACK-4); once.
    pub(crate) fn look(&mut self, now: Instant) -> std::result::Result<Option<(RankExit, Instant)>, String> {
        if self.found || now < self.look_at {
            return Ok(None);
        }
        self.look_at = now + LOOK_EVERY;
        self.try_post();
        let note = self.ask(|client| {
            let deadline = Deadline::after(PATIENCE);
            if client.check(&[KEY], deadline)? { client.get(KEY, deadline).map(Some) } else { Ok(None) }
        });
        let Some(note) = note.flatten() else { return Ok(None) };
        (self.found, self.known) = (true, true);
        let text = self.key.open(KEY, &note).ok_or_else(|| forged(KEY))?;
        let Posted { end, age_us } = wire::message(text).map_err(|e| e.to_string())?;
        let at = now.checked_sub(Duration::from_micros(age_us)).unwrap_or(now);
        Ok(Some((without_pickle(end), at)))
    }

    /// Says that this node is over, after what it has yet to post.
    ///
    /// # Errors
    /// In words, what could not be said, to a store that may still be waiting for it.
    pub(crate) fn say_over(&mut self, partition: u32) -> std::result::Result<(), String> {
        let deadline = Deadline::after(SAY_WITHIN);
        let place = over_key(partition);
        let note = self.key.seal(&place, b"");
        let mut said = false;
        while (!said || self.to_post.is_some()) && !self.gone && !deadline.passed() {
            self.try_post();
            said = self.ask(|client| client.set(&place, &note, Deadline::after(PATIENCE))).is_some();
        }
        match &self.to_post {
            Some((end, _)) => Err(format!(
                "rank {} {}, which the other nodes could not be told: the job's store is {}",
                end.rank,
                end.state.describe(),
                if self.gone { "gone" } else { "late" }
            )),
            None if said || self.gone => Ok(()),
            None => Err(format!("the job's store did not answer for {} s", SAY_WITHIN.as_secs())),
        }
    }

    /// Whether all nodes of `tasks` have said that they are over; also if nobody can any more.
    ///
    /// # Errors
    /// In words, if somebody else has written there (FALLBACK-4).
    pub(crate) fn all_over(&mut self, tasks: u32) -> std::result::Result<bool, String> {
        while self.over < tasks {
            let place = over_key(self.over);
            let note = self.ask(|client| {
                let deadline = Deadline::after(PATIENCE);
                if client.check(&[&place], deadline)? {
                    client.get(&place, deadline).map(Some)
                } else {
                    Ok(None)
                }
            });
            let Some(note) = note.flatten() else { return Ok(self.gone) };
            self.key.open(&place, &note).ok_or_else(|| forged(&place))?;
            self.over += 1;
        }
        Ok(true)
    }

    fn ask<T>(&mut self, question: impl FnOnce(&mut StoreClient) -> Result<T>) -> Option<T> {
        if self.gone {
            return None;
        }
        let answer = match self.client.take() {
            Some(client) => Ok(client),
            None => StoreClient::connect(self.store, Deadline::after(PATIENCE)),
        }
        .and_then(|mut client| {
            let answer = question(&mut client)?;
            self.client = Some(client);
            Ok(answer)
        });
        match answer {
            Ok(answer) => Some(answer),
            Err(e) if e.kind() == ErrorKind::Timeout => {
                log::debug!("the job's store is late: {e}");
                self.look_at = Instant::now() + REST;
                None
            }
            Err(e) => {
                // The node of the store is over, or can't be reached; then the ranks' own calls fail, too.
                log::debug!("the job's store can't be asked for failures: {e}");
                self.gone = true;
                None
            }
        }
    }
}

/// FALLBACK-5
fn without_pickle(mut end: RankExit) -> RankExit {
    if let Some(error) = &mut end.error {
        error.pickle.clear();
    }
    end
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use phalanx_rendezvous::store::StoreServer;
    use phalanx_types::{RankError, RankState};

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn store() -> StoreServer {
        StoreServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), None).unwrap()
    }

    fn key(attempt: u32) -> Key {
        Key::of_notes(&[7; 32], "job", attempt)
    }

    fn raised() -> RankExit {
        let error =
            RankError { type_name: "KeyError".into(), pickle: "cGlja2xl".into(), ..RankError::default() };
        RankExit { error: Some(error), ..RankExit::new(3, "h", RankState::Raised) }
    }

    #[test]
    fn what_a_node_of_the_attempt_posts_is_found_without_its_pickle() {
        let store = store();
        Fallback::at(store.address(), key(0)).post(&raised(), Instant::now());
        let (found, _) = Fallback::at(store.address(), key(0)).look(Instant::now()).unwrap().unwrap();
        assert_eq!(found, without_pickle(raised()), "FALLBACK-5");
        let mut client = StoreClient::connect(store.address(), Deadline::after(SOON)).unwrap();
        let note = client.get(KEY, Deadline::after(SOON)).unwrap();
        assert!(!String::from_utf8_lossy(&note).contains("cGlja2xl"), "FALLBACK-5");
    }

    #[test]
    fn a_failure_is_found_by_the_look_a_quarter_of_a_second_later() {
        let store = store();
        let mut node = Fallback::at(store.address(), key(0));
        let looked = Instant::now();
        assert_eq!(node.look(looked), Ok(None));
        Fallback::at(store.address(), key(0)).post(&raised(), Instant::now());
        let quarter = Duration::from_millis(250);
        assert_eq!(
            node.look(looked + quarter - Duration::from_millis(1)),
            Ok(None),
            "the store is left alone"
        );
        let found = node.look(looked + quarter).unwrap();
        assert!(found.is_some(), "FALLBACK-1, and docs/failures.md");
    }

    #[test]
    fn what_another_attempt_posts_is_told_as_a_strangers() {
        let store = store();
        Fallback::at(store.address(), key(1)).post(&raised(), Instant::now());
        let mut node = Fallback::at(store.address(), key(0));
        assert!(node.look(Instant::now()).unwrap_err().contains("first failure"), "FALLBACK-4");
        assert_eq!(node.look(Instant::now() + SOON), Ok(None), "once");
    }

    #[test]
    fn only_the_nodes_themselves_say_that_they_are_over() {
        let store = store();
        let mut nodes = [0, 1].map(|_| Fallback::at(store.address(), key(0)));
        nodes[0].say_over(0).unwrap();
        assert_eq!(nodes[0].all_over(2), Ok(false));
        let mut client = StoreClient::connect(store.address(), Deadline::after(SOON)).unwrap();
        let forged = key(0).seal(&over_key(0), b"");
        client.set(&over_key(1), &forged, Deadline::after(SOON)).unwrap();
        assert!(client.check(&[&over_key(1)], Deadline::after(SOON)).unwrap());
        assert!(nodes[0].all_over(2).is_err(), "FALLBACK-4: node 0 has not said so of node 1");
        nodes[1].say_over(1).unwrap();
        eventually_over(&mut nodes[0]);
    }

    fn eventually_over(node: &mut Fallback) {
        phalanx_testkit::eventually("both are over", SOON, || node.all_over(2) == Ok(true));
    }
}
