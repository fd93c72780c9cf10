//! The environment of a rank: what torchrun sets, from the placement.
//!
//! Source of the names: torch.distributed.run, "Environment Variables", and torch's elastic agent
//! (`torch/distributed/elastic/agent/server/local_elastic_agent.py`).

use std::collections::BTreeMap;

use phalanx_types::{Job, NodePlacement, RankPlace};

/// Variables that only count if the user (or the cluster) hasn't set them.
const KEPT: [&str; 4] =
    ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"];

/// The variables of the rank at `place` in an attempt, beyond those that it inherits. `is_set` tells what it inherits.
pub fn rank_environment(
    job: &Job,
    node: &NodePlacement,
    place: &RankPlace,
    attempt: u32,
    error_file: &str,
    is_set: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let gpus = if job.use_gpu { node.gpus.join(",") } else { String::new() };
    let mut variables = vec![
        ("RANK", place.rank.to_string()),
        ("LOCAL_RANK", place.local_rank.to_string()),
        ("WORLD_SIZE", node.world_size.to_string()),
        ("LOCAL_WORLD_SIZE", node.local_world_size.to_string()),
        ("GROUP_RANK", node.node_rank.to_string()),
        ("GROUP_WORLD_SIZE", node.node_count.to_string()),
        ("NODE_RANK", node.node_rank.to_string()),
        ("ROLE_NAME", "default".into()),
        ("ROLE_RANK", place.rank.to_string()),
        ("ROLE_WORLD_SIZE", node.world_size.to_string()),
        ("MASTER_ADDR", node.store.ip().to_string()),
        ("MASTER_PORT", node.store.port().to_string()),
        ("TORCHELASTIC_RUN_ID", job.id.clone()),
        ("TORCHELASTIC_RESTART_COUNT", attempt.to_string()),
        ("TORCHELASTIC_MAX_RESTARTS", job.policy.max_restarts.to_string()),
        ("TORCHELASTIC_USE_AGENT_STORE", "True".into()),
        ("TORCHELASTIC_ERROR_FILE", error_file.to_string()),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1".into()),
    ];
    // With GPUs but no addresses (a driver that Spark gave none to watch over) the rank sees what it inherits.
    if !(job.use_gpu && gpus.is_empty()) {
        variables.push(("CUDA_VISIBLE_DEVICES", gpus));
    }
    // As torchrun: several ranks on a host share its cores.
    if node.local_world_size > 1 {
        variables.push(("OMP_NUM_THREADS", "1".into()));
    }
    if !node.interface.is_empty() {
        variables.push(("GLOO_SOCKET_IFNAME", node.interface.clone()));
        variables.push(("NCCL_SOCKET_IFNAME", node.interface.clone()));
    }
    variables
        .into_iter()
        .filter(|(name, _)| !(KEPT.contains(name) && is_set(name)))
        .map(|(name, value)| (name.to_string(), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(local_world_size: u32) -> NodePlacement {
        NodePlacement {
            partition: 1,
            ranks: vec![RankPlace { rank: 3, local_rank: 1 }],
            world_size: 4,
            local_world_size,
            node_rank: 1,
            node_count: 2,
            store: "[fd00::1]:4711".parse().unwrap(),
            serves_store: false,
            peers: vec![],
            gpus: vec!["0".into(), "MIG-7".into()],
            interface: "eth1".into(),
        }
    }

    fn environment(job: &Job, node: &NodePlacement, set: &[&str]) -> BTreeMap<String, String> {
        rank_environment(job, node, &node.ranks[0], 1, "/e", |name| set.contains(&name))
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
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
    }

    #[test]
    fn gpus_of_any_name_are_visible_and_a_lone_rank_keeps_its_threads() {
        let mut job = Job::new("j1", "t", 4, 2).unwrap();
        job.use_gpu = true;
        let env = environment(&job, &node(1), &[]);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "0,MIG-7");
        assert!(!env.contains_key("OMP_NUM_THREADS"));
    }

    #[test]
    fn what_the_user_set_stays() {
        let job = Job::new("j1", "t", 4, 2).unwrap();
        let env = environment(&job, &node(2), &["GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "RANK"]);
        assert!(!env.contains_key("GLOO_SOCKET_IFNAME") && !env.contains_key("OMP_NUM_THREADS"));
        assert_eq!(env["RANK"], "3", "but a rank is told its own rank");
    }
}
