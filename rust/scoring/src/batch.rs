//! What a batch is: columns in one piece of memory.

use phalanx_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

/// How many batches a task has under way at most: one that is computed, and one that waits for that.
pub const MOST_SLOTS: u32 = 2;

/// Where columns begin: multiples of this many bytes, as Arrow and torch want it.
const ALIGNMENT: u64 = 64;

/// What a column's elements can be, by the names that numpy and torch share, and the bytes of each. `arrow` is an IPC
/// stream of one column, `pickle` an object of Python's; their shape is their rows.
const ELEMENTS: [(&str, u64); 14] = [
    ("bool", 1),
    ("uint8", 1),
    ("int8", 1),
    ("int16", 2),
    ("uint16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float16", 2),
    ("float32", 4),
    ("float64", 8),
    ("arrow", 0),
    ("pickle", 0),
];

/// Where the elements of a column are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What its elements are: a type by the name that numpy has for it, or `arrow`, or `pickle`.
    pub element: String,
    /// The lengths of its dimensions; the first is the batch's rows.
    pub shape: Vec<u64>,
    /// Where it begins in the memory, in bytes.
    pub at: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A column that is to be written: its name, element, shape and bytes.
pub type NewColumn = (String, String, Vec<u64>, u64);

/// Columns of the same rows. The same describes what a model made of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Which of a task's batches under way it is: less than [`MOST_SLOTS`].
    pub slot: u32,
    /// How many rows it has.
    pub rows: u64,
    /// Its columns.
    pub columns: Vec<Column>,
    /// What the task asks of the model for it: a text that is read by who computes. Empty in answers.
    pub asked: String,
}

impl Batch {
    /// A batch of these columns, one behind the other, and how much memory they take.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if no memory could hold them, or one is not what its element and shape make of it.
    pub fn laid_out(slot: u32, rows: u64, columns: Vec<NewColumn>, asked: String) -> Result<(Batch, u64)> {
        let mut end = 0_u64;
        let mut placed = Vec::with_capacity(columns.len());
        for (name, element, shape, bytes) in columns {
            let at = end.checked_next_multiple_of(ALIGNMENT);
            let at = at.ok_or_else(|| Error::new(ErrorKind::Invalid, "a batch is too large for memory"))?;
            end = at
                .checked_add(bytes)
                .ok_or_else(|| Error::new(ErrorKind::Invalid, "a batch is too large for memory"))?;
            placed.push(Column { name, element, shape, at, bytes });
        }
        let batch = Batch { slot, rows, columns: placed, asked };
        batch.check(end)?;
        Ok((batch, end))
    }

    /// Checks that it is whole within memory of so many bytes (SCORE-6).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is not.
    pub fn check(&self, memory: u64) -> Result<()> {
        let wrong = |what: String| Err(Error::new(ErrorKind::Invalid, what));
        if self.slot >= MOST_SLOTS {
            return wrong(format!(
                "a task has {MOST_SLOTS} batches under way at most, so none is {}",
                self.slot
            ));
        }
        for column in &self.columns {
            let Column { name, element, shape, at, bytes } = column;
            let Some((_, size)) = ELEMENTS.iter().find(|(known, _)| known == element) else {
                return wrong(format!("the column {name:?} has elements {element:?}, which are unknown"));
            };
            if shape.first() != Some(&self.rows) {
                return wrong(format!(
                    "the column {name:?} has shape {shape:?} in a batch of {} rows",
                    self.rows
                ));
            }
            let told = shape.iter().try_fold(*size, |bytes, length| bytes.checked_mul(*length));
            if *size > 0 && told != Some(*bytes) {
                return wrong(format!(
                    "the column {name:?} of {element} {shape:?} doesn't have {bytes} bytes"
                ));
            }
            if at % ALIGNMENT != 0 || at.checked_add(*bytes).is_none_or(|end| end > memory) {
                return wrong(format!(
                    "the column {name:?} is not within the batch's memory of {memory} bytes"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(element: &str, shape: Vec<u64>, at: u64, bytes: u64) -> Batch {
        let column = Column { name: "x".into(), element: element.into(), shape, at, bytes };
        Batch { slot: 0, rows: 4, columns: vec![column], asked: String::new() }
    }

    #[test]
    fn a_batch_that_is_not_within_its_memory_is_refused() {
        assert!(column("float32", vec![4, 3], 64, 48).check(112).is_ok());
        for (batch, memory) in [
            (column("float32", vec![4, 3], 64, 48), 111),
            (column("float32", vec![4, 4], u64::MAX - 63, 64), u64::MAX),
            (column("float32", vec![4, 3], 1, 48), 200),
            (column("float32", vec![4, 4], 0, 48), 200),
            (column("float32", vec![4, u64::MAX, 4], 0, 48), 200),
            (column("float32", vec![3, 4], 0, 48), 200),
            (column("float32", vec![], 0, 4), 200),
            (column("float128", vec![4], 0, 64), 200),
            (Batch { slot: MOST_SLOTS, rows: 0, columns: vec![], asked: String::new() }, 0),
        ] {
            let problem = batch.check(memory).expect_err("SCORE-6: must be refused");
            assert_eq!(problem.kind(), ErrorKind::Invalid);
        }
    }

    proptest! {
        #[test]
        fn what_is_laid_out_is_within_its_memory_and_nothing_overlaps(
            rows in 0_u64..50,
            widths in proptest::collection::vec((0_usize..ELEMENTS.len(), 0_u64..40), 0..20),
        ) {
            let columns = widths.iter().enumerate().map(|(i, (element, width))| {
                let (element, size) = ELEMENTS[*element];
                let of_numbers = (vec![rows, *width], rows * width * size);
                let (shape, bytes) = if size == 0 { (vec![rows], *width) } else { of_numbers };
                (format!("c{i}"), element.to_string(), shape, bytes)
            });
            let (batch, memory) = Batch::laid_out(1, rows, columns.collect(), String::new()).unwrap();
            let mut end = 0;
            for column in &batch.columns {
                prop_assert!(column.at >= end && column.at % ALIGNMENT == 0);
                end = column.at + column.bytes;
            }
            prop_assert_eq!(end, memory);
            prop_assert!(batch.check(memory).is_ok());
            prop_assert!(memory == 0 || batch.columns.last().unwrap().bytes == 0 || batch.check(memory - 1).is_err());
        }
    }
}
