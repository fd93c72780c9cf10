//! A rank without Python: where it is, how it finds the others, and what it leaves when it ends.
//!
//! NAT-1: exit code 0 means that the result is there, whole; otherwise `error.json` says why.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use phalanx_collective::{Exchange, Group, GroupOptions};
use phalanx_rendezvous::interfaces::local_address_towards;
use phalanx_rendezvous::store::StoreClient;
use phalanx_types::{Deadline, Error, ErrorKind, RankError, Result};
use rustix::time::{ClockId, clock_gettime};

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
        let (host, port) = (text("MASTER_ADDR")?, number("MASTER_PORT")?);
        let no_address =
            |why: String| Error::new(ErrorKind::Unreachable, format!("no address of {host}: {why}"));
        let store = (host.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| no_address(error.to_string()))?
            .next()
            .ok_or_else(|| no_address("its name has none".into()))?;
        let world_size = text("WORLD_SIZE")?
            .parse()
            .map_err(|_| Error::new(ErrorKind::Invalid, "WORLD_SIZE is no number"))?;
        let rank = text("RANK")?.parse().map_err(|_| Error::new(ErrorKind::Invalid, "RANK is no number"))?;
        let restart = variable("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".into());
        Ok(NativeRank {
            rank,
            world_size,
            store,
            payload: variable("PHALANX_PAYLOAD").map(Into::into),
            restart,
        })
    }

    /// Joins the group of all ranks. `name` tells groups apart: each is used once.
    ///
    /// # Errors
    /// As [`Group::join`]; what the store fails with.
    pub fn join(&self, name: &str, timeout: Duration) -> Result<Group> {
        let mut exchange = StoreExchange::connect(self.store, Deadline::after(timeout.min(CONNECT_TIMEOUT)))?;
        let name = format!("phalanx-torch/{}/{name}", self.restart);
        let mut options = GroupOptions::new(self.rank, self.world_size, name);
        options.timeout = timeout;
        if let Some(address) = local_address_towards(self.store) {
            options.address = address;
        }
        Group::join(options, &mut exchange)
    }
}

/// The c10d store as the place where the ranks of a group find one another.
#[derive(Debug)]
pub struct StoreExchange(StoreClient);

impl StoreExchange {
    /// Connects to the store.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] if nothing listens there, [`ErrorKind::Timeout`] at the deadline.
    pub fn connect(store: SocketAddr, deadline: Deadline) -> Result<StoreExchange> {
        StoreClient::connect(store, deadline).map(StoreExchange)
    }
}

impl Exchange for StoreExchange {
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
    let directory = std::env::var_os("PHALANX_RANK_DIR").map(PathBuf::from);
    let outcome = caught(|| {
        check_libtorch()?;
        let result = train(&NativeRank::from_environment()?)?;
        directory.as_deref().map_or(Ok(()), |path| leave(path, "result", &result))
    });
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    #[allow(clippy::print_stderr, reason = "the last words of a program, for its log")]
    {
        eprintln!("{}: {}", error.type_name, error.message);
    }
    // Without the record the exit code still tells of the failure.
    let _ = directory.map(|path| leave(&path, "error.json", &serde_json::to_vec(&error).unwrap_or_default()));
    ExitCode::FAILURE
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
    let peer_lost = error.kind() == ErrorKind::Closed;
    RankError { peer_lost, ..record_of(&format!("phalanx {:?}", error.kind()), error.to_string()) }
}

fn record_of(type_name: &str, message: String) -> RankError {
    let now = clock_gettime(ClockId::Monotonic);
    let at_us =
        u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1000;
    RankError { type_name: type_name.into(), message, at_us, ..RankError::default() }
}

/// Whole or not at all.
fn leave(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let (path, unfinished) = (directory.join(name), directory.join(format!("{name}.part")));
    let written = std::fs::write(&unfinished, bytes).and_then(|()| std::fs::rename(&unfinished, &path));
    written.map_err(|error| Error::io(format_args!("write {}", path.display()), &error))
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
        for (name, value) in [("RANK", None), ("WORLD_SIZE", Some("many")), ("MASTER_PORT", Some("x"))] {
            let error = rank_with(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn the_end_of_a_peer_is_recorded_as_an_echo() {
        assert!(record(&Error::new(ErrorKind::Closed, "rank 1 is gone")).peer_lost);
        let own = record(&Error::new(ErrorKind::Invalid, "no such file"));
        assert_eq!((own.peer_lost, own.type_name.as_str()), (false, "phalanx Invalid"));
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
    fn what_a_rank_leaves_is_whole_or_absent() {
        // NAT-1
        let folder = tempfile::tempdir().unwrap();
        leave(folder.path(), "result", b"result").unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert_eq!(names, ["result"]);
        assert_eq!(leave(&folder.path().join("none"), "result", b"").unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn this_test_has_loaded_the_libtorch_that_it_was_built_for() {
        tch::manual_seed(1);
        check_libtorch().unwrap();
    }
}
