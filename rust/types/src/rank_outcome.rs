//! What became of one rank, and the ranks that did not cause a failure as lines for people.
//!
//! TYPES-23 (bounded): up to `LISTED_RANKS` ranks have a line each. Of more, those that ended alike share one, and no
//! more than `SHOWN_GROUPS` such lines are shown.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use serde::Serialize;

use crate::rank_exit::{RankError, RankExit, RankState};
use crate::stacks::ranges;

/// How many ranks have a line each.
const LISTED_RANKS: usize = 32;
/// How many lines there are of more ranks.
const SHOWN_GROUPS: usize = 20;
/// How many hosts of a group are named.
const NAMED_HOSTS: usize = 3;

/// One rank's line in a failure's table. In its JSON `state` is what [`RankOutcome::describe`] says.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "Written")]
pub struct RankOutcome {
    /// The rank.
    pub rank: u32,
    /// Its host; empty while not known.
    pub host: String,
    /// What became of it.
    pub state: RankState,
    /// The exception in a few words, as [`RankError::describe`](crate::RankError::describe) has them; empty where none
    /// was raised.
    pub raised: String,
    /// Seconds since it last wrote output; `None` if it never did.
    pub idle_seconds: Option<f64>,
    /// What it was doing before the ranks were ended, as far as is known, e.g. a collective operation; else empty.
    pub doing: String,
}

impl RankOutcome {
    /// The line of a rank that ended like `exit`, in the table of a failure at `at_us` (microseconds since the hub
    /// opened).
    pub fn of(exit: &RankExit, at_us: i64) -> RankOutcome {
        let idle_seconds = exit.last_output_us.map(|last| (at_us - last).max(0) as f64 / 1e6);
        RankOutcome {
            rank: exit.rank,
            host: exit.host.clone(),
            state: exit.state.clone(),
            raised: exit.raised().map(RankError::describe).unwrap_or_default(),
            idle_seconds,
            doing: String::new(),
        }
    }

    /// What became of the rank, in words: `stopped`, or `raised RuntimeError: ...`.
    pub fn describe(&self) -> String {
        if self.raised.is_empty() { self.state.describe() } else { self.raised.clone() }
    }
}

/// [`RankOutcome`] as the languages get it.
#[derive(Serialize)]
struct Written {
    rank: u32,
    host: String,
    state: String,
    idle_seconds: Option<f64>,
    doing: String,
}

impl From<RankOutcome> for Written {
    fn from(outcome: RankOutcome) -> Written {
        let state = outcome.describe();
        let RankOutcome { rank, host, idle_seconds, doing, .. } = outcome;
        Written { rank, host, state, idle_seconds, doing }
    }
}

/// One line a rank, or a group of them.
pub(crate) fn lines(ranks: &[&RankOutcome]) -> String {
    let mut text = String::new();
    if ranks.len() <= LISTED_RANKS {
        for rank in ranks {
            let idle = rank
                .idle_seconds
                .map_or("no output seen".to_string(), |s| format!("last output {s:.1} s before"));
            let (number, host, state, doing) = (rank.rank, &rank.host, rank.describe(), doing(rank));
            let _ = writeln!(text, "  rank {number:<4} {host:<20} {state} ({idle}{doing})");
        }
        return text;
    }
    let groups = groups(ranks);
    for group in groups.iter().take(SHOWN_GROUPS) {
        let _ = writeln!(text, "  {}", describe(group));
    }
    let rest: Vec<u32> = groups.iter().skip(SHOWN_GROUPS).flatten().map(|rank| rank.rank).collect();
    if !rest.is_empty() {
        let _ = writeln!(text, "  {} more ranks in {} other ways", rest.len(), groups.len() - SHOWN_GROUPS);
    }
    text
}

fn doing(rank: &RankOutcome) -> String {
    if rank.doing.is_empty() { String::new() } else { format!("; in {}", rank.doing) }
}

/// Ranks that ended alike, the largest group first.
fn groups<'a>(ranks: &[&'a RankOutcome]) -> Vec<Vec<&'a RankOutcome>> {
    let mut groups: Vec<Vec<&RankOutcome>> = Vec::new();
    let mut known: HashMap<(&RankState, String, String), usize> = HashMap::new();
    for rank in ranks {
        let key = (&rank.state, without_numbers(&rank.raised), without_numbers(&rank.doing));
        let at = *known.entry(key).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[at].push(*rank);
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

/// What an exception says, or an operation, with `#` for every number: ranks, ports and steps tell no two ends apart.
fn without_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_ascii_digit() {
            true if kept.ends_with('#') => {}
            true => kept.push('#'),
            false => kept.push(c),
        }
    }
    kept
}

fn describe(group: &[&RankOutcome]) -> String {
    let numbers: Vec<u32> = group.iter().map(|rank| rank.rank).collect();
    let hosts: BTreeSet<&str> = group.iter().map(|rank| rank.host.as_str()).collect();
    let (mut text, first) = (ranges(&numbers), group[0]);
    let named: Vec<&str> = hosts.iter().copied().take(NAMED_HOSTS).collect();
    let _ = match hosts.len() {
        count if count > NAMED_HOSTS => write!(text, " on {count} hosts ({}, ...)", named.join(", ")),
        _ => write!(text, " on {}", named.join(", ")),
    };
    let seconds = || group.iter().filter_map(|rank| rank.idle_seconds);
    let (shortest, longest) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
    let idle = match seconds().count() {
        0 => "no output seen".to_string(),
        _ => format!("last output {shortest:.1} to {longest:.1} s before"),
    };
    let like = if group.len() > 1 { ", as the first says" } else { "" };
    let like = if group.iter().any(|rank| rank.raised != first.raised) { like } else { "" };
    let _ = write!(text, ": {}{like} ({idle}{})", first.describe(), doing(first));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(rank: u32, state: RankState) -> RankOutcome {
        let idle_seconds = rank.is_multiple_of(2).then(|| f64::from(rank % 10));
        let host = format!("host-{}", rank / 8);
        RankOutcome { rank, host, state, raised: String::new(), idle_seconds, doing: String::new() }
    }

    fn raised(rank: u32, what: String) -> RankOutcome {
        RankOutcome { raised: format!("raised {what}"), ..outcome(rank, RankState::Raised) }
    }

    fn table(ranks: &[RankOutcome]) -> String {
        lines(&ranks.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_few_ranks_have_a_line_each() {
        let ranks: Vec<RankOutcome> = (0..32).map(|rank| outcome(rank, RankState::Stopped)).collect();
        assert_eq!(table(&ranks).lines().count(), 32, "TYPES-23");
        assert_eq!(table(&ranks[1..2]), "  rank 1    host-0               stopped (no output seen)\n");
    }

    #[test]
    fn the_languages_get_the_state_in_words() {
        let bad = raised(1, "ValueError: exited".into());
        for (outcome, words) in [
            (outcome(1, RankState::Exited(3)), "exited with code 3"),
            (outcome(1, RankState::Raised), "raised"),
            (bad, "raised ValueError: exited"),
        ] {
            let json = serde_json::to_value(outcome).unwrap();
            let expected = serde_json::json!({
                "rank": 1, "host": "host-0", "state": words, "idle_seconds": null, "doing": ""
            });
            assert_eq!(json, expected);
        }
    }

    #[test]
    fn thousands_of_ranks_share_lines_by_how_they_ended() {
        let of = |rank: u32| match rank {
            320..640 => outcome(rank, RankState::Lost),
            7000 => outcome(rank, RankState::Exited(3)),
            _ => raised(rank, format!("RuntimeError: rank {} went away (port {rank})", rank / 7)),
        };
        let mut ranks: Vec<RankOutcome> = (0..8000).map(of).collect();
        ranks[7999].doing = "all_reduce 17".into();
        let expected = "  \
             ranks 0-319, 640-6999, 7001-7998 on 960 hosts (host-0, host-1, host-10, ...): \
             raised RuntimeError: rank 0 went away (port 0), as the first says (last output 0.0 to 8.0 s before)\n  \
             ranks 320-639 on 40 hosts (host-40, host-41, host-42, ...): is lost with its task \
             (last output 0.0 to 8.0 s before)\n  \
             rank 7000 on host-875: exited with code 3 (last output 0.0 to 0.0 s before)\n  \
             rank 7999 on host-999: raised RuntimeError: rank 1142 went away (port 7999) \
             (no output seen; in all_reduce 17)\n";
        assert_eq!(table(&ranks), expected, "TYPES-23");
    }

    #[test]
    fn eight_thousand_ways_to_end_are_not_all_told() {
        let name = |rank: u32| rank.to_string().bytes().map(|digit| (digit + 49) as char).collect::<String>();
        let ranks: Vec<RankOutcome> = (0..8000).map(|rank| raised(rank, name(rank))).collect();
        let text = table(&ranks);
        assert_eq!(text.lines().count(), SHOWN_GROUPS + 1, "TYPES-23");
        assert!(text.ends_with("  7980 more ranks in 7980 other ways\n"), "{text}");
    }
}
