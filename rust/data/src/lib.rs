//! Which rows of a data set each rank takes at each step: a pure function of the index, the seed, the epoch, the number
//! of ranks and the size of a batch.
//!
//! It owns no row, file or connection, and keeps no more than a few numbers for each block. Whoever holds the blocks
//! asks it for places, and has it copy the rows, or hash them.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod ends;
mod gather;
mod index;
mod order;
mod permutation;
mod plan;
mod row_hash;
mod texts;

pub use gather::{Column, Columns, Wanted};
pub use index::{BlockIndex, Place, even_rows};
pub use order::{EpochOrder, Shuffle, WINDOW_BLOCKS, WINDOW_ROWS};
pub use permutation::Permutation;
pub use plan::{Cut, Part, Plan, Steps, Uneven};
pub use row_hash::{Described, Kind, RowSums, row_sums};
pub use texts::Texts;
