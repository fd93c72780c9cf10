//! What the host and its guard say to each other: frames of JSON with their length in front, on the control socket.
//!
//! Both ends are of one build, which the guard checks by its first argument; so there is no other version to speak.

use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::time::{ClockId, clock_gettime};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What the guard must have been built from to understand this end.
pub(crate) const BUILD: &str = env!("CARGO_PKG_VERSION");

/// The exit code of a guard that was started by another build.
pub(crate) const EXIT_OTHER_BUILD: u8 = 3;

/// Longer frames are refused: a kernel takes no environment near this size.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// One rank to start.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The rank, for the events.
    pub rank: u32,
    /// The program: a path, or a name to look for on the rank's `PATH`.
    pub program: String,
    /// Its arguments, without the program's name.
    pub args: Vec<String>,
    /// Variables to set, over what is inherited from the host process and also where `env_remove` names them. The
    /// last of a name wins.
    pub env: Vec<(String, String)>,
    /// Variables not to inherit.
    pub env_remove: Vec<String>,
    /// The working directory; `None` for the host's.
    pub cwd: Option<std::path::PathBuf>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitHow {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// From the host.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Start this; the write ends of its pipes, output then notes, come with the frame's first byte.
    Launch(Box<Launch>),
    /// The same for a guard that was forked from a pool: it forks the rank instead of running a program. `env` is all
    /// that the rank has, and `cwd` is given.
    Fork(Box<Launch>),
    /// Send a rank that runs this signal; nothing to one that has ended.
    Signal { rank: u32, number: i32 },
    /// End everything, with the grace.
    Stop,
    /// End everything now.
    Kill,
}

/// From the guard. Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a host share.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    Started {
        rank: u32,
        pid: u32,
        at_ns: u64,
    },
    NotStarted {
        rank: u32,
        reason: String,
        at_ns: u64,
    },
    Ended {
        rank: u32,
        how: ExitHow,
        by_itself: bool,
        at_ns: u64,
    },
    /// The last one: nothing is left, or there is a problem that says why something may be.
    Over {
        problem: Option<String>,
    },
}

/// Now, as reports tell it.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The instant of a report's time.
pub(crate) fn instant_of(at_ns: u64) -> Instant {
    let now = Instant::now();
    now.checked_sub(Duration::from_nanos(now_ns().saturating_sub(at_ns))).unwrap_or(now)
}

/// `message` as a frame.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it is too long.
pub(crate) fn frame(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    serde_json::to_writer(&mut bytes, message).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("can't write a frame for the guard: {error}"))
    })?;
    let length = bytes.len() - 4;
    if length > MAX_FRAME_BYTES {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("a launch of {length} bytes is too long for the guard, which takes {MAX_FRAME_BYTES}"),
        ));
    }
    let header = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    bytes[..4].copy_from_slice(&header);
    Ok(bytes)
}

/// Puts frames together from the bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Adds what arrived.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole message; `None` while it isn't complete.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if the bytes are none of ours.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let Some(header) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*header)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a frame of {length} bytes on the control socket"),
            ));
        }
        let Some(body) = self.bytes.get(4..4 + length) else { return Ok(None) };
        let message = serde_json::from_slice(body).map_err(|error| {
            Error::new(
                ErrorKind::Protocol,
                format!("a frame on the control socket that says nothing known: {error}"),
            )
        })?;
        self.bytes.drain(..4 + length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_together_from_single_bytes() {
        let launch = Launch { rank: 7, program: "p".into(), ..Launch::default() };
        let mut bytes = frame(&Order::Launch(Box::new(launch.clone()))).unwrap();
        bytes.extend(frame(&Order::Stop).unwrap());
        let mut frames = Frames::default();
        let mut got = Vec::new();
        for byte in bytes {
            frames.push(&[byte]);
            got.extend(frames.next::<Order>().unwrap());
        }
        assert!(matches!(&got[..], [Order::Launch(l), Order::Stop] if **l == launch), "{got:?}");
    }

    #[test]
    fn bytes_of_somebody_else_are_refused() {
        let mut frames = Frames::default();
        frames.push(b"GET / HTTP/1.1\r\n");
        assert_eq!(frames.next::<Order>().unwrap_err().kind(), ErrorKind::Protocol);
        let mut frames = Frames::default();
        frames.push(&[2, 0, 0, 0, b'{', b'}']);
        assert_eq!(frames.next::<Order>().unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn a_report_s_time_comes_back_as_the_instant_it_was_made_at() {
        let (before, at_ns, after) = (Instant::now(), now_ns(), Instant::now());
        let at = instant_of(at_ns);
        let slack = Duration::from_millis(50);
        assert!(at + slack >= before && at <= after + slack);
    }
}
