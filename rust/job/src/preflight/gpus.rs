//! How many ranks there are, over how many tasks they are spread, and what a rank's process calls its GPUs.

use phalanx_types::{Error, ErrorKind, Result};

use super::conf::{Conf, number};
use crate::settings::{GPUS_PER_RANK, Resources};

const DRIVER_AMOUNT: &str = "spark.driver.resource.gpu.amount";
const TASK_AMOUNT: &str = "spark.task.resource.gpu.amount";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// What [`plan`] wants to know of Spark's configuration.
pub const PLAN_KEYS: [&str; 3] = [DRIVER_AMOUNT, TASK_AMOUNT, GPUS_PER_RANK];

/// What a distributor was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// How many ranks.
    pub ranks: u32,
    /// Whether they run on the driver.
    pub local_mode: bool,
    /// Whether each has a GPU of its own.
    pub use_gpu: bool,
    /// Whether Spark knows of GPUs on the driver.
    pub driver_has_gpus: bool,
    /// What is set of [`PLAN_KEYS`].
    pub conf: &'a Conf,
}

/// What it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// How many ranks there will be.
    pub ranks: u32,
    /// Over how many tasks they are spread.
    pub tasks: u32,
    /// What to warn of.
    pub warning: Option<String>,
}

/// How many ranks there will be, and over how many tasks.
///
/// In local mode there is one task, and no more ranks than the driver has GPUs. On the cluster a task has one rank, or
/// one for each of the GPUs that the application's tasks have.
///
/// # Errors
/// [`ErrorKind::State`] where GPUs are wanted that Spark doesn't know of, or the ranks don't spread evenly over tasks;
/// [`ErrorKind::Invalid`] for a number of GPUs that can't be read.
pub fn plan(wish: &Wish<'_>) -> Result<Plan> {
    let ranks = wish.ranks;
    match (wish.local_mode, wish.use_gpu) {
        (true, true) => on_drivers_gpus(wish),
        (true, false) => Ok(Plan { ranks, tasks: 1, warning: None }),
        (false, true) => Ok(Plan { ranks, tasks: tasks_with_gpus(ranks, wish.conf)?, warning: None }),
        (false, false) => Ok(Plan { ranks, tasks: ranks, warning: None }),
    }
}

fn on_drivers_gpus(wish: &Wish<'_>) -> Result<Plan> {
    if !wish.driver_has_gpus {
        return refused(
            "GPUs were unable to be found on the driver. Without GPUs, use_gpu=False trains on the CPU.",
        );
    }
    let available = number(wish.conf, DRIVER_AMOUNT).unwrap_or(0);
    if available == 0 {
        return refused("GPU resources were not configured properly on the driver.");
    }
    let warning = (wish.ranks > available).then(|| {
        format!(
            "'num_processes' cannot be set to a value greater than the number of available GPUs on the driver, \
             which is {available}. 'num_processes' was reset to be equal to the number of available GPUs."
        )
    });
    Ok(Plan { ranks: wish.ranks.min(available), tasks: 1, warning })
}

fn tasks_with_gpus(ranks: u32, conf: &Conf) -> Result<u32> {
    if Resources::read(conf)?.gpus_per_rank > 0 {
        return Ok(ranks);
    }
    let text = conf.get(TASK_AMOUNT).map_or("0", |text| text.trim());
    let amount: f64 = text.parse().unwrap_or(0.0);
    if amount > 0.0 && amount < 1.0 {
        return refused(format!(
            "'{TASK_AMOUNT}' is {text}, but a rank needs a GPU of its own; set {GPUS_PER_RANK} to 1 or more."
        ));
    }
    let per_task = amount as u32;
    if per_task < 1 {
        return refused(format!("'{TASK_AMOUNT}' was unset, so gpu usage is unavailable."));
    }
    if !ranks.is_multiple_of(per_task) {
        return refused(format!(
            "TorchDistributor 'num_processes' value ({ranks}) must be a multiple of '{TASK_AMOUNT}' ({per_task}) value."
        ));
    }
    Ok(ranks / per_task)
}

fn refused<T>(sentence: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::State, sentence))
}

/// What `CUDA_VISIBLE_DEVICES` has to say for GPUs at these addresses in a process where it is `visible`.
///
/// Where it is set, integer addresses count its entries, as CUDA does; every other address is taken as it is.
///
/// # Errors
/// [`ErrorKind::Invalid`] for an integer that counts beyond the entries.
pub(super) fn devices(addresses: &[String], visible: Option<&str>) -> Result<Vec<String>> {
    let Some(visible) = visible else { return Ok(addresses.to_vec()) };
    let entries: Vec<&str> = entries(visible).collect();
    let device = |address: &String| {
        if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(address.clone());
        }
        let entry = address.parse::<usize>().ok().and_then(|index| entries.get(index));
        entry.map(|entry| (*entry).to_string()).ok_or_else(|| {
            let count = entries.len();
            Error::new(
                ErrorKind::Invalid,
                format!("Spark assigned GPU {address}, which is not among the {count} GPUs of {VISIBLE}='{visible}'"),
            )
        })
    };
    addresses.iter().map(device).collect()
}

/// The entries of `CUDA_VISIBLE_DEVICES`.
pub(super) fn entries(visible: &str) -> impl Iterator<Item = &str> {
    visible.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}
