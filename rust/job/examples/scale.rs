//! What a job of many ranks costs its driver: a driver in a process of its own, and the nodes of a
//! [`phalanx_testkit::fleet::Fleet`] in this one.
//!
//! ```text
//! scale RANKS NODES SECONDS      for so long every rank reports twice a second
//! scale fleet SECONDS EVERY_MS BYTES     the nodes alone, of somebody else's driver; each rank also writes so much
//! scale losses NODES LOSSES SECONDS      so many nodes of an elastic job, a rank each, are lost in so long
//! ```
//! Prints a JSON object: seconds, and bytes where the name says so. Every node joins and has its place told
//! (`join_s`, with the hub's share of it, `join_hub_cpu_s`); the ranks report, and all nodes ping each second
//! (`report_hub_share`, of a core, and `worst_ping_s`); every rank writes 64 KiB (`written_s`, `driver_bytes`, the
//! driver's memory then, and `driver_peak_bytes`); one rank is killed: until every node has the order to stop
//! (`stopped_s`), and until the driver's caller has the failure (`named_s`), which has so many lines (`error_lines`).
//!
//! Losses print how often the ranks began again (`attempts`), with how many in the end (`ranks`), what an attempt took
//! of the hub's thread (`attempt_cpu_s`), the longest time without ranks (`worst_pause_s`), and the driver's memory
//! before and after (`driver_bytes_before`, `driver_bytes`).
//!
//! The nodes alone read their spec, a line, from stdin. They print an empty line once all ranks train and another one
//! when all has been told, then wait for the order to stop, and print `ranks_reported` (how many of a rank's reports
//! there were), `worst_ping_s` and `written_s`.

use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_job::{Event, Hub, HubOptions};
use phalanx_testkit::fleet::Fleet;
use phalanx_types::message::{NodeMessage, RankActivity};
use phalanx_types::{Attempt, Deadline, Gang, Job, NodeSpec, RankProgram, RankState};

/// A driver that doesn't answer for so long is broken.
const PATIENCE: Duration = Duration::from_secs(120);
const REPORT_EVERY: Duration = Duration::from_millis(500);
const PING_EVERY: Duration = Duration::from_secs(1);
/// In which the kernel counts processor time (`sysconf(_SC_CLK_TCK)` is 100 on any Linux).
const TICK: Duration = Duration::from_millis(10);
/// How much each rank writes.
const WRITTEN_BYTES: usize = 64 << 10;

type Fallible<T> = Result<T, Box<dyn Error>>;

fn main() -> Fallible<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["driver", ranks, nodes, least] => drive(ranks.parse()?, nodes.parse()?, least.parse()?),
        ["losses", nodes, losses, seconds] => {
            measure_losses(nodes, losses.parse()?, Duration::from_secs_f64(seconds.parse()?))
        }
        ["fleet", seconds, every, bytes] => {
            let every = Duration::from_millis(every.parse()?);
            play_fleet(Duration::from_secs_f64(seconds.parse()?), every, bytes.parse()?)
        }
        [ranks, nodes, seconds] => measure(ranks, nodes, Duration::from_secs_f64(seconds.parse()?)),
        _ => Err("usage: scale RANKS NODES SECONDS".into()),
    }
}

/// The driver: tells what its nodes are to know, takes events as a caller does, and says with how many ranks the job
/// runs again, and how it failed. It goes on with the `least` ranks.
fn drive(ranks: u32, nodes: u32, least: u32) -> Fallible<()> {
    let work = tempfile::tempdir()?;
    let local = "127.0.0.1".to_string();
    let options = HubOptions { bind: local.clone(), advertise: local, work_dir: work.path().to_path_buf() };
    let mut job = Job::new("scale", "scale", ranks, nodes)?;
    if least < ranks {
        job.policy.gang = Gang::Tasks;
        job.policy.elastic.min_ranks = least;
    }
    let hub = Hub::open(job, &options)?;
    let spec =
        hub.node_spec(Attempt::first(), RankProgram::Command(Vec::new()), Default::default(), Vec::new());
    let mut out = io::stdout();
    writeln!(out, "{}", String::from_utf8(spec.pack())?)?;
    loop {
        match hub.next(Deadline::never())? {
            Some(Event::Output(_) | Event::Phase(_) | Event::Status(_) | Event::Progress(_)) | None => {}
            Some(Event::Restarted(of)) => writeln!(out, "{} {}", of.cost.ranks, of.cost.seconds)?,
            Some(Event::Failed(failure)) => {
                writeln!(out, "{}", failure.render().lines().count())?;
                break;
            }
            Some(other) => return Err(format!("not expected: {other:?}").into()),
        }
    }
    // Until the other has looked at this process.
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// The process of the driver; it ends with this value.
struct Driver {
    child: Child,
    _stdin: ChildStdin,
    told: std::sync::mpsc::Receiver<(Instant, String)>,
}

impl Driver {
    fn start(ranks: &str, nodes: &str, least: &str) -> Fallible<Driver> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["driver", ranks, nodes, least])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a driver without pipes".into());
        };
        let (sender, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.for_each(|line| drop(sender.send((Instant::now(), line))));
        });
        Ok(Driver { child, _stdin: stdin, told })
    }

    fn next_line(&self) -> Fallible<(Instant, String)> {
        Ok(self.told.recv_timeout(PATIENCE)?)
    }

    /// The processor time that the hub's thread has taken so far.
    fn hub_cpu(&self) -> Fallible<Duration> {
        let late = Instant::now() + PATIENCE;
        while Instant::now() < late {
            for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
                let task = task?.path();
                if std::fs::read_to_string(task.join("comm"))?.trim() == "phalanx-hub" {
                    let stat = std::fs::read_to_string(task.join("stat"))?;
                    let fields: Vec<&str> =
                        stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
                    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
                    return Ok(TICK * u32::try_from(ticks)?);
                }
            }
            // A thread takes its name once it runs.
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("no thread of the hub".into())
    }

    /// A line of the driver's memory, in bytes.
    fn memory(&self, name: &str) -> Fallible<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
        let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
        Ok(kib << 10)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // One that has ended can't be killed.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn measure(ranks: &str, nodes: &str, reporting: Duration) -> Fallible<()> {
    let driver = Driver::start(ranks, nodes, ranks)?;
    let spec = NodeSpec::unpack(driver.next_line()?.1.as_bytes())?;
    let mut fleet = Fleet::new(&spec);
    let count = spec.job.tasks;

    let (began, cpu_began) = (Instant::now(), driver.hub_cpu()?);
    all_join(&mut fleet);
    let (join_s, join_hub_cpu_s) =
        (began.elapsed().as_secs_f64(), (driver.hub_cpu()? - cpu_began).as_secs_f64());
    fleet.start_ranks();
    pinged(&mut fleet);

    let cpu_began = driver.hub_cpu()?;
    let rounds = report(&mut fleet, reporting, REPORT_EVERY);
    pinged(&mut fleet);
    // Of the time that so many reports are of, however long this machine took to tell and to hear them.
    let time = REPORT_EVERY.as_secs_f64() * rounds;
    let share = (driver.hub_cpu()? - cpu_began).as_secs_f64() / time;
    let worst_ping_s = worst_ping_s(&fleet);

    let written_s = write(&mut fleet, WRITTEN_BYTES);
    let (driver_bytes, driver_peak_bytes) = (driver.memory("VmRSS")?, driver.memory("VmHWM")?);

    let began = Instant::now();
    let dead = fleet.ranks_of(count / 2)[0];
    fleet.tell(count / 2, &phalanx_testkit::fleet::ended(dead, count / 2, RankState::Signaled(9)));
    all_to_stop(&mut fleet);
    let stopped_s = began.elapsed().as_secs_f64();
    end(&mut fleet);
    let (named, lines) = driver.next_line()?;
    let named_s = named.duration_since(began).as_secs_f64();

    let figures = serde_json::json!({
        "join_s": join_s, "join_hub_cpu_s": join_hub_cpu_s,
        "report_hub_share": share, "worst_ping_s": worst_ping_s,
        "written_s": written_s, "driver_bytes": driver_bytes, "driver_peak_bytes": driver_peak_bytes,
        "stopped_s": stopped_s, "named_s": named_s, "error_lines": lines.parse::<u32>()?,
    });
    Ok(writeln!(io::stdout(), "{figures}")?)
}

fn measure_losses(nodes: &str, losses: u32, time: Duration) -> Fallible<()> {
    let count: u32 = nodes.parse()?;
    let driver = Driver::start(nodes, nodes, &(count / 2).to_string())?;
    let spec = NodeSpec::unpack(driver.next_line()?.1.as_bytes())?;
    let mut fleet = Fleet::new(&spec);
    all_join(&mut fleet);
    fleet.follow_orders();
    pinged(&mut fleet);

    let (cpu_began, driver_bytes_before) = (driver.hub_cpu()?, driver.memory("VmRSS")?);
    let (began, every) = (Instant::now(), time / losses);
    let (mut lost, mut ping_at, mut pauses, mut ranks) = (0, began, Vec::new(), count);
    let is_over = |fleet: &mut Fleet| {
        let now = Instant::now();
        fleet.follow_orders();
        if now >= ping_at {
            ping_at = now + PING_EVERY;
            fleet.ping_all();
        }
        if lost < losses && now >= began + every * lost {
            // Each time another part of them, so that the oldest is among the lost, too.
            let of = u32::try_from(u64::from(lost) * 7 % u64::from(count)).unwrap_or_default();
            // One that is on its way to its next attempt can't be told to vanish.
            if fleet.nodes()[of as usize].is_connected() {
                fleet.vanish(of);
                lost += 1;
            }
        }
        for (_, line) in driver.told.try_iter() {
            let told = line
                .split_once(' ')
                .and_then(|(ranks, pause)| Some((ranks.parse().ok()?, pause.parse().ok()?)));
            let (size, pause): (u32, f64) = told.unwrap_or_else(|| panic!("the job failed: {line}"));
            (ranks, _) = (size, pauses.push(pause));
        }
        ranks == count - losses
    };
    fleet.play("all that are left run", Deadline::after(time + PATIENCE), is_over);
    let cpu = (driver.hub_cpu()? - cpu_began).as_secs_f64();
    let figures = serde_json::json!({
        "attempts": pauses.len(), "ranks": ranks, "attempt_cpu_s": cpu / pauses.len() as f64,
        "worst_pause_s": pauses.iter().copied().fold(0.0, f64::max),
        "driver_bytes_before": driver_bytes_before, "driver_bytes": driver.memory("VmRSS")?,
    });
    Ok(writeln!(io::stdout(), "{figures}")?)
}

fn play_fleet(reporting: Duration, every: Duration, bytes: usize) -> Fallible<()> {
    let mut spec = String::new();
    io::stdin().read_line(&mut spec)?;
    let mut fleet = Fleet::new(&NodeSpec::unpack(spec.trim().as_bytes())?);
    all_join(&mut fleet);
    fleet.start_ranks();
    pinged(&mut fleet);
    writeln!(io::stdout())?;
    let rounds = report(&mut fleet, reporting, every);
    pinged(&mut fleet);
    let worst_ping_s = worst_ping_s(&fleet);
    let written_s = if bytes > 0 { write(&mut fleet, bytes) } else { 0.0 };
    writeln!(io::stdout())?;
    all_to_stop(&mut fleet);
    end(&mut fleet);
    let figures =
        serde_json::json!({ "ranks_reported": rounds, "worst_ping_s": worst_ping_s, "written_s": written_s });
    Ok(writeln!(io::stdout(), "{figures}")?)
}

fn all_join(fleet: &mut Fleet) {
    fleet.join_all();
    fleet.play("all nodes have their places", soon(), |fleet| {
        fleet.nodes().iter().all(|node| node.place.is_some())
    });
}

/// Has every rank report for so long, and every node ping each second; returns how often each rank has reported.
fn report(fleet: &mut Fleet, reporting: Duration, every: Duration) -> f64 {
    let count = u32::try_from(fleet.nodes().len()).expect("a count of nodes");
    let began = Instant::now();
    let (mut step, mut ping_at, mut told, mut reports) = (0, began, 0, 0);
    fleet.play_for(reporting, |fleet| {
        if began.elapsed() >= every * (step + 1) {
            told = 0;
            step += 1;
        }
        // As nodes do that began at different times: each at its part of the interval.
        let due = began.elapsed().saturating_sub(every * step).as_secs_f64() / every.as_secs_f64();
        let due = (f64::from(count) * due.min(1.0)) as u32;
        for partition in told..due {
            fleet.tell(partition, &activity(&fleet.ranks_of(partition), u64::from(step)));
        }
        reports += due.saturating_sub(told);
        told = told.max(due);
        if Instant::now() >= ping_at {
            ping_at += PING_EVERY;
            fleet.ping_all();
        }
    });
    f64::from(reports) / f64::from(count)
}

fn worst_ping_s(fleet: &Fleet) -> f64 {
    fleet.nodes().iter().map(|node| node.slowest_pong).max().unwrap_or_default().as_secs_f64()
}

/// Has every rank write so many bytes, and returns the seconds until all of it is at the driver.
fn write(fleet: &mut Fleet, bytes: usize) -> f64 {
    let began = Instant::now();
    let line = [&[b'x'; 127][..], b"\n"].concat();
    let text = line.repeat(WRITTEN_BYTES / line.len());
    let count = u32::try_from(fleet.nodes().len()).expect("a count of nodes");
    for _ in 0..bytes / text.len() {
        for partition in 0..count {
            for rank in fleet.ranks_of(partition) {
                fleet.write(partition, rank, &text);
            }
            fleet.play_for(Duration::ZERO, |_| {});
        }
        fleet.play("all output is sent", soon(), |fleet| !fleet.has_unsent());
    }
    fleet.ask_for_output();
    fleet
        .play("all output has arrived", soon(), |fleet| fleet.nodes().iter().all(|node| node.output_arrived));
    began.elapsed().as_secs_f64()
}

fn all_to_stop(fleet: &mut Fleet) {
    fleet.play("all nodes are to stop", soon(), |fleet| {
        fleet.nodes().iter().all(|node| node.stopped.is_some())
    });
}

/// Ends all ranks, which were to stop, and then the nodes.
fn end(fleet: &mut Fleet) {
    let count = u32::try_from(fleet.nodes().len()).expect("a count of nodes");
    (0..count).for_each(|partition| fleet.end_ranks(partition, &RankState::Stopped));
    fleet.play("all nodes may go", soon(), |fleet| fleet.nodes().iter().all(|node| node.released));
    (0..count).for_each(|partition| fleet.vanish(partition));
}

/// Waits until the hub has read what was told so far.
fn pinged(fleet: &mut Fleet) {
    let answered = |fleet: &mut Fleet| !fleet.nodes().iter().any(|node| node.waits_for_pong());
    fleet.play("earlier pings are answered", soon(), answered);
    fleet.ping_all();
    fleet.play("all pings are answered", soon(), answered);
}

fn activity(ranks: &[u32], step: u64) -> NodeMessage {
    let told = |rank: &u32| RankActivity {
        rank: *rank,
        idle_ms: 3,
        step: Some(step),
        step_us: Some(500_000 + u64::from(rank % 100)),
        values: format!(r#"{{"loss":{}.5}}"#, rank % 10),
        ..RankActivity::default()
    };
    NodeMessage::Activity { ranks: ranks.iter().map(told).collect() }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
