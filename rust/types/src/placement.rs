//! Where every rank goes: a pure function of what the tasks said when they joined.
//!
//! PLACE-1: every rank is placed exactly once. PLACE-2: ranks of a host are consecutive, local ranks dense from 0.
//! PLACE-3: hosts and the tasks on them are in partition order. PLACE-4: rank 0 is on the task that serves the store.
//! PLACE-5: the order in which the joins arrived changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::job::Job;

/// What a task says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The Spark partition of the task: 0 up to the number of tasks.
    pub partition: u32,
    /// What tells one host from another: tasks with the same text are on the same host.
    pub host: String,
    /// The address of this host on the way to the driver; the other nodes reach the store there.
    pub address: IpAddr,
    /// The network interface that has `address`, e.g. `eth0`; empty if not known.
    pub interface: String,
    /// Every address of the host, from which its ranks may connect to the store.
    pub addresses: Vec<IpAddr>,
    /// The port of the store socket that the task already listens on, at `address`.
    pub store_port: u16,
    /// The GPUs that Spark gave the task, as its discovery names them; empty without GPUs.
    pub gpus: Vec<String>,
}

/// One rank's place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankPlace {
    /// `RANK`.
    pub rank: u32,
    /// `LOCAL_RANK`.
    pub local_rank: u32,
}

/// What one task needs to know of the placement to start its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodePlacement {
    /// The task's partition.
    pub partition: u32,
    /// The ranks that the task starts, ascending.
    pub ranks: Vec<RankPlace>,
    /// `WORLD_SIZE`.
    pub world_size: u32,
    /// `LOCAL_WORLD_SIZE`: the ranks of all tasks on this host.
    pub local_world_size: u32,
    /// `GROUP_RANK` and `NODE_RANK`: the number of this host.
    pub node_rank: u32,
    /// `GROUP_WORLD_SIZE`: how many hosts there are.
    pub node_count: u32,
    /// `MASTER_ADDR` and `MASTER_PORT`.
    pub store: SocketAddr,
    /// Whether this task serves the store.
    pub serves_store: bool,
    /// For the task that serves the store: the addresses that may connect to it.
    pub peers: Vec<IpAddr>,
    /// `CUDA_VISIBLE_DEVICES`: the GPUs of all ranks on this host, so that `cuda:LOCAL_RANK` is the rank's own.
    pub gpus: Vec<String>,
    /// The interface that reaches the other nodes; empty if not known.
    pub interface: String,
}

/// Where every rank of a job goes; one entry a task, in partition order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Indexed by partition.
    pub nodes: Vec<NodePlacement>,
}

/// Places the ranks of `job` on the tasks that joined.
///
/// Tasks on one host whose GPU addresses overlap can't share a `CUDA_VISIBLE_DEVICES` (each sees GPUs of its own
/// container under the same names), so each of them counts as a host of its own.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the joins are not exactly one for each partition.
pub fn place(job: &Job, joins: &[Join]) -> Result<Placement> {
    let by_partition = by_partition(job, joins)?;
    let hosts = group_by_host(&by_partition);
    let per_task = job.ranks_per_task();
    let first = by_partition[0];
    let store = SocketAddr::new(first.address.to_canonical(), first.store_port);
    let peers: BTreeSet<IpAddr> = by_partition
        .iter()
        .flat_map(|join| join.addresses.iter().chain([&join.address]))
        .map(IpAddr::to_canonical)
        .collect();

    let mut nodes = Vec::with_capacity(by_partition.len());
    let mut next_rank = 0;
    for (node_rank, tasks) in (0..).zip(&hosts) {
        let gpus: Vec<String> = tasks.iter().flat_map(|join| join.gpus.iter().cloned()).collect();
        let mut next_local = 0;
        for join in tasks {
            let ranks = (0..per_task)
                .map(|i| RankPlace { rank: next_rank + i, local_rank: next_local + i })
                .collect();
            let serves_store = join.partition == first.partition;
            nodes.push(NodePlacement {
                partition: join.partition,
                ranks,
                world_size: job.ranks,
                local_world_size: per_task * u32::try_from(tasks.len()).unwrap_or(u32::MAX),
                node_rank,
                node_count: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
                store,
                serves_store,
                peers: if serves_store { peers.iter().copied().collect() } else { Vec::new() },
                gpus: gpus.clone(),
                interface: join.interface.clone(),
            });
            next_rank += per_task;
            next_local += per_task;
        }
    }
    nodes.sort_by_key(|node| node.partition);
    Ok(Placement { nodes })
}

fn by_partition<'a>(job: &Job, joins: &'a [Join]) -> Result<Vec<&'a Join>> {
    let sorted: BTreeMap<u32, &Join> = joins.iter().map(|join| (join.partition, join)).collect();
    let complete = sorted.len() == joins.len() && sorted.keys().copied().eq(0..job.tasks);
    if !complete {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a placement over {} tasks needs one join for each partition, not those of partitions {:?}",
                job.tasks,
                joins.iter().map(|join| join.partition).collect::<Vec<_>>()
            ),
        ));
    }
    Ok(sorted.into_values().collect())
}

/// Hosts in the order of their lowest partition, each with its tasks in partition order.
fn group_by_host<'a>(joins: &[&'a Join]) -> Vec<Vec<&'a Join>> {
    let mut hosts: Vec<Vec<&Join>> = Vec::new();
    let mut index: BTreeMap<&str, usize> = BTreeMap::new();
    for join in joins {
        let at = *index.entry(&join.host).or_insert_with(|| {
            hosts.push(Vec::new());
            hosts.len() - 1
        });
        hosts[at].push(join);
    }
    hosts
        .into_iter()
        .flat_map(|tasks| {
            if gpus_overlap(&tasks) { tasks.into_iter().map(|t| vec![t]).collect() } else { vec![tasks] }
        })
        .collect()
}

fn gpus_overlap(tasks: &[&Join]) -> bool {
    let mut seen = BTreeSet::new();
    !tasks.iter().flat_map(|join| &join.gpus).all(|gpu| seen.insert(gpu))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn join(partition: u32, host: &str, address: IpAddr, gpus: &[&str]) -> Join {
        Join {
            partition,
            host: host.into(),
            address,
            interface: "eth0".into(),
            addresses: vec![address],
            store_port: 4000,
            gpus: gpus.iter().map(ToString::to_string).collect(),
        }
    }

    fn on(partition: u32, host: &str, gpus: &[&str]) -> Join {
        join(partition, host, IpAddr::from([10, 0, 0, 1]), gpus)
    }

    #[test]
    fn ranks_are_grouped_by_host_although_partitions_alternate() {
        let job = Job::new("j", "t", 4, 4).unwrap();
        let joins = [on(0, "a", &[]), on(1, "b", &[]), on(2, "a", &[]), on(3, "b", &[])];
        let ranks: Vec<u32> =
            place(&job, &joins).unwrap().nodes.iter().map(|node| node.ranks[0].rank).collect();
        assert_eq!(ranks, [0, 2, 1, 3], "PLACE-2");
    }

    #[test]
    fn one_gpu_a_task_on_a_shared_host_gives_dense_local_ranks_and_all_its_gpus() {
        let job = Job::new("j", "t", 2, 2).unwrap();
        let placed = place(&job, &[on(0, "a", &["3"]), on(1, "a", &["GPU-77"])]).unwrap();
        for (node, local_rank) in placed.nodes.iter().zip(0..) {
            assert_eq!(node.gpus, ["3", "GPU-77"]);
            assert_eq!(node.ranks[0].local_rank, local_rank);
            assert_eq!((node.local_world_size, node.node_count), (2, 1));
        }
    }

    #[test]
    fn tasks_that_name_the_same_gpu_are_hosts_of_their_own() {
        let job = Job::new("j", "t", 2, 2).unwrap();
        let placed = place(&job, &[on(0, "a", &["0"]), on(1, "a", &["0"])]).unwrap();
        for node in &placed.nodes {
            assert_eq!(node.gpus, ["0"]);
            assert_eq!((node.ranks[0].local_rank, node.local_world_size, node.node_count), (0, 1, 2));
        }
    }

    #[test]
    fn missing_doubled_and_foreign_partitions_are_refused() {
        let job = Job::new("j", "t", 2, 2).unwrap();
        for joins in [
            vec![on(0, "a", &[])],
            vec![on(0, "a", &[]), on(0, "a", &[])],
            vec![on(0, "a", &[]), on(2, "a", &[])],
        ] {
            assert_eq!(place(&job, &joins).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_placed_as_ipv4() {
        let job = Job::new("j", "t", 1, 1).unwrap();
        let placed = place(&job, &[join(0, "a", "::ffff:10.0.0.9".parse().unwrap(), &[])]).unwrap();
        assert_eq!(placed.nodes[0].store, "10.0.0.9:4000".parse().unwrap());
        assert_eq!(placed.nodes[0].peers, [IpAddr::from([10, 0, 0, 9])]);
    }

    fn address(host: u8, v6: bool) -> IpAddr {
        if v6 {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(host) + 1])
        } else {
            [10, 0, 0, host].into()
        }
    }

    proptest! {
        #[test]
        fn placement_keeps_its_rules(
            hosts in prop::collection::vec(0u8..5, 1..24),
            per_task in 1u32..5,
            v6: bool,
            seed: u64,
        ) {
            let tasks = u32::try_from(hosts.len()).unwrap();
            let job = Job::new("j", "t", tasks * per_task, tasks).unwrap();
            let joins: Vec<Join> = hosts
                .iter()
                .zip(0..)
                .map(|(host, p)| join(p, &format!("h{host}"), address(*host, v6), &[]))
                .collect();
            let placement = place(&job, &joins).unwrap();

            let mut shuffled = joins.clone();
            shuffled.sort_by_key(|j| u64::from(j.partition).wrapping_mul(seed | 1).rotate_left(17));
            prop_assert_eq!(&placement, &place(&job, &shuffled).unwrap(), "PLACE-5");

            let mut ranks: Vec<u32> =
                placement.nodes.iter().flat_map(|n| n.ranks.iter().map(|r| r.rank)).collect();
            ranks.sort_unstable();
            prop_assert!(ranks.into_iter().eq(0..job.ranks), "PLACE-1");

            let serving: Vec<&NodePlacement> = placement.nodes.iter().filter(|n| n.serves_store).collect();
            prop_assert_eq!(serving.len(), 1, "PLACE-4");
            prop_assert!(serving[0].ranks.iter().any(|r| r.rank == 0), "PLACE-4");
            prop_assert_eq!(serving[0].store.ip(), joins[serving[0].partition as usize].address);
            for j in &joins {
                prop_assert!(serving[0].peers.contains(&j.address));
            }

            let distinct: BTreeSet<u8> = hosts.iter().copied().collect();
            for host in &distinct {
                let mut on_host: Vec<(u32, u32)> = placement
                    .nodes
                    .iter()
                    .filter(|n| hosts[n.partition as usize] == *host)
                    .flat_map(|n| n.ranks.iter().map(|r| (r.local_rank, r.rank)))
                    .collect();
                on_host.sort_unstable();
                let first = on_host[0].1;
                for (i, (local, rank)) in (0..).zip(&on_host) {
                    prop_assert_eq!((*local, *rank), (i, first + i), "PLACE-2");
                }
            }
            for node in &placement.nodes {
                prop_assert_eq!(node.node_count as usize, distinct.len());
                let same = hosts.iter().filter(|h| **h == hosts[node.partition as usize]).count();
                prop_assert_eq!(node.local_world_size as usize, same * per_task as usize);
            }
        }
    }
}
