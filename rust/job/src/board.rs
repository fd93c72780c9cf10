//! Where nodes of a job tell one another of a failure when not all of them reach the hub: a key of the job's store.
//!
//! BOARD-1: a failure of a rank whose node has no hub is known to all nodes within [`LOOK_EVERY`] and one answer of the
//! store; a node that has the hub tells it there. BOARD-2: no node waits for the store longer than [`PATIENCE`] at a
//! time, and one that is gone is not asked again. BOARD-3: after a post the store stays for [`LINGER`], else the others
//! would find it gone.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::wire;
use phalanx_types::{Deadline, RankEnd, Result};
use serde::{Deserialize, Serialize};

/// How often a node looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long the store may take for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
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
    posted: Option<Instant>,
}

impl Board {
    /// On the store at `store`; connects when it is first needed, for the store's node may begin later than this one.
    pub(crate) fn at(store: SocketAddr) -> Board {
        Board { store, client: None, gone: false, look_at: Instant::now(), posted: None }
    }

    /// Tells the other nodes of the failure `end`, which happened at `at`.
    pub(crate) fn post(&mut self, end: &RankEnd, at: Instant) {
        let age_us = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let text = serde_json::to_vec(&Posted { end: end.clone(), age_us }).unwrap_or_default();
        self.ask(|client| client.set(KEY, &text, Deadline::after(PATIENCE)));
        self.posted = Some(Instant::now());
    }

    /// A failure that some node has posted, and when it happened; each time it looks.
    pub(crate) fn look(&mut self, now: Instant) -> Option<(RankEnd, Instant)> {
        if now < self.look_at {
            return None;
        }
        self.look_at = now + LOOK_EVERY;
        let posted = self.ask(|client| {
            let deadline = Deadline::after(PATIENCE);
            if client.check(&[KEY], deadline)? { client.get(KEY, deadline).map(Some) } else { Ok(None) }
        })??;
        let Posted { end, age_us } = wire::message(&posted).ok()?;
        Some((end, now.checked_sub(Duration::from_micros(age_us)).unwrap_or(now)))
    }

    /// For how long the store, if it is this node's, has to stay.
    pub(crate) fn needed_for(&self) -> Duration {
        self.posted.map_or(Duration::ZERO, |at| LINGER.saturating_sub(at.elapsed()))
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
            Err(e) => {
                // The node of the store is over, or can't be reached; then the ranks' own calls fail, too.
                log::debug!("the job's store can't be asked for failures: {e}");
                self.gone = true;
                None
            }
        }
    }
}
