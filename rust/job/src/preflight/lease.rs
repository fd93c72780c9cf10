//! The driver's GPUs, leased to the runs of this process that have ranks on the driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_types::{Error, ErrorKind, Job, Result};

use super::conf::is_local;
use super::gpus::{devices, entries};

/// A run that may need GPUs of the driver's host.
#[derive(Debug, Clone, Copy)]
pub struct DriverGpus<'a> {
    /// How many ranks it has.
    pub ranks: u32,
    /// Whether each has a GPU of its own.
    pub use_gpu: bool,
    /// Whether they run on the driver.
    pub local_mode: bool,
    /// Spark's master.
    pub master: &'a str,
    /// The addresses of the driver's GPUs, by Spark; `None` for a client of Spark Connect, whose driver is elsewhere.
    pub addresses: Option<&'a [String]>,
    /// `CUDA_VISIBLE_DEVICES` of this process.
    pub visible: Option<&'a str>,
}

/// GPUs that a run has to itself until [`release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// What to release it by; never used twice in a process.
    pub id: u64,
    /// What the ranks have as `CUDA_VISIBLE_DEVICES`; empty for a run that needs none of the driver's.
    pub gpus: Vec<String>,
}

impl DriverGpus<'_> {
    /// Takes a GPU for each rank that runs on the driver: in local mode, and on a local master, whose tasks get none.
    ///
    /// # Errors
    /// [`ErrorKind::State`] where too few are left, with how many are in use; [`ErrorKind::Invalid`] where Spark's
    /// addresses are not among the visible devices.
    pub fn lease(&self) -> Result<Lease> {
        let gpus = self.of_driver()?;
        let count = if gpus.is_some() { self.ranks as usize } else { 0 };
        leases().take(&gpus.unwrap_or_default(), count)
    }

    /// All GPUs of the driver's host; `None` where no rank that runs there needs one.
    fn of_driver(&self) -> Result<Option<Vec<String>>> {
        let on_driver = self.local_mode || (is_local(self.master) && self.addresses.is_some());
        if !self.use_gpu || !on_driver {
            return Ok(None);
        }
        match (self.addresses, self.visible) {
            (Some(addresses), visible) => devices(addresses, visible).map(Some),
            (None, Some(visible)) if !visible.is_empty() => {
                Ok(Some(entries(visible).map(str::to_string).collect()))
            }
            // Spark's resources are those of the server, and the ranks run here.
            (None, _) => Ok(Some((0..self.ranks).map(|index| index.to_string()).collect())),
        }
    }
}

/// Gives the GPUs of a lease back; again is harmless.
pub fn release(id: u64) {
    leases().held.remove(&id);
}

/// A task of a stage that may have GPUs.
#[derive(Debug, Clone, Copy)]
pub struct TaskGpus<'a> {
    /// Its partition.
    pub partition: u32,
    /// What the run leased on the driver, for all its tasks.
    pub leased: &'a [String],
    /// The addresses that Spark gave to the task; `None` where it gave it none.
    pub addresses: Option<&'a [String]>,
    /// `CUDA_VISIBLE_DEVICES` of the task's process.
    pub visible: Option<&'a str>,
    /// Where the task is, for sentences.
    pub host: &'a str,
}

impl TaskGpus<'_> {
    /// The GPUs of the task's ranks. On a local master, which gives its tasks no addresses, they share out what was
    /// leased.
    ///
    /// # Errors
    /// [`ErrorKind::State`] where the job wants GPUs and Spark gave the task none; as [`DriverGpus::lease`].
    pub fn of(&self, job: &Job) -> Result<Vec<String>> {
        if !job.use_gpu {
            return Ok(Vec::new());
        }
        if !self.leased.is_empty() {
            let per_task = (job.ranks / job.tasks) as usize;
            return Ok(self
                .leased
                .iter()
                .skip(self.partition as usize * per_task)
                .take(per_task)
                .cloned()
                .collect());
        }
        let Some(addresses) = self.addresses else {
            let host = self.host;
            return Err(Error::new(ErrorKind::State, format!("Spark gave the task on {host} no GPU")));
        };
        devices(addresses, self.visible)
    }
}

/// Who has which GPUs.
#[derive(Debug, Default)]
struct Leases {
    held: BTreeMap<u64, Vec<String>>,
    next: u64,
}

impl Leases {
    /// Takes the first `count` of `gpus` that nobody else has.
    fn take(&mut self, gpus: &[String], count: usize) -> Result<Lease> {
        let in_use: BTreeSet<&String> = self.held.values().flatten().collect();
        let all: BTreeSet<&String> = gpus.iter().collect();
        let mut free: Vec<String> = Vec::new();
        for gpu in gpus.iter().filter(|gpu| !in_use.contains(gpu)) {
            if !free.contains(gpu) {
                free.push(gpu.clone());
            }
        }
        if free.len() < count {
            let (has, used) = (gpus.len(), all.intersection(&in_use).count());
            return Err(Error::new(
                ErrorKind::State,
                format!(
                    "the run needs {count} GPUs; the driver has {has}, of which {used} are in use by other \
                     runs of this process; wait for those runs, or lower num_processes"
                ),
            ));
        }
        free.truncate(count);
        self.next += 1;
        self.held.insert(self.next, free.clone());
        Ok(Lease { id: self.next, gpus: free })
    }
}

static LEASES: Mutex<Leases> = Mutex::new(Leases { held: BTreeMap::new(), next: 0 });

fn leases() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(ranks: u32, addresses: Option<&[String]>) -> DriverGpus<'_> {
        DriverGpus { ranks, use_gpu: true, local_mode: true, master: "yarn", addresses, visible: None }
    }

    #[test]
    fn runs_at_the_same_time_have_no_gpu_in_common_and_a_lease_ends_once() {
        let mut leases = Leases::default();
        let all: Vec<String> = ["0", "1", "0", "2"].map(String::from).into();
        let first = leases.take(&all, 2).unwrap();
        assert_eq!(first.gpus, ["0", "1"]);
        assert_eq!(leases.take(&all, 1).unwrap().gpus, ["2"], "JOB-18");
        assert!(leases.take(&all, 1).unwrap_err().to_string().contains("has 4, of which 3 are in use"));
        leases.held.remove(&first.id);
        let again = leases.take(&all, 2).unwrap();
        assert_eq!(again.gpus, first.gpus);
        assert_ne!(again.id, first.id);
    }

    #[test]
    fn only_ranks_on_the_driver_lease_its_gpus() {
        let addresses = ["7".to_string()];
        let of = |gpus: DriverGpus<'_>| gpus.of_driver().unwrap();
        let here = gpus(1, Some(&addresses));
        assert_eq!(of(here), Some(vec!["7".into()]));
        assert_eq!(of(DriverGpus { use_gpu: false, ..here }), None);
        assert_eq!(of(DriverGpus { local_mode: false, ..here }), None, "an executor's are Spark's");
        assert_eq!(of(DriverGpus { local_mode: false, master: "local[2]", ..here }), Some(vec!["7".into()]));
    }

    #[test]
    fn a_task_has_what_spark_gave_it_or_its_share_of_what_was_leased() {
        let mut job = Job::new("job", "train", 4, 2).unwrap();
        let leased: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
        let task =
            TaskGpus { partition: 1, leased: &leased, addresses: None, visible: None, host: "10.0.0.7" };
        assert!(task.of(&job).unwrap().is_empty());
        job.use_gpu = true;
        assert_eq!(task.of(&job).unwrap(), ["c", "d"]);
        let given = ["1".to_string(), "MIG-1c2d".into()];
        let own = TaskGpus { leased: &[], addresses: Some(&given), visible: Some("5,7"), ..task };
        assert_eq!(own.of(&job).unwrap(), ["7", "MIG-1c2d"], "JOB-17");
        let none = TaskGpus { leased: &[], ..task }.of(&job).unwrap_err();
        assert_eq!(none.to_string(), "Spark gave the task on 10.0.0.7 no GPU");
    }

    #[test]
    fn a_client_of_spark_connect_has_the_gpus_that_it_sees_itself() {
        let of = |gpus: DriverGpus<'_>| gpus.of_driver().unwrap();
        assert_eq!(of(gpus(2, None)), Some(vec!["0".into(), "1".into()]));
        let seen = DriverGpus { visible: Some("5, 7"), ..gpus(2, None) };
        assert_eq!(of(seen), Some(vec!["5".into(), "7".into()]));
        assert_eq!(of(DriverGpus { local_mode: false, master: "local[2]", ..gpus(2, None) }), None);
    }
}
