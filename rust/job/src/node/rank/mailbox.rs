//! What one rank has told its node and the node has not looked at yet.
//!
//! - NODE-32 (own): a rank that tells more than its node takes loses nothing of another's.
//! - NODE-33 (kept): its error and its phases are kept, of its beats and its reports the newest. What is kept is
//!   bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_types::RankNote;
use phalanx_types::message::MAX_PHASES;

/// The notes of one rank that wait: put there by the thread that reads them, taken by the node's.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which they came.
    phases: VecDeque<RankNote>,
    error: Option<RankNote>,
    cold: Option<RankNote>,
    report: Option<RankNote>,
    /// How many reports came before it and were not looked at.
    overtaken: u64,
    beat: Option<RankNote>,
    returned: Option<RankNote>,
    saved: Option<RankNote>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        let newest = [&self.error, &self.cold, &self.report, &self.beat, &self.returned, &self.saved];
        self.phases.is_empty() && newest.into_iter().all(Option::is_none)
    }
}

impl Mailbox {
    /// Takes in a note; whether it is the first that waits, of which the node is to be told.
    pub(crate) fn put(&self, note: RankNote) -> bool {
        let mut waiting = self.lock();
        let is_first = waiting.is_empty();
        match note {
            // As TYPES-11: who tells more phases than that has them passed over anyway.
            RankNote::Phase(_) if waiting.phases.len() >= MAX_PHASES as usize => {}
            RankNote::Phase(_) => waiting.phases.push_back(note),
            RankNote::Error(_) => waiting.error = Some(note),
            RankNote::Cold(_) => _ = waiting.cold.get_or_insert(note),
            RankNote::Report(_) => {
                waiting.overtaken += u64::from(waiting.report.replace(note).is_some());
            }
            RankNote::Returned(_) => waiting.returned = Some(note),
            RankNote::Saved(_) => waiting.saved = Some(note),
            RankNote::Beat(mut beat) => {
                // That it ran since the beat before is progress, whichever beat says it.
                if let Some(RankNote::Beat(before)) = &waiting.beat {
                    beat.ran |= before.ran;
                }
                waiting.beat = Some(RankNote::Beat(beat));
            }
        }
        is_first && !waiting.is_empty()
    }

    /// All that waits, and how many reports its report has overtaken; then nothing does.
    pub(crate) fn take(&self) -> (impl Iterator<Item = RankNote> + use<>, u64) {
        let Waiting { phases, error, cold, report, overtaken, beat, returned, saved } =
            std::mem::take(&mut *self.lock());
        let newest = [cold, report, beat, saved, returned, error];
        (phases.into_iter().chain(newest.into_iter().flatten()), overtaken)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_types::RankError;
    use phalanx_types::contract::{Beat, Report};

    use super::*;

    fn report(step: u64) -> RankNote {
        RankNote::Report(Report { step: Some(step), ..Report::default() })
    }

    #[test]
    fn a_flood_of_reports_keeps_the_phases_and_the_error_that_came_between_them() {
        let mailbox = Mailbox::default();
        assert!(mailbox.put(RankNote::Phase("loaded".into())), "the node is told once");
        let error = RankError { message: "disk".into(), ..RankError::default() };
        assert!(!mailbox.put(RankNote::Error(Box::new(error.clone()))));
        for step in 0..100_000 {
            assert!(!mailbox.put(report(step)));
        }
        mailbox.put(RankNote::Phase("trained".into()));
        let (taken, overtaken) = mailbox.take();
        let taken: Vec<_> = taken.collect();
        assert_eq!(
            taken,
            [
                RankNote::Phase("loaded".into()),
                RankNote::Phase("trained".into()),
                report(99_999),
                RankNote::Error(Box::new(error)),
            ],
            "NODE-33"
        );
        assert_eq!(overtaken, 99_999);
        let (none, overtaken) = mailbox.take();
        assert_eq!((none.count(), overtaken), (0, 0));
        assert!(mailbox.put(report(1)), "and again once it has looked");
    }

    #[test]
    fn beats_that_no_one_looked_at_are_one_that_says_whether_the_rank_ran() {
        let mailbox = Mailbox::default();
        let beat = |ran, operations| RankNote::Beat(Beat { ran, operations, ..Beat::default() });
        mailbox.put(beat(true, 1));
        mailbox.put(beat(false, 2));
        assert_eq!(mailbox.take().0.collect::<Vec<_>>(), [beat(true, 2)], "NODE-33");
        mailbox.put(beat(false, 3));
        assert_eq!(mailbox.take().0.collect::<Vec<_>>(), [beat(false, 3)]);
    }

    #[test]
    fn phases_that_wait_are_bounded() {
        let mailbox = Mailbox::default();
        for number in 0..2 * MAX_PHASES {
            mailbox.put(RankNote::Phase(number.to_string()));
        }
        assert_eq!(mailbox.take().0.count(), MAX_PHASES as usize, "NODE-33");
    }
}
