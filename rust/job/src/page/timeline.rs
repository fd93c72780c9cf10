//! A run's phases as a bar over its time, with restarts in red, and their names below.

use phalanx_types::text::cut;

use super::html::Html;
use super::numbers::{counted, duration};
use super::state_colors::RED;
use super::told::{Phase, Told};
use super::{FAINT, MUTED};

/// Each name has a colour, in the order in which names come; red is for restarts.
const COLORS: [&str; 8] =
    ["#8a8f98", "#d29a2e", "#3b82c4", "#8a6fb0", "#2a9d8f", "#b8659b", "#5f8f3e", "#7b8fd0"];
/// How wide the bar is in its own units, and how wide the thinnest phase: one can point at it.
const WIDTH: f64 = 1000.0;
const LEAST_WIDTH: f64 = 2.0;
const HEIGHT: f64 = 12.0;
/// How many phases are named at once: the newest ones.
const NAMED: usize = 8;
const MAX_NAME_BYTES: usize = 200;

/// The run's time from left to right.
struct Axis {
    started: f64,
    now: f64,
}

impl Axis {
    fn of(told: &Told) -> Axis {
        Axis { started: told.started, now: told.ended.unwrap_or(told.time) }
    }

    fn whole(&self) -> f64 {
        (self.now - self.started).max(1e-3)
    }

    fn place(&self, time: f64) -> f64 {
        ((time - self.started) / self.whole()).clamp(0.0, 1.0) * WIDTH
    }

    /// Where a stretch of time is, and how wide.
    fn stretch(&self, from: f64, to: f64) -> (f64, f64) {
        let (from, to) = (self.place(from), self.place(to));
        let width = (to - from).max(LEAST_WIDTH);
        (from.min(WIDTH - width), width)
    }
}

fn drawing(html: &mut Html, label: &str, inner: impl FnOnce(&mut Html)) {
    let view = [
        ("viewBox", "0 0 1000 12"),
        ("preserveAspectRatio", "none"),
        ("role", "img"),
        ("aria-label", label),
        ("style", "display:block;width:100%;height:12px;border-radius:3px"),
    ];
    html.element("svg", &view, inner);
}

/// How many ranks there were, as bars of their height; nothing where these were always as many.
pub(super) fn sizes(html: &mut Html, told: &Told) {
    let sizes = told.sizes.iter().map(|(_, ranks)| *ranks);
    let (Some(least), Some(most)) = (sizes.clone().min(), sizes.max()) else { return };
    if least == most {
        return;
    }
    let axis = Axis::of(told);
    let ends = told.sizes.iter().skip(1).map(|(at, _)| *at).chain([axis.now]);
    drawing(html, "ranks over time", |html| {
        for ((from, ranks), to) in told.sizes.iter().zip(ends) {
            let title = format!("{}: {}", counted(*ranks, "rank"), duration(to - from));
            let height = HEIGHT * *ranks as f64 / most as f64;
            rectangle(html, axis.stretch(*from, to), height, COLORS[2], &title);
        }
    });
    html.say("div", "font-size:11px;opacity:.7", &format!("{least} to {}", counted(most, "rank")));
}

/// The phases, of which there is one at least.
pub(super) fn bar(html: &mut Html, told: &Told) {
    let axis = Axis::of(told);
    let (now, whole) = (axis.now, axis.whole());
    let colors = colors(&told.phases);
    drawing(html, "timeline", |html| {
        for (phase, color) in told.phases.iter().zip(&colors) {
            let title = format!("{}: {}", cut(&phase.name, MAX_NAME_BYTES), lasted(phase, now));
            rectangle(html, axis.stretch(phase.start, phase.end.unwrap_or(now)), HEIGHT, color, &title);
        }
        for restart in &told.restarts {
            let title = format!("restart: {}", cut(&restart.cause, MAX_NAME_BYTES));
            rectangle(html, axis.stretch(restart.time, restart.time), HEIGHT, RED, &title);
        }
    });
    html.styled("div", "display:flex;justify-content:space-between;font-size:11px;opacity:.7", |html| {
        for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
            html.say("span", "", &duration(whole * tick));
        }
    });
    let named: Vec<_> = told.phases.iter().zip(&colors).collect();
    let (older, newest) = named.split_at(named.len().saturating_sub(NAMED));
    let names = |html: &mut Html, phases: &[(&Phase, &&str)]| {
        html.styled("div", "font-size:12px", |html| {
            phases.iter().for_each(|(phase, color)| name(html, phase, color, now));
        });
    };
    if !older.is_empty() {
        html.styled("details", "", |html| {
            html.say(
                "summary",
                &format!("{MUTED};cursor:pointer"),
                &format!("{} phases before", older.len()),
            );
            names(html, older);
        });
    }
    names(html, newest);
}

/// One from the bottom up.
fn rectangle(html: &mut Html, (x, width): (f64, f64), height: f64, color: &str, title: &str) {
    let [x, y, width, height] = [x, HEIGHT - height, width, height].map(|number| format!("{number:.1}"));
    let place = [("x", x.as_str()), ("y", &y), ("width", &width), ("height", &height), ("fill", color)];
    html.element("rect", &place, |html| html.say("title", "", title));
}

fn name(html: &mut Html, phase: &Phase, color: &str, now: f64) {
    html.styled("span", "display:inline-block;margin-right:14px;overflow-wrap:anywhere", |html| {
        let dot = "display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:5px;background:";
        html.say("span", &format!("{dot}{color}"), "");
        html.text(&cut(&phase.name, MAX_NAME_BYTES));
        html.text(" ");
        html.say("span", FAINT, &lasted(phase, now));
    });
}

fn lasted(phase: &Phase, now: f64) -> String {
    duration(phase.end.unwrap_or(now) - phase.start)
}

fn colors(phases: &[Phase]) -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    phases
        .iter()
        .map(|phase| {
            if phase.is_restart {
                return RED;
            }
            let nth = names.iter().position(|name| *name == phase.name).unwrap_or_else(|| {
                names.push(&phase.name);
                names.len() - 1
            });
            COLORS[nth % COLORS.len()]
        })
        .collect()
}
