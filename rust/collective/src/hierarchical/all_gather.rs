//! All-gather among several hosts: inside each, around a ring of hosts, and inside again.
//!
//! Steps between hosts: (h - 1) times the ranks of a host.

use std::ops::Range;

use phalanx_types::Result;

use crate::group::Group;
use crate::inter_host::transport::{Incoming, Outgoing};
use crate::intra_host;
use crate::wait::Watch;

impl Group {
    /// Every rank has `parts[rank]` of `buffer` and gets all the others.
    pub(crate) fn hierarchical_all_gather(
        &mut self,
        watch: &Watch<'_>,
        buffer: &mut [u8],
        parts: &[Range<usize>],
    ) -> Result<()> {
        let Group { rank, topology, local, transport, .. } = self;
        let hosts = &topology.hosts;
        let (me, local_rank) = topology.locate(*rank);
        if let Some(local) = local {
            let own: Vec<Range<usize>> = hosts[me].iter().map(|rank| parts[*rank].clone()).collect();
            intra_host::all_gather::all_gather(local, watch, Some(watch.call), buffer, &own)?;
        }
        if local_rank == 0 {
            let (next, previous) = ((me + 1) % hosts.len(), (me + hosts.len() - 1) % hosts.len());
            for step in 0..hosts.len() - 1 {
                let sent = &hosts[(me + hosts.len() - step) % hosts.len()];
                let received = &hosts[(previous + hosts.len() - step) % hosts.len()];
                for number in 0..sent.len().max(received.len()) {
                    let mut arrived = received.get(number).map(|rank| vec![0; parts[*rank].len()]);
                    let outgoing = sent
                        .get(number)
                        .map(|rank| Outgoing { to: hosts[next][0], bytes: &buffer[parts[*rank].clone()] });
                    let incoming = arrived.as_mut().map(|bytes| Incoming::new(hosts[previous][0], bytes));
                    transport.transfer(
                        watch,
                        outgoing.as_slice(),
                        incoming.into_iter().collect::<Vec<_>>().as_mut_slice(),
                    )?;
                    if let (Some(rank), Some(arrived)) = (received.get(number), arrived) {
                        buffer[parts[*rank].clone()].copy_from_slice(&arrived);
                    }
                }
            }
        }
        if let Some(local) = local {
            let others = hosts.iter().enumerate().filter(|(host, _)| *host != me);
            for rank in others.flat_map(|(_, ranks)| ranks) {
                let part = &mut buffer[parts[*rank].clone()];
                intra_host::broadcast::broadcast(local, watch, None, part, 0)?;
            }
        }
        Ok(())
    }
}
