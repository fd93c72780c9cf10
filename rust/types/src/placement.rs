//! Where every rank goes: a pure function of what the tasks said when they joined.
//!
//! - TYPES-14 (all-once): every rank is placed exactly once.
//! - TYPES-15 (host-blocks): the ranks of a host are consecutive.
//! - TYPES-16 (partition-order): hosts and the tasks on them are in partition order, but for the first task and its
//!   host.
//! - TYPES-17 (rank-0-serves): rank 0 is on the first task, which serves the store: that which has been there longest.
//! - TYPES-18 (any-join-order): the order in which the joins arrived changes nothing.
//! - TYPES-19 (local-worlds): the ranks of a local world, which are those of a task or of a host as [`LocalRanks`]
//!   says, are consecutive. Its local ranks count from 0 without a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::generation::Generation;
use crate::job::Job;
use crate::local_ranks::LocalRanks;

/// What a task says of itself when it joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The Spark partition of the task: 0 up to the number of tasks.
    pub partition: u32,
    /// The host's own name (`uname -n`), by which the index of a data set knows it.
    pub name: String,
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
    /// The public key that its store would show other nodes; empty where they don't encrypt.
    pub store_key: Vec<u8>,
    /// The GPUs that Spark gave the task, as its discovery names them; empty without GPUs.
    pub gpus: Vec<String>,
    /// The folder on the host in which the node keeps its files.
    pub folder: String,
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
    /// What the ranks belong to.
    pub generation: Generation,
    /// How many tasks have places.
    pub tasks: u32,
    /// The ranks that the task starts, ascending.
    pub ranks: Vec<RankPlace>,
    /// `WORLD_SIZE`.
    pub world_size: u32,
    /// `LOCAL_WORLD_SIZE`: how many ranks the local world has.
    pub local_world_size: u32,
    /// `GROUP_RANK` and `NODE_RANK`: the number of the local world, in the order of the ranks.
    pub local_world_index: u32,
    /// `GROUP_WORLD_SIZE`: how many local worlds there are.
    pub local_world_count: u32,
    /// Where other nodes reach the store.
    pub store: SocketAddr,
    /// The public key that the store shows them; empty where nodes don't encrypt.
    pub store_key: Vec<u8>,
    /// Whether this task serves the store.
    pub serves_store: bool,
    /// For the task that serves the store: the addresses that may connect to it.
    pub peers: Vec<IpAddr>,
    /// `CUDA_VISIBLE_DEVICES`: the GPUs of all its ranks, so that `cuda:LOCAL_RANK` is the rank's own.
    pub gpus: Vec<String>,
    /// The interface that reaches the other nodes; empty if not known.
    pub interface: String,
    /// How many different folders all nodes have for their files.
    pub folder_count: u32,
    /// The first and the last rank of the host, which has those between them (TYPES-15), whatever their local worlds.
    pub host_ranks: [u32; 2],
}

/// Where every rank of a job goes; one entry a task, in partition order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// By partition.
    pub nodes: Vec<NodePlacement>,
}

impl Placement {
    /// The place of a task, if it has one.
    pub fn of(&self, partition: u32) -> Option<&NodePlacement> {
        self.nodes.binary_search_by_key(&partition, |node| node.partition).ok().map(|at| &self.nodes[at])
    }

    /// `WORLD_SIZE`.
    pub fn world_size(&self) -> u32 {
        self.nodes.first().map_or(0, |node| node.world_size)
    }
}

/// Places ranks of `job` on the tasks that joined, as this generation. The task of partition `first` has rank 0.
///
/// Tasks on one host whose GPU addresses overlap can't share a `CUDA_VISIBLE_DEVICES` (each sees GPUs of its own
/// container under the same names), so each of them counts as a host of its own.
///
/// # Errors
/// [`ErrorKind::Invalid`] if the joins are not of as many tasks as the job has or, where it is elastic, goes on with;
/// and if `first` is none of them.
pub fn place(job: &Job, generation: Generation, first: u32, joins: &[Join]) -> Result<Placement> {
    let by_partition = by_partition(job, joins, first)?;
    let hosts = group_by_host(&by_partition);
    let local_worlds: Vec<&[&Join]> = hosts
        .iter()
        .flat_map(|tasks| {
            let of_a_local_world = match job.local_ranks {
                LocalRanks::Task => 1,
                LocalRanks::Host => tasks.len(),
            };
            tasks.chunks(of_a_local_world)
        })
        .collect();
    let per_task = job.ranks_per_task();
    let first = by_partition[0];
    let store = SocketAddr::new(first.address.to_canonical(), first.store_port);
    let peers: BTreeSet<IpAddr> = by_partition
        .iter()
        .flat_map(|join| join.addresses.iter().chain([&join.address]))
        .map(IpAddr::to_canonical)
        .collect();

    let folders: BTreeSet<(usize, &str)> = hosts
        .iter()
        .enumerate()
        .flat_map(|(host, tasks)| tasks.iter().map(move |join| (host, join.folder.as_str())))
        .collect();

    let mut host_ranks = BTreeMap::new();
    let mut first_rank = 0;
    for tasks in &hosts {
        let after = first_rank + per_task * count(tasks);
        host_ranks.extend(tasks.iter().map(|join| (join.partition, [first_rank, after - 1])));
        first_rank = after;
    }

    let mut nodes = Vec::with_capacity(by_partition.len());
    let mut next_rank = 0;
    for (local_world_index, tasks) in (0..).zip(&local_worlds) {
        let gpus: Vec<String> = tasks.iter().flat_map(|join| join.gpus.iter().cloned()).collect();
        let mut next_local = 0;
        for join in *tasks {
            let ranks = (0..per_task)
                .map(|i| RankPlace { rank: next_rank + i, local_rank: next_local + i })
                .collect();
            let serves_store = join.partition == first.partition;
            nodes.push(NodePlacement {
                partition: join.partition,
                generation,
                tasks: count(&by_partition),
                ranks,
                world_size: per_task * count(&by_partition),
                local_world_size: per_task * count(tasks),
                local_world_index,
                local_world_count: count(&local_worlds),
                store,
                store_key: first.store_key.clone(),
                serves_store,
                peers: if serves_store { peers.iter().copied().collect() } else { Vec::new() },
                gpus: gpus.clone(),
                interface: join.interface.clone(),
                folder_count: u32::try_from(folders.len()).unwrap_or(u32::MAX),
                host_ranks: host_ranks[&join.partition],
            });
            next_rank += per_task;
            next_local += per_task;
        }
    }
    nodes.sort_by_key(|node| node.partition);
    Ok(Placement { nodes })
}

/// The joins, that of `first` before the others, which are in the order of their partitions.
fn by_partition<'a>(job: &Job, joins: &'a [Join], first: u32) -> Result<Vec<&'a Join>> {
    let mut sorted: BTreeMap<u32, &Join> = joins.iter().map(|join| (join.partition, join)).collect();
    let is_one_each = sorted.len() == joins.len() && sorted.keys().all(|partition| *partition < job.tasks);
    let are_enough = (job.least_tasks()..=job.tasks).contains(&count(joins));
    match sorted.remove(&first) {
        Some(oldest) if is_one_each && are_enough => {
            Ok([oldest].into_iter().chain(sorted.into_values()).collect())
        }
        _ => Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "a placement over {} tasks, of which {first} is the first, needs one join for each partition, not \
                 those of partitions {:?}",
                job.tasks,
                joins.iter().map(|join| join.partition).collect::<Vec<_>>()
            ),
        )),
    }
}

/// Hosts in the order of their first task here, each with its tasks in that order.
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

fn count<T>(some: &[T]) -> u32 {
    u32::try_from(some.len()).unwrap_or(u32::MAX)
}

fn gpus_overlap(tasks: &[&Join]) -> bool {
    let mut seen = BTreeSet::new();
    !tasks.iter().flat_map(|join| &join.gpus).all(|gpu| seen.insert(gpu))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gang::Gang;

    fn join(partition: u32, host: &str, address: IpAddr, gpus: &[&str]) -> Join {
        Join {
            partition,
            name: host.into(),
            host: host.into(),
            address,
            interface: "eth0".into(),
            addresses: vec![address],
            store_port: 4000,
            store_key: vec![u8::try_from(partition).unwrap()],
            gpus: gpus.iter().map(ToString::to_string).collect(),
            folder: "/tmp".into(),
        }
    }

    #[test]
    fn executors_of_one_host_may_have_folders_of_their_own() {
        let job = Job::new("j", "t", 3, 3).unwrap();
        let other = Join { folder: "/data".into(), ..on(2, "a", &[]) };
        let placed = place(&job, Generation::new(3), 0, &[on(0, "a", &[]), on(1, "a", &[]), other]).unwrap();
        assert!(placed.nodes.iter().all(|node| node.folder_count == 2));
        let placed =
            place(&job, Generation::new(3), 0, &[on(0, "a", &[]), on(1, "a", &[]), on(2, "b", &[])]).unwrap();
        assert!(placed.nodes.iter().all(|node| node.folder_count == 2), "equal names on two hosts");
        let placed =
            place(&job, Generation::new(3), 0, &[on(0, "a", &[]), on(1, "a", &[]), on(2, "a", &[])]).unwrap();
        assert!(placed.nodes.iter().all(|node| node.folder_count == 1));
    }

    fn on(partition: u32, host: &str, gpus: &[&str]) -> Join {
        join(partition, host, IpAddr::from([10, 0, 0, 1]), gpus)
    }

    #[test]
    fn ranks_are_grouped_by_host_although_partitions_alternate() {
        let job = Job::new("j", "t", 4, 4).unwrap();
        let joins = [on(0, "a", &[]), on(1, "b", &[]), on(2, "a", &[]), on(3, "b", &[])];
        let ranks: Vec<u32> = place(&job, Generation::new(3), 0, &joins)
            .unwrap()
            .nodes
            .iter()
            .map(|node| node.ranks[0].rank)
            .collect();
        assert_eq!(ranks, [0, 2, 1, 3], "TYPES-15");
    }

    #[test]
    fn a_task_is_a_local_world_with_its_own_gpus_also_where_two_share_a_host() {
        let job = Job::new("j", "t", 4, 2).unwrap();
        let placed =
            place(&job, Generation::new(3), 0, &[on(0, "a", &["3", "5"]), on(1, "a", &["GPU-77", "1"])])
                .unwrap();
        for (node, gpus) in placed.nodes.iter().zip([["3", "5"], ["GPU-77", "1"]]) {
            assert_eq!(node.gpus, gpus);
            let places: Vec<(u32, u32)> = node.ranks.iter().map(|at| (at.rank, at.local_rank)).collect();
            assert_eq!(
                places,
                [(2 * node.local_world_index, 0), (2 * node.local_world_index + 1, 1)],
                "TYPES-19"
            );
            assert_eq!(
                (node.local_world_size, node.local_world_count, node.local_world_index),
                (2, 2, node.partition)
            );
        }
    }

    #[test]
    fn with_a_host_as_the_local_world_its_tasks_have_dense_local_ranks_and_all_its_gpus() {
        let mut job = Job::new("j", "t", 2, 2).unwrap();
        job.local_ranks = LocalRanks::Host;
        let placed =
            place(&job, Generation::new(3), 0, &[on(0, "a", &["3"]), on(1, "a", &["GPU-77"])]).unwrap();
        for (node, local_rank) in placed.nodes.iter().zip(0..) {
            assert_eq!(node.gpus, ["3", "GPU-77"]);
            assert_eq!(node.ranks[0].local_rank, local_rank);
            assert_eq!((node.local_world_size, node.local_world_count), (2, 1));
        }
    }

    #[test]
    fn tasks_that_name_the_same_gpu_are_hosts_of_their_own() {
        let job = Job::new("j", "t", 2, 2).unwrap();
        let placed = place(&job, Generation::new(3), 0, &[on(0, "a", &["0"]), on(1, "a", &["0"])]).unwrap();
        for node in &placed.nodes {
            assert_eq!(node.gpus, ["0"]);
            assert_eq!((node.ranks[0].local_rank, node.local_world_size, node.local_world_count), (0, 1, 2));
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
            assert_eq!(place(&job, Generation::new(3), 0, &joins).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_placed_as_ipv4() {
        let job = Job::new("j", "t", 1, 1).unwrap();
        let placed =
            place(&job, Generation::new(3), 0, &[join(0, "a", "::ffff:10.0.0.9".parse().unwrap(), &[])])
                .unwrap();
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
            by_host: bool,
            away in prop::collection::vec(prop::bool::weighted(0.2), 24),
            oldest: prop::sample::Index,
        ) {
            let tasks = u32::try_from(hosts.len()).unwrap();
            let mut job = Job::new("j", "t", tasks * per_task, tasks).unwrap();
            job.policy.gang = Gang::Tasks;
            job.policy.elastic.min_ranks = per_task;
            job.local_ranks = if by_host { LocalRanks::Host } else { LocalRanks::Task };
            let joins: Vec<Join> = hosts
                .iter()
                .zip(0..)
                .map(|(host, p)| join(p, &format!("h{host}"), address(*host, v6), &[]))
                .filter(|join| !away[join.partition as usize])
                .collect();
            prop_assume!(!joins.is_empty());
            let oldest = oldest.get(&joins);
            let first = oldest.partition;
            let hosts: BTreeMap<u32, u8> = joins.iter().map(|j| (j.partition, hosts[j.partition as usize])).collect();
            let tasks = count(&joins);
            let placement = place(&job, Generation::new(3), first, &joins).unwrap();

            let mut shuffled = joins.clone();
            shuffled.sort_by_key(|j| u64::from(j.partition).wrapping_mul(seed | 1).rotate_left(17));
            prop_assert_eq!(&placement, &place(&job, Generation::new(3), first, &shuffled).unwrap(), "TYPES-18");

            let mut ranks: Vec<u32> =
                placement.nodes.iter().flat_map(|n| n.ranks.iter().map(|r| r.rank)).collect();
            ranks.sort_unstable();
            prop_assert!(ranks.into_iter().eq(0..tasks * per_task), "TYPES-14");
            prop_assert_eq!(placement.world_size(), tasks * per_task, "TYPES-14");

            let serving: Vec<&NodePlacement> = placement.nodes.iter().filter(|n| n.serves_store).collect();
            prop_assert_eq!(serving.len(), 1, "TYPES-17");
            prop_assert!(serving[0].ranks[0].rank == 0 && serving[0].partition == first, "TYPES-17");
            prop_assert!(placement.nodes.iter().all(|node| node.store_key == oldest.store_key), "TYPES-17");
            prop_assert_eq!(serving[0].store.ip(), oldest.address);
            for j in &joins {
                prop_assert!(serving[0].peers.contains(&j.address));
            }

            let distinct: BTreeSet<u8> = hosts.values().copied().collect();
            for host in &distinct {
                let mut on_host: Vec<u32> = placement
                    .nodes
                    .iter()
                    .filter(|n| hosts[&n.partition] == *host)
                    .flat_map(|n| n.ranks.iter().map(|r| r.rank))
                    .collect();
                on_host.sort_unstable();
                prop_assert!((on_host[0]..).zip(&on_host).all(|(i, rank)| i == *rank), "TYPES-15");
                let told = placement.nodes.iter().filter(|n| hosts[&n.partition] == *host);
                let expected = [on_host[0], on_host[on_host.len() - 1]];
                prop_assert!(told.into_iter().all(|n| n.host_ranks == expected), "TYPES-15");
            }
            let mut in_order: Vec<&NodePlacement> = placement.nodes.iter().collect();
            in_order.sort_by_key(|n| n.ranks[0].rank);
            let all: Vec<(u32, u32)> =
                in_order.iter().flat_map(|n| n.ranks.iter().map(|r| (n.local_world_index, r.local_rank))).collect();
            for two in all.windows(2) {
                let ((node, local), next) = (two[0], two[1]);
                prop_assert!(next == (node, local + 1) || next == (node + 1, 0), "TYPES-19");
            }
            prop_assert_eq!(all[0], (0, 0), "TYPES-19");
            let in_turn: Vec<u32> =
                [first].into_iter().chain(hosts.keys().copied().filter(|partition| *partition != first)).collect();
            let first_of = |host: u8| in_turn.iter().position(|partition| hosts[partition] == host);
            let turn = |n: &&NodePlacement| {
                (first_of(hosts[&n.partition]), in_turn.iter().position(|partition| *partition == n.partition))
            };
            prop_assert!(in_order.is_sorted_by_key(turn), "TYPES-16");
            for node in &placement.nodes {
                let same = hosts.values().filter(|h| **h == hosts[&node.partition]).count();
                let on_host = u32::try_from(same).unwrap() * per_task;
                let distinct = u32::try_from(distinct.len()).unwrap();
                let expected = if by_host { (distinct, on_host) } else { (tasks, per_task) };
                prop_assert_eq!((node.local_world_count, node.local_world_size), expected, "TYPES-19");
            }
        }
    }
}
