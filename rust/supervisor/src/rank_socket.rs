//! A node's end of the socket between it and a rank: the rank's notes come from there, and news go there.
//!
//! It is one of a pair of `SOCK_SEQPACKET`. The rank has the other end as descriptor 3, and with it whatever program it
//! becomes or starts. Here is what Linux does with such a pair, as measured on 6.18:
//!
//! - What is written at once is a packet, and arrives as one. It may be as long as the buffer of the end that sends,
//!   less 32 bytes; a longer one is `EMSGSIZE`. An empty one is a packet, too, and no end.
//! - That buffer bounds what waits (768 bytes for each packet of up to 200), and `net.unix.max_dgram_qlen` doesn't: it
//!   is for ends that aren't each other's. Who writes and waits goes on when three quarters have been taken.
//! - If an end is closed with packets in it that nobody took, the other end reads `ECONNRESET` once, and then all that
//!   was sent to it. A rank that takes no news ends so.
//! - Whoever writes when the other end is closed has `EPIPE`, and no signal.
//! - A socket can't be opened by its name: `/dev/fd/3` is `ENXIO`, where `>&3` works.
//!
//! The rules:
//!
//! - GUARD-15 (newest): of each kind a rank is told the newest. What was overtaken before there was room is never sent,
//!   and what it was told last isn't sent again.
//! - GUARD-16 (never-waits): a node waits for no rank. One that never reads costs it 16 KiB, in the kernel.
//! - GUARD-17 (any-program): a program that knows nothing of news writes its notes as it would into a pipe, and is
//!   disturbed by nothing.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_io::send_with_descriptors;
use phalanx_types::{Generation, RankNews, RankNotice};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_send_buffer_size};
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::notice_writer::NoticeWriter;
use crate::rank_words::RankWords;
use crate::report_reader::ReportReader;

/// How much a rank's notes may take up in the kernel, as far as it lets users ask for it; it doubles the number. A
/// burst of notes then waits in the socket, not in the rank.
const NOTES_BYTES: usize = 1 << 20;

/// How much its news may (GUARD-16): two of the longest, or some twenty short ones.
const NEWS_BYTES: usize = 8 << 10;

/// The node's end of a rank's socket. Clones are the same end.
#[derive(Debug, Clone)]
pub struct RankSocket(Arc<End>);

#[derive(Debug)]
struct End {
    fd: OwnedFd,
    /// How long a packet of the rank's can be.
    longest: usize,
    news: Mutex<AllNews>,
    words: RankWords,
    reports: Mutex<ReportReader>,
    notices: Mutex<NoticeWriter>,
}

#[derive(Debug, Default)]
struct AllNews {
    /// By kind, the newest.
    newest: BTreeMap<&'static str, Newest>,
    /// Nobody will read any more.
    is_over: bool,
}

#[derive(Debug)]
struct Newest {
    packet: Vec<u8>,
    is_sent: bool,
}

impl RankSocket {
    /// A pair of ends: the node's, and the rank's, in which the rank's words are.
    ///
    /// # Errors
    /// If the system gives no descriptors.
    pub fn pair(generation: Generation) -> io::Result<(RankSocket, OwnedFd)> {
        let (fd, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_send_buffer_size(&fd, NEWS_BYTES)?;
        set_socket_send_buffer_size(&theirs, NOTES_BYTES)?;
        let longest = socket_send_buffer_size(&theirs)?;
        let (words, memory) = RankWords::create(generation)?;
        let (reports, notices) = (ReportReader::of(&memory)?, NoticeWriter::of(&memory)?);
        let (reports, notices) = (Mutex::new(reports), Mutex::new(notices));
        // Without them a rank is as any program. The kernel refuses where too much of this user is on its way.
        let (packet, flags) = (RankNews::Words.packet(), SendFlags::DONTWAIT);
        if let Err(errno) = send_with_descriptors(&fd, &packet, &[memory.as_fd()], flags) {
            log::warn!("a rank runs without the memory page that it shares with its task: {errno}");
        }
        let end = End { fd, longest, news: Mutex::default(), words, reports, notices };
        Ok((RankSocket(Arc::new(end)), theirs))
    }

    /// What it and the rank tell each other without a message.
    pub fn words(&self) -> &RankWords {
        &self.0.words
    }

    /// What it has reported, for one at a time who reads it.
    pub fn reports(&self) -> MutexGuard<'_, ReportReader> {
        self.0.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the rank of a notice, which doesn't thaw it. Whether it has begun a step at which it was to be told of it.
    pub fn notify(&self, notice: &RankNotice) -> bool {
        let mut notices = self.0.notices.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = notices.write(notice, &self.0.words);
        begun.is_some_and(|step| step >= notice.step)
    }

    /// Tells the rank, now or when there is room: see [`RankSocket::send_news`].
    pub fn tell(&self, news: &RankNews) {
        let mut all = self.news();
        let (kind, packet) = (news.kind(), news.packet());
        if all.newest.get(kind).is_none_or(|before| before.packet != packet) {
            all.newest.insert(kind, Newest { packet, is_sent: false });
            self.send_unsent(&mut all);
        }
    }

    /// Sends what there was no room for. It waits for nothing, so it is to be called again: whenever the rank was
    /// heard, and from time to time.
    pub fn send_news(&self) {
        self.send_unsent(&mut self.news());
    }

    fn send_unsent(&self, all: &mut AllNews) {
        let AllNews { newest, is_over } = all;
        for newest in newest.values_mut().filter(|newest| !newest.is_sent) {
            if *is_over {
                return;
            }
            match send_with_descriptors(self, &newest.packet, &[], SendFlags::DONTWAIT) {
                Ok(_) => newest.is_sent = true,
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return,
                Err(_) => *is_over = true,
            }
        }
    }

    /// How long a packet of the rank's can be, unless the rank makes its buffer larger.
    pub(crate) fn longest_packet(&self) -> usize {
        self.0.longest
    }

    /// Reads and tells nothing any more; whoever still writes there has an error.
    pub(crate) fn close(&self) {
        self.news().is_over = true;
        // There is nobody to close it for, then.
        let _ = shutdown(&self.0.fd, Shutdown::Both);
    }

    fn news(&self) -> MutexGuard<'_, AllNews> {
        self.0.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for RankSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
