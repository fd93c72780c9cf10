//! Evidence that the kernel ended a rank for want of memory. A SIGKILL by the kernel looks like any other, but the
//! memory cgroup counts them.
//!
//! Ranks are in the cgroup of the process that supervises them, so its own counter is the right one: `memory.events` of
//! cgroup v2, `memory.oom_control` of v1. Outside of every memory cgroup it is the machine's, in `/proc/vmstat`. That
//! one counts the kills in all cgroups, too, so it is no evidence for a process whose own cgroup is out of sight.
//!
//! - GUARD-14 (just-before): a kill counts for what ends soon after it, not for what ends hours later: the counter is
//!   compared with what it was a little before.
//!
//! Where the cgroup has `memory.oom.group`, as containers of Kubernetes have, the kernel kills all of it at once: then
//! nobody is left here to count, and the driver learns of a lost node.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may take from the kernel's kill to its end: to give back hundreds of gigabytes takes seconds.
const DYING: Duration = Duration::from_secs(15);
/// How far samples are apart.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Counts the kernel's out-of-memory kills from its making on.
#[derive(Debug, Clone)]
pub struct OomWatch {
    /// `None` where the system has no counter: then there is no evidence.
    counter: Option<PathBuf>,
    /// What the counter was and when, oldest first: of more than `DYING`, one only.
    samples: VecDeque<(Instant, u64)>,
}

impl OomWatch {
    /// Begins to watch the cgroup of this process.
    pub fn new() -> OomWatch {
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = counters(&cgroups, &mounts, Path::exists).into_iter();
        OomWatch::of(found.filter_map(|path| read(&path).map(|count| (path, count))).next())
    }

    /// Begins to watch a counter at `path`, of any of the three kinds of file.
    pub fn at(path: &Path) -> OomWatch {
        OomWatch::of(read(path).map(|count| (path.to_path_buf(), count)))
    }

    fn of(found: Option<(PathBuf, u64)>) -> OomWatch {
        let (counter, count) = found.unzip();
        OomWatch { counter, samples: count.map(|count| (Instant::now(), count)).into_iter().collect() }
    }

    /// Looks at the counter, if the last look was a second ago. To be called now and then.
    pub fn sample(&mut self, now: Instant) {
        let due =
            self.samples.back().is_some_and(|(at, _)| now.saturating_duration_since(*at) >= SAMPLE_EVERY);
        let count = self.counter.as_ref().filter(|_| due).and_then(|path| read(path));
        self.samples.extend(count.map(|count| (now, count)));
        while self.samples.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) > DYING) {
            self.samples.pop_front();
        }
    }

    /// Whether the kernel has killed for want of memory in the seconds before `ended`, when a process was ended by
    /// SIGKILL. It counts before it kills, so this may be asked as soon as that is known.
    pub fn killed_before(&self, ended: Instant) -> bool {
        let Some(now) = self.counter.as_ref().and_then(|path| read(path)) else { return false };
        let long_before = |(at, _): &&(Instant, u64)| ended.saturating_duration_since(*at) > DYING;
        let before = self.samples.iter().rev().find(long_before).or(self.samples.front());
        before.is_some_and(|(_, before)| now > *before)
    }

    /// The file that is watched, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.counter.as_deref()
    }
}

impl Default for OomWatch {
    fn default() -> Self {
        OomWatch::new()
    }
}

/// All three kinds of file have a line `oom_kill N`.
fn read(path: &Path) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// Where the counters of the process with these `/proc/self/cgroup` and `/proc/self/mountinfo` may be, the best first.
///
/// `in_sight` says whether a file can be seen: what is mounted may be hidden by another mount.
fn counters(cgroups: &str, mounts: &str, in_sight: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let machine = PathBuf::from("/proc/vmstat");
    let Some(cgroup) = Cgroup::of_memory(cgroups) else { return vec![machine] };
    let mut found = cgroup.counters(mounts);
    // The root of v2 has no counter: whoever sees that none is on the way to it is in no memory cgroup.
    if found.iter().any(|counter| in_sight(&counter.with_file_name("cgroup.procs"))) {
        found.push(machine);
    }
    found
}

/// A line of `/proc/self/cgroup`: `hierarchy:controllers:path`.
struct Cgroup<'a> {
    is_v2: bool,
    path: &'a str,
}

impl<'a> Cgroup<'a> {
    /// The one that counts memory. The controller is in one hierarchy only: in v1's, or else in v2's, whose line names
    /// no controllers.
    fn of_memory(cgroups: &'a str) -> Option<Cgroup<'a>> {
        let lines = cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let v1 = |(controllers, _): &(&str, &str)| controllers.split(',').any(|name| name == "memory");
        let v2 = |(controllers, _): &(&str, &str)| controllers.is_empty();
        let found = lines.clone().find(v1).map(|(_, path)| Cgroup { is_v2: false, path });
        found.or_else(|| lines.clone().find(v2).map(|(_, path)| Cgroup { is_v2: true, path }))
    }

    /// Where its counters may be, by `/proc/self/mountinfo`, the best first.
    fn counters(&self, mounts: &str) -> Vec<PathBuf> {
        let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
        let mut found = Vec::new();
        for mount in mounts.lines().filter_map(Mount::parse).filter(|mount| mount.shows(self.is_v2)) {
            // A container sees its own cgroup as the root of the mount, whatever the path says.
            let below = Path::new(self.path).strip_prefix(mount.root).unwrap_or(Path::new(""));
            // Where a cgroup has no counter its memory is counted by the next one above.
            found.extend(below.ancestors().map(|cgroup| Path::new(mount.point).join(cgroup).join(file)));
        }
        found
    }
}

/// A line of `/proc/self/mountinfo`.
struct Mount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Mount<'a>> {
        let (mount, of) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let mut of = of.split(' ');
        Some(Mount { root: mount.next()?, point: mount.next()?, kind: of.next()?, options: of.nth(1)? })
    }

    fn shows(&self, is_v2: bool) -> bool {
        if is_v2 {
            self.kind == "cgroup2"
        } else {
            self.kind == "cgroup" && self.options.split(',').any(|option| option == "memory")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_after_the_start_is_seen_and_one_before_is_not() {
        let directory = tempfile::tempdir().unwrap();
        for text in
            ["low 0\noom 3\noom_kill 2\noom_group_kill 0\n", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"]
        {
            let path = directory.path().join("counter");
            fs::write(&path, text).unwrap();
            let watch = OomWatch::at(&path);
            assert!(!watch.killed_before(Instant::now()));
            fs::write(&path, text.replace("oom_kill 2", "oom_kill 3")).unwrap();
            assert!(watch.killed_before(Instant::now()));
            fs::remove_file(&path).unwrap();
            assert!(!watch.killed_before(Instant::now()), "no counter, no evidence");
        }
        assert!(!OomWatch::at(&directory.path().join("none")).killed_before(Instant::now()));
    }

    #[test]
    fn a_kill_of_long_ago_is_no_evidence() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("counter");
        fs::write(&path, "oom_kill 2\n").unwrap();
        let mut watch = OomWatch::at(&path);
        let start = Instant::now();
        let sampled = |watch: &mut OomWatch, from: u64, to: u64| {
            (from..to).for_each(|second| watch.sample(start + Duration::from_secs(second)));
        };
        sampled(&mut watch, 0, 100);
        fs::write(&path, "oom_kill 3\n").unwrap();
        let at = |second| start + Duration::from_secs(second);
        assert!(watch.killed_before(at(101)), "it was not even sampled");
        sampled(&mut watch, 101, 110);
        assert!(watch.killed_before(at(110)), "large processes die slowly");
        sampled(&mut watch, 110, 200);
        assert!(!watch.killed_before(at(200)), "GUARD-14");
        assert!(watch.samples.len() < 20);
        fs::write(&path, "oom_kill 4\n").unwrap();
        assert!(watch.killed_before(at(200)));
    }

    #[test]
    fn the_counter_is_found_on_the_usual_systems() {
        let counters = |cgroups, mounts| counters(cgroups, mounts, |_| true);
        let v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            counters("0::/user.slice/a.scope\n", v2)[0],
            Path::new("/sys/fs/cgroup/user.slice/a.scope/memory.events")
        );
        assert_eq!(
            counters("0::/\n", v2)[0],
            Path::new("/sys/fs/cgroup/memory.events"),
            "a cgroup namespace"
        );

        let v1 = "35 30 0:31 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                  36 30 0:32 /docker/f00 /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu";
        let cgroups = "5:cpu:/docker/f00\n4:memory:/docker/f00\n0::/\n";
        assert_eq!(counters(cgroups, v1)[0], Path::new("/sys/fs/cgroup/memory/memory.oom_control"), "docker");

        let hybrid = "35 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        assert_eq!(
            counters("4:memory:/yarn/c1\n", hybrid)[0],
            Path::new("/sys/fs/cgroup/memory/yarn/c1/memory.oom_control")
        );
    }

    #[test]
    fn the_machines_counter_is_for_a_process_that_is_seen_to_be_in_no_memory_cgroup() {
        let machine = Path::new("/proc/vmstat");
        assert_eq!(counters("", "", |_| false), [machine], "a system without cgroups");

        let v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        let root = Path::new("/sys/fs/cgroup/cgroup.procs");
        let of_root = Path::new("/sys/fs/cgroup/memory.events");
        assert_eq!(counters("0::/\n", v2, |file| file == root), [of_root, machine], "its root");
        assert_eq!(counters("0::/\n", v2, |_| false), [of_root], "it is mounted, and another mount hides it");

        assert!(counters("0::/a.scope\n", "", |_| true).is_empty(), "as in `ip netns exec`");
        assert!(counters("4:memory:/yarn/c1\n0::/\n", v2, |_| true).is_empty(), "it is in v1's hierarchy");
    }
}
