//! Collective operations between hosts, over TCP: one file an algorithm, its cost in its header.
//!
//! They run among ranks of different hosts, one rank of each host: a *channel*, NCCL's word. Costs are given for h
//! ranks and b bytes a rank: *steps*, each at least the time of one message, and the bytes that each rank sends.

pub(crate) mod pairwise;
pub(crate) mod recursive_doubling;
pub(crate) mod ring;
pub(crate) mod transport;
pub(crate) mod tree;

use phalanx_types::Result;

use crate::kernels::Combine;
use crate::wait::Watch;
use transport::{Incoming, Outgoing, Transport};

/// A long message goes through a tree in pieces, which follow one another.
pub(crate) const PIECE_BYTES: usize = 512 << 10;

/// This rank among those it exchanges messages with, in one operation.
pub(crate) struct Channel<'a> {
    pub(crate) transport: &'a Transport,
    pub(crate) watch: &'a Watch<'a>,
    /// One rank a host.
    pub(crate) ranks: &'a [usize],
    /// This rank's position among them.
    pub(crate) me: usize,
}

impl Channel<'_> {
    /// Sends to one position of the channel and receives from another, at the same time.
    pub(crate) fn send_recv(&self, to: usize, sent: &[u8], from: usize, received: &mut [u8]) -> Result<()> {
        let outgoing = [Outgoing { to: self.ranks[to], bytes: sent }];
        let mut incoming = [Incoming::new(self.ranks[from], received)];
        self.transport.transfer(self.watch, &outgoing, &mut incoming)
    }

    /// The same where what is received is combined, as the first source, with what is there.
    pub(crate) fn send_recv_combining(
        &self,
        to: usize,
        sent: &[u8],
        from: usize,
        received: &mut [u8],
        combine: &Combine,
    ) -> Result<()> {
        let outgoing = [Outgoing { to: self.ranks[to], bytes: sent }];
        let mut incoming = [Incoming { from: self.ranks[from], bytes: received, combine: Some(combine) }];
        self.transport.transfer(self.watch, &outgoing, &mut incoming)
    }

    pub(crate) fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        self.transport.transfer(self.watch, &[Outgoing { to: self.ranks[to], bytes }], &mut [])
    }

    pub(crate) fn recv(&self, from: usize, bytes: &mut [u8]) -> Result<()> {
        self.transport.transfer(self.watch, &[], &mut [Incoming::new(self.ranks[from], bytes)])
    }

    /// Nobody goes on until all are there: a dissemination barrier, log2 h steps without data.
    pub(crate) fn barrier(&self) -> Result<()> {
        let hosts = self.ranks.len();
        let mut distance = 1;
        while distance < hosts {
            let (to, from) = ((self.me + distance) % hosts, (self.me + hosts - distance) % hosts);
            self.send_recv(to, &[], from, &mut [])?;
            distance *= 2;
        }
        Ok(())
    }
}
