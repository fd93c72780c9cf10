//! The environment of a rank: what torchrun sets, from the placement.
//!
//! Source of the names: torch.distributed.run, "Environment Variables", and torch's elastic agent
//! (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::node::rank::threads::{host_cores, threads_of_rank};
use phalanx_types::{Attempt, Encryption, Job, NodePlacement, Owner, RankPlace, contract};

/// Variables that only count if the user (or the cluster) hasn't set them.
pub(crate) const KEPT: [&str; 6] = [
    contract::ENV_ACCELERATE_USE_CPU,
    contract::ENV_CHECKPOINT_NAME,
    contract::ENV_GLOO_INTERFACE,
    contract::ENV_NCCL_INTERFACE,
    contract::ENV_OMP_THREADS,
    contract::ENV_NCCL_ASYNC_ERROR_HANDLING,
];

/// The variables of the rank at `place` in an attempt, beyond those that it inherits; it finds the store at `store`.
/// `is_set` tells what it inherits.
pub fn rank_environment(
    job: &Job,
    node: &NodePlacement,
    place: &RankPlace,
    store: SocketAddr,
    attempt: Attempt,
    error_file: &str,
    is_set: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let gpus = if job.use_gpu { node.gpus.join(",") } else { String::new() };
    // Who gives the name shares what has it, also where that comes by a variable.
    let owner = job.checkpoint.owner.as_ref().filter(|_| !is_set(contract::ENV_CHECKPOINT_NAME));
    let mut variables = vec![
        (contract::ENV_RANK, place.rank.to_string()),
        (contract::ENV_LOCAL_RANK, place.local_rank.to_string()),
        (contract::ENV_WORLD_SIZE, node.world_size.to_string()),
        (contract::ENV_LOCAL_WORLD_SIZE, node.local_world_size.to_string()),
        (contract::ENV_GROUP_RANK, node.local_world_index.to_string()),
        (contract::ENV_GROUP_WORLD_SIZE, node.local_world_count.to_string()),
        (contract::ENV_NODE_RANK, node.local_world_index.to_string()),
        (contract::ENV_ROLE_NAME, "default".into()),
        (contract::ENV_ROLE_RANK, place.rank.to_string()),
        (contract::ENV_ROLE_WORLD_SIZE, node.world_size.to_string()),
        (contract::ENV_MASTER_ADDR, store.ip().to_string()),
        (contract::ENV_MASTER_PORT, store.port().to_string()),
        (contract::ENV_RUN_ID, job.id.clone()),
        (contract::ENV_RESTART_COUNT, attempt.to_string()),
        (contract::ENV_MAX_RESTARTS, job.policy.max_restarts.to_string()),
        (contract::ENV_USE_AGENT_STORE, "True".into()),
        (contract::ENV_TORCH_ERROR_FILE, error_file.to_string()),
        (contract::ENV_NCCL_ASYNC_ERROR_HANDLING, "1".into()),
        (contract::ENV_RANK0_ADDRESS, node.store.ip().to_string()),
        (contract::ENV_CHECKPOINT_NAME, job.checkpoint_name()),
        (contract::ENV_CHECKPOINT_OWNER, owner.map(Owner::to_json).unwrap_or_default()),
        (contract::ENV_JOB_FOLDERS, node.folder_count.to_string()),
        (contract::ENV_HOST_RANKS, format!("{}-{}", node.host_ranks[0], node.host_ranks[1])),
    ];
    if let Encryption::On { plain_gradients } = job.policy.encryption {
        variables.push((contract::ENV_ENCRYPTION, "on".into()));
        if plain_gradients {
            variables.push((contract::ENV_PLAIN_GRADIENTS, "allowed".into()));
        }
    }
    // With GPUs but no addresses (a driver that Spark gave none to watch over) the rank sees what it inherits.
    if !(job.use_gpu && gpus.is_empty()) {
        variables.push((contract::ENV_VISIBLE_GPUS, gpus));
    }
    if !job.use_gpu {
        variables.push((contract::ENV_ACCELERATE_USE_CPU, "true".into()));
    }
    variables.push((
        contract::ENV_OMP_THREADS,
        threads_of_rank(&job.cpus, node.ranks.len(), host_cores()).to_string(),
    ));
    if !node.interface.is_empty() {
        variables.push((contract::ENV_GLOO_INTERFACE, node.interface.clone()));
        variables.push((contract::ENV_NCCL_INTERFACE, node.interface.clone()));
    }
    variables
        .into_iter()
        .filter(|(name, _)| !(KEPT.contains(name) && is_set(name)))
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

/// The variables of what the distributor was given: they win over what the user or the cluster has set.
pub(crate) fn given_environment(job: &Job) -> impl Iterator<Item = (String, String)> {
    let name = if job.checkpoint.name.is_empty() { String::new() } else { job.checkpoint_name() };
    [(contract::ENV_CHECKPOINT_DIR, job.checkpoint.directory.clone()), (contract::ENV_CHECKPOINT_NAME, name)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_string(), value))
}

#[cfg(test)]
mod tests {
    use phalanx_types::{Generation, OwnerKind};

    use super::*;

    fn node(local_world_size: u32) -> NodePlacement {
        NodePlacement {
            partition: 1,
            generation: Generation::new(3),
            tasks: 2,
            ranks: vec![RankPlace { rank: 3, local_rank: 1 }],
            world_size: 4,
            local_world_size,
            local_world_index: 1,
            local_world_count: 2,
            store: "[fd00::1]:4711".parse().unwrap(),
            store_key: Vec::new(),
            serves_store: false,
            peers: vec![],
            gpus: vec!["0".into(), "MIG-7".into()],
            interface: "eth1".into(),
            folder_count: 1,
            host_ranks: [0, 1],
        }
    }

    fn environment(job: &Job, node: &NodePlacement, set: &[&str]) -> BTreeMap<String, String> {
        rank_environment(job, node, &node.ranks[0], node.store, Attempt::new(1), "/e", |name| {
            set.contains(&name)
        })
    }

    #[test]
    fn a_rank_has_torchruns_environment() {
        let mut job = Job::new("j1", "t", 4, 2).unwrap();
        job.policy.max_restarts = 3;
        let env = environment(&job, &node(2), &[]);
        for (name, value) in [
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("GROUP_RANK", "1"),
            ("NODE_RANK", "1"),
            ("MASTER_ADDR", "fd00::1"),
            ("MASTER_PORT", "4711"),
            ("TORCHELASTIC_RUN_ID", "j1"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("OMP_NUM_THREADS", "1"),
            ("GLOO_SOCKET_IFNAME", "eth1"),
            ("CUDA_VISIBLE_DEVICES", ""),
            ("ACCELERATE_USE_CPU", "true"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn gpus_of_any_name_are_visible_and_ranks_share_the_cores_of_their_task() {
        let mut job = Job::new("j1", "t", 4, 2).unwrap();
        job.use_gpu = true;
        job.cpus.per_task = 6;
        let ranks = [(2, 0), (3, 1)].map(|(rank, local_rank)| RankPlace { rank, local_rank });
        let env = environment(&job, &NodePlacement { ranks: ranks.into(), ..node(2) }, &[]);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "0,MIG-7");
        assert_eq!(env["OMP_NUM_THREADS"], "3");
    }

    #[test]
    fn a_rank_is_told_whether_to_encrypt() {
        let mut job = Job::new("j1", "t", 4, 2).unwrap();
        let told = |job: &Job| {
            let env = environment(job, &node(1), &[]);
            [contract::ENV_ENCRYPTION, contract::ENV_PLAIN_GRADIENTS].map(|name| env.get(name).cloned())
        };
        assert_eq!(told(&job), [None, None]);
        job.policy.encryption = Encryption::On { plain_gradients: false };
        assert_eq!(told(&job), [Some("on".into()), None]);
        job.policy.encryption = Encryption::On { plain_gradients: true };
        assert_eq!(told(&job), [Some("on".into()), Some("allowed".into())]);
    }

    #[test]
    fn checkpoints_have_the_runs_name_unless_the_user_has_another() {
        let job = Job::new("j1", "<lambda> ü", 4, 2).unwrap();
        let env = environment(&job, &node(1), &[]);
        assert_eq!(env["PHALANX_CHECKPOINT_NAME"], "_lambda__ü");
        assert!(!env.contains_key("PHALANX_CHECKPOINT_DIR"));
        let env = environment(&job, &node(1), &["PHALANX_CHECKPOINT_NAME"]);
        assert!(!env.contains_key("PHALANX_CHECKPOINT_NAME"), "the user's own");
        assert_eq!(given_environment(&job).next(), None);
    }

    #[test]
    fn checkpoints_have_an_owner_unless_somebody_gave_them_a_name() {
        let mut job = Job::new("j1", "train", 4, 2).unwrap();
        let owner =
            |job: &Job, set: &[&str]| environment(job, &node(1), set)["PHALANX_CHECKPOINT_OWNER"].clone();
        assert_eq!(owner(&job, &[]), "", "a rank doesn't inherit one");
        let ada = Owner {
            user: "ada".into(),
            kind: OwnerKind::Module,
            place: "cats".into(),
            name: "train".into(),
            line: 0,
        };
        job.checkpoint.owner = Some(ada.clone());
        assert_eq!(serde_json::from_str::<Owner>(&owner(&job, &[])).unwrap(), ada);
        assert_eq!(owner(&job, &["PHALANX_CHECKPOINT_NAME"]), "");
    }

    #[test]
    fn what_the_user_set_stays() {
        let job = Job::new("j1", "t", 4, 2).unwrap();
        let env = environment(&job, &node(2), &["GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "RANK"]);
        assert!(!env.contains_key("GLOO_SOCKET_IFNAME") && !env.contains_key("OMP_NUM_THREADS"));
        assert_eq!(env["RANK"], "3", "but a rank is told its own rank");
    }
}
