//! What ranks tell one another by the store while their group comes together.
//!
//! Each says it under a key of its own. Rank 0 reads them all, and leaves them as one table. That is long: one rank of
//! each host reads it, and hands it to the others there ([`mod@super::tables`]).
//!
//! - GROUP-21 (linear): forming a group asks six keys of the store for each rank and two for each host, however many
//!   there are.
//! - GROUP-22 (named): a rank that says nothing is named by every other. Rank 0 gives up a little sooner than they
//!   do, and says in the table whom it missed. Where there is no table, the others look for themselves.
//! - GROUP-23 (once-a-host): the store sends a table once for each host, if its leader doesn't end before it has
//!   handed it on.

use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::bootstrap::store::Store;
use crate::door::handshake::random;

/// How much sooner than its deadline rank 0 gives up, and the others twice as late: a tenth of what is left, but no
/// more than this.
const MARGIN: Duration = Duration::from_secs(1);

/// The part of the store that one group uses, as one rank sees it.
pub(crate) struct Exchange<'a> {
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
enum Told<T> {
    All(T),
    Failed { kind: String, text: String },
}

impl<T> Told<T> {
    fn new(gathered: Result<T>) -> Told<T> {
        match gathered {
            Ok(all) => Told::All(all),
            Err(error) => Told::Failed { kind: error.kind().name().into(), text: error.to_string() },
        }
    }

    fn unpack(self) -> Result<T> {
        match self {
            Told::All(all) => Ok(all),
            Told::Failed { kind, text } => {
                let known = ErrorKind::ALL.iter().find(|one| one.name() == kind);
                Err(Error::new(known.copied().unwrap_or(ErrorKind::Closed), text))
            }
        }
    }
}

impl Exchange<'_> {
    /// A number that no other group has, which rank 0 makes up.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if rank 0 isn't there.
    pub(crate) fn meeting(&mut self) -> Result<String> {
        if self.rank == 0 {
            let number = hex::encode(random::<16>()?);
            return self.publish("meeting", &number).map(|()| number);
        }
        let deadline = self.sooner(2);
        self.read("meeting", deadline).map_err(|error| match error.kind() {
            ErrorKind::Timeout => self.has_not_joined(0, &error),
            _ => error,
        })
    }

    /// Says something to all, of which there will be a table.
    ///
    /// # Errors
    /// What the store fails with; on rank 0 also [`ErrorKind::Timeout`] with a rank that said nothing, and
    /// [`ErrorKind::Refused`] if somebody else did in its place.
    pub(crate) fn say<T: Serialize + DeserializeOwned>(&mut self, what: &str, mine: &T) -> Result<()> {
        self.publish(&format!("{what}/{}", self.rank), mine)?;
        if self.rank != 0 {
            return Ok(());
        }
        let told = Told::new(self.gather::<T>(what));
        self.publish(&format!("{what}s"), &told)?;
        told.unpack().map(drop)
    }

    /// Says something to all, and waits until all have.
    ///
    /// # Errors
    /// Those of [`Exchange::table`].
    pub(crate) fn say_with_all<T: Serialize + DeserializeOwned>(
        &mut self,
        what: &str,
        mine: &T,
    ) -> Result<()> {
        let said = self.say(what, mine);
        let place = format!("{what}s-there");
        if self.rank == 0 {
            self.publish(&place, &Told::new(said.clone()))?;
            return said;
        }
        said?;
        let told = self.hear(what, &place)?;
        self.unpack::<()>(&place, &told)
    }

    /// What all said, as [`Exchange::all`] reads it.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] with a rank that said nothing, [`ErrorKind::Refused`] if somebody else did in its place;
    /// what the store fails with.
    pub(crate) fn table(&mut self, what: &str) -> Result<Vec<u8>> {
        self.hear(what, &format!("{what}s"))
    }

    /// What all said, by rank, by its table.
    ///
    /// # Errors
    /// Those of [`Exchange::table`].
    pub(crate) fn all<T: DeserializeOwned>(&self, what: &str, table: &[u8]) -> Result<Vec<T>> {
        let all: Vec<T> = self.unpack(&format!("{what}s"), table)?;
        if all.len() == self.world_size {
            return Ok(all);
        }
        let text = format!("rank 0 announced {} ranks, but the group has {}", all.len(), self.world_size);
        Err(Error::new(ErrorKind::Protocol, text))
    }

    fn unpack<T: DeserializeOwned>(&self, place: &str, told: &[u8]) -> Result<T> {
        parse::<Told<T>>(&self.place(place), told)?.unpack()
    }

    /// What rank 0 has left at a place, once all have said what it waits for.
    fn hear(&mut self, what: &str, place: &str) -> Result<Vec<u8>> {
        match self.fetch(place, self.sooner(2)) {
            Err(error) if error.kind() == ErrorKind::Timeout => Err(self.missing(what, error)),
            told => told,
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

    /// Why there is no table (GROUP-22).
    fn missing(&mut self, what: &str, late: Error) -> Error {
        for rank in 0..self.world_size {
            let place = self.place(&format!("{what}/{rank}"));
            if let Err(error) = self.store.get(&place, self.deadline) {
                return self.has_not_joined(rank, &error);
            }
        }
        late.context("rank 0 has not announced the group's ranks")
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
        let text = self.fetch(what, deadline)?;
        parse(&self.place(what), &text)
    }

    fn fetch(&mut self, what: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let place = self.place(what);
        let sealed = self.store.get(&place, deadline)?;
        // GROUP-8
        let text = self.key.open(&place, &sealed).ok_or_else(|| {
            let text = format!("no rank of this group wrote what the store has at {place}");
            Error::new(ErrorKind::Refused, text)
        })?;
        Ok(text.to_vec())
    }
}

fn parse<T: DeserializeOwned>(place: &str, json: &[u8]) -> Result<T> {
    serde_json::from_slice(json)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("{place} can't be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::store::HashStore;

    /// What each of these ranks of a world gets told.
    fn all_said(ranks: &[usize], world_size: usize, patience: Duration) -> Vec<Result<Vec<usize>>> {
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
                        let mut exchange = Exchange { store, name: "g", key, rank, world_size, deadline };
                        exchange.meeting()?;
                        exchange.say_with_all("number", &(rank * 3))?;
                        let table = exchange.table("number")?;
                        exchange.all("number", &table)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn every_rank_hears_what_all_said_in_the_order_of_ranks() {
        for all in all_said(&[3, 1, 0, 2], 4, Duration::from_secs(30)) {
            assert_eq!(all.unwrap(), [0, 3, 6, 9]);
        }
    }

    #[test]
    fn a_rank_that_says_nothing_is_named_by_all_also_where_it_is_rank_0() {
        for silent in [0, 2] {
            let there: Vec<usize> = (0..4).filter(|rank| *rank != silent).collect();
            for error in all_said(&there, 4, Duration::from_millis(300)) {
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Timeout, "GROUP-22");
                let sentence = format!("rank {silent} has not joined \"g\"");
                assert!(error.to_string().contains(&sentence), "GROUP-22: {error}");
            }
        }
    }
}
