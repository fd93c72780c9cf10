//! Trains a TorchScript module on scikit-learn's digits, on ranks that are programs of Rust.
//!
//! ```text
//! digits                       makes module and data with python3 (prepare.py), trains on 2 ranks
//! digits FOLDER                trains on what prepare.py made in FOLDER; writes FOLDER/losses-RANK.json
//! digits FOLDER --die RANK     the same, but this rank kills itself at half time
//! ```
//! This program is the driver's end and the node's end of a job in local mode; the ranks are the same program again,
//! started through the guard. No rank loads Python.

mod driver;
mod train;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use phalanx_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// The argument by which this program knows that it is a rank.
const RANK: &str = "--rank";

/// What every rank is told: the job's payload.
#[derive(Serialize, Deserialize)]
struct Task {
    /// Where the module, the data and their order are.
    folder: PathBuf,
    /// The rank that kills itself at half time.
    dies: Option<usize>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [RANK] => return phalanx_torch::run_rank(train::train),
        [] => with_own_data(),
        [folder] => driver::run(&Task { folder: folder.into(), dies: None }),
        [folder, "--die", rank] => driver::run(&Task { folder: folder.into(), dies: rank.parse().ok() }),
        _ => Err(Error::new(ErrorKind::Invalid, "usage: digits [FOLDER [--die RANK]]")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            driver::say(&format!("digits: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn with_own_data() -> Result<()> {
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a folder for the data", &error))?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/prepare.py");
    let made = Command::new("python3").arg(script).arg(folder.path()).status();
    match made {
        Ok(status) if status.success() => {
            driver::run(&Task { folder: folder.path().to_path_buf(), dies: None })
        }
        Ok(_) => Err(Error::new(
            ErrorKind::Invalid,
            "prepare.py needs torch and scikit-learn in the python3 that is first on PATH",
        )),
        Err(error) => Err(Error::io("run python3", &error)),
    }
}
