//! HTML that no text breaks: elements are closed, and texts and values are escaped, by how it is written.

use std::fmt::Write as _;

/// A piece of HTML. Names of elements and attributes are the program's; whatever else comes is escaped.
#[derive(Debug, Default)]
pub(super) struct Html(String);

/// Attributes: names and values.
pub(super) type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// The HTML.
    pub(super) fn into_text(self) -> String {
        self.0
    }

    /// An element, with what `inner` writes in it.
    pub(super) fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        inner: impl FnOnce(&mut Html),
    ) {
        self.0.push('<');
        self.0.push_str(name);
        for (attribute, value) in attributes.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(self.0, " {attribute}=\"");
            self.text(value);
            self.0.push('"');
        }
        self.0.push('>');
        inner(self);
        let _ = write!(self.0, "</{name}>");
    }

    /// An element of this style.
    pub(super) fn styled(&mut self, name: &'static str, style: &str, inner: impl FnOnce(&mut Html)) {
        self.element(name, &[("style", style)], inner);
    }

    /// A text in an element of this style.
    pub(super) fn say(&mut self, name: &'static str, style: &str, text: &str) {
        self.styled(name, style, |html| html.text(text));
    }

    /// Text, without what no page shows: control characters, and those that turn the direction of what follows.
    pub(super) fn text(&mut self, text: &str) {
        for letter in text.chars() {
            match letter {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                '\n' | '\t' => self.0.push(letter),
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
                _ if letter.is_control() => {}
                _ => self.0.push(letter),
            }
        }
    }
}
