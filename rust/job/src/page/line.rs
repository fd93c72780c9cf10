//! A run in one line, for a terminal, a file or a title.
//!
//! - PAGE-4 (one-line): it has no control characters, whatever ranks report or are called.

use phalanx_types::stacks::ranges;

use super::numbers::{counted, duration, number};
use super::told::Told;
use super::words::Progress;

const BAR: usize = 20;

/// `train: training  45% |#########           | step 180 of 400, 3.2 steps/s, 1 min 8 s left, loss 0.231, 2 ranks, 1
/// min 0 s`; cut to so many columns.
pub fn run_line(snapshot: &str, columns: Option<usize>) -> String {
    let told = Told::read(snapshot);
    let mut text = format!("{}: {} ", told.name, told.present());
    if let Some(progress) = Progress::of(&told) {
        if let Some(share) = progress.share() {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 20")]
            let full = "#".repeat((share * BAR as f64) as usize);
            text += &format!("{:>4} |{full:<BAR$}| ", super::percent(share));
        }
        text += &format!("{}, ", progress.in_words());
    }
    if let Some((_, loss)) = told.losses.last() {
        text += &format!("loss {}, ", number(*loss));
    }
    let slow = told.slow_ranks();
    if !slow.is_empty() {
        text += &format!("slow {}, ", ranges(&slow));
    }
    if !told.cooling.is_empty() && told.goes_on() {
        text += &format!("{} in cooldown, ", counted(told.cooling.len() as u64, "host"));
    }
    text += &counted(told.world_size, "rank");
    if !told.restarts.is_empty() {
        text += &format!(", restarts {}", told.restarts.len());
    }
    text += &format!(", {}", duration(told.seconds()));
    let text: String = text.chars().map(|letter| if is_shown(letter) { letter } else { '?' }).collect();
    match columns {
        Some(columns) if text.chars().count() > columns => {
            text.chars().take(columns.saturating_sub(1)).chain(['~']).collect()
        }
        _ => text,
    }
}

/// Whether a terminal shows it, in its place.
fn is_shown(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
