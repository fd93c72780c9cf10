//! Accepting the connections that wait at a listener which doesn't block.
//!
//! IO-1 (keeps-accepting): an error of one connection ends no listener. If the system has no descriptor or memory
//! for a connection, accepting pauses and then goes on.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// How long accepting rests when the system has no descriptor or memory left.
const REST: Duration = Duration::from_millis(50);
/// How many connections are accepted before others get their turn.
const TURN: usize = 128;

/// The connections that wait at one listener, whose poll may be edge-triggered.
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Instant;
/// use phalanx_io::Backlog;
///
/// # fn main() -> std::io::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// listener.set_nonblocking(true)?;
/// let mut backlog = Backlog::new("the server");
/// assert!(backlog.next(Instant::now(), || listener.accept()).is_none(), "nobody has connected");
/// assert_eq!(backlog.due(), None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Backlog {
    /// Whose, for the log.
    of: &'static str,
    due: Option<Instant>,
    /// How many calls this turn has had.
    calls: usize,
    /// The system refuses connections, and the log says so.
    starved: bool,
}

impl Backlog {
    /// For the listener of `of`, which the log names.
    pub fn new(of: &'static str) -> Backlog {
        Backlog { of, due: None, calls: 0, starved: false }
    }

    /// When to accept although the poll doesn't say so; `None` if it will.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether to accept at `now` although the poll doesn't say so.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// A connection was closed: whoever waits for a descriptor may have that one.
    pub fn hurry(&mut self, now: Instant) {
        if let Some(due) = &mut self.due {
            *due = now;
        }
    }

    /// The next connection, from `accept`, which must not block. `None` when there is none, when the system refuses, or
    /// when the others have their turn; after the last two the backlog is [due](Backlog::due) again.
    pub fn next<T>(&mut self, now: Instant, mut accept: impl FnMut() -> io::Result<T>) -> Option<T> {
        self.due = None;
        while self.calls < TURN {
            self.calls += 1;
            match accept() {
                Ok(connection) => {
                    self.starved = false;
                    return Some(connection);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.rest(None),
                // The peer gave up, or a packet disturbed the call: the next may be fine.
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.starved, true) {
                        log::warn!("{} can't accept connections at the moment: {error}", self.of);
                    }
                    return self.rest(Some(now + REST));
                }
            }
        }
        self.rest(Some(now))
    }

    fn rest<T>(&mut self, due: Option<Instant>) -> Option<T> {
        (self.due, self.calls) = (due, 0);
        None
    }
}

fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
            | ErrorKind::TimedOut
            | ErrorKind::PermissionDenied
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NetworkDown
    )
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// What is taken from a listener that answers so.
    fn taken(backlog: &mut Backlog, now: Instant, answers: &[Result<u32, ErrorKind>]) -> Vec<u32> {
        let mut answers: VecDeque<_> = answers.iter().copied().collect();
        let mut taken = Vec::new();
        let mut accept =
            || answers.pop_front().unwrap_or(Err(ErrorKind::WouldBlock)).map_err(io::Error::from);
        while let Some(connection) = backlog.next(now, &mut accept) {
            taken.push(connection);
        }
        taken
    }

    #[test]
    fn an_error_of_one_connection_ends_nothing() {
        let (mut backlog, now) = (Backlog::new("the test"), Instant::now());
        let answers = [Ok(1), Err(ErrorKind::ConnectionAborted), Err(ErrorKind::Interrupted), Ok(2)];
        assert_eq!(taken(&mut backlog, now, &answers), [1, 2], "IO-1");
        assert_eq!(backlog.due(), None);
    }

    #[test]
    fn a_system_without_descriptors_is_asked_again_after_a_rest() {
        let (mut backlog, now) = (Backlog::new("the test"), Instant::now());
        assert_eq!(taken(&mut backlog, now, &[Ok(1), Err(ErrorKind::Other), Ok(2)]), [1], "IO-1");
        assert!(!backlog.is_due(now) && backlog.is_due(now + REST));
        backlog.hurry(now);
        assert!(backlog.is_due(now), "a descriptor was given back");
        assert_eq!(taken(&mut backlog, now, &[Ok(2)]), [2]);
        assert_eq!(backlog.due(), None);
        backlog.hurry(now);
        assert_eq!(backlog.due(), None, "nothing to hurry");
    }

    #[test]
    fn a_crowd_waits_for_the_others_turn() {
        let (mut backlog, now) = (Backlog::new("the test"), Instant::now());
        let crowd: Vec<_> = (0..200).map(Ok).collect();
        assert_eq!(taken(&mut backlog, now, &crowd).len(), TURN);
        assert!(backlog.is_due(now));
    }
}
