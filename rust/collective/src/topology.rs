//! Which ranks form a host: a pure function of which rank can map whose memory.
//!
//! - TOP-1 (same-hosts): all ranks compute the same hosts, from the same facts.
//! - TOP-2 (pairwise-proof): any two ranks of a host have proven to each other that they share memory.

/// Where the ranks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The ranks of each host, ascending; hosts by their lowest rank.
    pub hosts: Vec<Vec<usize>>,
}

impl Topology {
    /// `reached[rank]` are the lower ranks with which `rank` shares memory.
    pub(crate) fn from_reach(reached: &[Vec<usize>]) -> Topology {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (rank, reaches) in reached.iter().enumerate() {
            // TOP-2. Sharing needn't be transitive: with two views of /proc, for example.
            match hosts.iter_mut().find(|host| host.iter().all(|other| reaches.contains(other))) {
                Some(host) => host.push(rank),
                None => hosts.push(vec![rank]),
            }
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
    fn ranks_that_reach_one_another_form_a_host() {
        let topology = Topology::from_reach(&[vec![], vec![0], vec![], vec![0, 1], vec![2]]);
        assert_eq!(topology.hosts, [vec![0, 1, 3], vec![2, 4]]);
        assert_eq!(topology.locate(3), (0, 2));
        assert_eq!(topology.host_of(4), [2, 4]);
    }

    #[test]
    fn a_rank_that_reaches_only_some_of_a_host_is_not_of_it() {
        // TOP-2
        let topology = Topology::from_reach(&[vec![], vec![0], vec![1]]);
        assert_eq!(topology.hosts, [vec![0, 1], vec![2]]);
        let topology = Topology::from_reach(&[vec![], vec![], vec![0, 1]]);
        assert_eq!(topology.hosts, [vec![0, 2], vec![1]]);
    }
}
