//! Of which ranks a run's caller wants every report, beside what displays show.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

/// Of which ranks a run's caller wants every report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EveryReport {
    /// Of none.
    #[default]
    None,
    /// Of rank 0.
    First,
    /// Of all.
    All,
}

impl EveryReport {
    /// Whether `rank` is one of them.
    pub fn is_of(self, rank: u32) -> bool {
        match self {
            EveryReport::None => false,
            EveryReport::First => rank == 0,
            EveryReport::All => true,
        }
    }
}

impl FromStr for EveryReport {
    type Err = Error;

    /// As a caller that wants them says it.
    fn from_str(told: &str) -> Result<EveryReport> {
        match told {
            "first" => Ok(EveryReport::First),
            "all" => Ok(EveryReport::All),
            other => {
                let why = format!("every report is wanted of {other}, but it has to be first or all");
                Err(Error::new(ErrorKind::Invalid, why))
            }
        }
    }
}
