//! The stacks of a node's ranks: each is asked by a signal, and writes them to a file of its own. A thread of their own
//! waits for that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use phalanx_io::pause;
use phalanx_types::contract::FILE_STACKS;
use phalanx_types::message::NodeMessage;
use phalanx_types::stacks::{MAX_STACKS_BYTES, RankStacks};
use phalanx_types::text::cut_middle;
use phalanx_types::{Deadline, Result};

use crate::node::helpers::helper::Helper;
use crate::node::line::Teller;
use crate::node::rank::progress::is_stopped;

/// How long a rank's stacks may take to be written: a process that swaps, or one whose main thread is in the kernel.
const STACKS_WAIT: Duration = Duration::from_secs(3);
/// All stacks of a node together: with each line's end escaped, less than a frame.
const MAX_ANSWER_BYTES: usize = 3 << 20;
/// A file of stacks that doesn't grow for this long is whole.
const STACKS_SETTLE: Duration = Duration::from_millis(150);

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The hub wants the stacks of these ranks.
pub(crate) struct StacksWanted {
    pub(crate) request: u32,
    pub(crate) ranks: Vec<Writer>,
    /// Sends a rank the signal for that.
    pub(crate) signal: Box<dyn Fn(u32) + Send>,
}

/// A rank that may write its stacks.
pub(crate) struct Writer {
    pub(crate) rank: u32,
    /// Its process, once that is known.
    pub(crate) pid: Option<u32>,
    /// Its own folder.
    pub(crate) dir: PathBuf,
}

/// Starts the thread that has ranks write their stacks, and tells the hub, unless the node `is_ending`.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
pub(crate) fn stacks(hub: Teller, is_ending: Arc<AtomicBool>) -> Result<Helper<StacksWanted>> {
    Helper::start("phalanx-stacks", move |wanted: StacksWanted| {
        let request = wanted.request;
        let mut writing = Writing::of(wanted);
        while !is_ending.load(Ordering::Acquire) {
            if let Some(ranks) = writing.answer(Instant::now()) {
                return hub.send(NodeMessage::Stacks { request, ranks });
            }
            pause(LOOK_EVERY, Deadline::never());
        }
    })
}

/// What has been written so far.
#[derive(Debug)]
struct Writing {
    until: Instant,
    waiting: BTreeMap<u32, Growing>,
    stacks: Vec<RankStacks>,
}

/// A file that a rank writes its stacks to.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    from: u64,
    end: u64,
    changed: Instant,
}

impl Writing {
    /// Has each rank that can write its stacks do so.
    fn of(wanted: StacksWanted) -> Writing {
        let now = Instant::now();
        let (until, waiting, stacks) = (now + STACKS_WAIT, BTreeMap::new(), Vec::new());
        let mut asking = Writing { until, waiting, stacks };
        for Writer { rank, pid, dir } in wanted.ranks {
            let path = dir.join(FILE_STACKS);
            let why_not = match (std::fs::metadata(&path), pid) {
                (_, Some(pid)) if is_stopped(pid) => "(its process is stopped)",
                // The rank makes the file when it can take the signal, which would end it before.
                (Err(_), _) => "(it has no Python stacks to show, or has only just begun)",
                (Ok(file), _) => {
                    let from = file.len();
                    asking.waiting.insert(rank, Growing { path, from, end: from, changed: now });
                    (wanted.signal)(rank);
                    continue;
                }
            };
            asking.stacks.push(RankStacks { rank, text: why_not.into() });
        }
        asking
    }

    /// The answer, once it is whole or nothing more is waited for.
    fn answer(&mut self, now: Instant) -> Option<Vec<RankStacks>> {
        let late = now >= self.until;
        let Writing { waiting, stacks, .. } = self;
        waiting.retain(|rank, file| {
            let end = std::fs::metadata(&file.path).map_or(file.end, |found| found.len());
            if end != file.end {
                (file.end, file.changed) = (end, now);
            }
            let whole = file.end > file.from && now >= file.changed + STACKS_SETTLE;
            if whole || late {
                stacks.push(RankStacks { rank: *rank, text: written(&file.path, file.from) });
            }
            !(whole || late)
        });
        self.waiting.is_empty().then(|| together(std::mem::take(&mut self.stacks)))
    }
}

/// The answers of all ranks, in what one message takes: of many long ones each has its share.
fn together(mut stacks: Vec<RankStacks>) -> Vec<RankStacks> {
    let most = MAX_ANSWER_BYTES / stacks.len().max(1);
    for rank in &mut stacks {
        rank.text = cut_middle(&rank.text, most);
    }
    stacks
}

fn written(path: &Path, from: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MAX_STACKS_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if !bytes.is_empty() => String::from_utf8_lossy(&bytes).into_owned(),
        _ => "(it did not answer in time)".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stacks_of_hundreds_of_ranks_are_one_message() {
        let text = "File \"train.py\", line 7 in step\n".repeat(MAX_STACKS_BYTES / 33);
        let all = together((0..384).map(|rank| RankStacks { rank, text: text.clone() }).collect());
        assert!(serde_json::to_vec(&all).unwrap().len() < 8 << 20);
        assert!(all.iter().all(|rank| rank.text.starts_with("File") && rank.text.contains("are left out")));
        let few = together(vec![RankStacks { rank: 0, text: text.clone() }]);
        assert_eq!(few[0].text, text, "of one rank all are told");
    }
}
