//! The results that arrive at the hub: which connection brings which, and what becomes of those that break off.

use std::collections::btree_map::Entry;
use std::time::Instant;

use mio::Token as MioToken;
use phalanx_types::message::HubMessage;
use phalanx_types::{Attempt, Error, Result};

use super::Server;
use crate::arrival::{Arrival, ResultKey};
use crate::connection::{Brings, Stage};
use crate::handler::Handler;
use crate::wire;

impl<H: Handler> Server<H> {
    /// A connection brings a rank's result: goes on with what there is of it, or begins.
    pub(super) fn begin_result(
        &mut self,
        rank: u32,
        attempt: Attempt,
        upload: u64,
        bytes: u64,
    ) -> Result<Arrival> {
        let Some(opening) = self.handler.result_begins(rank, attempt)? else {
            return Ok(Arrival::passed_over(attempt, bytes));
        };
        match self.interrupted.remove(&rank) {
            Some(arrival) if arrival.is_of(attempt, upload, bytes) => return Ok(arrival),
            Some(another) => self.drop_result(&another),
            None => {}
        }
        let key = self.results.begin(rank, opening)?;
        Ok(Arrival::new(key, attempt, upload, bytes))
    }

    /// The connection that brought a result is gone; another may go on with it.
    pub(super) fn interrupt_result(&mut self, rank: u32, arrival: Arrival) {
        if arrival.key.is_none() || !self.handler.is_present(arrival.attempt()) {
            return self.drop_result(&arrival);
        }
        if let Some(another) = self.interrupted.insert(rank, arrival) {
            self.drop_result(&another);
        }
    }

    /// Drops what there is of results that no connection brings, once their attempt is over.
    pub(super) fn drop_results_of_the_past(&mut self) {
        while let Some(first) = self.interrupted.first_entry()
            && !self.handler.is_present(first.get().attempt())
        {
            let arrival = first.remove();
            self.drop_result(&arrival);
        }
    }

    fn drop_result(&self, arrival: &Arrival) {
        if let Some(key) = arrival.key {
            self.results.drop_result(key);
        }
    }

    /// Has a result kept that has arrived whole.
    pub(super) fn keep_whole_result(&mut self, now: Instant, token: MioToken) {
        let Some(arrival) = self.arrival_over(token).filter(|arrival| arrival.is_whole()) else { return };
        let (key, attempt) = (arrival.key, arrival.attempt());
        match key {
            Some(key) => {
                if !self.handler.is_present(attempt) {
                    self.results.drop_result(key);
                }
                self.results.keep(key);
            }
            None => self.release(now, token),
        }
    }

    /// Tells the handler of results that can't be kept, and nodes of those that were: they may delete their copies.
    pub(super) fn take_outcomes(&mut self, now: Instant) {
        for (key, outcome) in self.results.outcomes() {
            match outcome {
                // Where its connection is gone, the next one asks again.
                Ok(()) => self.connection_of(key).into_iter().for_each(|token| self.release(now, token)),
                Err(why) => self.lose_result(now, key, &why),
            }
        }
    }

    /// A result can't be kept; the rest of it is passed over.
    fn lose_result(&mut self, now: Instant, key: ResultKey, why: &Error) {
        let token = self.connection_of(key);
        let attempt = match token.and_then(|token| self.arrival_over(token)) {
            Some(arrival) => {
                arrival.key = None;
                arrival.attempt()
            }
            None => match self.interrupted.entry(key.rank) {
                Entry::Occupied(entry) if entry.get().key == Some(key) => entry.remove().attempt(),
                // It was dropped meanwhile.
                _ => return,
            },
        };
        if self.handler.is_present(attempt) {
            self.handler.result_lost(now, key.rank, why, &mut self.out);
        }
        if let Some(token) = token {
            self.keep_whole_result(now, token);
        }
    }

    /// The connection that brings this, if one does.
    fn connection_of(&mut self, key: ResultKey) -> Option<MioToken> {
        let token = self.bringing.get(&Brings::Result(key.rank)).copied()?;
        self.arrival_over(token)?.key.is_some_and(|its| its == key).then_some(token)
    }

    fn arrival_over(&mut self, token: MioToken) -> Option<&mut Arrival> {
        match &mut self.connections.get_mut(&token)?.stage {
            Stage::Result { arrival, .. } => Some(arrival),
            _ => None,
        }
    }

    /// Tells a node that it may delete its copy.
    fn release(&mut self, now: Instant, token: MioToken) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let mut frame = Vec::new();
        wire::encode_json(&HubMessage::Released, &mut frame);
        let sent = connection.send(&frame);
        self.check(now, token, sent);
    }
}
