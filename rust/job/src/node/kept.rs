//! What a node keeps from one attempt to the next.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use phalanx_supervisor::RankLog;

use crate::node::setup::files::NodeFiles;

/// The files of a node, and its ranks' logs, which go on.
pub(crate) struct Kept {
    /// Outlives the attempts: the ranks' files are removed when nothing uses them any more, however this ends.
    pub(crate) files: NodeFiles,
    pub(crate) logs: BTreeMap<u32, Arc<RankLog>>,
    /// The log of the process that the node runs in, where the ranks' output goes there.
    pub(crate) executor_log: Option<OwnedFd>,
}

impl Kept {
    /// The ranks' logs, and beside them what torch's flight recorder left of them.
    pub(crate) fn logs_and_dumps(&self) -> Vec<PathBuf> {
        let dump = |rank: &u32| self.files.flight_recorder_of(*rank);
        let dumps = self.logs.keys().map(dump).filter(|file| file.exists());
        self.logs.values().flat_map(|log| log.files()).chain(dumps).collect()
    }
}
