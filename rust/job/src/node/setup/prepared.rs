//! The files that the ranks of an attempt begin with.

use std::path::PathBuf;
use std::sync::Arc;

use phalanx_io::write_whole;
use phalanx_rendezvous::blocks::BlockAccess;
use phalanx_supervisor::RankLog;
use phalanx_types::{Key, NodePlacement, Result, contract};

use crate::node::kept::Kept;
use crate::node::options::{Options, Payload};

/// What an attempt needs on the disk.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) payload: PathBuf,
    /// Where the flight recorder's dumps go.
    pub(crate) flight_recorder: PathBuf,
    /// In the order of their places.
    pub(crate) ranks: Vec<PreparedRank>,
}

/// One rank of it.
pub(crate) struct PreparedRank {
    pub(crate) rank: u32,
    /// Its own folder, in which nothing is but what the rank is told there.
    pub(crate) dir: PathBuf,
    pub(crate) log: Arc<RankLog>,
}

impl Prepared {
    /// Makes it. The log of a rank is that of the attempt before, or a new one.
    pub(crate) fn make(
        options: &Options<'_>,
        kept: &mut Kept,
        placement: &NodePlacement,
        blocks: Option<&BlockAccess>,
    ) -> Result<Prepared> {
        let spec = options.spec;
        let payload = match options.payload {
            Payload::File(file) => file.to_path_buf(),
            Payload::Bytes(bytes) => {
                let file = kept.files.private.join(contract::FILE_PAYLOAD);
                write_whole(&file, bytes)?;
                file
            }
        };
        let groups = Key::of_groups(&spec.token, &spec.job.id, placement.generation);
        let mut ranks = Vec::new();
        for place in &placement.ranks {
            let rank = place.rank;
            let log = match kept.logs.get(&rank) {
                Some(log) => Arc::clone(log),
                None => RankLog::create(&kept.files.log(rank, spec.attempt), spec.job.logs.max_file_bytes)?,
            };
            kept.logs.insert(rank, Arc::clone(&log));
            let dir = kept.files.rank(rank)?;
            // One of the attempt before would be taken for this one's.
            let _ = std::fs::remove_file(kept.files.flight_recorder_of(rank));
            // Not in its environment, which others may see and its children inherit.
            write_whole(&dir.join(contract::FILE_GROUPS_KEY), groups.bytes())?;
            if let Some(blocks) = blocks {
                let text = serde_json::to_vec(blocks).unwrap_or_default();
                write_whole(&dir.join(contract::FILE_BLOCKS), &text)?;
            }
            if !spec.job.data_folder.is_empty() {
                kept.files.link_fetched(&dir)?;
            }
            ranks.push(PreparedRank { rank, dir, log });
        }
        Ok(Prepared { payload, flight_recorder: kept.files.flight_recorder(), ranks })
    }
}
