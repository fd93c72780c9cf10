//! The table of settings, and of the variables that users set.

use std::time::Duration;

use phalanx_types::contract::{ENV_CHECKPOINT_DIR, ENV_CUT_TIMEOUT};
use phalanx_types::{ExecutorLog, FailureKind, Gang, LocalRanks, Network, ShownOutput};

use super::Settings;
use super::resources::{GPUS_PER_RANK, MEMORY_PER_RANK, TASK_CPUS};
use crate::preflight::EncryptionWish;

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// How it is called, e.g. `spark.phalanx.grace`.
    pub key: &'static str,
    /// Its value where nobody sets it.
    pub default: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
    pub(super) takes: Takes,
}

/// What a setting's value is, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Takes {
    Time(fn(&mut Settings) -> &mut Duration, Zero),
    Bytes(fn(&mut Settings) -> &mut u64, Zero),
    Flag(fn(&mut Settings) -> &mut bool),
    Count(fn(&mut Settings) -> &mut u32),
    Limit(fn(&mut Settings) -> &mut Option<u32>),
    Text(fn(&mut Settings) -> &mut String),
    Kinds(fn(&mut Settings) -> &mut Vec<FailureKind>),
    Choice(fn(&mut Settings, &'static str), &'static [&'static str]),
    Folder(fn(&mut Settings) -> &mut String),
    Name(fn(&mut Settings) -> &mut String),
    Names(fn(&mut Settings) -> &mut Vec<String>),
    Output(fn(&mut Settings) -> &mut ShownOutput),
    Networks(fn(&mut Settings) -> &mut Vec<Network>),
    Host(fn(&mut Settings) -> &mut String),
}

/// Whether 0 is a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Zero {
    Allowed,
    Refused,
}

/// All settings, in the order of the documentation.
pub const SETTINGS: [Setting; 48] = [
    Setting {
        key: "spark.phalanx.joinTimeout",
        default: "120s",
        meaning: "Every task must join within this time after Spark has started them. Otherwise the run fails and says which are missing. Where Spark doesn't tell whether tasks run, as over Spark Connect without the plugin, the time counts from the run's start.",
        takes: Takes::Time(|s| &mut s.policy.join_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.gang",
        default: "auto",
        meaning: "What a run's tasks are to Spark: one stage whose tasks start together (`barrier`), or a job each, for which Spark also starts executors (`tasks`). auto: tasks where dynamic allocation is on, else barrier.",
        takes: Takes::Choice(|s, name| s.gang = Gang::named(name), &["auto", "barrier", "tasks"]),
    },
    Setting {
        key: "spark.phalanx.gang.wait",
        default: "10min",
        meaning: "All of a gang of tasks must join within this time, in place of `spark.phalanx.joinTimeout`. Otherwise their slots are given back, and the run fails.",
        takes: Takes::Time(|s| &mut s.policy.gang_wait, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.elastic.minProcesses",
        default: "0",
        meaning: "The fewest ranks with which a run goes on; it has `num_processes` at most. `num_processes=(2, 8)` sets it. 0: a run always has all of its ranks.",
        takes: Takes::Count(|s| &mut s.policy.elastic.min_ranks),
    },
    Setting {
        key: "spark.phalanx.elastic.patience",
        default: "10s",
        meaning: "How long a run that has its fewest ranks waits for another task, from the last arrival on, before it begins and before it grows.",
        takes: Takes::Time(|s| &mut s.policy.elastic.patience, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.elastic.cooldown",
        default: "60s",
        meaning: "How long after a run has grown it doesn't grow again. It grows right after a checkpoint, since all ranks start again for it.",
        takes: Takes::Time(|s| &mut s.policy.elastic.cooldown, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.host.cooldown",
        default: "1h",
        meaning: "In a gang of tasks: after two failures that are a host's own, its new tasks wait for this long, and the run gets others. 0 turns this off.",
        takes: Takes::Time(|s| &mut s.policy.host_cooldown, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.queueTimeout",
        default: "0s",
        meaning: "A run fails when other jobs hold the slots that it needs for this long; 0 lets it wait until they are free.",
        takes: Takes::Time(|s| &mut s.policy.queue_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.connectTimeout",
        default: "3s",
        meaning: "How long a task tries to reach the driver directly before it goes through Spark, where the plugin is on, or fails.",
        takes: Takes::Time(|s| &mut s.policy.connect_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.hub.port",
        default: "0",
        meaning: "The driver listens at this port, or at the first free one of the 15 after it; 0 for any.",
        takes: Takes::Count(|s| &mut s.policy.hub_port),
    },
    Setting {
        key: "spark.phalanx.hub.host",
        default: "",
        meaning: "The name or address that tasks are told for the driver, such as that of a load balancer or of address translation in front of it. Empty: `spark.driver.host`.",
        takes: Takes::Host(|s| &mut s.hub_host),
    },
    Setting {
        key: "spark.phalanx.hub.bindAddress",
        default: "",
        meaning: "The address at which the driver listens for tasks. Empty: `spark.driver.bindAddress`, else the one that tasks are told, if it is the driver's own.",
        takes: Takes::Host(|s| &mut s.hub_bind),
    },
    Setting {
        key: "spark.phalanx.grace",
        default: "30s",
        meaning: "How long ranks have between SIGTERM and SIGKILL when a run is ended.",
        takes: Takes::Time(|s| &mut s.policy.grace, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.nodeTimeout",
        default: "30s",
        meaning: "A node that the driver has not heard of for this long is lost.",
        takes: Takes::Time(|s| &mut s.policy.node_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.maxRestarts",
        default: "0",
        meaning: "How often in a run all ranks start again after a failure.",
        takes: Takes::Count(|s| &mut s.policy.max_restarts),
    },
    Setting {
        key: "spark.phalanx.restartOn",
        default: "lost_node,signal,hang",
        meaning: "The kinds of failure after which the ranks start again.",
        takes: Takes::Kinds(|s| &mut s.policy.restart_on),
    },
    Setting {
        key: "spark.phalanx.maxPreemptions",
        default: "unlimited",
        meaning: "How often in a run all ranks start again because a host was announced to go; it doesn't count as a restart. A run whose code asks `phalanx.preempted` is started again so, or one with `spark.phalanx.maxRestarts`.",
        takes: Takes::Limit(|s| &mut s.policy.max_preemptions),
    },
    Setting {
        key: "spark.phalanx.notice.command",
        default: "",
        meaning: "A program that each task runs beside its ranks, by the shell, and that prints when its host is to go, as a line of JSON: `{\"seconds\": 120, \"reason\": \"spot\"}`. It may look once and end, and is started again, or stay. Empty: none.",
        takes: Takes::Text(|s| &mut s.policy.notice_command),
    },
    Setting {
        key: "spark.phalanx.hangTimeout",
        default: "0s",
        meaning: "A run fails, with the ranks' stacks, when none of its ranks makes progress for this long; 0 turns this off.",
        takes: Takes::Time(|s| &mut s.policy.hang_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.results.maxBytes",
        default: "64m",
        meaning: "A larger result of a rank other than 0 is replaced by the reason; rank 0's result has no such limit.",
        takes: Takes::Bytes(|s| &mut s.policy.max_other_result_bytes, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.logs",
        default: "auto",
        meaning: "Which of the ranks' output is shown at the driver: all, equal lines of several ranks once (dedup), the newest lines of a rank that failed (errors), nothing (off), or that of these ranks: `0,3`. auto: all of up to 8 ranks, of more dedup. Files and `run.logs` have all of it in any case.",
        takes: Takes::Output(|s| &mut s.logs.shown),
    },
    Setting {
        key: "spark.phalanx.logs.maxFileBytes",
        default: "1g",
        meaning: "How much of a rank's log stays on its host. When there is more, the older half is dropped, with a notice.",
        takes: Takes::Bytes(|s| &mut s.logs.max_file_bytes, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.logs.maxLiveLag",
        default: "64m",
        meaning: "The live view skips ahead when it is this far behind a rank's output.",
        takes: Takes::Bytes(|s| &mut s.logs.max_live_lag_bytes, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.logs.drainTimeout",
        default: "10s",
        meaning: "How long a finished run waits for the live view to catch up.",
        takes: Takes::Time(|s| &mut s.logs.drain_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.logs.live",
        default: "true",
        meaning: "Whether the ranks' output is shown at the driver while they run.",
        takes: Takes::Flag(|s| &mut s.logs.live),
    },
    Setting {
        key: "spark.phalanx.logs.executor",
        default: "errors",
        meaning: "What of the ranks' output goes to the executors' own logs, which the platform collects: nothing, the last 64 KiB of each rank that failed, or the first 64 MiB of every rank as well.",
        takes: Takes::Choice(
            |s, name| {
                let named = ExecutorLog::ALL.into_iter().find(|(other, _)| *other == name);
                s.logs.executor = named.map_or(ExecutorLog::Off, |(_, log)| log);
            },
            &["off", "errors", "all"],
        ),
    },
    Setting {
        key: "spark.phalanx.logs.directory",
        default: "",
        meaning: "A folder that all hosts share, or the URI of one, to which each run's logs are copied at its end. Empty: they stay on their hosts.",
        takes: Takes::Folder(|s| &mut s.logs.directory),
    },
    Setting {
        key: "spark.phalanx.progress",
        default: "auto",
        meaning: "How `run` shows a run while it blocks: a page in a notebook's cell that is drawn anew (rich), or a line on stderr (plain), or not at all beside the ranks' output (off). auto: rich in a notebook, plain in a terminal, else a line at long intervals.",
        takes: Takes::Choice(|s, name| s.progress = name.to_string(), &["auto", "rich", "plain", "off"]),
    },
    Setting {
        key: "spark.phalanx.cpusPerRank",
        default: "0",
        meaning: "How many cores a rank computes with (`OMP_NUM_THREADS`). 0: its share of its task's cores, in local mode of the driver's host. An `OMP_NUM_THREADS` of the user's own wins.",
        takes: Takes::Count(|s| &mut s.cpus.per_rank),
    },
    Setting {
        key: TASK_CPUS,
        default: "0",
        meaning: "How many cores each task of a run takes. 0: `spark.task.cpus`.",
        takes: Takes::Count(|s| &mut s.resources.task_cpus),
    },
    Setting {
        key: GPUS_PER_RANK,
        default: "0",
        meaning: "How many whole GPUs each rank has with `use_gpu=True`; it is then a task of its own. 0: a task has what `spark.task.resource.gpu.amount` says, and a rank for each GPU.",
        takes: Takes::Count(|s| &mut s.resources.gpus_per_rank),
    },
    Setting {
        key: MEMORY_PER_RANK,
        default: "0",
        meaning: "How much memory each rank has, beside the executor's own, on YARN and Kubernetes with dynamic allocation. 0: the ranks share `spark.executor.memoryOverhead`.",
        takes: Takes::Bytes(|s| &mut s.resources.memory_per_rank, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.checkpoint.directory",
        default: "",
        meaning: "The folder, or the URI of one, that `phalanx.checkpoint_dir()` returns; all hosts should share it. Empty: what `PHALANX_CHECKPOINT_DIR` says.",
        takes: Takes::Folder(|s| &mut s.checkpoint.directory),
    },
    Setting {
        key: "spark.phalanx.checkpoint.name",
        default: "",
        meaning: "What tells the run's checkpoints in that folder from those of other runs; all runs of this name share them. Empty: the name of the function or file that is run, and the checkpoints are those of the user who runs it.",
        takes: Takes::Name(|s| &mut s.checkpoint.name),
    },
    Setting {
        key: "spark.phalanx.slots.timeout",
        default: "30s",
        meaning: "How long a run waits for executors to register when the cluster has too few task slots yet.",
        takes: Takes::Time(|s| &mut s.slots_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.store.allowedNetworks",
        default: "",
        meaning: "From where ranks may connect to the job's store, besides the addresses of its hosts: what proxies and address translation make of these.",
        takes: Takes::Networks(|s| &mut s.policy.store_networks),
    },
    Setting {
        key: "spark.phalanx.store.port",
        default: "0",
        meaning: "Rank 0's host listens at this port for the other ranks' connections to the job's store, or at the first free one of the 15 after it; 0 for any.",
        takes: Takes::Count(|s| &mut s.policy.store_port),
    },
    Setting {
        key: "spark.phalanx.encryption",
        default: "auto",
        meaning: "Whether what ranks and tasks of different hosts send one another is encrypted: always, never, or (`auto`) where Spark's own RPC is.",
        takes: Takes::Choice(
            |s, name| s.encryption = EncryptionWish::named(name),
            &["auto", "required", "off"],
        ),
    },
    Setting {
        key: "spark.phalanx.encryption.allowPlainGradients",
        default: "false",
        meaning: "Whether groups of gloo and NCCL, which can't encrypt, may cross hosts where everything else is encrypted.",
        takes: Takes::Flag(|s| &mut s.allow_plain_gradients),
    },
    Setting {
        key: "spark.phalanx.env.pass",
        default: "",
        meaning: "Variables of the caller's environment that its ranks get, by name. Their values are in no setting.",
        takes: Takes::Names(|s| &mut s.env_pass),
    },
    Setting {
        key: "spark.phalanx.stage",
        default: "auto",
        meaning: "What starts the ranks of a Python run, writes the blocks of its data sets, and asks models for [scores](predict.md#without-python-workers): executors' JVMs, Python workers, or (`auto`) the first of the two that is possible.",
        takes: Takes::Choice(|s, name| s.stage = name.to_string(), &["auto", "jvm", "python"]),
    },
    Setting {
        key: "spark.phalanx.data.order",
        default: "auto",
        meaning: "In which order the rows of a DataFrame count: that in which Spark computes them (`computed`), that of their content, for one shuffle more (`content`), or (`auto`) as computed where that is the same each time or the DataFrame is sorted, else each partition by its content.",
        takes: Takes::Choice(|s, name| s.data_order = name.to_string(), &["auto", "computed", "content"]),
    },
    Setting {
        key: "spark.phalanx.connect",
        default: "auto",
        meaning: "How tasks reach a client of Spark Connect: directly (`direct`), through the Connect server alone (`relay`), or (`auto`) through the server where they can't directly and it has Phalanx's plugin.",
        takes: Takes::Choice(|s, name| s.connect = name.to_string(), &["auto", "direct", "relay"]),
    },
    Setting {
        key: "spark.phalanx.localRanks",
        default: "task",
        meaning: "What counts as a node for `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, `GROUP_RANK`, `NODE_RANK` and `CUDA_VISIBLE_DEVICES`: a Spark task, as in pyspark and torchrun, or a host with all its tasks.",
        takes: Takes::Choice(
            |s, name| {
                let named = LocalRanks::ALL.into_iter().find(|(other, _)| *other == name);
                s.local_ranks = named.map_or(LocalRanks::Task, |(_, ranks)| ranks);
            },
            &["task", "host"],
        ),
    },
    Setting {
        key: "spark.phalanx.warm.enabled",
        default: "true",
        meaning: "Whether ranks in Python are forked from a warm pool: a process that has imported torch already and stays for the next run.",
        takes: Takes::Flag(|s| &mut s.warm.enabled),
    },
    Setting {
        key: "spark.phalanx.warm.imports",
        default: "",
        meaning: "What a warm pool imports besides torch, numpy and cloudpickle. These modules must only import, and start no thread.",
        takes: Takes::Names(|s| &mut s.warm.imports),
    },
    Setting {
        key: "spark.phalanx.warm.idleTimeout",
        default: "10min",
        meaning: "How long a warm pool stays without a run.",
        takes: Takes::Time(|s| &mut s.warm.idle_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.predict.idleTimeout",
        default: "10min",
        meaning: "How long the process of a model that scores rows (`phalanx.predict`) stays on an executor after its last task.",
        takes: Takes::Time(|s| &mut s.predict_idle, Zero::Allowed),
    },
];

/// A variable of the ranks' environment that users set.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
}

/// All variables of Phalanx's own that users set; a rank's other variables are Phalanx's to set.
pub const VARIABLES: [Variable; 2] = [
    Variable {
        name: ENV_CHECKPOINT_DIR,
        meaning: "The folder, or the URI of one, that `phalanx.checkpoint_dir()` returns; all hosts should share it. If unset, each host or executor has a folder of its own, and `phalanx.checkpoint.latest()` refuses ranks that would look in different ones.",
    },
    Variable {
        name: ENV_CUT_TIMEOUT,
        meaning: "After how many seconds without a sign of life the `phalanx` backend gives up a rank of another host. If unset, the kernel does it after about 15 minutes, as with gloo and NCCL.",
    },
];
