//! The node as a state machine: what it does about what happens, as a pure function with time as an argument.
//!
//! ```text
//! Reaching --> Joining --> Preparing --> Running --> Ending --> Draining --> Leaving --> Over
//!    |            |            |            '---------------------^            ^
//!    '------------'------------'-------------------------------------------------'
//! ```
//!
//! One machine serves one attempt. Whatever takes time is done by helpers (`effects`), each of which comes back with
//! an event. So an order is heard whatever a disk, a pool or a network does.
//!
//! - NODE-14 (one-return): a node returns once, after its helpers are back, and then does nothing more.
//! - NODE-15 (done-is-empty): the hub hears that a node is done when its guard has seen that no process is left, and
//!   of each rank how it ended, and not before.
//! - NODE-16 (ends): whatever happens, a node is over within a bound, if its helpers and the guard are fair.
//! - NODE-17 (always-answers): each request for stacks or a piece of a file has an answer, whatever the state.
//! - NODE-18 (starts-nothing): a node that is to end starts no rank.
//! - NODE-19 (disk-hangs): the hub is told how a rank ended though its disk says nothing for [`DISK_PATIENCE`].
//! - NODE-20 (hears): whatever its helpers do, a node goes on telling the hub that it is there, and obeys its orders.
//! - NODE-59 (spare): a node whose seat another task has waits for as long as the hub does.
//! - NODE-60 (given-up): a node that the hub has given up ends its ranks and fails as one without a hub.
//! - NODE-21 (files-in-time): a disk that takes longer than `join_timeout` for the files that ranks begin with fails
//!   the job.

#![deny(clippy::wildcard_enum_match_arm, clippy::match_wildcard_for_single_variants)]

mod asked;
mod draining;
mod leaving;
mod notices;
mod preparing;
mod ranks;
mod rules;
#[cfg(test)]
mod tests;
mod told;

use std::time::Instant;

use phalanx_supervisor::GuardEvent;
use phalanx_types::message::HubMessage;
use phalanx_types::{Error, ErrorKind, NodePlacement, Result};

pub(crate) use rules::Rules;
pub(crate) use told::{Action, AfterAttempt, Ended, Event, Evidence, Exit, ProcessEnd};

use crate::node::line::Heard;
use crate::node::machine::draining::Draining;
use crate::node::machine::leaving::Leaving;
use crate::node::machine::ranks::NodeRanks;

/// One attempt of a node.
#[derive(Debug)]
pub(crate) struct Machine {
    rules: Rules,
    state: State,
    /// Why the process that it runs in wants the end.
    interrupted: Option<String>,
    /// Why the hub is gone for good, if it is.
    hub_gone: Option<String>,
    helpers: Helpers,
}

/// How far an attempt is.
#[derive(Debug)]
enum State {
    /// The hub is connected to.
    Reaching,
    /// The hub gives places when every task has joined; until then it has to, unless this is a spare.
    Joining { until: Option<Instant>, has_joined: bool },
    /// What the ranks need is made.
    Preparing(Preparing),
    /// The ranks run, those that have not ended by themselves.
    Running(NodeRanks),
    /// They were told to end, at that time.
    Ending(NodeRanks, Instant),
    /// Nothing of them is left. What they left goes to the hub.
    Draining(Draining),
    /// The hub has all of it, and says what follows.
    Leaving(Leaving),
    /// The caller is told this, once.
    Over(Option<Result<AfterAttempt>>),
}

/// What is not there yet.
#[derive(Debug)]
struct Preparing {
    placement: Box<NodePlacement>,
    files: bool,
    guard: bool,
    store: bool,
    files_until: Instant,
}

/// The helpers that are at work, each of which comes back with an event. The node waits for them before it returns.
#[derive(Debug, Default)]
struct Helpers {
    locating: bool,
    files: bool,
    guard: bool,
    store: bool,
    /// The guard's process has not been seen to end.
    guard_lives: bool,
}

impl Helpers {
    fn are_back(&self) -> bool {
        let Helpers { locating, files, guard, store, guard_lives } = self;
        !(*locating || *files || *guard || *store || *guard_lives)
    }
}

impl Machine {
    /// `interrupted` is why the process wanted the end in an attempt before.
    pub(crate) fn new(rules: Rules, interrupted: Option<String>) -> Machine {
        Machine { rules, state: State::Reaching, interrupted, hub_gone: None, helpers: Helpers::default() }
    }

    /// What is returned to the caller, once.
    pub(crate) fn outcome(&mut self) -> Option<Result<AfterAttempt>> {
        match &mut self.state {
            State::Over(outcome) => outcome.take(),
            State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Running(_)
            | State::Ending(..)
            | State::Draining(_)
            | State::Leaving(_) => None,
        }
    }

    /// Why the process wants the end, if it does.
    pub(crate) fn interrupted(&self) -> Option<&str> {
        self.interrupted.as_deref()
    }

    /// Takes an event; what is to be done about it is added to `out`.
    pub(crate) fn on(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Line(Heard::Up(_)) => self.reached(now, out),
            Event::Line(Heard::NotUp(error)) => self.not_reached(error),
            Event::Line(Heard::Order(order)) => self.order(now, order, out),
            Event::Line(Heard::Renewed) => self.renewed(out),
            Event::Line(Heard::Gone(why)) => {
                self.hub_goes(now, &why, out);
                self.hub_gone = Some(why);
            }
            Event::Interrupted(reason) => self.interrupt(now, reason, out),
            Event::Located(located) => self.located(now, located, out),
            Event::FilesMade(made) => {
                self.helpers.files = false;
                self.prepared(now, made, |preparing| preparing.files = false, out);
            }
            Event::Guarded(guarded) => {
                self.helpers.guard = false;
                self.helpers.guard_lives = guarded.is_ok();
                self.prepared(now, guarded, |preparing| preparing.guard = false, out);
                self.end_unused_guard(out);
            }
            Event::StoreTried(tried) => {
                self.helpers.store = false;
                self.prepared(now, tried, |preparing| preparing.store = false, out);
            }
            Event::NotLaunched(why) => self.not_launched(now, &why, out),
            Event::Guard(event) => self.guard(now, event, out),
            Event::GuardEnded => self.helpers.guard_lives = false,
            Event::OutputEnded { rank } => self.with_ranks(|ranks| ranks.output_ended(rank)),
            Event::Reported => self.with_ranks(|ranks| ranks.reported(now)),
            Event::Gathered(evidence) => self.with_ranks(|ranks| ranks.gathered(evidence, now, out)),
            Event::Uploaded(uploaded) => self.with_ranks(|ranks| {
                ranks.uploads = ranks.uploads.saturating_sub(1);
                if let Err(why) = uploaded {
                    ranks.blame(why.to_string());
                }
            }),
            Event::OutputClosed => {
                if let State::Draining(draining) = &mut self.state {
                    draining.output_closed(now, self.rules.drain_timeout, out);
                }
            }
            Event::Relayed => self.with_ranks(|ranks| ranks.relayed = true),
            Event::LogCopied => self.with_ranks(|ranks| ranks.logged = true),
            Event::Noticed(notice) => self.noticed(now, notice, out),
            Event::Tick => {}
        }
        self.go_on(now, out);
    }

    /// The ranks, while there are any.
    fn ranks(&mut self) -> Option<&mut NodeRanks> {
        match &mut self.state {
            State::Running(ranks) | State::Ending(ranks, _) | State::Draining(Draining { ranks, .. }) => {
                Some(ranks)
            }
            State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Leaving(_)
            | State::Over(_) => None,
        }
    }

    fn with_ranks(&mut self, act: impl FnOnce(&mut NodeRanks)) {
        if let Some(ranks) = self.ranks() {
            act(ranks);
        }
    }

    fn order(&mut self, now: Instant, order: HubMessage, out: &mut Vec<Action>) {
        if let State::Leaving(leaving) = &mut self.state
            && self.interrupted.is_none()
        {
            leaving.heard(now);
        }
        match order {
            HubMessage::Spare => self.waits_as_spare(),
            HubMessage::GivenUp { reason } => self.given_up(now, reason, out),
            HubMessage::Place(placement) => self.placed(now, placement, out),
            HubMessage::Stop { reason } => self.told_to_stop(now, &reason, out),
            HubMessage::Stacks { request } => self.asked_for_stacks(request, out),
            HubMessage::Read { request, wanted } => self.asked_to_read(request, wanted, out),
            HubMessage::Freeze { number } => self.freeze(number, out),
            HubMessage::Thaw { number } => self.thaw(number, out),
            HubMessage::Notice(notice) => self.notify(notice, out),
            HubMessage::Carried(carrier) => self.carried(carrier, out),
            HubMessage::StopServing => self.with_ranks(|ranks| ranks.may_stop_serving = true),
            HubMessage::Released => self.word(AfterAttempt::Over, out),
            HubMessage::Again { attempt, reason } => self.word(AfterAttempt::Again { attempt, reason }, out),
            HubMessage::Pong => {}
        }
    }

    /// NODE-59
    fn waits_as_spare(&mut self) {
        if let State::Joining { until, .. } = &mut self.state {
            *until = None;
        }
    }

    /// NODE-60
    fn given_up(&mut self, now: Instant, reason: String, out: &mut Vec<Action>) {
        if let State::Joining { .. } = &self.state {
            self.state = State::Leaving(Leaving::failed(Error::new(ErrorKind::Unreachable, reason)));
            return;
        }
        self.hub_goes(now, &reason, out);
        self.hub_gone = Some(reason);
    }

    fn not_launched(&mut self, now: Instant, why: &Error, out: &mut Vec<Action>) {
        self.with_ranks(|ranks| ranks.blame(why.to_string()));
        self.stop(now, "not all of its ranks could be started", out);
    }

    fn told_to_stop(&mut self, now: Instant, reason: &str, out: &mut Vec<Action>) {
        match &mut self.state {
            State::Joining { .. } => {
                out.push(Action::TellDone { problem: None, interrupted: None });
                self.state = State::Leaving(Leaving::told(AfterAttempt::Over));
            }
            State::Preparing(_) => self.is_done(now, out),
            State::Running(ranks) => {
                ranks.may_stop_serving = true;
                self.stop(now, reason, out);
            }
            State::Ending(ranks, _) | State::Draining(Draining { ranks, .. }) => {
                ranks.may_stop_serving = true
            }
            // It has said that it is done, or has nothing to stop.
            State::Reaching | State::Leaving(_) | State::Over(_) => {}
        }
    }

    fn interrupt(&mut self, now: Instant, reason: String, out: &mut Vec<Action>) {
        let is_first = self.interrupted.is_none();
        self.interrupted.get_or_insert_with(|| reason.clone());
        match &mut self.state {
            State::Reaching => {
                self.state = State::Leaving(Leaving::failed(Error::new(ErrorKind::Cancelled, reason)));
            }
            State::Joining { has_joined: true, .. } => self.leaves(reason, out),
            // The hub is to hear first who leaves.
            State::Joining { has_joined: false, .. } => {}
            State::Preparing(_) => self.is_done(now, out),
            State::Running(_) => self.stop(now, &reason, out),
            State::Ending(..) | State::Draining(_) => {}
            State::Leaving(leaving) => {
                if is_first && leaving.waits() {
                    out.push(Action::TellDone {
                        problem: leaving.problem.clone(),
                        interrupted: Some(reason),
                    });
                }
            }
            State::Over(_) => {}
        }
    }

    fn renewed(&mut self, out: &mut Vec<Action>) {
        if self.ranks().is_some() {
            out.push(Action::Renew);
        }
    }

    fn hub_goes(&mut self, now: Instant, why: &str, out: &mut Vec<Action>) {
        match &mut self.state {
            State::Joining { .. } => {
                let said = format!("the job ended before every task had joined: {why}");
                self.state = State::Leaving(Leaving::failed(Error::new(ErrorKind::Closed, said)));
            }
            State::Preparing(_) => {
                self.leave(Leaving::failed(Error::new(ErrorKind::Unreachable, why)), out);
            }
            State::Running(ranks) | State::Ending(ranks, _) | State::Draining(Draining { ranks, .. }) => {
                ranks.blame(why.to_string());
                ranks.may_stop_serving = true;
                out.push(Action::Abandon);
                self.stop(now, why, out);
            }
            State::Reaching | State::Leaving(_) | State::Over(_) => {}
        }
    }

    fn guard(&mut self, now: Instant, event: GuardEvent, out: &mut Vec<Action>) {
        let is_end = matches!(event, GuardEvent::Empty | GuardEvent::Gone { .. });
        if let (State::Preparing(_), GuardEvent::Gone { reason }) = (&self.state, &event) {
            // One that has gone says nothing more, also not to ranks that it is to start.
            let why = format!("phalanx-guard, which starts the ranks, has ended ({reason})");
            return self.fails(Error::new(ErrorKind::Closed, why), out);
        }
        let Some(ranks) = self.ranks() else { return };
        ranks.hear(event, now, out);
        if is_end {
            out.push(Action::EndGuard);
        }
        let state = std::mem::replace(&mut self.state, State::Over(None));
        self.state = match state {
            State::Running(ranks) if is_end => State::Draining(Draining::new(ranks, None)),
            State::Ending(ranks, stopped) if is_end => State::Draining(Draining::new(ranks, Some(stopped))),
            State::Running(ranks) => {
                if ranks.is_over() {
                    // Ends what the ranks left behind; answers with Empty.
                    out.push(Action::StopRanks { reason: None });
                }
                State::Running(ranks)
            }
            State::Ending(..)
            | State::Draining(_)
            | State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Leaving(_)
            | State::Over(_) => state,
        };
    }

    /// Has the ranks end, unless that is under way or done.
    fn stop(&mut self, now: Instant, reason: &str, out: &mut Vec<Action>) {
        let state = std::mem::replace(&mut self.state, State::Over(None));
        self.state = match state {
            State::Running(ranks) => {
                out.push(Action::StopRanks { reason: Some(reason.to_string()) });
                State::Ending(ranks, now)
            }
            State::Ending(..)
            | State::Draining(_)
            | State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Leaving(_)
            | State::Over(_) => state,
        };
    }

    /// The hub says what follows.
    fn word(&mut self, after: AfterAttempt, out: &mut Vec<Action>) {
        match &mut self.state {
            State::Joining { .. } => {
                if after == AfterAttempt::Over {
                    out.push(Action::TellDone { problem: None, interrupted: None });
                }
                self.state = State::Leaving(Leaving::told(after));
            }
            State::Leaving(leaving) => leaving.said(after),
            // The hub says it to who is done.
            State::Reaching
            | State::Preparing(_)
            | State::Running(_)
            | State::Ending(..)
            | State::Draining(_)
            | State::Over(_) => {}
        }
    }

    /// What follows from the time, and from what has come together.
    fn go_on(&mut self, now: Instant, out: &mut Vec<Action>) {
        match &mut self.state {
            State::Joining { until: Some(until), .. } if now >= *until => {
                let late = "the driver did not say in time which ranks to start";
                self.state = State::Leaving(Leaving::failed(Error::new(ErrorKind::Timeout, late)));
            }
            State::Preparing(preparing) if preparing.files && now >= preparing.files_until => {
                let within = self.rules.files_within;
                let late = format!("the disk for its files has not answered for {within:?}");
                self.fails(Error::new(ErrorKind::Timeout, late), out);
            }
            State::Running(ranks) => {
                ranks.gather(now, None, out);
                ranks.tell_activity(now, self.rules.activity_every, out);
            }
            State::Ending(ranks, stopped) => ranks.gather(now, Some(*stopped), out),
            State::Draining(draining) => {
                if let Some(problem) = draining.go_on(now, self.interrupted.is_some(), out) {
                    let interrupted = self.interrupted.clone();
                    out.push(Action::TellDone { problem: problem.clone(), interrupted });
                    self.state = State::Leaving(Leaving::done(now, problem));
                }
            }
            State::Reaching
            | State::Joining { .. }
            | State::Preparing(_)
            | State::Leaving(_)
            | State::Over(_) => {}
        }
        if let State::Leaving(leaving) = &self.state
            && self.helpers.are_back()
            && let Some(outcome) =
                leaving.conclude(now, self.interrupted.as_deref(), self.hub_gone.as_deref())
        {
            self.state = State::Over(Some(outcome));
        }
    }
}
