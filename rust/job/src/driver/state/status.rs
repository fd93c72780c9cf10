//! Where a job is, in words.

use super::job_state::JobState;
use super::phase::JobPhase;

impl JobState {
    /// Where the job is, in words: `waiting for 4 slots; 2 are free`, `waiting for 3 of 8 tasks`, `starting ranks`,
    /// `training, step 120`, `over`.
    pub fn status(&self) -> String {
        match &self.phase {
            JobPhase::Joining(_) => self.waits_for_slots().unwrap_or_else(|| {
                format!("waiting for {} of {} tasks", self.nodes.len() - self.known(), self.job.tasks)
            }),
            JobPhase::Running(_) if !self.ranks.all_started() => "starting ranks".into(),
            JobPhase::Running(_) => match self.ranks.newest_step() {
                Some(step) => format!("training, step {step}"),
                None => "training".into(),
            },
            JobPhase::Stopping(_) => "ending the ranks".into(),
            JobPhase::Over(_) => "over".into(),
        }
    }
}
