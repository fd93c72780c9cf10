//! What the ranks' threads were doing: Python stacks as faulthandler writes them. Equal stacks are shown once.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// How much of a rank's stacks is kept.
pub const MAX_STACKS_BYTES: usize = 64 << 10;
/// How many lines of one group a failure shows.
const SHOWN_LINES: usize = 60;
/// How many groups are shown.
const SHOWN_GROUPS: usize = 50;
/// How many runs of ranks without a gap are named.
const NAMED_RUNS: usize = 20;

/// The stacks of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankStacks {
    /// The rank.
    pub rank: u32,
    /// All its threads' stacks, or in parentheses why there are none.
    pub text: String,
}

/// The stacks with equal ones once, and their ranks above them; the most frequent first, then by rank.
///
/// Addresses of threads, and the folders of files, tell nothing apart: executors have shipped files in folders of their
/// own. The folders that are shown are those of the first rank.
pub fn group(stacks: &[RankStacks]) -> String {
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for RankStacks { rank, text } in stacks {
        let shown = without_addresses(&without_watchdog(text));
        let key = without_folders(&shown);
        let at = *known.entry(key).or_insert_with(|| {
            groups.push(Group { shown, ranks: Vec::new() });
            groups.len() - 1
        });
        groups[at].ranks.push(*rank);
    }
    groups.iter_mut().for_each(|group| group.ranks.sort_unstable());
    groups.sort_by_key(|group| (std::cmp::Reverse(group.ranks.len()), group.ranks.first().copied()));
    let mut text = String::new();
    let rest: usize = groups.iter().skip(SHOWN_GROUPS).map(|group| group.ranks.len()).sum();
    for Group { shown, ranks } in groups.into_iter().take(SHOWN_GROUPS) {
        let _ = writeln!(text, "{}:", ranges(&ranks));
        for line in shown.lines().take(SHOWN_LINES) {
            let _ = writeln!(text, "  {line}");
        }
        if shown.lines().count() > SHOWN_LINES {
            let _ = writeln!(text, "  ... {} more lines", shown.lines().count() - SHOWN_LINES);
        }
    }
    if rest > 0 {
        let _ = writeln!(text, "{rest} more ranks with other stacks");
    }
    text
}

/// Ranks with equal stacks.
struct Group {
    shown: String,
    ranks: Vec<u32>,
}

/// `rank 3`, `ranks 0, 2-7`; of many runs the first, and how many ranks are in the others.
pub fn ranges(ranks: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let rest: u32 = runs.iter().skip(NAMED_RUNS).map(|(first, last)| last - first + 1).sum();
    let runs: Vec<String> = runs
        .iter()
        .take(NAMED_RUNS)
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    let more = if rest == 0 { String::new() } else { format!(" and {rest} more") };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, runs.join(", "))
}

/// The stacks without the threads that Phalanx itself has in a rank.
fn without_watchdog(text: &str) -> String {
    let threads = text.split("\n\n");
    let is_own = |top: &str| {
        ["phalanx/rank/watchdog.py\"", "phalanx/rank/profiler.py\""].iter().any(|file| top.contains(file))
    };
    let own = |thread: &&str| thread.lines().nth(1).is_none_or(|top| !is_own(top));
    threads.filter(own).collect::<Vec<_>>().join("\n\n")
}

fn without_addresses(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.trim_end();
    while let Some(at) = rest.find("hread 0x") {
        let (before, after) = rest.split_at(at + "hread".len());
        shown.push_str(before);
        rest = after[" 0x".len()..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    shown.push_str(rest);
    shown
}

/// The stacks with the files' names only.
fn without_folders(text: &str) -> String {
    let name_of = |line: &str| match line.split_once("File \"").zip(line.rfind('/')) {
        Some(((before, _), slash)) => format!("{before}{}\n", &line[slash + 1..]),
        None => format!("{line}\n"),
    };
    text.lines().map(name_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rank: u32, text: &str) -> RankStacks {
        RankStacks { rank, text: text.into() }
    }

    #[test]
    fn equal_stacks_are_shown_once_with_their_ranks() {
        let waits = "Current thread 0x00007f12 (most recent call first):\n  File \"a.py\", line 3 in wait\n";
        let also = waits.replace("7f12", "7fab");
        let stuck = waits.replace("wait", "lock");
        let shown = group(&[of(0, waits), of(1, &stuck), of(2, &also), of(3, waits)]);
        let expected = "ranks 0, 2-3:\n  Current thread (most recent call first):\n    File \"a.py\", line 3 in wait\n\
                        rank 1:\n  Current thread (most recent call first):\n    File \"a.py\", line 3 in lock\n";
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_same_file_in_folders_of_two_executors_is_the_same() {
        let stack =
            |folder: &str| format!("  File \"{folder}/a.py\", line 3 in f\n  File \"<string>\", line 1\n");
        let shown =
            group(&[of(0, &stack("/x/1")), of(1, &stack("/x/2")), of(2, &stack("/x/1").replace("3", "4"))]);
        assert!(shown.starts_with("ranks 0-1:\n    File \"/x/1/a.py\", line 3 in f\n"), "{shown}");
        assert!(shown.contains("rank 2:\n"), "{shown}");
    }

    #[test]
    fn the_threads_of_phalanx_are_left_out() {
        let own = "Thread 0x01 (most recent call first):\n  File \"/x/phalanx/rank/watchdog.py\", line 9 in _watch\n";
        let text =
            format!("{own}\nCurrent thread 0x02 (most recent call first):\n  File \"a.py\", line 3 in f\n");
        let shown = group(&[of(0, &text)]);
        assert!(!shown.contains("watchdog") && shown.contains("line 3 in f"), "{shown}");
    }

    #[test]
    fn of_thousands_of_ranks_with_stacks_of_their_own_fifty_are_shown() {
        let stacks: Vec<RankStacks> = (0..8000).map(|rank| of(rank, &format!("in f{rank}"))).collect();
        let shown = group(&stacks);
        assert_eq!(shown.lines().count(), 2 * 50 + 1);
        assert!(shown.ends_with("in f49\n7950 more ranks with other stacks\n"), "{shown}");
    }

    #[test]
    fn ranks_with_many_gaps_are_not_all_named() {
        let ranks: Vec<u32> = (0..8000).step_by(2).chain([8001]).collect();
        let named: Vec<String> = (0..20).map(|i| (2 * i).to_string()).collect();
        assert_eq!(ranges(&ranks), format!("ranks {} and 3981 more", named.join(", ")));
    }

    #[test]
    fn a_long_stack_is_cut_and_says_so() {
        let long = "  File \"a.py\", line 1 in f\n".repeat(SHOWN_LINES + 5);
        assert!(group(&[of(0, &long)]).ends_with("  ... 5 more lines\n"));
    }
}
