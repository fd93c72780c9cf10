//! Why a run failed: the cause in a sentence, and all that is known, folded.

use super::html::Html;
use super::numbers::spaced;
use super::state_colors::{RED, color_of};
use super::told::Failure;
use super::{MUTED, details};

/// `Failed: rank 1 on host-a`, and why.
pub(super) fn card(html: &mut Html, failure: &Failure) {
    let is_cancelled = failure.kind == "cancelled";
    let color = if is_cancelled { color_of("cancelled") } else { RED };
    html.styled("div", &format!("border-left:5px solid {color};padding:2px 0 2px 10px"), |html| {
        let mut title: String = if is_cancelled { "Cancelled".into() } else { "Failed".into() };
        if let Some(rank) = failure.rank {
            title += &format!(": rank {rank}");
        }
        if !failure.host.is_empty() {
            title += &format!("{} on {}", if failure.rank.is_none() { ":" } else { "" }, failure.host);
        }
        html.say("b", "overflow-wrap:anywhere", &title);
        if !is_cancelled && !failure.kind.is_empty() {
            html.say("span", &format!("{MUTED};margin-left:10px"), &spaced(&failure.kind));
        }
        html.say("div", "overflow-wrap:anywhere", &failure.cause);
        let long = [
            ("Traceback", &failure.traceback, true),
            ("What the ranks' threads were doing", &failure.stacks, false),
            ("All that is known", &failure.text, false),
        ];
        for (title, text, is_open) in long {
            if !text.is_empty() {
                details(html, title, text, is_open);
            }
        }
    });
}
