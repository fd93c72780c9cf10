//! What the client and its guard say to each other: frames of JSON with their length in front, on the control socket.
//!
//! Both ends are of one build, which the guard checks by its first argument. So there is only one version of it.

use phalanx_io::{FrameBuffer, write_frame};
use phalanx_types::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::launch::Launch;

/// What the guard must have been built from to understand this end.
pub(crate) const BUILD: &str = env!("CARGO_PKG_VERSION");

/// The exit code of a guard that was started by another build.
pub(crate) const EXIT_OTHER_BUILD: u8 = 3;

/// Longer frames are refused: a kernel takes no environment near this size.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// From the client.
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

/// From the guard. Times are [`phalanx_io::monotonic_ns`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GuardMessage {
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
        how: ExitStatus,
        by_itself: bool,
        at_ns: u64,
    },
    /// The last one: nothing is left, or there is a problem that says why something may be.
    Over {
        problem: Option<String>,
    },
}

/// `message` as a frame.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it is too long.
pub(crate) fn frame(message: &impl Serialize) -> Result<Vec<u8>> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
    let json = serde_json::to_vec(message)
        .map_err(|error| invalid(format!("can't write a frame for the guard: {error}")))?;
    if json.len() > MAX_FRAME_BYTES {
        let length = json.len();
        let why =
            format!("a launch of {length} bytes is too long for the guard, which takes {MAX_FRAME_BYTES}");
        return Err(invalid(why));
    }
    let mut bytes = Vec::with_capacity(json.len() + 4);
    write_frame(&mut bytes, |bytes| bytes.extend_from_slice(&json));
    Ok(bytes)
}

/// The next whole message of a control socket; `None` while it isn't complete.
///
/// # Errors
/// [`ErrorKind::Protocol`] if the bytes are none of ours.
pub(crate) fn next_message<T: DeserializeOwned>(received: &mut FrameBuffer) -> Result<Option<T>> {
    let Some(body) = received.next_frame(MAX_FRAME_BYTES)? else { return Ok(None) };
    serde_json::from_slice(body).map(Some).map_err(|error| {
        let why = format!("an unknown frame on the control socket: {error}");
        Error::new(ErrorKind::Protocol, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_as_they_were_sent() {
        let launch = Launch { rank: 7, program: "p".into(), ..Launch::default() };
        let mut received = FrameBuffer::default();
        received.push(&frame(&Order::Launch(Box::new(launch.clone()))).unwrap());
        received.push(&frame(&Order::Stop).unwrap());
        let got: Vec<Order> = std::iter::from_fn(|| next_message(&mut received).unwrap()).collect();
        assert!(matches!(&got[..], [Order::Launch(l), Order::Stop] if **l == launch), "{got:?}");
    }

    #[test]
    fn bytes_of_somebody_else_are_refused() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[2, 0, 0, 0, b'{', b'}']] {
            let mut received = FrameBuffer::default();
            received.push(bytes);
            assert_eq!(next_message::<Order>(&mut received).unwrap_err().kind(), ErrorKind::Protocol);
        }
    }
}
