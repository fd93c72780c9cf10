//! From a connection that was accepted to one with a role: who is let in, and how long that may take.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use mio::{Interest, Token as MioToken};
use phalanx_types::message::{Hello, HubMessage, Role, Welcome};
use phalanx_types::{Error, ErrorKind, Result};
use socket2::SockRef;

use super::Server;
use crate::connection::{Brings, Connection, Stage};
use crate::handler::Handler;
use crate::wire;

/// How long a connection may take to prove itself.
pub const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections may be unproved at a time; beyond it the oldest of the address that has most goes.
pub(super) const MAX_UNPROVED: usize = 1024;

impl<H: Handler> Server<H> {
    /// A connection was accepted.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        mut stream: mio::net::TcpStream,
        from: IpAddr,
    ) -> Result<()> {
        crate::client::tune(&SockRef::from(&stream));
        let tls = self.tls.accept()?;
        let token = MioToken(self.next_token);
        self.next_token += 1;
        self.poll
            .registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|e| Error::io("watch a connection", &e))?;
        self.connections.insert(token, Connection::new(stream, tls));
        if let Some(goes) = self.unproved.add(from, now + PROOF_TIMEOUT, token) {
            let why = Error::new(
                ErrorKind::Closed,
                "too many connections from its address are not authenticated yet",
            );
            self.close_connection(now, goes, Some(&why));
        }
        self.unfinished.insert(token);
        Ok(())
    }

    /// Tells a peer that it won't be admitted, which a connection that just ends would not.
    pub(super) fn refuse(&mut self, token: MioToken) {
        let mut frame = Vec::new();
        wire::encode_json(&Welcome::refusal(), &mut frame);
        // One that can't be told finds the connection closed, and tries again.
        let _ = self.connections.get_mut(&token).map(|connection| connection.send(&frame));
    }

    /// Checks a proof and gives the connection its role.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        token: MioToken,
        binding: &wire::Binding,
        hello: &Hello,
    ) -> Result<()> {
        let ours = hello.version == phalanx_types::job::VERSION && hello.job == self.options.job;
        if !ours || !wire::client_is_proved(&self.options.token, binding, hello) {
            return Err(Error::new(ErrorKind::Refused, "a connection without this job's token"));
        }
        let (Role::Control { attempt, .. } | Role::Logs { attempt, .. } | Role::Result { attempt, .. }) =
            hello.role;
        if !self.handler.admits(attempt) {
            return Err(Error::new(ErrorKind::Closed, format!("it is of attempt {attempt}, which is over")));
        }
        let mut received = Vec::new();
        let stage = match hello.role {
            Role::Control { partition, attempt, task } => self.seat(now, token, partition, attempt, task),
            Role::Logs { partition, instance, .. } if !self.handler.is_seated(partition, instance) => {
                let why = format!("output of a node that partition {partition} has no more");
                return Err(Error::new(ErrorKind::Closed, why));
            }
            Role::Logs { partition, attempt, .. } => {
                // What the old one still had on its way is sent again.
                self.close_older(now, Brings::Logs(partition), attempt);
                received = self.handler.logs_opened(partition);
                Stage::Logs { partition, attempt }
            }
            Role::Result { rank, attempt, upload, bytes } => {
                self.close_older(now, Brings::Result(rank), attempt);
                let arrival = self.begin_result(rank, attempt, upload, bytes)?;
                received = vec![(rank, arrival.received())];
                Stage::Result { rank, arrival }
            }
        };
        let mut frame = Vec::new();
        wire::encode_json(&wire::welcome(&self.options.token, binding, hello, received), &mut frame);
        self.unproved.retain(|unproved| *unproved != token);
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        if let Some((what, _)) = stage.brings() {
            self.bringing.entry(what).or_insert(token);
        }
        let is_spare = matches!(stage, Stage::Spare(_));
        connection.stage = stage;
        connection.send(&frame)?;
        if is_spare {
            self.order(now, token, &HubMessage::Spare);
        }
        self.keep_whole_result(now, token);
        Ok(())
    }

    /// Closes those whose time is over.
    pub(super) fn close_unproved(&mut self, now: Instant) {
        while let Some(token) = self.unproved.expired(now) {
            let why = Error::new(ErrorKind::Timeout, "it did not authenticate in time");
            self.close_connection(now, token, Some(&why));
        }
    }
}
