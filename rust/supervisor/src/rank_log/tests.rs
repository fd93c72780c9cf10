//! What a log keeps, drops and says of it.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

/// The byte that stands at `offset` in every rank's output here.
fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, to: u64) -> Vec<u8> {
    (from..to).map(byte).collect()
}

fn log(max_bytes: u64) -> (tempfile::TempDir, Arc<RankLog>) {
    let directory = tempfile::tempdir().unwrap();
    let log = RankLog::create(&directory.path().join("rank-3.log"), max_bytes).unwrap();
    (directory, log)
}

/// Reads from `offset` to the end, checks every byte, and returns which offsets could be read.
fn check(log: &RankLog, mut offset: u64, buffer: &mut [u8]) -> Vec<std::ops::Range<u64>> {
    let mut ranges = Vec::new();
    let mut start = offset;
    loop {
        match log.read_at(offset, buffer).unwrap() {
            ReadAt::Bytes(0) => {
                assert_eq!(offset, log.end());
                ranges.push(start..offset);
                ranges.retain(|range| !range.is_empty());
                return ranges;
            }
            ReadAt::Bytes(n) => {
                let to = offset + n as u64;
                assert!(buffer[..n] == bytes(offset, to), "GUARD-12: the bytes from {offset} to {to}");
                offset = to;
            }
            ReadAt::Dropped { resume_at, .. } => {
                assert!(resume_at > offset);
                ranges.push(start..offset);
                (start, offset) = (resume_at, resume_at);
            }
        }
    }
}

#[test]
fn a_log_is_its_owner_s_alone_and_replaces_an_older_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rank-0.log");
    for name in ["rank-0.log", "rank-0.log.1"] {
        fs::write(directory.path().join(name), "old").unwrap();
    }
    let log = RankLog::create(&path, 1 << 20).unwrap();
    assert_eq!(fs::metadata(log.path()).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    assert!(RankLog::create(&directory.path().join("no/such.log"), 1).is_err());
}

#[test]
fn a_segment_that_follows_dropped_ones_says_so_in_its_first_line() {
    let (directory, log) = log(4096);
    log.append(&bytes(0, 6000));
    let readable = check(&log, 0, &mut [0; 100]);
    assert!(readable.len() == 1 && readable[0] == (2048..6000), "{readable:?}");
    let current = fs::read(log.path()).unwrap();
    assert!(current.starts_with(
        b"[phalanx: the first 2048 bytes of this output were dropped, because its log is capped at 4096]\n"
    ));
    assert_eq!(fs::read(directory.path().join("rank-3.log.1")).unwrap(), bytes(2048, 4096));
}

#[test]
fn what_a_full_disk_takes_no_more_is_counted_and_the_rest_follows_a_notice() {
    let (_directory, log) = log(1 << 20);
    log.append(&bytes(0, 100));
    let full = Arc::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
    let disk = std::mem::replace(&mut log.writer.lock().unwrap().file, full);
    log.append(&bytes(100, 150));
    log.append(&bytes(150, 200));
    let loss = log.loss().unwrap();
    assert!(loss.bytes == 100 && loss.reason.contains("No space left"), "{loss:?}");
    assert_eq!(log.read_at(120, &mut [0; 9]).unwrap(), ReadAt::Dropped { resume_at: 200, lost: true });
    log.writer.lock().unwrap().file = disk;
    log.append(&bytes(200, 300));
    log.finish();
    assert_eq!(check(&log, 0, &mut [0; 64]), [0..100, 200..300], "GUARD-12");
    let file = fs::read(log.path()).unwrap();
    let notice = b"\n[phalanx: 100 bytes of output were lost here]\n";
    assert_eq!(file, [&bytes(0, 100)[..], notice, &bytes(200, 300)].concat());
    assert!(log.last_lines(20).last().unwrap().starts_with("[phalanx: 100 bytes of this output are not in "));
}

#[test]
fn a_log_that_somebody_cut_short_is_read_as_dropped() {
    let (_directory, log) = log(1 << 20);
    log.append(&bytes(0, 1000));
    OpenOptions::new().write(true).open(log.path()).unwrap().set_len(10).unwrap();
    assert_eq!(log.read_at(500, &mut [0; 9]).unwrap(), ReadAt::Dropped { resume_at: 1000, lost: false });
    assert_eq!(log.read_at(1000, &mut [0; 9]).unwrap(), ReadAt::Bytes(0));
}

proptest! {
    #[test]
    fn rotation_at_the_cap_keeps_logical_offsets_right(
        pieces in prop::collection::vec((1u64..3000, prop::bool::weighted(0.1)), 1..40),
        cap in 0u64..20_000,
        buffer in 1usize..5000,
        from in 0u64..40_000,
    ) {
        let (directory, log) = log(cap);
        let cap = cap.max(MIN_CAP_BYTES);
        let mut lost = 0;
        for (length, fails) in pieces {
            let (start, end) = (log.end(), log.end() + length);
            if fails {
                let full = Arc::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
                let disk = std::mem::replace(&mut log.writer.lock().unwrap().file, full);
                log.append(&bytes(start, end));
                // A rotation brings a new file, which takes bytes again.
                let mut writer = log.writer.lock().unwrap();
                if writer.gap > 0 && writer.file_bytes < log.segment_bytes {
                    writer.file = disk;
                }
                drop(writer);
            } else {
                log.append(&bytes(start, end));
            }
            lost = log.loss().map_or(0, |loss| loss.bytes);
            prop_assert_eq!(log.end(), end);
        }
        let readable = check(&log, from.min(log.end()), &mut vec![0; buffer]);
        prop_assert!(readable.iter().all(|range| range.start >= from.min(log.end())));
        let all: u64 = check(&log, 0, &mut vec![0; buffer]).iter().map(|range| range.end - range.start).sum();
        let notices = 400;
        prop_assert!(all + lost >= log.end().min(cap / 2 - notices), "at least a segment is kept");
        let files = fs::read_dir(directory.path()).unwrap();
        let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        prop_assert!(on_disk <= cap + 2 * notices, "{} on disk, capped at {}", on_disk, cap);
    }
}
