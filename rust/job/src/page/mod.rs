//! A run's page: a piece of HTML from a snapshot, for a notebook's cell and for the tab in Spark's UI. And its line,
//! for a terminal.
//!
//! Both are pure functions of a snapshot's JSON. The HTML has its own style, on light and on dark, and no script; in
//! Spark's UI the heads of the columns sort, since Spark brings what does it.
//!
//! - PAGE-1 (text-is-text): whatever a rank, a host, a caller or an exception said is text, and never markup: it stays
//!   in its element, and turns the direction of no other.
//! - PAGE-2 (bounded): a page has what a snapshot may have, at most. In a cell hosts with ranks in the same state stand
//!   in the place of more than [`MAX_CELL_RANKS`] ranks, [`MAX_GROUPS`] of them at most.

mod curve;
mod failure;
mod hosts;
mod html;
mod line;
mod numbers;
mod ranks;
mod state_colors;
#[cfg(test)]
mod tests;
mod timeline;
mod told;
mod words;

use html::Html;
pub use line::run_line;
use numbers::{counted, duration, spaced};
pub use ranks::{MAX_CELL_RANKS, MAX_GROUPS};
pub use state_colors::STATE_COLORS;
use state_colors::color_of;
use told::Told;
use words::Progress;

const FAINT: &str = "opacity:.7";
const MUTED: &str = "opacity:.7;font-size:12px";
/// How many of the newest restarts a cell has.
const CELL_RESTARTS: usize = 5;

/// How much room a page has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// A notebook's cell, where it is drawn anew and kept, and the ranks' output stands below it.
    Cell,
    /// A page of its own: every rank is listed.
    Page,
}

/// The page of a run: HTML from the JSON of a snapshot, of any version. Of a run that goes on `note` is said, too.
pub fn run_page(snapshot: &str, note: &str, room: Room) -> String {
    let told = Told::read(snapshot);
    let frame = format!(
        "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45;max-width:{};padding:10px 14px;margin:4px 0;\
         border:1px solid rgba(128,128,128,.35);border-radius:6px",
        if room == Room::Cell { "920px" } else { "1280px" }
    );
    let mut html = Html::default();
    html.element("div", &[("class", "phalanx-run"), ("style", &frame)], |html| {
        head(html, &told);
        part(html, told.ended.is_none() && !note.is_empty(), |html| html.say("span", FAINT, note));
        if let Some(failure) = &told.failure {
            part(html, true, |html| failure::card(html, failure));
        }
        part(html, !told.waits_for.is_empty(), |html| html.text(&told.waits_for));
        hosts::said(html, &told, room);
        part(html, !told.phases.is_empty(), |html| {
            timeline::bar(html, &told);
            timeline::sizes(html, &told);
        });
        if let Some(progress) = Progress::of(&told) {
            part(html, true, |html| steps(html, &told, progress));
        }
        part(html, !told.losses.is_empty(), |html| curve::of(html, &told.losses));
        part(html, !told.restarts.is_empty(), |html| restarts(html, &told, room));
        part(html, told.goes_on() || !told.ranks.is_empty(), |html| ranks::table(html, &told, room));
        part(html, !told.lines.is_empty(), |html| {
            details(html, "Newest lines", &told.lines.join("\n"), room == Room::Page);
        });
    });
    html.into_text()
}

fn part(html: &mut Html, is_there: bool, inner: impl FnOnce(&mut Html)) {
    if is_there {
        html.styled("div", "margin-top:8px", inner);
    }
}

/// `running train 4 ranks on 2 hosts, jvm stage, attempt 2, 1 min 0 s`.
fn head(html: &mut Html, told: &Told) {
    let mut hosts: Vec<&str> = told.ranks.iter().map(|rank| rank.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.retain(|host| !host.is_empty());
    let mut facts =
        if told.world_size > 0 { counted(told.world_size, "rank") } else { "no ranks yet".into() };
    if !hosts.is_empty() && told.ranks_left_out == 0 {
        facts += &format!(" on {}", counted(hosts.len() as u64, "host"));
    }
    match told.stage.as_str() {
        "" => {}
        "local" => facts += ", local mode",
        stage => facts += &format!(", {stage} stage"),
    }
    if told.attempt > 0 {
        facts += &format!(", attempt {}", told.attempt.saturating_add(1));
    }
    facts += &format!(", {}", duration(told.seconds()));
    let state = if told.state.is_empty() { "starting" } else { &told.state };
    let badge = format!(
        "display:inline-block;background:{};color:#fff;border-radius:9px;padding:0 8px;font-size:12px;margin-right:8px",
        color_of(state)
    );
    html.say("span", &badge, &spaced(state));
    html.say("b", "overflow-wrap:anywhere", &told.name);
    html.say("span", "opacity:.7;margin-left:10px", &facts);
}

/// How far the ranks are, with a bar where they say how many steps there are.
fn steps(html: &mut Html, told: &Told, progress: Progress) {
    let Some(share) = progress.share() else { return html.text(&progress.in_words()) };
    html.say("b", "", &percent(share));
    html.text(&format!(", {}", progress.in_words()));
    let empty = "height:8px;border-radius:4px;background:rgba(128,128,128,.25);margin-top:3px";
    let full = format!(
        "height:8px;border-radius:4px;width:{:.1}%;background:{}",
        share * 100.0,
        color_of(&told.state)
    );
    html.styled("div", empty, |html| html.say("div", &full, ""));
}

fn restarts(html: &mut Html, told: &Told, room: Room) {
    let older = if room == Room::Cell { told.restarts.len().saturating_sub(CELL_RESTARTS) } else { 0 };
    if older > 0 {
        html.say("div", MUTED, &format!("{} before", counted(older as u64, "restart")));
    }
    for (nth, restart) in told.restarts.iter().enumerate().skip(older) {
        let after = duration(restart.time - told.started);
        let kind = match restart.kind.as_str() {
            "resized" | "preempted" => format!(", {},", restart.kind),
            _ => String::new(),
        };
        let cost = restart.cost.map_or_else(String::new, |cost| format!("; {}", cost.in_words()));
        let said = format!("restart {}{kind} after {after}: {}{cost}", nth + 1, restart.cause);
        html.say("div", "overflow-wrap:anywhere", &said);
    }
}

/// A long text that one may fold.
fn details(html: &mut Html, title: &str, text: &str, is_open: bool) {
    let open = if is_open { "open" } else { "" };
    let block = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;white-space:pre-wrap;\
                 overflow-wrap:anywhere;line-height:1.4;margin:2px 0 0 0;padding:6px 8px;border:0;\
                 background:rgba(128,128,128,.1);color:inherit;border-radius:4px;max-height:24em;overflow:auto";
    html.element("details", &[("open", open), ("style", "margin-top:4px")], |html| {
        html.say("summary", "cursor:pointer", title);
        html.say("pre", block, text.trim_end());
    });
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share.clamp(0.0, 1.0) * 100.0)
}
