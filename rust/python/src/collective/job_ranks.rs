//! What a group's errors say, in the numbers that its ranks have in the job.
//!
//! A group counts its ranks from 0, and its messages use these numbers on their way between its ranks. People, logs and
//! reports know a rank by its number in the job.

use std::sync::Arc;

use phalanx_types::Error;

/// What stands before a rank's number in messages.
const WORDS: [&str; 2] = ["rank ", "root "];

/// The numbers in the job of a group's ranks, in the group's order. Cheap to clone.
#[derive(Clone)]
pub(crate) struct JobRanks(Option<Arc<[usize]>>);

impl JobRanks {
    pub(crate) fn new(ranks: &[usize]) -> JobRanks {
        let are_the_same = ranks.iter().copied().eq(0..ranks.len());
        JobRanks((!are_the_same).then(|| ranks.into()))
    }

    /// The error with the job's numbers.
    pub(crate) fn with_job_ranks(&self, error: Error) -> Error {
        match &self.0 {
            Some(ranks) => Error::new(error.kind(), reworded(&error.to_string(), ranks)),
            None => error,
        }
    }
}

fn reworded(text: &str, ranks: &[usize]) -> String {
    let mut words = String::with_capacity(text.len() + 8);
    let mut left = text;
    while let Some(end) = WORDS.iter().filter_map(|word| Some(left.find(word)? + word.len())).min() {
        let (before, after) = left.split_at(end);
        let (number, rest) = after.split_at(after.bytes().take_while(u8::is_ascii_digit).count());
        words.push_str(before);
        match number.parse().ok().and_then(|rank: usize| ranks.get(rank)) {
            Some(rank) => words.push_str(&rank.to_string()),
            None => words.push_str(number),
        }
        left = rest;
    }
    words + left
}
