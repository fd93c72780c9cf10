//! The stacks of a node's ranks: each is asked by a signal, and writes them to a file of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_types::contract::FILE_STACKS;
use phalanx_types::stacks::{MAX_STACKS_BYTES, RankStacks};
use phalanx_types::text::cut_middle;

use crate::node::progress::is_stopped;
use crate::node::ranks::Rank;

/// How long a rank's stacks may take to be written: a process that swaps, or one whose main thread is in the kernel.
const STACKS_WAIT: Duration = Duration::from_secs(3);
/// All stacks of a node together: with each line's end escaped, less than a frame.
const MAX_ANSWER_BYTES: usize = 3 << 20;
/// A file of stacks that doesn't grow for this long is whole.
const STACKS_SETTLE: Duration = Duration::from_millis(150);

/// A request for the stacks of a node's ranks.
#[derive(Debug)]
pub(crate) struct StacksRequest {
    request: u32,
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

impl StacksRequest {
    /// Has each rank that can write its stacks do so; `signal` sends a rank the signal for that.
    pub(crate) fn of(request: u32, ranks: &[Rank], mut signal: impl FnMut(u32)) -> StacksRequest {
        let now = Instant::now();
        let mut asking =
            StacksRequest { request, until: now + STACKS_WAIT, waiting: BTreeMap::new(), stacks: Vec::new() };
        for rank in ranks.iter().filter(|rank| !rank.process.is_over()) {
            let path = rank.dir.join(FILE_STACKS);
            let why_not = match (std::fs::metadata(&path), rank.process.pid()) {
                (_, Some(pid)) if is_stopped(pid) => "(its process is stopped)",
                // The rank makes the file when it can take the signal, which would end it before.
                (Err(_), _) => "(it has no Python stacks to show, or has only just begun)",
                (Ok(file), _) => {
                    let from = file.len();
                    let growing = Growing { path, from, end: from, changed: now };
                    asking.waiting.insert(rank.rank, growing);
                    signal(rank.rank);
                    continue;
                }
            };
            asking.stacks.push(RankStacks { rank: rank.rank, text: why_not.into() });
        }
        asking
    }

    /// The answer, once it is whole or nothing more is waited for.
    pub(crate) fn answer(&mut self, now: Instant) -> Option<(u32, Vec<RankStacks>)> {
        let late = now >= self.until;
        let StacksRequest { waiting, stacks, .. } = self;
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
        self.waiting.is_empty().then(|| (self.request, together(std::mem::take(&mut self.stacks))))
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
