//! The programs of this workspace that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The `phalanx-guard` program of the build that this test program is of. Cargo makes it for the supervisor's own
/// tests; for those of other crates [`program`] makes it.
pub fn guard_binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let guard = ["--package", "phalanx-supervisor", "--bin", "phalanx-guard"];
    BINARY.get_or_init(|| program("phalanx-guard", &["supervisor/src", "types/src"], &guard)).clone()
}

/// The program at `path` in the build that this test program is of, as `examples/digits` in `target/debug`. Where it is
/// missing or older than its `sources`, which are folders in `rust`, `cargo build` makes it with `arguments`.
pub fn program(path: &str, sources: &[&str], arguments: &[&str]) -> PathBuf {
    let test = std::env::current_exe().unwrap_or_else(|error| panic!("which program is this? {error}"));
    // target/debug/deps/test-123, or target/debug/examples/...
    let profile =
        test.parent().and_then(Path::parent).unwrap_or_else(|| panic!("{test:?} is no test program"));
    let program = profile.join(path);
    let rust = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let newest_source = sources.iter().filter_map(|source| newest(&rust.join(source))).max();
    if changed(&program).is_none_or(|made| newest_source.is_some_and(|source| source > made)) {
        build(profile, arguments);
    }
    assert!(program.exists(), "cargo made no {}", program.display());
    program
}

fn build(profile: &Path, arguments: &[&str]) {
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--profile", name]).args(arguments);
    if let Some(target) = profile.parent() {
        cargo.arg("--target-dir").arg(target);
    }
    // What cargo tells a test of its package. A build script that asks for it, as ring's does, would run again, and all
    // that needs it be compiled anew, here and the next time that cargo runs without.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            cargo.env_remove(name);
        }
    }
    match cargo.status() {
        Ok(status) => assert!(status.success(), "cargo could not make {arguments:?}"),
        Err(error) => panic!("can't run cargo to make {arguments:?}: {error}"),
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
