//! A rank without Python: its place, how it finds the others, and what it leaves when it ends.
//!
//! TORCH-3 (whole-result): exit code 0 means that the result is there, whole; otherwise `error.json` says why.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use phalanx_collective::{Group, GroupOptions, Store, job_encryption, job_key};
use phalanx_io::{monotonic_us, write_whole};
use phalanx_rendezvous::interfaces::{local_address_towards, resolve};
use phalanx_rendezvous::store::StoreClient;
use phalanx_types::contract::{
    ENV_MASTER_ADDR, ENV_MASTER_PORT, ENV_PAYLOAD, ENV_RANK, ENV_RANK_DIR, ENV_RANK0_ADDRESS,
    ENV_RESTART_COUNT, ENV_WORLD_SIZE, FILE_ERROR, FILE_OWED, FILE_RESULT,
};
use phalanx_types::{Deadline, Error, ErrorKind, RankError, RankErrorKind, Result};

use crate::libtorch;

/// How long the store may take to be there: it is, before any rank starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// This process as a rank, from torchrun's environment variables, which Phalanx and torchrun set.
#[derive(Debug, Clone)]
pub struct NativeRank {
    /// The number of this rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// Where the store is.
    pub store: SocketAddr,
    /// What the job gave its ranks to run; empty under torchrun.
    pub payload: Option<PathBuf>,
    restart: String,
    /// Where rank 0 is: the others reach this rank at its address on the way there.
    rank0: SocketAddr,
}

impl NativeRank {
    /// Reads the process's environment.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a variable is missing or not what it should be, by its name.
    pub fn from_environment() -> Result<NativeRank> {
        NativeRank::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<NativeRank> {
        let text = |name: &str| {
            variable(name).ok_or_else(|| {
                let text = format!("{name} is not set: ranks are started by a Phalanx job, or by torchrun");
                Error::new(ErrorKind::Invalid, text)
            })
        };
        let number = |name: &str| {
            let value = text(name)?;
            let wrong =
                |_| Error::new(ErrorKind::Invalid, format!("{name} is {value:?}, which is no number"));
            value.parse::<u16>().map_err(wrong)
        };
        let (host, port) = (text(ENV_MASTER_ADDR)?, number(ENV_MASTER_PORT)?);
        let no_address = || Error::new(ErrorKind::Unreachable, format!("{host} has no address"));
        let store = resolve(&host, port)?.into_iter().next().ok_or_else(no_address)?;
        let world_size = text(ENV_WORLD_SIZE)?
            .parse()
            .map_err(|_| Error::new(ErrorKind::Invalid, "WORLD_SIZE is no number"))?;
        let rank =
            text(ENV_RANK)?.parse().map_err(|_| Error::new(ErrorKind::Invalid, "RANK is no number"))?;
        let restart = variable(ENV_RESTART_COUNT).unwrap_or_else(|| "0".into());
        let rank0 = match variable(ENV_RANK0_ADDRESS) {
            Some(address) => address.parse().map_err(|_| {
                let text = format!("{ENV_RANK0_ADDRESS} is {address:?}, which is no address");
                Error::new(ErrorKind::Invalid, text)
            })?,
            None => store.ip(),
        };
        let rank0 = SocketAddr::new(rank0, store.port());
        let payload = variable(ENV_PAYLOAD).map(Into::into);
        Ok(NativeRank { rank, world_size, store, payload, restart, rank0 })
    }

    /// Joins the group of all ranks. `name` tells groups apart: each is used once.
    ///
    /// # Errors
    /// As [`Group::join`]; what the store fails with.
    pub fn join(&self, name: &str, timeout: Duration) -> Result<Group> {
        let mut store = TcpStore::connect(self.store, Deadline::after(timeout.min(CONNECT_TIMEOUT)))?;
        let name = format!("phalanx-torch/{}/{name}", self.restart);
        let mut options = GroupOptions::new(self.rank, self.world_size, name);
        options.timeout = timeout;
        options.key = job_key()?;
        options.encryption = job_encryption()?;
        if let Some(address) = local_address_towards(self.rank0) {
            options.address = address;
        }
        Group::join(options, &mut store)
    }
}

/// The c10d store as the place where the ranks of a group find one another.
#[derive(Debug)]
pub struct TcpStore(StoreClient);

impl TcpStore {
    /// Connects to the store.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if nothing listens there, [`ErrorKind::Timeout`] at the deadline.
    pub fn connect(store: SocketAddr, deadline: Deadline) -> Result<TcpStore> {
        StoreClient::connect(store, deadline).map(TcpStore)
    }
}

impl Store for TcpStore {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.0.set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.0.get(key, deadline)
    }
}

/// Runs `train` as this process's part in a job; for `main`. What it returns is the rank's result; an error or a panic
/// is recorded where the job's failure takes it from, and written to standard error.
pub fn run_rank(train: impl FnOnce(&NativeRank) -> Result<Vec<u8>>) -> ExitCode {
    let directory = std::env::var_os(ENV_RANK_DIR).map(PathBuf::from);
    let outcome = recorded(directory.as_deref(), || {
        check_libtorch()?;
        train(&NativeRank::from_environment()?)
    });
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    #[allow(clippy::print_stderr, reason = "the last words of a program, for its log")]
    {
        eprintln!("{}: {}", error.type_name, error.message);
    }
    ExitCode::FAILURE
}

/// Runs `train` and leaves what became of it in `directory`, if there is one: the result, which it promises first, or
/// the record.
fn recorded(
    directory: Option<&Path>,
    train: impl FnOnce() -> Result<Vec<u8>>,
) -> std::result::Result<(), RankError> {
    let leave =
        |name: &str, bytes: &[u8]| directory.map_or(Ok(()), |path| write_whole(&path.join(name), bytes));
    let trained = || {
        if let Some(path) = directory {
            forget(&path.join(FILE_RESULT))?;
        }
        leave(FILE_OWED, std::process::id().to_string().as_bytes())?;
        leave(FILE_RESULT, &train()?)
    };
    caught(trained).inspect_err(|error| {
        // Without the record the exit code still tells of the failure.
        let _ = leave(FILE_ERROR, &serde_json::to_vec(error).unwrap_or_default());
    })
}

/// Removes what a program before this one has left in the same rank.
fn forget(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(format!("remove {}", path.display()), &e))
        }
        _ => Ok(()),
    }
}

/// Runs `work`; an error or a panic as the record of it.
fn caught(work: impl FnOnce() -> Result<()>) -> std::result::Result<(), RankError> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| record(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(record_of("panic", text.unwrap_or_else(|| "the rank panicked".into())))
        }
    }
}

/// Whether the libtorch that this process has loaded is the one that it was made for.
///
/// # Errors
/// [`ErrorKind::Invalid`] with the version that it is, and what to do.
pub fn check_libtorch() -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    match libtorch::loaded_root(&maps) {
        Some(root) => libtorch::check(&root).map_err(|text| Error::new(ErrorKind::Invalid, text)),
        // Linked statically, or a system without /proc.
        None => Ok(()),
    }
}

fn record(error: &Error) -> RankError {
    let kind = match error.kind() {
        // The store's connection closes with the node that serves it.
        ErrorKind::PeerLost | ErrorKind::Closed => RankErrorKind::PeerLost,
        _ => RankErrorKind::TrainingCode,
    };
    RankError { kind, ..record_of(&format!("phalanx {:?}", error.kind()), error.to_string()) }
}

fn record_of(type_name: &str, message: String) -> RankError {
    RankError { type_name: type_name.into(), message, at_us: monotonic_us(), ..RankError::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_with(changes: &[(&str, Option<&str>)]) -> Result<NativeRank> {
        let set = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "4711")];
        NativeRank::from_variables(|name| {
            let changed = changes.iter().find(|(changed, _)| *changed == name).map(|(_, value)| *value);
            let usual = set.iter().find(|(usual, _)| *usual == name).map(|(_, value)| *value);
            changed.unwrap_or(usual).map(str::to_owned)
        })
    }

    #[test]
    fn a_rank_knows_its_place_from_torchruns_variables() {
        let rank = rank_with(&[]).unwrap();
        assert_eq!((rank.rank, rank.world_size, rank.payload), (1, 4, None));
        assert_eq!(rank.store, "127.0.0.1:4711".parse().unwrap());
        assert!(rank_with(&[("MASTER_ADDR", Some("::1"))]).unwrap().store.is_ipv6());
    }

    #[test]
    fn a_variable_that_is_missing_or_wrong_is_named() {
        for (name, value) in [
            ("RANK", None),
            ("WORLD_SIZE", Some("many")),
            ("MASTER_PORT", Some("x")),
            ("PHALANX_RANK0_ADDRESS", Some("10.0.0.")),
        ] {
            let error = rank_with(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_end_of_a_peer_is_recorded_as_an_echo() {
        let echo = record(&Error::new(ErrorKind::PeerLost, "rank 1 is gone"));
        assert_eq!(echo.kind, RankErrorKind::PeerLost);
        let own = record(&Error::new(ErrorKind::Invalid, "no such file"));
        assert_eq!((own.kind, own.type_name.as_str()), (RankErrorKind::TrainingCode, "phalanx Invalid"));
        assert!(own.at_us > 0);
    }

    #[test]
    fn a_panic_is_recorded_with_its_words() {
        // As tch's own calls panic that are not fallible.
        let record = caught(|| panic!("shape {}", 3)).unwrap_err();
        assert_eq!((record.type_name.as_str(), record.message.as_str()), ("panic", "shape 3"));
        assert_eq!(caught(|| Err(Error::new(ErrorKind::Io, "disk"))).unwrap_err().message, "disk");
        assert_eq!(caught(|| Ok(())), Ok(()));
    }

    #[test]
    fn a_rank_leaves_its_result_or_says_why_it_has_none() {
        let left = |train: fn() -> Result<Vec<u8>>| {
            let folder = tempfile::tempdir().unwrap();
            let outcome = recorded(Some(folder.path()), train);
            let mut names: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|one| one.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            (outcome.is_ok(), names.join(" "))
        };
        assert_eq!(left(|| Ok(b"result".to_vec())), (true, "owed result".into()), "TORCH-3");
        let fails = || Err(Error::new(ErrorKind::Io, "disk"));
        assert_eq!(left(fails), (false, "error.json owed".into()), "TORCH-3");
        assert_eq!(left(|| panic!("shape")), (false, "error.json owed".into()), "TORCH-3");
        let nowhere = recorded(Some(Path::new("/nowhere")), || Ok(Vec::new())).unwrap_err();
        assert_eq!(nowhere.type_name, "phalanx Io", "TORCH-3: a result that can't be kept is a failure");
    }

    #[test]
    fn a_rank_promises_its_own_result_and_not_one_of_a_program_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::write(path.join(FILE_RESULT), "of before").unwrap();
        let outcome = recorded(Some(path), || {
            assert!(!path.join(FILE_RESULT).exists(), "TORCH-3");
            let promised = std::fs::read_to_string(path.join(FILE_OWED)).unwrap();
            assert_eq!(promised, std::process::id().to_string(), "NODE-55");
            Ok(Vec::new())
        });
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn this_test_has_loaded_the_libtorch_that_it_was_built_for() {
        tch::manual_seed(1);
        check_libtorch().unwrap();
    }
}
