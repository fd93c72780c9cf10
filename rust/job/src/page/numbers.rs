//! Numbers and times as people read them.

/// `120 of 400`.
pub(super) fn steps(step: u64, of: Option<u64>) -> String {
    of.map_or_else(|| step.to_string(), |of| format!("{step} of {of}"))
}

/// `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`.
pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is not negative")]
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A number as short as it may be, of four digits where it is no whole one: `0.2312`, `12.5`, `3.1e-7`, `1200000`.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 {
        return "0".into();
    }
    if (1e4..1e15).contains(&size) || (size < 1e15 && value.fract() == 0.0) {
        return format!("{value:.0}");
    }
    let short = format!("{value:.3e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    match exponent.parse::<usize>() {
        Ok(exponent @ 0..4) => without_zeros(&format!("{value:.0$}", 3 - exponent)).into(),
        _ if (1e-4..1.0).contains(&size) => {
            let zeros = exponent.trim_start_matches('-').parse::<usize>().unwrap_or(0);
            without_zeros(&format!("{value:.0$}", 3 + zeros)).into()
        }
        _ => format!("{}e{exponent}", without_zeros(digits)),
    }
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// `1 rank`, `7,844 ranks`.
pub(super) fn counted(count: u64, thing: &str) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{text} {thing}{}", if count == 1 { "" } else { "s" })
}

/// A state or a kind as words: `out of memory`.
pub(super) fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_numbers_are_short() {
        let seconds = [0.04, 9.9, 12.4, 200.0, 7500.0];
        assert_eq!(seconds.map(duration), ["0.0 s", "9.9 s", "12 s", "3 min 20 s", "2 h 5 min"]);
        let numbers =
            [0.23124, 0.75, 12.5, 2.0, 0.0, -0.003_126, 3.1e-7, 1234.5, 1_200_000.4, 1e20, f64::MAX];
        let short = [
            "0.2312",
            "0.75",
            "12.5",
            "2",
            "0",
            "-0.003126",
            "3.1e-7",
            "1234",
            "1200000",
            "1e20",
            "1.798e308",
        ];
        assert_eq!(numbers.map(number), short);
        assert_eq!([999.96, 0.999_96].map(number), ["1000", "1"]);
        assert_eq!(
            (counted(1, "rank"), counted(1_234_567, "rank")),
            ("1 rank".into(), "1,234,567 ranks".into())
        );
    }
}
