//! All-to-all among several hosts: inside each through shared memory; between them, every rank with every other at
//! once. Gather and scatter are cases of it.
//!
//! Steps between hosts: 1.

use std::ops::Range;

use phalanx_types::Result;

use crate::group::Group;
use crate::inter_host::transport::{Incoming, Outgoing};
use crate::intra_host::all_to_all::{Messages, all_to_all};
use crate::wait::Watch;

impl Group {
    /// The message from a rank to itself is not moved here.
    pub(crate) fn hierarchical_all_to_all(
        &mut self,
        watch: &Watch<'_>,
        messages: Messages<'_>,
    ) -> Result<()> {
        let Messages { input, sent, output, received } = messages;
        let me = self.topology.locate(self.rank).0;
        let host = &self.topology.hosts[me];
        if let Some(local) = &mut self.local {
            let of =
                |ranges: &[Range<usize>]| host.iter().map(|rank| ranges[*rank].clone()).collect::<Vec<_>>();
            let (sent, received) = (of(sent), of(received));
            let messages = Messages { input, sent: &sent, output: &mut *output, received: &received };
            all_to_all(local, watch, Some(watch.call), messages)?;
        }
        let is_remote = |rank: &usize| self.topology.locate(*rank).0 != me;
        let outgoing: Vec<Outgoing<'_>> = (0..self.world_size)
            .filter(is_remote)
            .map(|to| Outgoing { to, bytes: &input[sent[to].clone()] })
            .collect();
        let mut incoming = Vec::new();
        let (mut rest, mut start) = (output, 0);
        for (from, range) in received.iter().enumerate() {
            // Parts follow one another; one that is empty may claim to be anywhere.
            let skipped = if range.is_empty() { 0 } else { range.start - start };
            let (bytes, after) = std::mem::take(&mut rest)[skipped..].split_at_mut(range.len());
            rest = after;
            start += skipped + range.len();
            if is_remote(&from) {
                incoming.push(Incoming::new(from, bytes));
            }
        }
        self.transport.transfer(watch, &outgoing, &mut incoming)
    }
}
