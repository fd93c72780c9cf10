//! The evidence of an out-of-memory kill, from a kernel that does one in a cgroup of the test's own.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_supervisor::OomWatch;
use phalanx_testkit::eventually;

/// A memory cgroup with a limit, gone with the value.
struct Cgroup {
    path: PathBuf,
    counter: &'static str,
}

impl Cgroup {
    /// None where this process may not make one: not root, a read-only mount, no memory controller.
    fn with_limit(bytes: u64) -> Option<Cgroup> {
        let kinds = [
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max", "memory.events"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness", "memory.oom_control"),
        ];
        kinds.into_iter().find_map(|(mount, limit, no_swap, counter)| {
            let path = Path::new(mount).join(format!("phalanx-test-{}", std::process::id()));
            fs::create_dir(&path).ok()?;
            // Without the files it is no cgroup with memory: dropped, and the next kind is tried.
            let cgroup = Cgroup { path, counter };
            cgroup.set(limit, &bytes.to_string())?;
            let _ = cgroup.set(no_swap, "0");
            cgroup.path.join(counter).exists().then_some(cgroup)
        })
    }

    fn set(&self, file: &str, value: &str) -> Option<()> {
        let mut file = fs::OpenOptions::new().write(true).open(self.path.join(file)).ok()?;
        file.write_all(value.as_bytes()).ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        eventually("the cgroup is empty and gone", Duration::from_secs(10), || {
            fs::remove_dir(&self.path).is_ok()
        });
    }
}

#[test]
fn a_kill_by_the_kernel_is_told_from_one_by_anybody_else() {
    let Some(cgroup) = Cgroup::with_limit(16 << 20) else {
        skip("no memory cgroup can be made here");
        return;
    };
    let watch = OomWatch::at(&cgroup.path.join(cgroup.counter));
    let into = format!("echo $$ >{}/cgroup.procs && ", cgroup.path.display());
    let run = |script: &str| {
        Command::new("sh").args(["-c", &(into.clone() + script)]).stdout(Stdio::null()).status().unwrap()
    };
    assert!(!run("kill -KILL $$").success());
    assert!(!watch.killed_before(Instant::now()), "killed, but not by the kernel");
    // A line without an end: tail must keep all of it.
    assert!(!run("exec tail -n 1 /dev/zero").success());
    assert!(watch.killed_before(Instant::now()));
}

#[test]
fn this_process_has_a_counter_or_none_and_nothing_was_killed() {
    let watch = OomWatch::new();
    if let Some(path) = watch.path() {
        assert!(fs::read_to_string(path).unwrap().contains("oom_kill"));
    } else {
        skip("this system counts no kills");
    }
}

#[test]
fn kills_elsewhere_on_the_machine_are_no_evidence_where_a_process_cant_see_its_cgroup() {
    const HIDDEN: &str = "PHALANX_TEST_CGROUP_IS_HIDDEN";
    if std::env::var_os(HIDDEN).is_some() {
        assert_eq!(OomWatch::new().path(), None);
        return;
    }
    let hidden = |command: &[&str]| {
        let mut unshared = Command::new("unshare");
        unshared.args(["--mount", "sh", "-c", "mount -t tmpfs none /sys && exec \"$@\"", "sh"]).args(command);
        unshared.env(HIDDEN, "1").output()
    };
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if cgroups.is_empty() || !hidden(&["true"]).is_ok_and(|tried| tried.status.success()) {
        skip("no cgroup can be hidden here");
        return;
    }
    // This test again, with the cgroups of its process out of sight.
    let this = std::env::current_exe().unwrap();
    let test = "kills_elsewhere_on_the_machine_are_no_evidence_where_a_process_cant_see_its_cgroup";
    let again = hidden(&[this.to_str().unwrap(), "--exact", test]).unwrap();
    let told = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && told.contains("1 passed"), "{told}");
}

fn skip(reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {reason}");
}
