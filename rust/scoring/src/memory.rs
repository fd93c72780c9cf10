//! Whether memory is short here, so that a model which nobody uses now has to go (SCORE-3).

use std::path::{Path, PathBuf};

use phalanx_supervisor::OomWatch;

/// Of which part less must be left: a tenth.
const SHORT: u64 = 10;

/// Whether less than a tenth of the memory that this process's cgroup may have, or of the machine's, is left.
#[derive(Debug)]
pub(crate) struct MemoryWatch {
    cgroup: OomWatch,
    /// Where the machine says what it has.
    meminfo: PathBuf,
}

impl MemoryWatch {
    pub(crate) fn new(meminfo: PathBuf) -> MemoryWatch {
        MemoryWatch { cgroup: OomWatch::new(), meminfo }
    }

    pub(crate) fn is_short(&self) -> bool {
        let cgroup = self.cgroup.path().and_then(|counter| of_cgroup(counter, &read));
        let machine = read(&self.meminfo).and_then(|text| of_machine(&text));
        [cgroup, machine].into_iter().flatten().any(|(left, all)| is_short(left, all))
    }
}

fn is_short(left: u64, all: u64) -> bool {
    left < all / SHORT
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// What is left and what there is, from the files beside a cgroup's counter of kills; `None` where it has no limit.
fn of_cgroup(counter: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Option<(u64, u64)> {
    let number = |name: &str| -> Option<u64> { read(&counter.with_file_name(name))?.trim().parse().ok() };
    let (most, used) = number("memory.max")
        .zip(number("memory.current"))
        .or_else(|| number("memory.limit_in_bytes").zip(number("memory.usage_in_bytes")))?;
    // What the system keeps of files that nobody reads now counts as used, and goes first.
    let stat = read(&counter.with_file_name("memory.stat")).unwrap_or_default();
    let of_files = field(&stat, "total_inactive_file ").or_else(|| field(&stat, "inactive_file "));
    let used = used.saturating_sub(of_files.unwrap_or(0));
    Some((most.saturating_sub(used), most))
}

/// The same of a machine, from `/proc/meminfo`; both in KiB.
fn of_machine(meminfo: &str) -> Option<(u64, u64)> {
    field(meminfo, "MemAvailable:").zip(field(meminfo, "MemTotal:"))
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_ascii_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_files_and_processes_leave_of_the_limit() {
        let v2 = |path: &Path| {
            Some(match path.file_name()?.to_str()? {
                "memory.max" => "1000\n".to_string(),
                "memory.current" => "950\n".to_string(),
                "memory.stat" => "anon 650\ninactive_file 300\n".to_string(),
                _ => return None,
            })
        };
        let counter = Path::new("/sys/fs/cgroup/a/memory.events");
        assert_eq!(of_cgroup(counter, &v2), Some((350, 1000)));
        let unlimited = |path: &Path| path.ends_with("memory.max").then(|| "max\n".to_string());
        assert_eq!(of_cgroup(counter, &unlimited), None);
        let machine = "MemTotal:  2000 kB\nMemFree: 1 kB\nMemAvailable:  150 kB\n";
        let (left, all) = of_machine(machine).unwrap();
        assert!((left, all) == (150, 2000) && is_short(left, all) && !is_short(200, 2000));
    }
}
