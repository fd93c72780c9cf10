//! What becomes of a rank's output: GUARD-11 and GUARD-12 with real pipes. The log's own tests are beside it.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{LONG, Output, empty, ended, guard, read_all, sh, started, with_guard};
use phalanx_supervisor::{ExitStatus, PipeReader, RankLog, pump};
use phalanx_testkit::{eventually, leaks, temp_dir};
use rustix::pipe::{PipeFlags, pipe_with};

#[test]
fn a_rank_writes_ten_megabytes_while_nobody_reads_the_log() {
    with_guard(LONG, |guard| {
        let (_, output) = started(guard, &sh(0, "yes 0123456 | head -c 10000000"));
        assert_eq!(ended(guard), (0, ExitStatus::Code(0)), "GUARD-11");
        output.readers.into_iter().for_each(PipeReader::join);
        assert_eq!(output.log.end(), 10_000_000);
        assert!(read_all(&output.log).chunks(8).all(|line| line == b"0123456\n"), "GUARD-12");
    });
}

#[test]
fn a_rank_writes_on_although_its_log_can_not_be_written() {
    with_guard(LONG, |guard| {
        let directory = temp_dir("gone");
        let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
        directory.close().unwrap();
        let pipes = guard.launch(&sh(0, "yes 0123456 | head -c 10000000; echo the end")).unwrap();
        let reader = pump(pipes.output, Arc::clone(&log), Box::new(|| {})).unwrap();
        assert!(matches!(common::next_event(guard), phalanx_supervisor::GuardEvent::Started { .. }));
        assert_eq!(ended(guard), (0, ExitStatus::Code(0)), "GUARD-11");
        reader.join();
        assert_eq!(log.end(), 10_000_008);
        let loss = log.loss().unwrap();
        assert_eq!(loss.bytes, 10_000_008 - (1 << 19), "all but the segment that was open");
        let lines = log.last_lines(2);
        assert_eq!(lines[1], "the end");
        assert!(lines[2].contains(&format!("{} bytes of this output are not in", loss.bytes)), "{lines:?}");
    });
}

#[test]
fn bytes_that_are_no_text_survive_as_they_are() {
    let _leaks = leaks();
    let guard = guard(LONG);
    let directory = temp_dir("bytes");
    let file = directory.path().join("bytes");
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let pipes =
        guard.launch(&sh(0, &format!("cat {0} >&2; printf '\\377\\000\\r\\n'", file.display()))).unwrap();
    let output = Output::of(pipes);
    output.readers.into_iter().for_each(PipeReader::join);
    let expected = [&bytes[..], b"\xff\0\r\n"].concat();
    assert!(read_all(&output.log) == expected, "GUARD-12");
    assert!(std::fs::read(output.log.path()).unwrap() == expected, "GUARD-12");
    guard.kill();
    common::last_events(&guard);
}

#[test]
fn the_log_tells_when_it_grew_and_when_it_is_finished() {
    let _leaks = leaks();
    let directory = temp_dir("wake");
    let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
    assert!(log.last_output().is_none() && !log.finished());
    let (output, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let wakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&wakes);
    let wake = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    let reader = pump(output, Arc::clone(&log), Box::new(wake)).unwrap();
    let before = Instant::now();
    rustix::io::write(&into, b"one\n").unwrap();
    eventually("it woke", LONG, || wakes.load(Ordering::SeqCst) == 1);
    assert!(
        log.last_output().unwrap() >= before && log.end() == 4 && !log.finished() && !reader.is_finished()
    );
    drop(into);
    reader.join();
    assert!(log.finished());
    eventually("it woke once more", LONG, || wakes.load(Ordering::SeqCst) == 2);
}

#[test]
fn a_reader_that_is_told_to_finish_takes_what_is_there_although_a_writer_lingers() {
    let _leaks = leaks();
    let directory = temp_dir("linger");
    let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
    let (output, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let reader = pump(output, Arc::clone(&log), Box::new(|| {})).unwrap();
    rustix::io::write(&into, b"last words").unwrap();
    reader.finish();
    assert!(log.finished());
    assert_eq!(read_all(&log), b"last words");
    assert_eq!(log.last_lines(1), ["last words"]);
}

#[test]
fn a_reader_that_is_told_to_finish_does_although_a_writer_never_stops() {
    let _leaks = leaks();
    let guard = guard(Duration::ZERO);
    let (_, output) = started(&guard, &sh(0, "exec yes"));
    eventually("there is output", LONG, || output.log.end() > 0);
    let told = Instant::now();
    output.readers.into_iter().for_each(PipeReader::finish);
    assert!(output.log.finished() && told.elapsed() < LONG);
    // What the rank writes now meets a closed pipe.
    assert_eq!(ended(&guard), (0, ExitStatus::Signal(13)));
    guard.stop();
    empty(&guard);
}
