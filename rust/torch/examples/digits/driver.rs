//! The job: hub, store, guard and ranks on this machine, as `local_mode=True` does it from Python.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use phalanx_job::{Event, Here, Home, Hub, HubOptions, NodeCallbacks, Payload, run_node};
use phalanx_types::{
    Attempt, Deadline, Error, ErrorKind, Failure, Job, RankOutcome, RankProgram, Result, SparkTask,
};
use tch::Tensor;

use crate::{RANK, Task};

/// This process, which asks nothing of the node.
struct NoCallbacks;

impl NodeCallbacks for NoCallbacks {
    fn interrupted(&mut self) -> Option<String> {
        // Ctrl-C ends this process, and the guard then the ranks.
        None
    }
}

/// A line for the user.
pub(crate) fn say(line: &str) {
    // There is nobody to tell that nobody reads.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Runs the job to its end; writes each rank's losses beside the data.
///
/// # Errors
/// If the job failed, with its cause.
pub(crate) fn run(task: &Task) -> Result<()> {
    let began = Instant::now();
    let order = Tensor::read_npy(task.folder.join("order.npy"))
        .map_err(phalanx_torch::torch_error("read order.npy, which prepare.py makes"))?;
    let ranks = order.size().get(1).and_then(|ranks| u32::try_from(*ranks).ok()).unwrap_or(0);
    let work = tempfile::tempdir().map_err(|error| Error::io("make a folder for the job", &error))?;
    let job = Job::new(format!("digits-{}", std::process::id()), "digits", ranks, 1)?;
    let local = "127.0.0.1".to_string();
    let options = HubOptions { bind: local.clone(), advertise: local, work_dir: work.path().to_path_buf() };
    let mut driver = Hub::open(job, &options)?;
    let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
    let program = RankProgram::Command(vec![program.to_string_lossy().into_owned(), RANK.into()]);
    let spec = driver.node_spec(Attempt::first(), program, BTreeMap::new(), Vec::new());
    let payload = serde_json::to_vec(task).unwrap_or_default();
    let outcome = std::thread::scope(|scope| {
        let node = scope.spawn(|| {
            let outcome = run_node(&spec, Payload::Bytes(&payload), &here(work.path()), &mut NoCallbacks);
            driver.stage_ended(Attempt::first(), outcome.as_ref().err().map(ToString::to_string));
        });
        let outcome = listen(&driver);
        if node.join().is_err() {
            return Err(Error::new(ErrorKind::Closed, "the node panicked"));
        }
        outcome
    })?;
    match outcome {
        Ok(reports) => {
            for report in &reports {
                keep_losses(&driver, report.rank, &task.folder)?;
            }
            driver.close();
            say(&format!("{} ranks finished after {:.1} s", reports.len(), began.elapsed().as_secs_f64()));
            Ok(())
        }
        Err(failure) => {
            driver.close();
            Err(Error::new(ErrorKind::Closed, failure.message))
        }
    }
}

/// What the node of this machine knows itself.
fn here(work: &Path) -> Here {
    Here {
        partition: 0,
        task: SparkTask::default(),
        host: "localhost".into(),
        gpus: None,
        work_dir: work.to_path_buf(),
        home: Home { guard: phalanx_testkit::guard_binary(), ..Home::default() },
        other_ways: Vec::new(),
    }
}

/// Shows the ranks' output until the job is over.
fn listen(driver: &Hub) -> Result<std::result::Result<Vec<RankOutcome>, Box<Failure>>> {
    loop {
        match driver.next(Deadline::after(Duration::from_secs(600)))? {
            Some(Event::Output(text)) => say(text.trim_end()),
            Some(Event::Phase(_) | Event::Status(_) | Event::Progress(_) | Event::Reports(_)) => {}
            // Of restarts, of gangs of tasks and of data sets, which this job has not.
            Some(
                Event::Restarted(_)
                | Event::Resubmit { .. }
                | Event::Seat(_)
                | Event::Placed(_)
                | Event::Carried(_),
            ) => {}
            Some(Event::Finished(reports)) => return Ok(Ok(reports)),
            Some(Event::Failed(failure)) => return Ok(Err(failure)),
            None => driver.stop("ten minutes without a word are too long for this example"),
        }
    }
}

fn keep_losses(driver: &Hub, rank: u32, folder: &Path) -> Result<()> {
    let path = driver
        .result_path(rank)
        .ok_or_else(|| Error::new(ErrorKind::Closed, format!("rank {rank} left no result")))?;
    let copied = std::fs::copy(path, folder.join(format!("losses-{rank}.json")));
    copied.map(drop).map_err(|error| Error::io(format!("keep the losses of rank {rank}"), &error))
}
