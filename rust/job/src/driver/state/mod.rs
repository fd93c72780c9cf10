//! What happens to a job, as the driver sees it: a pure state machine over facts, time and the Spark stage's fate.
//!
//! It has no I/O and no clock. An event and its time take the state to the next one. Orders for nodes go to the outbox.
//! What the caller is to be told, and the reasons, wait in the news. Phases are enums with the data of each phase: a
//! job's are in `phase`, a node's in `node`, a rank's in `ranks`. `restart` decides what follows a failed attempt.
//!
//! DRIVER-23 (one-outcome): the job ends exactly once, and only well if every rank ended well.
//! DRIVER-24 (cause-after-all): the first failure stops all nodes. The cause is chosen when all of them have reported
//! (or are lost), not by which reported first.
//! DRIVER-25 (every-wait-ends): every wait ends: for joins, for stops, for a silent node, and for a stage that ended
//! without a word. That for slots which others hold ends with the looks that show them, or by `queueTimeout`.
//!
//! ```text
//! events -> seating, joining, carrying, watching, notices, ending -> restart, verdict -> job_state
//! job_state -> phase, node, ranks, news, and what each room keeps: Seats, Sizes, Notices, ...
//! ```

mod carriers;
mod carrying;
mod ending;
mod events;
mod job_state;
mod joining;
mod listing;
mod news;
mod node;
mod notices;
mod phase;
#[cfg(test)]
mod properties;
mod rank_counts;
mod ranks;
mod reports;
mod restart;
mod seating;
mod status;
mod verdict;
mod watching;

pub use job_state::JobState;
pub use joining::StageLook;
pub use news::{
    HostCarried, HostsPlaced, Phase, Point, Progress, RankReports, Reason, Restart, Restarted, SeatChange,
};
pub use phase::JobOutcome;
pub use seating::BadHosts;
