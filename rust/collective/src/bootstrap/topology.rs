//! Which ranks form a host: a pure function of which rank shares whose memory.
//!
//! - GROUP-78 (same-hosts): all ranks compute the same hosts, from the same facts.
//! - GROUP-79 (leader-proof): each rank of a host and the lowest one, its leader, have proven to each other that they
//!   share memory. What the host shares is made by the leader, so all of them do.
//! - GROUP-80 (neighbours): each rank has a neighbour on each host that is 1, 2, 4, ... hosts further or before in
//!   their ring, and is that one's neighbour. So a rank has some 2 log2 H neighbours among H hosts, and news that each
//!   tells its own goes round all hosts in log2 H steps, by many ways at once.

use std::collections::{BTreeSet, HashMap};

/// Where the ranks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// The ranks of each host, ascending; hosts by their lowest rank.
    pub hosts: Vec<Vec<usize>>,
    /// Of each rank, its host and its number there.
    places: Vec<(usize, usize)>,
}

impl Topology {
    /// `leaders[rank]` is the lowest rank with which `rank` shares memory: itself, where that is none below it.
    pub(crate) fn from_leaders(leaders: &[usize]) -> Topology {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        let mut led_by = HashMap::new();
        for (rank, leader) in leaders.iter().enumerate() {
            // GROUP-79. Sharing needn't be transitive: who shares memory with one that is led itself is of no host of
            // its.
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
        Topology::new(hosts)
    }

    /// Of hosts that have all ranks, each once.
    pub(crate) fn new(hosts: Vec<Vec<usize>>) -> Topology {
        let mut places = vec![(0, 0); hosts.iter().map(Vec::len).sum()];
        for (host, ranks) in hosts.iter().enumerate() {
            ranks.iter().enumerate().for_each(|(local_rank, rank)| places[*rank] = (host, local_rank));
        }
        Topology { hosts, places }
    }

    /// The index of a rank's host, and its local rank there.
    pub fn locate(&self, rank: usize) -> (usize, usize) {
        self.places.get(rank).copied().unwrap_or_default()
    }

    /// The rank of a host that reduces, inside it, the part of a rank: its own, or one of another host. Those of other
    /// hosts are spread over its ranks by their numbers there.
    pub(crate) fn carrier(&self, host: usize, rank: usize) -> usize {
        let (own, local_rank) = self.locate(rank);
        let ranks = &self.hosts[host];
        if own == host { rank } else { ranks[local_rank % ranks.len()] }
    }

    /// Of each rank of a host, whose [carrier](Topology::carrier) it is: its own first, then by hosts.
    pub(crate) fn carried(&self, host: usize) -> Vec<Vec<usize>> {
        let ranks = &self.hosts[host];
        let mut carried: Vec<Vec<usize>> = ranks.iter().map(|rank| vec![*rank]).collect();
        let others = self.hosts.iter().enumerate().filter(|(other, _)| *other != host);
        for (local_rank, rank) in others.flat_map(|(_, ranks)| ranks.iter().enumerate()) {
            carried[local_rank % ranks.len()].push(*rank);
        }
        carried
    }

    /// The ranks of other hosts that hear at once of this rank's end, and it of theirs (GROUP-80), ascending. Where
    /// hosts are of one size they have the same local rank: rings and recursive doubling need the same connections.
    pub(crate) fn neighbours(&self, rank: usize) -> BTreeSet<usize> {
        let (host, local_rank) = self.locate(rank);
        let (hosts, mine) = (self.hosts.len(), self.hosts[host].len());
        let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
        let distances = distances.take_while(|distance| *distance < hosts);
        let others = distances.flat_map(|distance| [host + distance, host + hosts - distance]);
        others
            .flat_map(|other| {
                let theirs = &self.hosts[other % hosts];
                // Those of the larger host take turns at the ranks of the smaller one.
                theirs.iter().skip(local_rank % theirs.len()).step_by(mine)
            })
            .copied()
            .collect()
    }

    /// Ranks that share a host with `rank`, and itself.
    pub fn host_of(&self, rank: usize) -> &[usize] {
        &self.hosts[self.locate(rank).0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_with_the_same_leader_form_a_host() {
        let topology = Topology::from_leaders(&[0, 0, 2, 0, 2]);
        assert_eq!(topology.hosts, [vec![0, 1, 3], vec![2, 4]]);
        assert_eq!(topology.locate(3), (0, 2));
        assert_eq!(topology.host_of(4), [2, 4]);
    }

    #[test]
    fn each_rank_is_its_neighbours_neighbour_and_news_goes_round_in_few_steps() {
        // GROUP-80
        let sizes: [&[usize]; 6] = [&[4], &[2, 2], &[1, 5], &[3, 1, 2, 8, 1], &[1; 33], &[8; 64]];
        for sizes in sizes {
            let mut next = 0;
            let mut host = |size: &usize| {
                next += size;
                (next - size..next).collect()
            };
            let topology = Topology::new(sizes.iter().map(&mut host).collect());
            let steps = sizes.len().next_power_of_two().ilog2() as usize;
            let neighbours: Vec<_> = (0..next).map(|rank| topology.neighbours(rank)).collect();
            let host_of: Vec<_> = (0..next).map(|rank| topology.locate(rank).0).collect();
            for rank in 0..next {
                let mine = &neighbours[rank];
                assert!(mine.iter().all(|other| neighbours[*other].contains(&rank)), "GROUP-80");
                let hosts: BTreeSet<usize> = mine.iter().map(|other| host_of[*other]).collect();
                assert!(!hosts.contains(&host_of[rank]), "GROUP-80");
                let even = sizes.iter().all(|size| *size == sizes[0]);
                assert!(!even || mine.len() == hosts.len() && hosts.len() <= 2 * steps, "GROUP-80");
                // Those of a host hear of what one of them has heard.
                let mut heard = BTreeSet::from([host_of[rank]]);
                for _ in 0..steps {
                    let ranks = heard.iter().flat_map(|host| &topology.hosts[*host]);
                    let told = ranks.flat_map(|rank| &neighbours[*rank]).map(|rank| host_of[*rank]);
                    heard.extend(told.collect::<BTreeSet<_>>());
                }
                assert_eq!(heard.len(), sizes.len(), "GROUP-80: {sizes:?} {rank}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_part_is_carried_once_in_each_host_by_the_one_that_all_take_for_its_carrier(
            leaders in proptest::collection::vec(0..9usize, 1..40),
        ) {
            let topology = Topology::from_leaders(&leaders);
            for host in 0..topology.hosts.len() {
                let carried = topology.carried(host);
                let mut all = vec![None; leaders.len()];
                for (local_rank, parts) in carried.iter().enumerate() {
                    let carrier = topology.hosts[host][local_rank];
                    prop_assert_eq!(parts[0], carrier, "its own comes first");
                    for part in parts {
                        prop_assert_eq!(all[*part].replace(carrier), None, "once");
                    }
                }
                for (rank, carrier) in all.into_iter().enumerate() {
                    prop_assert_eq!(carrier, Some(topology.carrier(host, rank)));
                }
            }
        }
    }

    #[test]
    fn a_rank_whose_leader_is_led_itself_is_alone() {
        // GROUP-79
        assert_eq!(Topology::from_leaders(&[0, 0, 1]).hosts, [vec![0, 1], vec![2]]);
        assert_eq!(Topology::from_leaders(&[0, 1, 0]).hosts, [vec![0, 2], vec![1]]);
        assert_eq!(Topology::from_leaders(&[3, 7, 0]).hosts, [[0], [1], [2]], "what can't be");
    }
}
