//! Which ranks form a host: a pure function of which rank shares whose memory.
//!
//! - TOP-1 (same-hosts): all ranks compute the same hosts, from the same facts.
//! - TOP-2 (leader-proof): each rank of a host and the lowest one, its leader, have proven to each other that they
//!   share memory. What the host shares is made by the leader, so all of them do.

use std::collections::HashMap;

/// Where the ranks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The ranks of each host, ascending; hosts by their lowest rank.
    pub hosts: Vec<Vec<usize>>,
}

impl Topology {
    /// `leaders[rank]` is the lowest rank with which `rank` shares memory: itself, where that is none below it.
    pub(crate) fn from_leaders(leaders: &[usize]) -> Topology {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut led_by = HashMap::new();
        for (rank, leader) in leaders.iter().enumerate() {
            // TOP-2. Sharing needn't be transitive: who shares memory with one that is led itself is of no host of its.
            if let Some(host) = led_by.get(leader).filter(|_| *leader < rank) {
                let host: &mut Vec<usize> = &mut hosts[*host];
                host.push(rank);
                continue;
            }
            if *leader == rank {
                led_by.insert(rank, hosts.len());
            }
            hosts.push(vec![rank]);
        }
        Topology { hosts }
    }

    /// The index of a rank's host, and its local rank there.
    pub fn locate(&self, rank: usize) -> (usize, usize) {
        let hosts = self.hosts.iter().enumerate();
        hosts
            .filter_map(|(host, ranks)| Some((host, ranks.binary_search(&rank).ok()?)))
            .next()
            .unwrap_or_default()
    }

    /// Ranks that share a host with `rank`, and itself.
    pub fn host_of(&self, rank: usize) -> &[usize] {
        &self.hosts[self.locate(rank).0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_the_same_leader_form_a_host() {
        let topology = Topology::from_leaders(&[0, 0, 2, 0, 2]);
        assert_eq!(topology.hosts, [vec![0, 1, 3], vec![2, 4]]);
        assert_eq!(topology.locate(3), (0, 2));
        assert_eq!(topology.host_of(4), [2, 4]);
    }

    #[test]
    fn a_rank_whose_leader_is_led_itself_is_alone() {
        // TOP-2
        assert_eq!(Topology::from_leaders(&[0, 0, 1]).hosts, [vec![0, 1], vec![2]]);
        assert_eq!(Topology::from_leaders(&[0, 1, 0]).hosts, [vec![0, 2], vec![1]]);
        assert_eq!(Topology::from_leaders(&[3, 7, 0]).hosts, [[0], [1], [2]], "what can't be");
    }
}
