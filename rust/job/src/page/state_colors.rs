//! The colours of states: white text is readable on each, and each is seen on white and on black.

const GREY: &str = "#6c757d";
const BLUE: &str = "#2b74d9";
const GREEN: &str = "#1f8a56";
pub(super) const RED: &str = "#cf3f4a";
pub(super) const BROWN: &str = "#b35c00";
const PURPLE: &str = "#7d63b8";

/// The colours of the states of runs and of ranks that have one; the others are as `waiting`.
pub const STATE_COLORS: [(&str, &str); 15] = [
    ("waiting", GREY),
    ("starting", BLUE),
    ("running", BLUE),
    ("restarting", BROWN),
    ("succeeded", GREEN),
    ("finished", GREEN),
    ("failed", RED),
    ("raised", RED),
    ("exited", RED),
    ("signaled", RED),
    ("out_of_memory", RED),
    ("not_started", RED),
    ("lost", RED),
    ("cancelled", PURPLE),
    ("stopped", PURPLE),
];

pub(super) fn color_of(state: &str) -> &'static str {
    STATE_COLORS.iter().find(|(name, _)| *name == state).map_or(GREY, |(_, color)| color)
}
