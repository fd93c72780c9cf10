//! Whose batch is next (SCORE-5).

use std::collections::VecDeque;

/// Tasks that have something waiting, in the order of their turns. A task that has been served goes to the end.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    waiting: VecDeque<(u64, VecDeque<T>)>,
}

impl<T> Turns<T> {
    pub(crate) fn new() -> Turns<T> {
        Turns { waiting: VecDeque::new() }
    }

    /// Adds what a task has for its next turns.
    pub(crate) fn add(&mut self, task: u64, what: T) {
        match self.waiting.iter_mut().find(|(of, _)| *of == task) {
            Some((_, all)) => all.push_back(what),
            None => self.waiting.push_back((task, VecDeque::from([what]))),
        }
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What is next.
    pub(crate) fn next(&mut self) -> Option<(u64, T)> {
        let (task, mut all) = self.waiting.pop_front()?;
        let what = all.pop_front()?;
        if !all.is_empty() {
            self.waiting.push_back((task, all));
        }
        Some((task, what))
    }

    /// Forgets what a task had.
    pub(crate) fn remove(&mut self, task: u64) {
        self.waiting.retain(|(of, _)| *of != task);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_task_has_its_own_in_order_and_nobody_has_two_turns_while_another_waits(
            steps in proptest::collection::vec((0_u64..5, 0_u8..4), 0..200),
        ) {
            let mut turns = Turns::new();
            let mut waiting: HashMap<u64, VecDeque<usize>> = HashMap::new();
            let mut since: HashMap<u64, u32> = HashMap::new();
            for (number, (task, what)) in steps.into_iter().enumerate() {
                match what {
                    0 | 1 => {
                        turns.add(task, number);
                        waiting.entry(task).or_default().push_back(number);
                    }
                    2 => {
                        turns.remove(task);
                        waiting.remove(&task);
                        since.remove(&task);
                    }
                    _ => match turns.next() {
                        None => prop_assert!(waiting.values().all(VecDeque::is_empty)),
                        Some((task, got)) => {
                            prop_assert_eq!(waiting.get_mut(&task).unwrap().pop_front(), Some(got), "SCORE-1");
                            since.remove(&task);
                            for (other, all) in &waiting {
                                if *other != task && !all.is_empty() {
                                    *since.entry(*other).or_default() += 1;
                                    // Each other task once at most, of five.
                                    prop_assert!(since[other] <= 4, "SCORE-5");
                                }
                            }
                        }
                    },
                }
            }
        }
    }
}
