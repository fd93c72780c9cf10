//! Times and sizes in Spark's notation: a number with a unit.

use std::time::Duration;

/// `30s`, `5 min`; a plain number means seconds.
pub(crate) fn time(text: &str) -> Option<Duration> {
    with_unit(text, millis_of, "s").map(|millis| Duration::from_millis(millis.round() as u64))
}

/// `64m`, `1gb`; a plain number means bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    with_unit(text, bytes_of, "b").map(|bytes| bytes.round() as u64)
}

fn with_unit(text: &str, scale: fn(&str) -> Option<f64>, without_unit: &str) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    // parse() would also take "1." and ".5".
    if !number.starts_with(|c: char| c.is_ascii_digit()) || number.ends_with('.') {
        return None;
    }
    let unit = unit.trim_start();
    Some(number.parse::<f64>().ok()? * scale(if unit.is_empty() { without_unit } else { unit })?)
}

fn millis_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "us" => 0.001,
        "ms" => 1.0,
        "s" => 1e3,
        "m" | "min" => 6e4,
        "h" => 3.6e6,
        "d" => 8.64e7,
        _ => return None,
    })
}

fn bytes_of(unit: &str) -> Option<f64> {
    let power = ["", "k", "m", "g", "t", "p"]
        .iter()
        .position(|prefix| unit == *prefix || unit.strip_suffix('b') == Some(prefix))?;
    Some(1024_f64.powi(i32::try_from(power).ok()?))
}
