//! Long texts, cut at characters.

/// `text`, or as many of its first bytes as are whole characters, and a mark.
pub fn cut(text: &str, most_bytes: usize) -> String {
    if text.len() <= most_bytes {
        return text.into();
    }
    format!("{} ...", &text[..floor(text, most_bytes)])
}

/// As [`cut`], but the end stays, which of a traceback says most.
pub fn cut_front(text: &str, most_bytes: usize) -> String {
    let Some(too_many) = text.len().checked_sub(most_bytes).filter(|bytes| *bytes > 0) else {
        return text.into();
    };
    format!("... {}", &text[ceiling(text, too_many)..])
}

/// As [`cut`], but beginning and end stay, with a line between them that says how much is missing.
pub fn cut_middle(text: &str, most_bytes: usize) -> String {
    if text.len() <= most_bytes {
        return text.into();
    }
    let head = &text[..floor(text, most_bytes / 2)];
    let tail = &text[ceiling(text, text.len() - most_bytes / 2)..];
    let missing = text.len() - head.len() - tail.len();
    format!("{head}\n[... {missing} bytes are left out ...]\n{tail}")
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

fn ceiling(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_without_its_middle_is_short_and_has_both_ends(text in "\\PC{0,300}", most in 0usize..200) {
            let short = cut_middle(&text, most);
            if text.len() <= most {
                prop_assert_eq!(short, text);
            } else {
                let (head, rest) = short.split_once("\n[... ").unwrap();
                let (missing, tail) = rest.split_once(" bytes are left out ...]\n").unwrap();
                prop_assert!(text.starts_with(head) && text.ends_with(tail));
                prop_assert!(head.len() + tail.len() <= most);
                prop_assert_eq!(head.len() + tail.len() + missing.parse::<usize>().unwrap(), text.len());
            }
        }
    }
}
