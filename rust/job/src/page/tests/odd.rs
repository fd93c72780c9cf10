//! Snapshots with anything in them: no text leaves its element, and no line its bounds.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{EVIL, read};
use crate::page::{Room, run_line, run_page};

/// Texts that would leave their element if anything could.
fn odd_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just(EVIL.to_owned()),
        Just("</span></pre></td></style>".to_owned()),
        Just("\"><img src=x onerror=alert(1)>".to_owned()),
        Just("--share:url(//x);}".to_owned()),
        Just("running".to_owned()),
        Just("a\u{0}b\r\n\u{2066}\u{9b}".to_owned()),
        "\\PC{0,12}",
        any::<String>(),
    ];
    proptest::collection::vec(part, 0..3).prop_map(|parts| parts.concat())
}

/// Any JSON, deep enough for a snapshot.
fn odd_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!(u32::MAX)),
        odd_text().prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((odd_text(), inner), 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// An object with these fields, each of which may be as it is wanted, something else, or missing.
fn odd_object(fields: &[(&'static str, BoxedStrategy<Value>)]) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, wanted)| {
            let wanted = wanted.clone().prop_map(Some);
            let value = prop_oneof![6 => wanted, 1 => odd_json().prop_map(Some), 1 => Just(None)];
            value.prop_map(|value| value.map(|value| ((*name).to_owned(), value)))
        })
        .collect();
    fields.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect())).boxed()
}

fn list(of: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    proptest::collection::vec(of, 0..5).prop_map(Value::from).boxed()
}

fn odd_snapshot() -> BoxedStrategy<Value> {
    let text = || odd_text().prop_map(Value::from).boxed();
    let number = || prop_oneof![any::<f64>(), 0.0..200.0].prop_map(Value::from).boxed();
    let count = || prop_oneof![0..200u64, any::<u64>()].prop_map(Value::from).boxed();
    let state = || {
        prop_oneof![Just(json!("running")), Just(json!("failed")), odd_text().prop_map(Value::from)].boxed()
    };
    let values = proptest::collection::vec((odd_text(), odd_json()), 0..3);
    let values = values.prop_map(|all| Value::Object(all.into_iter().collect())).boxed();
    let (start, end) = (("start", number()), ("end", number()));
    let phases = list(odd_object(&[("kind", text()), ("name", text()), start, end]));
    let cost = odd_object(&[("ranks", count()), ("seconds", number()), ("steps", count())]);
    let restarts =
        list(odd_object(&[("time", number()), ("cause", text()), ("kind", text()), ("cost", cost)]));
    let notices = list(odd_object(&[("host", text()), ("deadline", number()), ("reason", text())]));
    let cooling =
        list(odd_object(&[("host", text()), ("until", number()), ("failures", count()), ("reason", text())]));
    let seats = odd_object(&["of", "taken", "spares", "asked", "slots", "free"].map(|key| (key, count())));
    let place = [
        ("rank", count()),
        ("host", text()),
        ("executor", text()),
        ("gpus", list(text())),
        ("state", state()),
    ];
    let told = [
        ("step", count()),
        ("of", count()),
        ("rate", number()),
        ("collective_share", number()),
        ("data_share", number()),
        ("values", values),
    ];
    let ranks = list(odd_object(&place.into_iter().chain(told).collect::<Vec<_>>()));
    let failure = odd_object(&[
        ("kind", text()),
        ("cause", text()),
        ("rank", count()),
        ("host", text()),
        ("text", text()),
        ("traceback", text()),
        ("stacks", text()),
    ]);
    let losses = list(list(number()));
    odd_object(&[
        ("name", text()),
        ("stage", text()),
        ("state", state()),
        ("time", number()),
        ("started", number()),
        ("ended", number()),
        ("attempt", count()),
        ("world_size", count()),
        ("waits_for", text()),
        ("phases", phases),
        ("restarts", restarts),
        ("sizes", list(list(number()))),
        ("notices", notices),
        ("cooling", cooling),
        ("seats", seats),
        ("ranks", ranks),
        ("ranks_left_out", count()),
        ("slow", list(count())),
        ("lines", list(text())),
        ("losses", losses),
        ("failure", failure),
    ])
}

/// As a page has a text.
fn shown(text: &str) -> String {
    let turns = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .filter(|letter| "\n\t".contains(*letter) || !letter.is_control() && !turns(*letter))
        .collect()
}

proptest! {
    #[test]
    fn no_text_of_a_snapshot_leaves_its_element(of in odd_snapshot(), note in odd_text(), many in any::<bool>()) {
        let mut of = of;
        if many {
            of["ranks_left_out"] = json!(1000);
        }
        for room in [Room::Cell, Room::Page] {
            let read = read(&run_page(&of.to_string(), &note, room));
            for name in ["name", "waits_for"] {
                let Some(text) = of.get(name).and_then(Value::as_str).map(shown) else { continue };
                prop_assert!(text.is_empty() || read.texts.contains(&text), "PAGE-1: {text:?} in {:?}", read.texts);
            }
        }
    }

    #[test]
    fn a_line_is_one_line_and_fits(of in odd_snapshot(), columns in 0..200usize) {
        let line = run_line(&of.to_string(), Some(columns));
        prop_assert!(line.chars().count() <= columns.max(1), "PAGE-4: {line:?}");
        prop_assert!(!run_line(&of.to_string(), None).contains(char::is_control), "PAGE-4: {line:?}");
    }
}
