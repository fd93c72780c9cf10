//! The loss by step: a curve, and its ends in numbers.

use super::MUTED;
use super::html::Html;
use super::numbers::number;
use super::state_colors::color_of;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 72.0;
const EDGE: f64 = 3.0;

/// The points, of which there is one at least.
pub(super) fn of(html: &mut Html, losses: &[(f64, f64)]) {
    let Some((last_step, last)) = losses.last().copied() else { return };
    let (steps, values) = (span(losses.iter().map(|at| at.0)), span(losses.iter().map(|at| at.1)));
    if losses.len() < 2 {
        return html.text(&format!("loss {} at step {}", number(last), number(last_step)));
    }
    let points: Vec<String> = losses
        .iter()
        .map(|(step, value)| {
            let x = EDGE + place(*step, steps) * (WIDTH - 2.0 * EDGE);
            let y = EDGE + (1.0 - place(*value, values)) * (HEIGHT - 2.0 * EDGE);
            format!("{x:.1},{y:.1}")
        })
        .collect();
    html.styled("div", "display:flex;flex-wrap:wrap;align-items:center;gap:4px 12px", |html| {
        let view = [
            ("viewBox", "0 0 420 72"),
            ("role", "img"),
            ("aria-label", "loss by step"),
            ("style", "width:420px;max-width:100%;background:rgba(128,128,128,.1);border-radius:4px"),
        ];
        html.element("svg", &view, |html| {
            let line = [
                ("points", points.join(" ")),
                ("fill", "none".into()),
                ("stroke", color_of("running").into()),
                ("stroke-width", "1.6".into()),
                ("stroke-linejoin", "round".into()),
            ];
            let line: Vec<(&str, &str)> = line.iter().map(|(name, value)| (*name, value.as_str())).collect();
            html.element("polyline", &line, |_| {});
        });
        html.styled("div", "", |html| {
            html.text("loss ");
            html.say("b", "", &number(last));
            html.say("div", MUTED, &format!("{} to {}", number(values.0), number(values.1)));
            html.say("div", MUTED, &format!("steps {} to {}", number(steps.0), number(steps.1)));
        });
    });
}

/// The least and the most of some numbers.
fn span(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), each| (least.min(each), most.max(each)))
}

/// Where a number is in a span, 0 to 1; halved, since the difference of two numbers may be none.
fn place(value: f64, (least, most): (f64, f64)) -> f64 {
    let whole = most / 2.0 - least / 2.0;
    if whole > 0.0 { ((value / 2.0 - least / 2.0) / whole).clamp(0.0, 1.0) } else { 0.5 }
}
