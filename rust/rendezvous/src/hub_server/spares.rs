//! Tasks whose seat another one has: they wait, and get it when the handler says so.

use std::time::Instant;

use mio::Token as MioToken;
use phalanx_types::message::HubMessage;
use phalanx_types::{Attempt, SparkTask};

use super::Server;
use crate::connection::{Brings, Stage};
use crate::handler::{Handler, Seat};
use crate::spare::Spare;
use crate::wire;

impl<H: Handler> Server<H> {
    /// What a new connection of a task is for.
    pub(super) fn seat(
        &mut self,
        now: Instant,
        token: MioToken,
        partition: u32,
        attempt: Attempt,
        task: SparkTask,
    ) -> Stage {
        self.forget_spares(now, task);
        match self.handler.seat(now, partition, task, &mut self.out) {
            Seat::Yours => self.seated(token, partition, attempt),
            Seat::Inherited => {
                self.forget_holder(now, partition);
                self.seated(token, partition, attempt)
            }
            Seat::Spare | Seat::Over(_) | Seat::Never(_) => {
                self.spares.insert(token);
                // It may be one for whom there is nothing to wait.
                self.seats_seen = None;
                Stage::Spare(Box::new(Spare::new(now, partition, attempt, task)))
            }
        }
    }

    fn seated(&mut self, token: MioToken, partition: u32, attempt: Attempt) -> Stage {
        // A node that comes back replaces its old connection, which may be half open for a long time yet.
        if let Some(old) = self.control.insert(partition, token) {
            self.drop_connection(old);
        }
        Stage::Control { partition, attempt }
    }

    /// Orders that go out are those of who had the seat, and what it wrote is at other offsets of its own log.
    fn forget_holder(&mut self, now: Instant, partition: u32) {
        self.deliver(now);
        if let Some(logs) = self.bringing.get(&Brings::Logs(partition)).copied() {
            self.close_connection(now, logs, None);
        }
    }

    /// A task comes over another connection: that over which it waited may be half open for a long time yet.
    fn forget_spares(&mut self, now: Instant, task: SparkTask) {
        let is_its = |token: &MioToken| self.spare(*token).is_some_and(|spare| spare.task == task);
        let before: Vec<MioToken> = self.spares.iter().copied().filter(is_its).collect();
        before.into_iter().for_each(|token| self.close_connection(now, token, None));
    }

    fn spare(&self, token: MioToken) -> Option<&Spare> {
        self.connections.get(&token)?.stage.spare()
    }

    /// Whether spares are to be asked about.
    pub(super) fn may_seat_spares(&self) -> bool {
        !self.spares.is_empty() && self.seats_seen != Some(self.handler.seats())
    }

    /// Gives those seats to spares that have fallen free, and sends the spares away that wait for nothing. The newest
    /// task goes first: it is the likeliest to live.
    pub(super) fn seat_spares(&mut self, now: Instant) {
        if !self.may_seat_spares() {
            return;
        }
        self.seats_seen = Some(self.handler.seats());
        self.deliver(now);
        let id_of = |token: &MioToken| Some((self.spare(*token)?.task.id, *token));
        let mut waiting: Vec<(u64, MioToken)> = self.spares.iter().filter_map(id_of).collect();
        waiting.sort_unstable_by(|a, b| b.cmp(a));
        for (_, token) in waiting {
            self.ask_about(now, token);
        }
    }

    fn ask_about(&mut self, now: Instant, token: MioToken) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let Stage::Spare(spare) = &mut connection.stage else { return };
        if !spare.may_be_seated(now) {
            return;
        }
        let (partition, attempt, task) = (spare.partition, spare.attempt, spare.task);
        match self.handler.seat(now, partition, task, &mut self.out) {
            Seat::Spare => {}
            Seat::Over(reason) => {
                spare.is_over = true;
                self.order(now, token, &HubMessage::Stop { reason });
            }
            Seat::Never(reason) => {
                spare.is_over = true;
                self.order(now, token, &HubMessage::GivenUp { reason });
            }
            Seat::Yours | Seat::Inherited => {
                let told = spare.told.take();
                self.spares.remove(&token);
                self.forget_spares(now, task);
                self.forget_holder(now, partition);
                let stage = self.seated(token, partition, attempt);
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.stage = stage;
                }
                if let Some(message) = told {
                    self.handler.message(now, partition, attempt, message, &mut self.out);
                }
            }
        }
    }

    /// Tells the peer of a connection something.
    pub(super) fn order(&mut self, now: Instant, token: MioToken, message: &HubMessage) {
        let mut frame = Vec::new();
        wire::encode_json(message, &mut frame);
        let sent = self.connections.get_mut(&token).map_or(Ok(()), |connection| connection.send(&frame));
        self.check(now, token, sent);
    }
}
