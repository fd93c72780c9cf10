//! The example, as a user runs it, beside the same training in Python.
//!
//! Needs a `python3` with torch and scikit-learn first on PATH; skips without.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]
#![allow(clippy::print_stderr, reason = "a test that skips says why")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use phalanx_testkit::{alive, descendants, eventually, eventually_some, program, temp_dir};

/// Python imports torch, on a machine that builds at the same time.
const LONG: Duration = Duration::from_secs(240);

/// The program of the example. `cargo test --test digits` alone would leave an old one there.
fn example() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let digits = ["--package", "phalanx-torch", "--example", "digits"];
    BUILT.get_or_init(|| program("examples/digits", &["."], &digits)).clone()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits").join(name)
}

/// Waits for a program to end; after [`LONG`] it is killed and the test fails.
fn output(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > LONG {
            child.kill().unwrap();
            panic!("not over in time: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Files' names and contents.
type Files = Vec<(OsString, Vec<u8>)>;

/// Module, data and order; `None`, with the reason told, where Python can't make them.
fn made() -> Option<Files> {
    let folder = temp_dir("digits");
    let made = output(start(Command::new("python3").arg(script("prepare.py")).arg(folder.path())));
    if made.status.success() {
        let files = std::fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
        return Some(files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())).collect());
    }
    let why = String::from_utf8_lossy(&made.stderr).trim().lines().last().unwrap_or_default().to_owned();
    assert!(why.starts_with("ModuleNotFoundError"), "{made:?}");
    eprintln!("skipped: {why}");
    None
}

/// A folder of a test's own with what [`made`] makes, once for all tests.
fn prepared() -> Option<tempfile::TempDir> {
    static MADE: OnceLock<Option<Files>> = OnceLock::new();
    let files = MADE.get_or_init(made).as_ref()?;
    let folder = temp_dir("digits");
    for (name, contents) in files {
        std::fs::write(folder.path().join(name), contents).unwrap();
    }
    Some(folder)
}

fn losses(path: &Path) -> Vec<f64> {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn native_ranks_have_the_losses_of_ddp_on_gloo() {
    let Some(folder) = prepared() else { return };
    let ours = output(start(Command::new(example()).arg(folder.path())));
    let text = String::from_utf8_lossy(&ours.stdout).into_owned();
    assert!(ours.status.success(), "{ours:?}");
    assert!(text.contains("[rank 0] step 50: loss"), "{text}");
    let theirs = output(start(Command::new("python3").arg(script("ddp.py")).arg(folder.path())));
    assert!(theirs.status.success(), "{theirs:?}");
    let mut worst = 0.0f64;
    for rank in 0..2 {
        let ours = losses(&folder.path().join(format!("losses-{rank}.json")));
        let theirs = losses(&folder.path().join(format!("ddp-{rank}.json")));
        assert_eq!((ours.len(), theirs.len()), (50, 50));
        for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let apart = (ours - theirs).abs() / theirs.abs();
            assert!(apart <= 1e-5, "rank {rank}, step {step}: {ours} and {theirs}");
            worst = worst.max(apart);
        }
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&ours[40..]) < 0.5 * mean(&ours[..10]), "it learns: {ours:?}");
    }
    eprintln!("the losses are at most {worst:.1e} apart\n{text}");
}

#[test]
fn a_native_rank_that_is_killed_is_the_cause_and_nothing_stays() {
    let Some(folder) = prepared() else { return };
    let child = start(Command::new(example()).arg(folder.path()).args(["--die", "1"]));
    let pid = child.id();
    let maps = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let family = eventually_some("both ranks have libtorch", LONG, || {
        let family = descendants(pid);
        let ranks = family.iter().filter(|process| maps(process.pid).contains("libtorch_cpu.so")).count();
        (ranks == 2).then_some(family)
    });
    assert!(family.iter().all(|process| !maps(process.pid).contains("libpython")), "no rank has Python");
    let ended = output(child);
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!ended.status.success(), "{text}");
    let cause = text.lines().find(|line| line.starts_with("digits: ")).unwrap_or_default();
    assert!(cause.contains("rank 1") && cause.contains("SIGKILL"), "{text}");
    assert!(!folder.path().join("losses-0.json").exists(), "TYPES-4");
    for process in family {
        eventually("nothing of the job runs", LONG, || !alive(process.pid));
    }
}

#[test]
fn what_a_rank_fails_with_is_the_jobs_failure() {
    let Some(folder) = prepared() else { return };
    std::fs::write(folder.path().join("model.pt"), "no module").unwrap();
    let ended = output(start(Command::new(example()).arg(folder.path())));
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!ended.status.success(), "{text}");
    let cause = text.lines().find(|line| line.starts_with("digits: ")).unwrap_or_default();
    assert!(cause.contains("raised phalanx Invalid: can't load model.pt, a TorchScript module"), "{text}");
}
