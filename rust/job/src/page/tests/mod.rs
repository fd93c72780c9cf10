//! What pages and lines have; `odd` shows that no snapshot breaks one.

mod odd;

use std::path::Path;

use serde_json::{Value, json};

use super::state_colors::RED;
use super::{MAX_GROUPS, Room, run_line, run_page};

const EVIL: &str =
    "<script>alert(\"x\")</script>&\u{1b}[31m'\" onload=x \u{202e}</title></svg></style></details>";
/// The elements and attributes that a page may have; what runs anything is not among them.
const ELEMENTS: [&str; 22] = [
    "div", "span", "b", "i", "svg", "rect", "title", "polyline", "details", "summary", "pre", "style",
    "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "h4",
];
const ATTRIBUTES: [&str; 20] = [
    "class",
    "style",
    "open",
    "viewBox",
    "preserveAspectRatio",
    "role",
    "aria-label",
    "x",
    "y",
    "width",
    "height",
    "fill",
    "points",
    "stroke",
    "stroke-width",
    "stroke-linejoin",
    "sorttable_customkey",
    "title",
    "id",
    "d",
];

/// A page, read by the strictest rules.
#[derive(Default)]
struct Read {
    elements: Vec<String>,
    /// Of each element, all texts in it.
    texts: Vec<String>,
}

impl Read {
    fn count(&self, element: &str) -> usize {
        self.elements.iter().filter(|name| *name == element).count()
    }
}

/// Reads a page; panics where an element is not closed in its place, has a name or an attribute that none may have, or
/// where a letter of HTML's stands in a text.
fn read(html: &str) -> Read {
    let (mut read, mut open) = (Read::default(), Vec::new());
    let mut rest = html;
    while !rest.is_empty() {
        let text = &rest[..rest.find('<').unwrap_or(rest.len())];
        rest = &rest[text.len()..];
        if !text.is_empty() {
            read.texts.push(decoded(text));
        }
        if let Some(closing) = rest.strip_prefix("</") {
            let (name, after) = closing.split_once('>').expect("an element is closed");
            assert_eq!(open.pop().as_deref(), Some(name), "PAGE-1");
            rest = after;
        } else if let Some(opening) = rest.strip_prefix('<') {
            let (tag, after) = opening.split_once('>').expect("PAGE-1: no value has a >");
            let name = tag.split(' ').next().unwrap_or_default();
            assert!(ELEMENTS.contains(&name), "PAGE-1: <{name}>");
            attributes(&tag[name.len()..]);
            read.elements.push(name.into());
            open.push(name.to_owned());
            rest = after;
        }
    }
    assert!(open.is_empty(), "PAGE-1: {open:?}");
    read
}

fn attributes(mut text: &str) {
    while !text.is_empty() {
        let (name, value) = text.strip_prefix(' ').and_then(|text| text.split_once("=\"")).expect("PAGE-1");
        assert!(ATTRIBUTES.contains(&name), "PAGE-1: {name}");
        let (value, after) = value.split_once('"').expect("PAGE-1");
        let value = decoded(value);
        assert!(
            !["x", "width", "points"].contains(&name) || !value.contains(['N', 'i']),
            "no number: {value}"
        );
        if name == "style" {
            // Nothing that a rank says is a style.
            assert!(!value.contains(['<', '"', '&', '\\', '/']) && !value.contains("url"), "PAGE-1: {value}");
        }
        text = after;
    }
}

fn decoded(text: &str) -> String {
    assert!(!text.contains(['<', '>', '"', '\'']), "PAGE-1: {text:?}");
    assert!(
        !text.contains(|letter: char| letter.is_control() && !"\n\t".contains(letter)),
        "PAGE-1: {text:?}"
    );
    assert!(!text.contains(['\u{202e}', '\u{2066}']), "PAGE-1: {text:?}");
    let decoded = ["lt;", "gt;", "quot;", "#39;", "amp;"]
        .iter()
        .zip(["<", ">", "\"", "'", "\u{0}"])
        .fold(text.to_owned(), |text, (name, letter)| text.replace(&format!("&{name}"), letter));
    assert!(!decoded.contains('&'), "PAGE-1: {text:?}");
    decoded.replace('\u{0}', "&")
}

fn rank(number: u32, host: &str) -> Value {
    json!({
        "rank": number, "host": host, "partition": number, "executor": null, "gpus": [], "state": "running",
        "step": 180, "of": 400, "rate": 2.0, "collective_share": null, "data_share": 0.02,
        "values": {"loss": 0.231, "epoch": 3},
    })
}

/// A run in the midst of its training, a minute after it began.
pub(super) fn snapshot(ranks: u32, hosts: u32) -> Value {
    let on_each = (ranks / hosts).max(1);
    let ranks: Vec<Value> =
        (0..ranks).map(|number| rank(number, &format!("host-{}", number / on_each))).collect();
    let losses: Vec<Value> =
        (0..45).map(|nth| json!([nth * 4, 2.3 / (1.0 + f64::from(nth) / 5.0)])).collect();
    json!({
        "version": 1, "run": "0123456789abcdef", "name": "train", "stage": "jvm", "state": "running", "time": 160.0,
        "started": 100.0, "ended": null, "attempt": 0, "world_size": ranks.len(), "waits_for": null,
        "phases": [
            {"kind": "phase", "name": "waiting for tasks", "start": 100.0, "end": 108.0},
            {"kind": "phase", "name": "starting ranks", "start": 108.0, "end": 112.0},
            {"kind": "phase", "name": "training", "start": 112.0, "end": null},
        ],
        "restarts": [], "ranks": ranks, "ranks_left_out": 0, "slow": [],
        "lines": ["[rank 0] epoch 1", "[rank 1] epoch 1"], "losses": losses, "failure": null,
    })
}

pub(super) fn with(mut snapshot: Value, fields: &[(&str, Value)]) -> String {
    for (name, value) in fields {
        snapshot[*name] = value.clone();
    }
    snapshot.to_string()
}

fn cell(snapshot: &str) -> String {
    run_page(snapshot, "", Room::Cell)
}

#[test]
fn a_page_has_the_phases_steps_loss_and_ranks_of_a_run() {
    let text = cell(&with(snapshot(4, 2), &[("slow", json!([3]))]));
    for part in [
        ">running</span>",
        ">train</b>",
        "4 ranks on 2 hosts, jvm stage, 1 min 0 s",
        "training",
        "<b>45%</b>",
        "step 180 of 400, 2 steps/s, 1 min 50 s left",
        "<polyline",
        "loss <b>",
        "host-1",
        "slow: rank 3",
        "2%",
        "epoch=3, loss=0.231",
        "[rank 1] epoch 1",
        "aria-label=\"timeline\"",
        "starting ranks: 4.0 s",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(text.matches("<tr class=\"slow\">").count(), 1);
    for part in ["Traceback", "Executor", "GPUs", "In collectives", "script", "restart"] {
        assert!(!text.contains(part), "{part} is of no rank");
    }
    assert_eq!(read(&text).count("tr"), 5, "a head and four ranks");
}

#[test]
fn a_page_of_its_own_lists_what_a_cell_has_no_room_for_and_can_be_sorted() {
    let restarts: Vec<Value> =
        (0..12).map(|nth| json!({"time": 110 + nth, "cause": format!("cause {nth}")})).collect();
    let mut of = snapshot(100, 10);
    of["ranks"][0]["executor"] = json!("7");
    let of = with(of, &[("restarts", json!(restarts)), ("attempt", json!(12))]);
    let (cell, page) = (cell(&of), run_page(&of, "", Room::Page));
    assert!(cell.contains("7 restarts before") && cell.contains("restart 12 after 21 s: cause 11"));
    assert!(!cell.contains("cause 6</div>") && page.contains("restart 1 after 10 s: cause 0"));
    assert!(page.contains("sorttable_customkey=\"180\"") && page.contains("<th>Executor</th>"), "{page}");
    assert_eq!((read(&cell).count("tr"), read(&page).count("tr")), (10, 101));
    assert!(page.contains("<details open=\"open\"") && !cell.contains("<details open"), "the newest lines");
    assert!(page.contains("attempt 13"));
}

#[test]
fn what_may_be_said_of_a_run_that_goes_on_is_not_said_when_it_is_over() {
    let note = "To end the run, call its cancel().";
    let said = |fields: &[(&str, Value)]| run_page(&with(snapshot(2, 1), fields), note, Room::Cell);
    assert!(said(&[]).contains(note) && !said(&[("ended", json!(150))]).contains(note));
    let waits = "waiting for 4 slots; 2 are free";
    assert!(said(&[("waits_for", json!(waits))]).contains(waits));
    let cut = said(&[("state", json!("running when the application ended"))]);
    assert!(cut.contains("running when the application ended</span>") && !cut.contains(" left"), "{cut}");
}

#[test]
fn a_failure_has_its_rank_cause_and_traceback_and_a_cancelled_run_did_not_fail() {
    let failure = json!({
        "kind": "exit_code", "cause": "rank 1 exited", "rank": 1, "host": "host-a", "text": "the story",
        "traceback": "Traceback ...", "stacks": "",
    });
    let failed =
        |failure: Value| cell(&with(snapshot(2, 1), &[("failure", failure), ("state", json!("failed"))]));
    let text = failed(failure);
    for part in ["Failed: rank 1 on host-a", "exit code", "rank 1 exited", "<details open", "the story"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("threads were doing"));
    let bare = failed(json!({"cause": "no port is free", "host": "host-b"}));
    assert!(
        bare.contains("Failed: on host-b")
            && bare.contains("no port is free")
            && !bare.contains("<details open")
    );
    let cancelled = failed(json!({"kind": "cancelled", "cause": "cancelled by the caller"}));
    assert!(cancelled.contains(">Cancelled</b>") && !cancelled.contains("Failed"));
}

#[test]
fn a_restart_is_red_by_its_kind_whatever_phases_are_called() {
    for (kind, name, is_red) in [
        ("restart", "restart 1", true),
        ("restart", "again", true),
        ("phase", "restart 1", false),
        ("phase", "restart the optimiser", false),
    ] {
        let mut of = snapshot(2, 1);
        of["phases"]
            .as_array_mut()
            .unwrap()
            .push(json!({"kind": kind, "name": name, "start": 130.0, "end": null}));
        assert_eq!(cell(&of.to_string()).contains(RED), is_red, "{kind} {name}");
    }
    let marked = with(snapshot(2, 1), &[("restarts", json!([{"time": 120.0, "cause": "rank 1 is lost"}]))]);
    assert!(cell(&marked).contains("<title>restart: rank 1 is lost</title>"));
}

#[test]
fn a_run_that_changes_its_size_shows_how_and_what_each_change_has_cost() {
    let restart = |kind, cost| json!({"time": 120.0, "cause": "a task is lost", "kind": kind, "cost": cost});
    let cost = json!({"ranks": 1, "seconds": 3.25, "steps": 14});
    let restarts = json!([restart("replaced", Value::Null), restart("resized", cost)]);
    let sizes = json!([[108.0, 2], [121.0, 1], [140.0, 4]]);
    let text = cell(&with(snapshot(4, 2), &[("restarts", restarts), ("sizes", sizes)]));
    for part in [
        "restart 1 after 20 s: a task is lost</div>",
        "restart 2, resized, after 20 s: a task is lost; 1 rank runs again; 14 steps and 3.2 s lost</div>",
        "aria-label=\"ranks over time\"",
        "<title>2 ranks: 13 s</title>",
        "<title>4 ranks: 20 s</title>",
        "y=\"9.0\" width=\"316.7\" height=\"3.0\"",
        "1 to 4 ranks",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let fixed = cell(&with(snapshot(4, 2), &[("sizes", json!([[108.0, 4], [120.0, 4]]))]));
    assert!(!fixed.contains("ranks over time"));
}

#[test]
fn of_many_phases_the_newest_are_named_and_the_others_are_folded() {
    let phases: Vec<Value> = (0..200)
        .map(|nth| json!({"name": format!("epoch {nth}"), "start": 100 + nth, "end": null}))
        .collect();
    let text = cell(&with(snapshot(1, 1), &[("phases", json!(phases)), ("time", json!(300))]));
    assert!(text.contains("92 phases before") && !text.contains("epoch 99:"), "PAGE-2: {text}");
    assert!(text.contains("epoch 100:") && text.contains("epoch 199:"), "PAGE-2");
    read(&text);
}

#[test]
fn a_cell_of_thousands_of_ranks_is_no_larger_than_that_of_some() {
    let mut of = snapshot(1000, 200);
    of["ranks"][999]["state"] = json!("lost");
    of["ranks"][700]["rate"] = json!(0.1);
    let of = with(of, &[("ranks_left_out", json!(7000))]);
    let text = cell(&of);
    assert_eq!(read(&text).count("tr"), MAX_GROUPS, "PAGE-2");
    assert!(text.len() < 20_000, "PAGE-2: {}", text.len());
    assert!(text.contains("and 7,844 more ranks"), "PAGE-2: {text}");
    assert!(text.contains(">rank 999<") && text.contains("slow: rank 700<"), "PAGE-2: {text}");
    assert!(
        text.find("lost").unwrap() < text.find("</i>running").unwrap(),
        "what is not as it should be comes first"
    );
    let page = run_page(&of, "", Room::Page);
    assert_eq!(read(&page).count("tr"), 1001);
    assert!(page.contains("and 7,000 more ranks") && page.len() < 400_000, "PAGE-2: {}", page.len());
}

#[test]
fn a_snapshot_of_an_older_version_is_read_and_one_of_a_later_version_as_far_as_it_goes() {
    let stored = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../jvm/spark/src/test/resources/ui");
        let event: Value =
            serde_json::from_str(&std::fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        run_page(&event["snapshot"].to_string(), "", Room::Page)
    };
    let text = stored("event-v1.json");
    for part in [
        "Failed: rank 1 on host-a",
        "ValueError: &lt;b&gt;bad&lt;/b&gt; &amp; ugly",
        "restart 1 after 30 s: rank 1 (host-b)",
        "[rank 1] &lt;script&gt;alert(1)&lt;/script&gt;",
        "and 1 more rank<",
        "61%",
        "epoch=1, loss=0.75",
        "120 of 200",
    ] {
        assert!(text.contains(part), "PAGE-3: {part}: {text}");
    }
    let later = stored("event-later.json");
    assert!(later.contains(">paused</span>") && later.contains("training"), "PAGE-3: {later}");
    for text in ["", "{", "[]", "17", "null", "{}"] {
        assert!(read(&cell(text)).texts.contains(&"starting".to_owned()), "PAGE-3");
    }
}

#[test]
fn a_line_says_how_far_a_run_is_and_is_cut_to_the_terminal() {
    let of = with(snapshot(2, 1), &[]);
    let line = run_line(&of, None);
    let expected = "train: training  45% |#########           | step 180 of 400, 2 steps/s, 1 min 50 s left, \
                    loss 0.2347, 2 ranks, 1 min 0 s";
    assert_eq!(line, expected);
    assert_eq!(run_line(&of, Some(30)), format!("{}~", &expected[..29]));
    let bare =
        [("ranks", json!([])), ("phases", json!([])), ("losses", json!([])), ("state", json!("waiting"))];
    assert_eq!(run_line(&with(snapshot(2, 1), &bare), None), "train: waiting 2 ranks, 1 min 0 s");
    let waits =
        [("waits_for", json!("waiting for 4 slots")), ("restarts", json!([{}])), ("slow", json!([1, 2, 3]))];
    let line = run_line(&with(snapshot(1, 1), &waits), None);
    assert!(
        line.starts_with("train: waiting for 4 slots  45%")
            && line.contains("slow ranks 1-3, 1 rank, restarts 1")
    );
    assert!(
        run_line(&with(snapshot(1, 1), &[("state", json!("cancelled"))]), None)
            .starts_with("train: cancelled")
    );
}

#[test]
fn ranks_alike_are_not_slow_and_one_that_is_much_behind_is_while_it_runs() {
    let slow = |state: &str| {
        let mut of = snapshot(4, 1);
        of["ranks"][2]["rate"] = json!(1.0);
        of["ranks"][2]["state"] = json!(state);
        run_line(&of.to_string(), None).contains("slow rank 2")
    };
    assert!(slow("running") && !slow("finished"));
    assert!(!run_line(&snapshot(4, 1).to_string(), None).contains("slow"));
}
