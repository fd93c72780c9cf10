//! What a page says of hosts and seats while a run goes on.
//!
//! That is which seats have tasks, which hosts are to go, and which are left alone.

use super::html::Html;
use super::numbers::{counted, duration};
use super::told::{Seats, Told};
use super::{MUTED, Room, part};

/// How many of the hosts that are to go, and of those in cooldown, a cell has.
const CELL_HOSTS: usize = 5;

/// All of it; nothing where there is nothing to say.
pub(super) fn said(html: &mut Html, told: &Told, room: Room) {
    if !told.goes_on() {
        return;
    }
    if let Some(seats) = told.seats.as_ref().filter(|seats| seats.is_news()) {
        part(html, true, |html| html.text(&seats.in_words()));
    }
    part(html, !told.notices.is_empty(), |html| notices(html, told, room));
    part(html, !told.cooling.is_empty(), |html| cooling(html, told, room));
}

/// The hosts in cooldown.
fn cooling(html: &mut Html, told: &Told, room: Room) {
    let most = if room == Room::Cell { CELL_HOSTS } else { told.cooling.len() };
    for (host, until, failures, reason) in told.cooling.iter().take(most) {
        let often = if *failures == 2 { "twice".into() } else { format!("{failures} times") };
        let left = duration((until - told.time).max(0.0));
        let text = format!("{host} has failed {often}; its new tasks wait for {left}: {reason}");
        html.say("div", "overflow-wrap:anywhere", &text);
    }
    more_hosts(html, told.cooling.len(), most);
}

/// The hosts that are to go; those that were to go before now may have.
fn notices(html: &mut Html, told: &Told, room: Room) {
    let most = if room == Room::Cell { CELL_HOSTS } else { told.notices.len() };
    for (host, deadline, reason) in told.notices.iter().take(most) {
        let when = match deadline.map(|at| at - told.time) {
            Some(left) if left > 0.0 => format!("is to go in {}", duration(left)),
            Some(_) => "was to go by now".into(),
            None => "is to go".into(),
        };
        html.say("div", "overflow-wrap:anywhere", &format!("{host} {when}: {reason}"));
    }
    more_hosts(html, told.notices.len(), most);
}

fn more_hosts(html: &mut Html, all: usize, most: usize) {
    if let Some(more @ 1..) = all.checked_sub(most) {
        html.say("div", MUTED, &format!("{} more", counted(more as u64, "host")));
    }
}

impl Seats {
    /// Whether they are not just taken, one task each.
    fn is_news(&self) -> bool {
        self.taken < self.of || self.spares > 0
    }

    /// `3 of 8 tasks are there, 1 more waits; Spark was asked for 9, and has 6 slots, 2 of them free`.
    fn in_words(&self) -> String {
        let verb = |count: u64| if count == 1 { "waits" } else { "wait" };
        let is = if self.of == 1 { "task is" } else { "tasks are" };
        let spares = match self.spares {
            0 => String::new(),
            spares => format!(", {spares} more {}", verb(spares)),
        };
        let slots = match (self.slots, self.free) {
            (Some(slots), Some(free)) => {
                let slots = counted(slots, "slot");
                format!("; Spark was asked for {}, and has {slots}, {free} of them free", self.asked)
            }
            _ => String::new(),
        };
        format!("{} of {} {is} there{spares}{slots}", self.taken, self.of)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{snapshot, with};
    use super::super::{Room, run_line, run_page};

    #[test]
    fn hosts_that_go_or_are_left_alone_and_seats_that_are_free_are_said_while_the_run_goes_on() {
        let said = |fields: &[(&str, Value)]| run_page(&with(snapshot(2, 1), fields), "", Room::Cell);
        let going = |deadline| json!({"host": "far", "deadline": deadline, "reason": "spot"});
        let going: Vec<Value> = [165, 140, -1, 1, 1, 1].map(|at| going(Some(at).filter(|at| *at > 0))).into();
        let shown = said(&[("time", json!(150)), ("notices", json!(going))]);
        let lines =
            ["is to go in 15 s: spot", "far was to go by now: spot", "far is to go: spot", "1 host more"];
        assert!(lines.iter().all(|line| shown.contains(line)), "{shown}");
        assert!(!said(&[("ended", json!(150)), ("notices", json!(going))]).contains("to go"));
        let cools = json!([
            {"host": "bad", "until": 900, "failures": 2, "reason": "rank 1 is lost"},
            {"host": "worse", "until": 160, "failures": 3, "reason": "its disk is full"},
        ]);
        let seats = json!({"of": 8, "taken": 3, "spares": 1, "asked": 9, "slots": 6, "free": 2});
        let shown = said(&[("time", json!(150)), ("cooling", cools.clone()), ("seats", seats.clone())]);
        let lines = [
            "bad has failed twice; its new tasks wait for 12 min 30 s: rank 1 is lost",
            "worse has failed 3 times; its new tasks wait for 10 s: its disk is full",
            "3 of 8 tasks are there, 1 more waits; Spark was asked for 9, and has 6 slots, 2 of them free",
        ];
        assert!(lines.iter().all(|line| shown.contains(line)), "{shown}");
        let line = run_line(&with(snapshot(2, 1), &[("cooling", cools.clone())]), None);
        assert!(line.contains("2 hosts in cooldown, "), "{line}");
        let over = said(&[("ended", json!(150)), ("cooling", cools), ("seats", seats)]);
        assert!(!over.contains("has failed") && !over.contains("are there"), "{over}");
        let taken = json!({"of": 8, "taken": 8, "spares": 0, "asked": 8, "slots": 8, "free": 0});
        assert!(!said(&[("seats", taken)]).contains("are there"));
    }
}
