//! Where nodes of a job tell one another of a failure when not all of them reach the hub: keys of the job's store.
//!
//! BOARD-1: a failure of a rank whose node has no hub is known to all nodes within [`LOOK_EVERY`] and one answer of the
//! store; a node that has the hub tells it there. BOARD-2: no node waits for the store longer than [`PATIENCE`] at a
//! time; one that is late is asked again after [`REST`], one that is gone is not. BOARD-3: the store stays until every
//! node has said that it is over, whenever it begins, so that none finds it gone; a node that can't say what it has to
//! says so to Spark, which then ends the others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::wire;
use phalanx_types::{Deadline, ErrorKind, RankEnd, Result};
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
    end: RankEnd,
    age_us: u64,
}

/// One node's view of the board.
pub(crate) struct Board {
    store: SocketAddr,
    client: Option<StoreClient>,
    gone: bool,
    look_at: Instant,
    /// What has yet to be posted.
    to_post: Option<(RankEnd, Instant)>,
    /// Whether a failure was posted or found here.
    known: bool,
    found: bool,
}

impl Board {
    /// On the store at `store`; connects when it is first needed, for the store's node may begin later than this one.
    pub(crate) fn at(store: SocketAddr) -> Board {
        Board {
            store,
            client: None,
            gone: false,
            look_at: Instant::now(),
            to_post: None,
            known: false,
            found: false,
        }
    }

    /// Tells the other nodes of the failure `end`, which happened at `at`.
    pub(crate) fn post(&mut self, end: &RankEnd, at: Instant) {
        if !self.known {
            self.to_post = Some((end.clone(), at));
            self.try_post();
        }
    }

    fn try_post(&mut self) {
        let Some((end, at)) = self.to_post.take() else { return };
        let age_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&Posted { end: end.clone(), age_us }).unwrap_or_default();
        match self.ask(|client| client.set(KEY, &text, Deadline::after(PATIENCE))) {
            Some(()) => self.known = true,
            None => self.to_post = Some((end, at)),
        }
    }

    /// A failure that some node has posted, and when it happened; once.
    pub(crate) fn look(&mut self, now: Instant) -> Option<(RankEnd, Instant)> {
        if self.found || now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        self.try_post();
        let posted = self.ask(|client| {
            let deadline = Deadline::after(PATIENCE);
            if client.check(&[KEY], deadline)? { client.get(KEY, deadline).map(Some) } else { Ok(None) }
        })??;
        (self.found, self.known) = (true, true);
        let Posted { end, age_us } = wire::message(&posted).ok()?;
        Some((end, now.checked_sub(Duration::from_micros(age_us)).unwrap_or(now)))
    }

    /// Says that this node is over, after what it has yet to post.
    ///
    /// # Errors
    /// In words, what could not be said, to a store that may still be waiting for it.
    pub(crate) fn say_over(&mut self, partition: u32) -> std::result::Result<(), String> {
        let deadline = Deadline::after(SAY_WITHIN);
        let mut said = false;
        while (!said || self.to_post.is_some()) && !self.gone && !deadline.passed() {
            self.try_post();
            said =
                self.ask(|client| client.set(&over_key(partition), b"", Deadline::after(PATIENCE))).is_some();
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
    pub(crate) fn all_over(&mut self, tasks: u32) -> bool {
        let keys: Vec<String> = (0..tasks).map(over_key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.gone || self.ask(|client| client.check(&keys, Deadline::after(PATIENCE))).unwrap_or(false)
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
