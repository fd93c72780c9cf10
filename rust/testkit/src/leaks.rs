//! The proof that a test leaves no descriptor, thread or child behind.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{children, eventually};

/// How long what was let go of may take to be gone.
const SETTLE: Duration = Duration::from_secs(5);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Looks at this process's descriptors, its children and its threads named `phalanx-...` now, and again when dropped:
/// then there must be no others. Tests that hold one run one at a time, or each would see what the others do; so in a
/// test program that uses it, every test does.
#[derive(Debug)]
pub struct Leaks {
    before: Found,
    _alone: MutexGuard<'static, ()>,
}

/// Keeps a test from leaving anything; see [`Leaks`].
#[must_use = "looks for leaks when it is dropped"]
pub fn leaks() -> Leaks {
    let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Leaks { before: Found::now(), _alone: alone }
}

impl Drop for Leaks {
    fn drop(&mut self) {
        // A test that failed has said why; a second panic would only abort.
        if !std::thread::panicking() {
            let mut left = Vec::new();
            let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                eventually("nothing is left", SETTLE, || {
                    left = Found::now().beyond(&self.before);
                    left.is_empty()
                });
            }));
            assert!(settled.is_ok(), "the test leaves {}", left.join(", "));
        }
    }
}

/// By a key that tells one from another, with a description.
#[derive(Debug)]
struct Found(BTreeMap<String, String>);

impl Found {
    fn now() -> Found {
        let mut found = BTreeMap::new();
        for (number, fd) in entries("/proc/self/fd") {
            if let Ok(target) = fs::read_link(&fd) {
                // The one that reads this directory.
                if !target.ends_with("fd") {
                    found.insert(
                        format!("fd {number} {}", target.display()),
                        format!("descriptor {number} ({})", target.display()),
                    );
                }
            }
        }
        for (id, thread) in entries("/proc/self/task") {
            let name = fs::read_to_string(format!("{thread}/comm")).unwrap_or_default();
            if name.starts_with("phalanx-") {
                found.insert(format!("thread {id}"), format!("thread {}", name.trim_end()));
            }
        }
        for child in children(std::process::id()) {
            let description = format!("child {} (pid {}, state {})", child.name, child.pid, child.state);
            found.insert(format!("child {}", child.pid), description);
        }
        Found(found)
    }

    fn beyond(self, before: &Found) -> Vec<String> {
        self.0
            .into_iter()
            .filter(|(key, _)| !before.0.contains_key(key))
            .map(|(_, description)| description)
            .collect()
    }
}

fn entries(directory: &str) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .map(|name| (name.clone(), format!("{directory}/{name}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_left_is_found_and_named() {
        let leaks = leaks();
        let file = fs::File::open("/dev/zero").unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread =
            std::thread::Builder::new().name("phalanx-left".into()).spawn(move || ended.recv()).unwrap();
        eventually("all three are found", SETTLE, || {
            let left = Found::now().beyond(&leaks.before).join(", ");
            ["/dev/zero", "child sleep", "thread phalanx-left"].iter().all(|one| left.contains(one))
        });
        drop((file, end));
        assert!(thread.join().unwrap().is_err());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
