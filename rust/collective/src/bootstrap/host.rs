//! The last step in which the ranks of a host come together: its lowest rank hands them the memory that they share,
//! and by what they notice one another's end.
//!
//! - GROUP-48 (lifelines): of a rank's lifeline, a pair of sockets, only the rank itself has one end, and every other
//!   rank of its host has the other. The kernel closes the first when the rank ends, and all see it at once. A host of
//!   n ranks has n such pairs, where a connection for each two ranks would be n (n - 1) / 2.
//! - GROUP-49 (few-on-the-way): descriptors are on their way to one rank at a time, which answers: a system lets a user
//!   have no more on the way than one process may have open.
//! - GROUP-50 (told): if it comes to nothing with one rank, the others are told with which.

use std::collections::HashMap;
use std::io::{self, ErrorKind as IoKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use phalanx_io::{MAX_DESCRIPTORS, send_with_descriptors};
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::net::SendFlags;

use crate::door::timed::{Timed, receive_descriptors};
use crate::failure::Failure;
use crate::forks::{Opening, Private};
use crate::shm::{Layout, Segment};

const DOING: &str = "share memory";
/// First byte of what the lowest rank says: that descriptors come with it, or why none do.
const TAKE: u8 = 1;
const FAILED: u8 = 0;

/// What a rank has of its host.
pub(crate) struct SharedHost {
    pub(crate) segment: Segment,
    /// This rank's own end of its lifeline.
    pub(crate) lifeline: Private<UnixStream>,
    /// The others' lifelines, as they are seen.
    pub(crate) others: HashMap<usize, Private<UnixStream>>,
}

/// The lowest rank's part. `members` are the other ranks of its host, ascending, with the connections to them.
pub(crate) fn lead(
    mut members: Vec<(usize, Private<UnixStream>)>,
    layout: Layout,
    deadline: Deadline,
) -> Result<SharedHost> {
    let led = hand_round(&mut members, layout, deadline);
    if let Err(error) = &led {
        // GROUP-50
        let mut said = vec![FAILED];
        Failure::new(error.kind(), error.to_string()).encode(&mut said);
        for (_, stream) in &mut members {
            let _ = stream.send(&said, deadline, DOING);
        }
    }
    led
}

fn hand_round(
    members: &mut [(usize, Private<UnixStream>)],
    layout: Layout,
    deadline: Deadline,
) -> Result<SharedHost> {
    let (segment, memory) = Segment::create(layout)?;
    let (lifeline, seen) = pair()?;
    let mut ends = vec![seen.map(OwnedFd::from)];
    for (rank, stream) in &mut *members {
        let mut came = take(stream, deadline).map_err(|error| with(*rank, &error))?;
        ends.extend(came.drain(..1));
    }
    for (index, (rank, stream)) in members.iter_mut().enumerate() {
        let others = ends.iter().enumerate().filter(|(one, _)| *one != index + 1).map(|(_, end)| end.as_fd());
        let all: Vec<BorrowedFd<'_>> = std::iter::once(memory.as_fd()).chain(others).collect();
        give_all(stream, &all, deadline).map_err(|error| with(*rank, &error))?;
    }
    let others = members.iter().zip(ends.into_iter().skip(1));
    let others = others.map(|((rank, _), end)| (*rank, end.map(UnixStream::from)));
    Ok(SharedHost { segment, lifeline, others: others.collect() })
}

/// The part of the rank `me`, which is connected to the lowest one.
pub(crate) fn follow(
    host: &[usize],
    me: usize,
    mut stream: Private<UnixStream>,
    layout: Layout,
    deadline: Deadline,
) -> Result<SharedHost> {
    let (lifeline, seen) = pair()?;
    give(&mut stream, &[seen.as_fd()], deadline).map_err(|error| why(&mut stream, error, deadline))?;
    drop(seen);
    // Everybody's lifeline but its own, and the memory in its place.
    let mut came = Vec::with_capacity(host.len());
    while came.len() < host.len() {
        let more = take(&mut stream, deadline)?;
        came.extend(more);
    }
    stream.send(&[TAKE], deadline, DOING).map_err(|error| why(&mut stream, error, deadline))?;
    let mut came = came.into_iter();
    let memory = came.next().ok_or_else(|| Error::new(ErrorKind::Closed, "no memory came"))?;
    let segment = Segment::open(&memory, layout)?;
    let others = host.iter().copied().filter(|rank| *rank != me).zip(came);
    let others = others.map(|(rank, end)| (rank, end.map(UnixStream::from)));
    Ok(SharedHost { segment, lifeline, others: others.collect() })
}

fn pair() -> Result<(Private<UnixStream>, Private<UnixStream>)> {
    let opening = Opening::begin();
    let pair = UnixStream::pair().map_err(|error| Error::io("make a lifeline", &error))?;
    Ok((opening.private(pair.0), opening.private(pair.1)))
}

fn with(rank: usize, error: &Error) -> Error {
    let kind = if error.kind() == ErrorKind::Closed { ErrorKind::PeerLost } else { error.kind() };
    let text = format!("rank {rank} ended or gave up while its host's memory was handed round: {error}");
    Error::new(kind, text)
}

/// Hands all of them over, and waits until they are there (GROUP-49).
fn give_all(stream: &mut UnixStream, descriptors: &[BorrowedFd<'_>], deadline: Deadline) -> Result<()> {
    for some in descriptors.chunks(MAX_DESCRIPTORS) {
        give(stream, some, deadline)?;
    }
    stream.receive(&mut [0], deadline, DOING)
}

fn give(stream: &mut UnixStream, descriptors: &[BorrowedFd<'_>], deadline: Deadline) -> Result<()> {
    stream.limit(deadline)?;
    let sent = send_with_descriptors(&*stream, &[TAKE], descriptors, SendFlags::empty());
    sent.map(drop).map_err(|errno| failed(errno.into()))
}

/// What [`give`] sent, or why nothing was (GROUP-50).
fn take(stream: &mut UnixStream, deadline: Deadline) -> Result<Vec<Private<OwnedFd>>> {
    let mut first = [0];
    let came = receive_descriptors(stream, &mut first, deadline).map_err(failed)?;
    if came.bytes == 0 {
        return Err(failed(IoKind::UnexpectedEof.into()));
    }
    if came.lacks_descriptors {
        return Err(Error::new(
            ErrorKind::Io,
            "this process may not open as many files as its host has ranks",
        ));
    }
    if first == [TAKE] && !came.descriptors.is_empty() {
        return Ok(came.descriptors);
    }
    let mut said = vec![0; 3];
    stream.receive(&mut said, deadline, DOING)?;
    let text = said.len()..said.len() + usize::from(u16::from_le_bytes([said[1], said[2]]));
    said.resize(text.end, 0);
    stream.receive(&mut said[text], deadline, DOING)?;
    let failure = Failure::decode(&said).map(|(failure, _)| failure.error());
    Err(failure.unwrap_or_else(|| Error::new(ErrorKind::Protocol, "it sent an invalid message")))
}

/// Why the leader has hung up, if it said so before (GROUP-50); else the error of who had something to send.
fn why(stream: &mut UnixStream, error: Error, deadline: Deadline) -> Error {
    match take(stream, deadline) {
        Err(said) if said.kind() == ErrorKind::PeerLost => said,
        _ => error,
    }
}

fn failed(error: io::Error) -> Error {
    match error.kind() {
        IoKind::WouldBlock | IoKind::TimedOut => {
            Error::new(ErrorKind::Timeout, format!("can't {DOING}: the other side did not answer in time"))
        }
        _ => Error::io(DOING, &error),
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    /// More lifelines than go with one message.
    const RANKS: usize = MAX_DESCRIPTORS + 3;
    const LAYOUT: Layout = Layout { ranks: RANKS, slots: 2, slot_bytes: 4096, ring_bytes: 4096 };

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(30))
    }

    fn host() -> Vec<usize> {
        (0..RANKS).map(|rank| rank * 2).collect()
    }

    /// The leader's ends of the connections, and the members'.
    #[allow(clippy::type_complexity, reason = "two lists")]
    fn connections() -> (Vec<(usize, Private<UnixStream>)>, Vec<(usize, Private<UnixStream>)>) {
        let pairs = host().into_iter().skip(1).map(|rank| (rank, pair().unwrap()));
        pairs.map(|(rank, (one, other))| ((rank, one), (rank, other))).unzip()
    }

    #[test]
    fn the_end_of_a_rank_is_seen_by_all_others_of_its_host_and_no_one_elses_is() {
        let (here, there) = connections();
        let mut shared: HashMap<usize, SharedHost> = std::thread::scope(|scope| {
            let followers: Vec<_> = there
                .into_iter()
                .map(|(rank, stream)| {
                    scope.spawn(move || (rank, follow(&host(), rank, stream, LAYOUT, soon()).unwrap()))
                })
                .collect();
            let led = lead(here, LAYOUT, soon()).unwrap();
            let followers = followers.into_iter().map(|thread| thread.join().unwrap());
            followers.chain([(0, led)]).collect()
        });
        for (number, rank) in host().into_iter().enumerate() {
            let record = shared[&rank].segment.rank_record(number);
            record.left.store(1, std::sync::atomic::Ordering::Release);
        }
        for (rank, one) in &shared {
            let all = (0..RANKS).all(|number| {
                one.segment.rank_record(number).left.load(std::sync::atomic::Ordering::Acquire) == 1
            });
            assert!(all, "rank {rank} maps other memory");
            assert_eq!(one.others.len() + 1, RANKS, "GROUP-48");
        }
        for ended in [6, 0] {
            shared.remove(&ended);
            for (rank, one) in &mut shared {
                for (other, lifeline) in &mut one.others {
                    lifeline.set_nonblocking(true).unwrap();
                    let seen = lifeline.read(&mut [0]).is_ok_and(|count| count == 0);
                    let has_ended = *other == 6 || *other == ended;
                    assert_eq!(seen, has_ended, "GROUP-48: rank {rank} of rank {other} after {ended}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_handed_to_the_next_rank_before_one_has_answered() {
        let (here, mut there) = connections();
        std::thread::scope(|scope| {
            scope.spawn(|| lead(here, LAYOUT, soon()).unwrap());
            let ends: Vec<_> = there
                .iter_mut()
                .map(|(_, stream)| {
                    let (lifeline, seen) = pair().unwrap();
                    give(stream, &[seen.as_fd()], soon()).unwrap();
                    lifeline
                })
                .collect();
            for next in 0..there.len() {
                let mut came = 0;
                while came < RANKS {
                    came += take(&mut there[next].1, soon()).unwrap().len();
                }
                if let Some((_, waiting)) = there.get(next + 1) {
                    let at_once = Deadline::after(Duration::ZERO);
                    assert!(receive_descriptors(waiting, &mut [0], at_once).is_err(), "GROUP-49");
                }
                there[next].1.send(&[TAKE], soon(), DOING).unwrap();
            }
            drop(ends);
        });
    }

    #[test]
    fn who_ends_while_memory_is_handed_round_is_named_by_all() {
        let (here, mut there) = connections();
        let (gone, _) = there.remove(4);
        std::thread::scope(|scope| {
            let followers: Vec<_> = there
                .into_iter()
                .map(|(rank, stream)| {
                    scope.spawn(move || follow(&host(), rank, stream, LAYOUT, soon()).err())
                })
                .collect();
            let led = lead(here, LAYOUT, soon()).err();
            for error in followers.into_iter().map(|thread| thread.join().unwrap()).chain([led]) {
                let error = error.unwrap();
                let sentence =
                    format!("rank {gone} ended or gave up while its host's memory was handed round");
                assert_eq!(error.kind(), ErrorKind::PeerLost, "GROUP-50: {error}");
                assert!(error.to_string().contains(&sentence), "GROUP-50: {error}");
            }
        });
    }
}
