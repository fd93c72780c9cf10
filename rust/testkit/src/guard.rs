//! Where the guard's program is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The `phalanx-guard` program of the build that this test program is of. Cargo makes it for the supervisor's own
/// tests; for those of other crates it is made here, once, where it is missing or older than its source.
pub fn guard_binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(find).clone()
}

fn find() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_else(|error| panic!("which program is this? {error}"));
    // target/debug/deps/test-123, or target/debug/examples/...
    let profile =
        test.parent().and_then(Path::parent).unwrap_or_else(|| panic!("{test:?} is no test program"));
    let binary = profile.join("phalanx-guard");
    let rust = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let newest_source =
        ["supervisor/src", "types/src"].iter().filter_map(|source| newest(&rust.join(source))).max();
    if changed(&binary).is_none_or(|made| newest_source.is_some_and(|source| source > made)) {
        build(profile);
    }
    assert!(binary.exists(), "cargo made no {}", binary.display());
    binary
}

fn build(profile: &Path) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args([
        "build",
        "--quiet",
        "--package",
        "phalanx-supervisor",
        "--bin",
        "phalanx-guard",
        "--profile",
        name,
    ]);
    if let Some(target) = profile.parent() {
        cargo.arg("--target-dir").arg(target);
    }
    match cargo.status() {
        Ok(status) => assert!(status.success(), "cargo could not make the guard"),
        Err(error) => panic!("can't run cargo to make the guard: {error}"),
    }
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

fn newest(directory: &Path) -> Option<SystemTime> {
    std::fs::read_dir(directory)
        .ok()?
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            if path.is_dir() { newest(&path) } else { changed(&path) }
        })
        .max()
}
