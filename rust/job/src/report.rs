//! The report of a node that could not reach the hub: what Spark carries to the driver in the task's output row.

use std::path::PathBuf;

use phalanx_io::split_frame;
use phalanx_rendezvous::wire::{self, Frame, MAX_DATA_BYTES};
use phalanx_types::message::NodeOutcome;
use phalanx_types::{Error, ErrorKind, Result};

/// Packs a report and the results at `results` for [`unpack_report`].
///
/// # Errors
/// [`ErrorKind::Io`] if a result can't be read.
pub(crate) fn pack_report(report: &NodeOutcome, results: &[(u32, PathBuf)]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    wire::encode_json(report, &mut out);
    for (rank, path) in results {
        let bytes = std::fs::read(path).map_err(|e| Error::io(format!("read {}", path.display()), &e))?;
        // An empty result has one empty frame, so that it is there.
        let mut offset = 0;
        for piece in bytes.chunks(MAX_DATA_BYTES).chain(bytes.is_empty().then_some(&[][..])) {
            wire::encode(&Frame::Output { rank: *rank, offset, bytes: piece }, &mut out);
            offset += piece.len() as u64;
        }
    }
    Ok(out)
}

/// Ranks and what they left.
pub(crate) type RankResults = Vec<(u32, Vec<u8>)>;

/// Reads what [`pack_report`] packed: the report, and each rank's result.
///
/// # Errors
/// [`ErrorKind::Protocol`] for anything else.
pub(crate) fn unpack_report(mut bytes: &[u8]) -> Result<(NodeOutcome, RankResults)> {
    let broken = || Error::new(ErrorKind::Protocol, "a node's report is broken");
    let mut report = None;
    let mut results = RankResults::new();
    while !bytes.is_empty() {
        let (body, used) = split_frame(bytes, wire::MAX_FRAME_BYTES)?.ok_or_else(broken)?;
        match wire::parse(body)? {
            Frame::Json(json) => report = Some(wire::message(json)?),
            Frame::Output { rank, bytes, .. } => match results.last_mut() {
                Some((last, result)) if *last == rank => result.extend_from_slice(bytes),
                _ => results.push((rank, bytes.to_vec())),
            },
            _ => return Err(broken()),
        }
        bytes = &bytes[used..];
    }
    Ok((report.ok_or_else(broken)?, results))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_carries_results_of_any_size() {
        let dir = tempfile::tempdir().unwrap();
        let contents = [vec![], vec![7; 3], vec![9; 3 * MAX_DATA_BYTES + 1]];
        let results: Vec<_> = (0..)
            .zip(&contents)
            .map(|(rank, bytes)| {
                let path = dir.path().join(rank.to_string());
                std::fs::write(&path, bytes).unwrap();
                (rank, path)
            })
            .collect();
        let report = NodeOutcome {
            partition: 2,
            attempt: 0,
            exits: vec![],
            problem: Some("p".into()),
            interrupted: None,
        };
        let packed = pack_report(&report, &results).unwrap();
        let (back, files) = unpack_report(&packed).unwrap();
        assert_eq!(back, report);
        assert_eq!(files, (0..).zip(contents).collect::<Vec<(u32, Vec<u8>)>>());
        assert_eq!(unpack_report(&packed[..packed.len() - 1]).unwrap_err().kind(), ErrorKind::Protocol);
    }
}
