//! The one error type of the Rust crates: a kind for programs, a sentence for people.
//!
//! Callers match on [`ErrorKind`]; nobody branches on the text. Each binding has one function from kinds to exception
//! classes (`rust/python/src/errors.rs`, `rust/jni/src/errors.rs`).
//!
//! TYPES-3 (one-class): in one language a kind is the same class of exception wherever it occurs. The table is
//! `tests/contract/errors.json`, which the tests of all languages read.

use std::any::Any;
use std::fmt::Display;
use std::io;

/// What went wrong, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller passed something that can't work; nothing was started or changed.
    Invalid,
    /// A deadline passed.
    Timeout,
    /// The other side can't be reached.
    Unreachable,
    /// The other side didn't prove that it knows the job's token, or is not part of the job.
    Refused,
    /// Bytes arrived that the protocol doesn't allow, or of another version.
    Protocol,
    /// The operating system refused.
    Io,
    /// The caller asked for the end.
    Cancelled,
    /// The other side ended, or the thing asked for no longer exists.
    Closed,
    /// Another rank of the group died, left or can't be reached: who gets this is the victim, not the cause.
    PeerLost,
    /// The caller passed something of another type than it has to be.
    WrongType,
    /// A file that the caller named isn't there.
    MissingFile,
    /// What the caller named as a file is a directory.
    Directory,
    /// The arguments are fine, but the cluster, the session or the run is not such that it could be done.
    State,
}

impl ErrorKind {
    /// Every kind, in the order of the error table; also the order of their codes between ranks.
    pub const ALL: [ErrorKind; 13] = [
        ErrorKind::Invalid,
        ErrorKind::Timeout,
        ErrorKind::Unreachable,
        ErrorKind::Refused,
        ErrorKind::Protocol,
        ErrorKind::Io,
        ErrorKind::Cancelled,
        ErrorKind::Closed,
        ErrorKind::PeerLost,
        ErrorKind::WrongType,
        ErrorKind::MissingFile,
        ErrorKind::Directory,
        ErrorKind::State,
    ];

    /// Its name in every language's exceptions.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "invalid",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Refused => "refused",
            ErrorKind::Protocol => "protocol",
            ErrorKind::Io => "io",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Closed => "closed",
            ErrorKind::PeerLost => "peer_lost",
            ErrorKind::WrongType => "wrong_type",
            ErrorKind::MissingFile => "missing_file",
            ErrorKind::Directory => "directory",
            ErrorKind::State => "state",
        }
    }

    /// What sort of exception it is in every language.
    pub fn class(self) -> ErrorClass {
        match self {
            ErrorKind::Invalid => ErrorClass::Value,
            ErrorKind::WrongType => ErrorClass::Type,
            ErrorKind::MissingFile => ErrorClass::MissingFile,
            ErrorKind::Directory => ErrorClass::Directory,
            ErrorKind::State => ErrorClass::State,
            ErrorKind::Timeout
            | ErrorKind::Unreachable
            | ErrorKind::Refused
            | ErrorKind::Protocol
            | ErrorKind::Io
            | ErrorKind::Cancelled
            | ErrorKind::Closed
            | ErrorKind::PeerLost => ErrorClass::Core,
        }
    }
}

/// What sort of exception an error becomes: one that a language has for what its caller did wrong, or the core's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// A value that can't be.
    Value,
    /// A value of the wrong type.
    Type,
    /// A file that isn't there.
    MissingFile,
    /// A directory in place of a file.
    Directory,
    /// The wrong moment or place.
    State,
    /// None of these: it has a kind of its own.
    Core,
}

/// What is said of a panic that a language binding caught; its kind in exceptions is `panic`.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("Phalanx itself failed: {}", text.unwrap_or("a panic without a message"))
}

/// An error with a kind for programs and a sentence for people.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// `Result` with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind`; `message` is one clear sentence without a trailing full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
    }

    /// An error of the kind of this name, for the bindings' tests of TYPES-3; there is none of a panic, which this
    /// makes without the lines that one prints.
    pub fn for_test(kind: &str, message: String) -> Self {
        match ErrorKind::ALL.into_iter().find(|known| known.name() == kind) {
            Some(kind) => Error::new(kind, message),
            None => std::panic::resume_unwind(Box::new(message)),
        }
    }

    /// An operating system error, with what was being done: `doing("bind the hub to 10.0.0.1")`.
    pub fn io(doing: impl Display, source: &io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::TimedOut => ErrorKind::Timeout,
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable => ErrorKind::Unreachable,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => ErrorKind::Closed,
            _ => ErrorKind::Io,
        };
        Error::new(kind, format!("can't {doing}: {source}"))
    }

    /// What went wrong, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The same kind with more of the story in front: `context("node 3")` gives `node 3: ...`.
    #[must_use]
    pub fn context(self, what: impl Display) -> Self {
        Error { kind: self.kind, message: format!("{what}: {}", self.message) }
    }
}
