//! The one error type of the Rust crates: a kind for programs, a sentence for people.
//!
//! Callers match on [`ErrorKind`]; nobody branches on the text. Bindings map kinds to exception classes.

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
}

impl ErrorKind {
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
        }
    }
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
