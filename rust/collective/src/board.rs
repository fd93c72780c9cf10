//! What ranks tell one another by the store while their group comes together.
//!
//! Each says it under a key of its own. Rank 0 reads them all, and leaves them as one table, which the others read.
//!
//! - BOARD-1 (linear): an exchange asks three keys of the store for each rank, however many ranks there are.
//! - BOARD-2 (named): a rank that says nothing is named by every other. Rank 0 gives up a little sooner than they do,
//!   and says in the table whom it missed. Where there is no table, the others look for themselves.

use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::Store;

/// How much sooner than its deadline rank 0 gives up, and the others twice as late: a tenth of what is left, but no
/// more than this.
const MARGIN: Duration = Duration::from_secs(1);

/// The part of the store that one group uses, as one rank sees it.
pub(crate) struct Board<'a> {
    pub(crate) store: &'a mut dyn Store,
    /// The group's.
    pub(crate) name: &'a str,
    pub(crate) key: Key,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) deadline: Deadline,
}

/// What rank 0 leaves for all.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Table<T> {
    /// By rank.
    All(Vec<T>),
    Failed {
        kind: String,
        text: String,
    },
}

impl Board<'_> {
    /// Says something to all; what all said, by rank.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] with a rank that said nothing, [`ErrorKind::Refused`] if somebody else did in its place;
    /// what the store fails with.
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
        &mut self,
        what: &str,
        mine: &T,
    ) -> Result<Vec<T>> {
        self.publish(&format!("{what}/{}", self.rank), mine)?;
        let table = format!("{what}s");
        if self.rank == 0 {
            let gathered = self.gather(what);
            let told = match gathered {
                Ok(all) => Table::All(all),
                Err(error) => Table::Failed { kind: error.kind().name().into(), text: error.to_string() },
            };
            let published = self.publish(&table, &told);
            return self.unpack(told).and_then(|all| published.map(|()| all));
        }
        match self.read(&table, self.sooner(2)) {
            Ok(told) => self.unpack(told),
            Err(error) if error.kind() == ErrorKind::Timeout => Err(self.missing(what, error)),
            Err(error) => Err(error),
        }
    }

    fn unpack<T>(&self, told: Table<T>) -> Result<Vec<T>> {
        match told {
            Table::All(all) if all.len() == self.world_size => Ok(all),
            Table::All(all) => {
                let text = format!("rank 0 tells of {} ranks, and there are {}", all.len(), self.world_size);
                Err(Error::new(ErrorKind::Protocol, text))
            }
            Table::Failed { kind, text } => {
                let known = ErrorKind::ALL.iter().find(|one| one.name() == kind);
                Err(Error::new(known.copied().unwrap_or(ErrorKind::Closed), text))
            }
        }
    }

    /// What every rank left, for rank 0.
    fn gather<T: DeserializeOwned>(&mut self, what: &str) -> Result<Vec<T>> {
        let deadline = self.sooner(1);
        (0..self.world_size)
            .map(|rank| {
                let said = self.read(&format!("{what}/{rank}"), deadline);
                said.map_err(|error| self.has_not_joined(rank, &error))
            })
            .collect()
    }

    /// Why there is no table (BOARD-2).
    fn missing(&mut self, what: &str, late: Error) -> Error {
        for rank in 0..self.world_size {
            let place = self.place(&format!("{what}/{rank}"));
            if let Err(error) = self.store.get(&place, self.deadline) {
                return self.has_not_joined(rank, &error);
            }
        }
        late.context("rank 0 has not told who is there")
    }

    fn has_not_joined(&self, rank: usize, error: &Error) -> Error {
        error.clone().context(format_args!("rank {rank} has not joined {:?}", self.name))
    }

    /// Before the deadline by the margin's n-th part.
    fn sooner(&self, part: u32) -> Deadline {
        self.deadline.left().map_or(self.deadline, |left| {
            let margin = (left / 10).min(MARGIN) / part;
            Deadline::after(left - margin)
        })
    }

    fn place(&self, what: &str) -> String {
        format!("{}/{what}", self.name)
    }

    fn publish(&mut self, what: &str, value: &impl Serialize) -> Result<()> {
        let place = self.place(what);
        let json = serde_json::to_vec(value)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("can't write {place}: {error}")))?;
        self.store.set(&place, &self.key.seal(&place, &json), self.deadline)
    }

    fn read<T: DeserializeOwned>(&mut self, what: &str, deadline: Deadline) -> Result<T> {
        let place = self.place(what);
        let sealed = self.store.get(&place, deadline)?;
        // BOOT-3
        let json = self.key.open(&place, &sealed).ok_or_else(|| {
            let text = format!("what the store has at {place} is from no rank of this group");
            Error::new(ErrorKind::Refused, text)
        })?;
        serde_json::from_slice(json)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("{place} can't be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HashStore;

    /// What each of these ranks of a world gets told.
    fn exchange(ranks: &[usize], world_size: usize, patience: Duration) -> Vec<Result<Vec<usize>>> {
        let store = HashStore::default();
        let deadline = Deadline::after(patience);
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks
                .iter()
                .map(|rank| {
                    let (rank, mut store) = (*rank, store.clone());
                    let key = Key::from_bytes([1; 32]);
                    scope.spawn(move || {
                        let store = &mut store;
                        Board { store, name: "g", key, rank, world_size, deadline }
                            .exchange("number", &(rank * 3))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_hears_what_all_said_in_the_order_of_ranks() {
        for all in exchange(&[3, 1, 0, 2], 4, Duration::from_secs(30)) {
            assert_eq!(all.unwrap(), [0, 3, 6, 9]);
        }
    }

    #[test]
    fn a_rank_that_says_nothing_is_named_by_all_also_where_it_is_rank_0() {
        for silent in [0, 2] {
            let there: Vec<usize> = (0..4).filter(|rank| *rank != silent).collect();
            for error in exchange(&there, 4, Duration::from_millis(300)) {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "BOARD-2");
                let sentence = format!("rank {silent} has not joined \"g\"");
                assert!(error.to_string().contains(&sentence), "BOARD-2: {error}");
            }
        }
    }
}
