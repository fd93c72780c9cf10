//! The thread that reads a rank's notes, line by line, out of the packets of its socket.
//!
//! As a pipe's, its reader can be told to take what is there and stop (`pipe_reader.rs`).

use std::os::fd::OwnedFd;
use std::time::Instant;

use phalanx_types::contract::MAX_NOTE_BYTES;
use phalanx_types::{RankNote, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};

use crate::pipe_reader::{GATHER, LAST_BYTES, PipeReader, READ_BYTES, SMALL_BYTES, gather};
use crate::rank_socket::RankSocket;

/// What a packet counts for at least, of what is taken at a time.
const PACKET_BYTES: usize = 512;

/// Reads a rank's notes, lines of at most [`MAX_NOTE_BYTES`], until nobody has the other end any more. Anything else is
/// passed over: what writes there is the rank, which may be any program (GUARD-17). News that wait go out when the rank
/// is heard.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if there is no thread or descriptor to be had.
pub fn notes(socket: RankSocket, mut on_note: Box<dyn FnMut(RankNote) + Send>) -> Result<PipeReader> {
    PipeReader::start("phalanx-notes", move |finish| {
        let mut lines = Lines::default();
        read_packets(&socket, finish, |packet, is_whole| {
            lines.push(packet, |line| {
                if let Some(note) = RankNote::parse(line) {
                    on_note(note);
                }
            });
            if !is_whole {
                lines.break_off();
            }
        });
        socket.close();
    })
}

/// Reads until the end. `take` gets each packet, and whether that is all of it.
fn read_packets(socket: &RankSocket, finish: &OwnedFd, mut take: impl FnMut(&[u8], bool)) {
    let mut buffer = vec![0; socket.longest_packet()];
    let mut left_to_take = None;
    let mut last_read = Instant::now();
    loop {
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::new(finish, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, left_to_take.map(|_: usize| &now)) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(_) => return,
        }
        if left_to_take.is_none() && !fds[1].revents().is_empty() {
            left_to_take = Some(LAST_BYTES);
            continue;
        }
        if fds[0].revents().is_empty() {
            return;
        }
        let mut taken = 0;
        while taken < READ_BYTES {
            match recv(socket, &mut buffer[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((0, 0)) if is_over(socket) => return,
                Ok((bytes, whole)) => {
                    take(&buffer[..bytes], bytes == whole);
                    taken += whole.max(PACKET_BYTES);
                }
                // The rank has closed its end, with news there that it didn't take. What it wrote follows.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return,
            }
        }
        socket.send_news();
        if taken < SMALL_BYTES && last_read.elapsed() < 2 * GATHER && left_to_take.is_none() {
            gather(finish);
        }
        last_read = Instant::now();
        left_to_take = match left_to_take {
            Some(left) if left <= taken => return,
            left => left.map(|left| left - taken),
        };
    }
}

/// Whether what was read as nothing was the end, and no empty packet.
fn is_over(socket: &RankSocket) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let nobody_writes = poll(&mut fds, Some(&now)).is_err() || !fds[0].revents().is_empty();
    // Nobody adds anything then, so what is left is empty, or counted.
    nobody_writes && !ioctl_fionread(socket).is_ok_and(|bytes| bytes > 0)
}

/// Cuts a stream into lines of at most [`MAX_NOTE_BYTES`].
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    too_long: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.too_long |= self.line.len() + text.len() > MAX_NOTE_BYTES;
            if !self.too_long {
                self.line.extend_from_slice(text);
            }
            if ends {
                if !self.too_long {
                    on_line(&self.line);
                }
                self.break_off();
            }
        }
    }

    /// What follows is another line.
    fn break_off(&mut self) {
        self.line.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use phalanx_testkit::eventually;
    use phalanx_types::contract::{Beat, ProfileRequest};
    use phalanx_types::{Generation, RankNews};
    use rustix::io::write;
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// The rank's end of a pair whose other end is read, and what came of it.
    fn heard() -> (OwnedFd, RankSocket, PipeReader, crossbeam_channel::Receiver<RankNote>) {
        let (socket, end) = RankSocket::pair(Generation::new(7)).unwrap();
        let (send, got) = crossbeam_channel::unbounded();
        let reader = notes(socket.clone(), Box::new(move |note| send.send(note).unwrap())).unwrap();
        (end, socket, reader, got)
    }

    fn phase(name: impl Into<String>) -> RankNote {
        RankNote::Phase(name.into())
    }

    fn profile(number: u32) -> RankNews {
        RankNews::Profile(ProfileRequest { number, millis: 100 })
    }

    /// All that there is to read for the rank, as text.
    fn told(end: &OwnedFd) -> Vec<String> {
        let mut packet = [0; 4096];
        std::iter::from_fn(|| {
            let (bytes, _) = recv(end, &mut packet[..], RecvFlags::DONTWAIT).ok()?;
            Some(String::from_utf8(packet[..bytes].to_vec()).unwrap())
        })
        .collect()
    }

    #[test]
    fn lines_that_are_too_long_are_skipped_and_the_next_one_is_read() {
        let longest = vec![b'x'; MAX_NOTE_BYTES];
        let mut stream = [&longest[..], b"\n", &longest[..], b"y\nok\nunfinished"].concat();
        for piece in [1, 7, stream.len()] {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for part in stream.chunks(piece) {
                lines.push(part, |line| got.push(line.to_vec()));
            }
            assert_eq!(got, [longest.clone(), b"ok".to_vec()]);
        }
        stream.clear();
    }

    #[test]
    fn garbage_among_the_notes_is_passed_over() {
        let (end, _, reader, got) = heard();
        let lines = [
            r#"{"phase":"a"}"#,
            "null",
            r#"{"phase":"#,
            r#"{"later":1}"#,
            r#"{"cold":"b"}"#,
            r#"{"phase":"c"}"#,
        ];
        write(&end, &[b"\xff\xfe\n[1]\n", lines.join("\n").as_bytes()].concat()).unwrap();
        drop(end);
        reader.join();
        assert_eq!(got.iter().collect::<Vec<_>>(), [phase("a"), RankNote::Cold("b".into())], "TYPES-2");
    }

    #[test]
    fn lines_come_whole_however_they_are_cut_into_packets() {
        let text = b"{\"phase\": \"one\"}\n{\"phase\": \"two\"}\n{\"phase\": \"three\"}\n";
        for piece in [1, 5, 18, text.len()] {
            let (end, _, reader, got) = heard();
            for part in text.chunks(piece) {
                // An empty write is no end.
                assert_eq!(write(&end, b"").unwrap(), 0);
                write(&end, part).unwrap();
            }
            write(&end, b"").unwrap();
            drop(end);
            reader.join();
            assert_eq!(
                got.iter().collect::<Vec<_>>(),
                ["one", "two", "three"].map(phase),
                "GUARD-17: {piece} bytes at a time"
            );
        }
    }

    #[test]
    fn a_packet_that_is_longer_than_any_can_be_ends_its_lines_and_no_more() {
        let (end, socket, reader, got) = heard();
        set_socket_send_buffer_size(&end, 2 * socket.longest_packet()).unwrap();
        let long = [b"{\"phase\": \"one\"}\n".to_vec(), vec![b'x'; socket.longest_packet()]].concat();
        // Where the system lets nobody have more, it is refused.
        let is_out = write(&end, &long).is_ok();
        write(&end, b"{\"phase\": \"two\"}\n").unwrap();
        drop(end);
        reader.join();
        let names = if is_out { &["one", "two"][..] } else { &["two"] };
        assert_eq!(got.iter().collect::<Vec<_>>(), names.iter().map(|name| phase(*name)).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_rank_wrote_arrives_though_it_left_its_news_unread() {
        let (end, socket, reader, got) = heard();
        socket.tell(&profile(1));
        let notes = (0..1000).map(|number| phase(number.to_string()));
        for number in 0..1000 {
            write(&end, format!("{{\"phase\": \"{number}\"}}\n").as_bytes()).unwrap();
        }
        drop(end);
        reader.join();
        assert!(got.iter().eq(notes), "GUARD-17: the reset that Linux tells of is no end");
    }

    #[test]
    fn a_writer_waits_for_a_reader_that_is_slow_and_loses_nothing() {
        let (socket, end) = RankSocket::pair(Generation::new(7)).unwrap();
        let (go, goes) = crossbeam_channel::bounded::<()>(0);
        let writer = std::thread::spawn(move || {
            let mut number = 0;
            while goes.try_recv() != Err(crossbeam_channel::TryRecvError::Disconnected) {
                write(&end, format!("{{\"beat\": {{\"operations\": {number}}}}}\n").as_bytes()).unwrap();
                number += 1;
            }
            number
        });
        // As long as nobody reads: the last write waits.
        let mut before = u64::MAX;
        eventually("the socket is full", LONG, || {
            let now = ioctl_fionread(&socket).unwrap();
            std::mem::replace(&mut before, now) == now && now > 0
        });
        let (send, got) = crossbeam_channel::unbounded();
        let reader = notes(socket, Box::new(move |note| send.send(note).unwrap())).unwrap();
        drop(go);
        let written = writer.join().unwrap();
        reader.join();
        let beat = |operations| RankNote::Beat(Beat { operations, ..Beat::default() });
        assert!(got.iter().eq((0..written).map(beat)), "GUARD-17");
    }

    #[test]
    fn a_rank_that_never_reads_keeps_nobody_and_finds_the_newest_news() {
        let (socket, end) = RankSocket::pair(Generation::new(7)).unwrap();
        (1..=1000).for_each(|number| socket.tell(&profile(number)));
        let first = told(&end);
        assert_eq!(first[0], r#"{"version":1,"kind":"words"}"#, "before all others");
        assert!((2..100).contains(&first.len()), "GUARD-16: {} packets wait in the kernel", first.len());
        socket.send_news();
        assert_eq!(told(&end), [r#"{"version":1,"kind":"profile","number":1000,"millis":100}"#], "GUARD-15");
        socket.tell(&profile(1000));
        socket.send_news();
        assert_eq!(told(&end), [""; 0], "GUARD-15: once");
        drop(end);
        socket.tell(&profile(1001));
        socket.tell(&profile(1002));
    }

    #[test]
    fn news_that_found_no_room_go_out_when_the_rank_is_heard() {
        let (end, socket, reader, got) = heard();
        (1..=1000).for_each(|number| socket.tell(&profile(number)));
        assert!(told(&end).iter().all(|packet| !packet.contains(":1000,")));
        write(&end, b"{\"phase\": \"a\"}\n").unwrap();
        assert_eq!(got.recv_timeout(LONG).unwrap(), phase("a"));
        let mut last = Vec::new();
        eventually("the newest has come", LONG, || {
            last.extend(told(&end));
            last.iter().any(|packet| packet.contains(":1000,"))
        });
        drop(end);
        reader.join();
    }

    #[test]
    fn a_writer_that_stays_has_an_error_once_its_reader_is_told_to_finish() {
        let (end, _socket, reader, got) = heard();
        write(&end, b"{\"phase\": \"last\"}\n").unwrap();
        reader.finish();
        assert_eq!(got.iter().collect::<Vec<_>>(), [phase("last")]);
        assert_eq!(write(&end, b"more\n"), Err(Errno::PIPE));
    }
}
