//! Which of the ranks' output the caller sees while they run. Files, and the newest lines, have all of it in any case.
//!
//! - TYPES-26 (any-choice-parses): what [`ShownOutput`] is written as is read back as the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// Up to so many ranks all output is shown as it comes, where nobody says otherwise.
const FEW_RANKS: u32 = 8;

/// Which of the ranks' output is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownOutput {
    /// All of up to 8 ranks, else as [`ShownOutput::Dedup`].
    #[default]
    Auto,
    /// All, each line with its rank.
    All,
    /// Equal lines of several ranks once, with their ranks.
    Dedup,
    /// That of these ranks.
    Ranks(Vec<u32>),
    /// The newest lines of the rank that failed, once it has.
    Errors,
    /// None.
    Off,
}

impl ShownOutput {
    /// The choices that are a word.
    pub const WORDS: [(&'static str, ShownOutput); 5] = [
        ("auto", ShownOutput::Auto),
        ("all", ShownOutput::All),
        ("dedup", ShownOutput::Dedup),
        ("errors", ShownOutput::Errors),
        ("off", ShownOutput::Off),
    ];

    /// What it means for so many ranks: never [`ShownOutput::Auto`].
    pub fn of_ranks(&self, ranks: u32) -> ShownOutput {
        match self {
            ShownOutput::Auto if ranks <= FEW_RANKS => ShownOutput::All,
            ShownOutput::Auto => ShownOutput::Dedup,
            other => other.clone(),
        }
    }

    /// Whether lines of `rank` are shown as they come.
    pub fn shows(&self, rank: u32) -> bool {
        match self {
            ShownOutput::Auto | ShownOutput::All | ShownOutput::Dedup => true,
            ShownOutput::Ranks(ranks) => ranks.contains(&rank),
            ShownOutput::Errors | ShownOutput::Off => false,
        }
    }
}

impl FromStr for ShownOutput {
    type Err = Error;

    /// One of the words, or ranks with commas between them.
    fn from_str(text: &str) -> Result<ShownOutput, Error> {
        let word = ShownOutput::WORDS.into_iter().find(|(word, _)| *word == text);
        if let Some((_, choice)) = word {
            return Ok(choice);
        }
        let ranks: Result<Vec<u32>, _> = text.split(',').map(|rank| rank.trim().parse()).collect();
        ranks
            .map(ShownOutput::Ranks)
            .map_err(|_| Error::new(ErrorKind::Invalid, format!("{text:?} is not a choice of output")))
    }
}

impl fmt::Display for ShownOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ShownOutput::Ranks(ranks) = self {
            let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
            return f.write_str(&ranks.join(","));
        }
        let word = ShownOutput::WORDS.into_iter().find(|(_, choice)| choice == self);
        f.write_str(word.map_or("auto", |(word, _)| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_read_back_as_what_it_was() {
        let ranks = ShownOutput::Ranks(vec![0, 7]);
        for choice in ShownOutput::WORDS.into_iter().map(|(_, choice)| choice).chain([ranks]) {
            assert_eq!(choice.to_string().parse::<ShownOutput>().unwrap(), choice, "TYPES-26");
        }
        assert_eq!(" 1, 2".parse::<ShownOutput>().unwrap(), ShownOutput::Ranks(vec![1, 2]));
        for wrong in ["", "some", "1,", "-1"] {
            assert!(wrong.parse::<ShownOutput>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn equal_lines_are_folded_above_8_ranks_unless_somebody_says_otherwise() {
        assert_eq!(ShownOutput::Auto.of_ranks(8), ShownOutput::All);
        assert_eq!(ShownOutput::Auto.of_ranks(9), ShownOutput::Dedup);
        assert_eq!(ShownOutput::All.of_ranks(9), ShownOutput::All);
    }
}
