//! Where nodes of a job tell one another of a failure when not all of them reach the hub: a key of the job's store.
//!
//! BOARD-1: a failure of a rank whose node has no hub is known to all nodes within [`LOOK_EVERY`] and one answer of the
//! store; a node that has the hub tells it there. BOARD-2: no node waits for the store longer than [`PATIENCE`] at a
//! time; one that is late is asked again after [`REST`], one that is gone is not. BOARD-3: after a post the store stays
//! for [`LINGER`], whichever node posted it, else the others would find it gone.

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
/// How long others have to see what was posted: several looks, also on a busy host.
const LINGER: Duration = Duration::from_secs(2);
/// The job's own; training code has no reason to use it.
const KEY: &str = "phalanx/first failure";

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
    /// When a failure was posted or found here first.
    known: Option<Instant>,
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
            known: None,
            found: false,
        }
    }

    /// Tells the other nodes of the failure `end`, which happened at `at`.
    pub(crate) fn post(&mut self, end: &RankEnd, at: Instant) {
        if self.known.is_none() {
            self.to_post = Some((end.clone(), at));
            self.try_post();
        }
    }

    fn try_post(&mut self) {
        let Some((end, at)) = self.to_post.take() else { return };
        let age_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&Posted { end: end.clone(), age_us }).unwrap_or_default();
        match self.ask(|client| client.set(KEY, &text, Deadline::after(PATIENCE))) {
            Some(()) => self.known = Some(Instant::now()),
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
        (self.found, self.known) = (true, self.known.or(Some(now)));
        let Posted { end, age_us } = wire::message(&posted).ok()?;
        Some((end, now.checked_sub(Duration::from_micros(age_us)).unwrap_or(now)))
    }

    /// For how long the store, if it is this node's, has to stay.
    pub(crate) fn needed_for(&self) -> Duration {
        self.known.map_or(Duration::ZERO, |at| LINGER.saturating_sub(at.elapsed()))
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
