//! How a rank's door opens connections to others: all handshakes at once, none of them waited for.
//!
//! - GROUP-17 (tried-again): a rank that hangs up, as it does on the oldest of too many strangers, is asked again. So
//!   is one that can't be reached, once the group has formed: the link may come back. Whoever waits has a deadline, and
//!   looks whether that rank is still there.
//! - GROUP-18 (refused-is-gone): a rank's door listens as long as the rank is in the group. So once the group has
//!   formed, a rank at whose address nobody listens has left, or has died.
//! - GROUP-19 (goodbye-too): who leaves while the other side may have taken its sentinel, and it hasn't heard so, says
//!   goodbye over that one, too.

use std::io::ErrorKind as IoKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use phalanx_io::PublicKey;
use phalanx_types::{Error, ErrorKind, Key, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use crate::door::connections::{Connections, Place, SENTINEL, TAKEN};
use crate::door::handshake::{ANSWER_BYTES, Hello, INTRODUCING, Introduction};
use crate::door::link::Link;
use crate::door::tcp;
use crate::forks::{Opening, Private};
use crate::peers::GOODBYE;

/// How many connections are opened at a time.
const MOST_AT_ONCE: usize = 128;
/// How long after a try that came to nothing the next one is, at first, and how often that is doubled.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const MOST_DOUBLED: u32 = 5;

/// How a rank is reached.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// With what key, where connections are encrypted.
    pub(crate) tls_key: Option<PublicKey>,
}

/// The connections that this rank opens.
pub(crate) struct Dialer {
    me: usize,
    key: Key,
    dials: Vec<Dial>,
}

struct Dial {
    place: Place,
    stage: Stage,
    is_ready: bool,
    tries: u32,
    /// Whether nobody listened there, the last time.
    is_refused: bool,
}

enum Stage {
    Resting(Instant),
    Connecting(Private<TcpStream>),
    Agreeing(Link),
    Introduced(Link, Introduction, Vec<u8>),
    /// Has proved itself, and waits to be taken.
    Proved(Link),
}

impl Dialer {
    pub(crate) fn new(me: usize, key: Key) -> Dialer {
        Dialer { me, key, dials: Vec::new() }
    }

    /// Goes on with all that is ready, and begins what was asked for.
    pub(crate) fn advance(&mut self, connections: &Connections, targets: &[Target], now: Instant) {
        let asked = std::iter::from_fn(|| connections.next_asked());
        let more = asked.take(MOST_AT_ONCE.saturating_sub(self.dials.len()));
        self.dials.extend(more.map(|place| Dial {
            place,
            stage: Stage::Resting(now),
            is_ready: true,
            tries: 0,
            is_refused: false,
        }));
        let is_formed = connections.is_formed();
        let Dialer { me, key, dials } = self;
        dials.retain_mut(|dial| {
            let (place, target) = (dial.place, &targets[dial.place.0]);
            if !connections.is_opening(place) {
                return false;
            }
            if matches!(dial.stage, Stage::Resting(until) if until <= now) {
                dial.is_ready = true;
            }
            if !dial.is_ready {
                return true;
            }
            dial.is_ready = false;
            dial.is_refused = false;
            match dial.advance(*me, key, target) {
                Ok(None) => true,
                Ok(Some(link)) => {
                    connections.opened(place, link);
                    false
                }
                Err(_) if is_formed && dial.is_refused => {
                    let Target { address, .. } = target;
                    let text = format!(
                        "rank {} has left the group, or has died: nothing listens at {address} any more",
                        place.0
                    );
                    connections.fail(place, Error::new(ErrorKind::PeerLost, text));
                    false
                }
                Err(error) if is_final(&error, is_formed) => {
                    let rank = format!("rank {} at {}", place.0, target.address);
                    connections.fail(place, error.context(rank));
                    false
                }
                Err(error) => {
                    log::debug!("rank {me}: a connection to rank {} failed: {error}", place.0);
                    connections.troubled(place, error);
                    dial.stage = Stage::Resting(now + RETRY_PAUSE * (1 << dial.tries.min(MOST_DOUBLED)));
                    dial.tries += 1;
                    true
                }
            }
        });
    }

    /// When to go on although no socket is ready.
    pub(crate) fn due(&self) -> Option<Instant> {
        let resting = self.dials.iter().filter_map(|dial| match dial.stage {
            Stage::Resting(until) => Some(until),
            _ => None,
        });
        resting.min()
    }

    /// What to look at, in the order in which [`Dialer::set_ready`] wants to hear of it.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.dials.iter().filter_map(|dial| {
            Some(match &dial.stage {
                Stage::Resting(_) => return None,
                Stage::Connecting(socket) => PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT),
                Stage::Agreeing(link) | Stage::Introduced(link, ..) | Stage::Proved(link) => {
                    PollFd::from_borrowed_fd(link.as_fd(), PollFlags::IN)
                }
            })
        })
    }

    pub(crate) fn set_ready(&mut self, mut ready: impl Iterator<Item = bool>) {
        for dial in self.dials.iter_mut().filter(|dial| !matches!(dial.stage, Stage::Resting(_))) {
            dial.is_ready = ready.next().unwrap_or(true);
        }
    }

    /// GROUP-19
    pub(crate) fn leave(&self) {
        for dial in &self.dials {
            if let (SENTINEL, Stage::Proved(link)) = (dial.place.1, &dial.stage) {
                // Who is gone needs none.
                let _ = link.post(&[GOODBYE]);
            }
        }
    }
}

/// Whether another try would end the same, or is no use while the group forms (GROUP-11).
fn is_final(error: &Error, is_formed: bool) -> bool {
    match error.kind() {
        ErrorKind::Closed => false,
        ErrorKind::Unreachable | ErrorKind::Timeout => !is_formed,
        _ => true,
    }
}

impl Dial {
    fn cannot_connect(&mut self, address: SocketAddr, error: &std::io::Error) -> Error {
        self.is_refused = error.kind() == IoKind::ConnectionRefused;
        match self.is_refused {
            true => {
                Error::new(ErrorKind::Unreachable, format!("can't connect to {address}: connection refused"))
            }
            false => Error::io(format_args!("connect to {address}"), error),
        }
    }

    /// As far as it goes without waiting.
    fn advance(&mut self, me: usize, key: &Key, target: &Target) -> Result<Option<Link>> {
        let (to, connection) = self.place;
        loop {
            // An error leaves it at rest.
            let stage = std::mem::replace(&mut self.stage, Stage::Resting(Instant::now()));
            self.stage = match stage {
                Stage::Resting(_) => {
                    self.stage = Stage::Connecting(
                        connect(target.address)
                            .map_err(|error| self.cannot_connect(target.address, &error))?,
                    );
                    return Ok(None);
                }
                Stage::Connecting(socket) => {
                    let error = socket.take_error().unwrap_or_else(Some);
                    error.map_or(Ok(()), |error| Err(self.cannot_connect(target.address, &error)))?;
                    tcp::prepare(&socket)?;
                    Stage::Agreeing(match &target.tls_key {
                        Some(key) => Link::dial(socket, key)?,
                        None => Link::plain(socket),
                    })
                }
                Stage::Agreeing(link) => {
                    if !link.agree()? {
                        self.stage = Stage::Agreeing(link);
                        return Ok(None);
                    }
                    let hello = Hello { from: me as u32, to: to as u32, connection };
                    let introduction = Introduction::new(hello)?;
                    say(&link, introduction.hello())?;
                    Stage::Introduced(link, introduction, Vec::with_capacity(ANSWER_BYTES))
                }
                Stage::Introduced(link, introduction, mut answer) => {
                    let mut came = [0; ANSWER_BYTES];
                    let Some(count) = hear(&link, &mut came[answer.len()..])? else {
                        self.stage = Stage::Introduced(link, introduction, answer);
                        return Ok(None);
                    };
                    answer.extend_from_slice(&came[answer.len()..][..count]);
                    match <[u8; ANSWER_BYTES]>::try_from(&answer[..]) {
                        Ok(whole) => {
                            say(&link, &introduction.prove(&whole, key, &link.binding()?)?)?;
                            Stage::Proved(link)
                        }
                        Err(_) => Stage::Introduced(link, introduction, answer),
                    }
                }
                Stage::Proved(link) => {
                    let mut taken = [0];
                    match hear(&link, &mut taken)? {
                        None => {
                            self.stage = Stage::Proved(link);
                            return Ok(None);
                        }
                        Some(_) if taken == [TAKEN] => return Ok(Some(link)),
                        Some(_) => {
                            return Err(Error::new(ErrorKind::Protocol, "it sent an invalid message"));
                        }
                    }
                }
            };
        }
    }
}

/// A socket that is being connected.
fn connect(address: SocketAddr) -> std::io::Result<Private<TcpStream>> {
    let socket = {
        let opening = Opening::begin();
        opening.private(Socket::new(Domain::for_address(address), Type::STREAM, None)?)
    };
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket.map(TcpStream::from)),
    }
}

/// A few bytes on a new connection always fit its buffer.
fn say(link: &Link, bytes: &[u8]) -> Result<()> {
    match link.write(bytes) {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) => Err(Error::new(ErrorKind::Closed, "it doesn't read")),
        Err(error) => Err(Error::io(INTRODUCING, &error)),
    }
}

/// How many bytes have come; None if none have yet.
fn hear(link: &Link, bytes: &mut [u8]) -> Result<Option<usize>> {
    loop {
        match link.read(bytes) {
            Ok(0) => return Err(Error::io(INTRODUCING, &IoKind::UnexpectedEof.into())),
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == IoKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == IoKind::Interrupted => {}
            Err(error) => return Err(Error::io(INTRODUCING, &error)),
        }
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;
    use crate::door::connections::DATA;

    #[test]
    fn who_leaves_says_goodbye_over_a_sentinel_that_may_have_been_taken() {
        // GROUP-19
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut dialer = Dialer::new(0, Key::from_bytes([1; 32]));
        let mut dial = |number, stage: fn(Link) -> Stage| {
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let link = Link::plain(Opening::begin().private(socket));
            let (place, stage) = ((1, number), stage(link));
            dialer.dials.push(Dial { place, stage, is_ready: false, tries: 0, is_refused: false });
            listener.accept().unwrap().0
        };
        let ends = [
            dial(SENTINEL, Stage::Proved),
            dial(DATA, Stage::Proved),
            // It hasn't proved anything yet.
            dial(SENTINEL, Stage::Agreeing),
        ];
        dialer.leave();
        drop(dialer);
        let heard = ends.map(|mut end| {
            let mut heard = Vec::new();
            end.read_to_end(&mut heard).unwrap();
            heard
        });
        assert_eq!(heard, [vec![GOODBYE], vec![], vec![]], "GROUP-19");
    }
}
