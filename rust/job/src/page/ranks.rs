//! The ranks of a run as a table, the slow ones marked. Columns that no rank has are left out.

use std::collections::BTreeMap;

use phalanx_types::stacks::ranges;

use super::html::Html;
use super::numbers::{counted, number, spaced, steps};
use super::state_colors::{BROWN, color_of};
use super::told::{Rank, Told};
use super::{MUTED, Room, percent};

/// Of more ranks a cell shows groups.
pub const MAX_CELL_RANKS: usize = 64;
/// How many groups.
pub const MAX_GROUPS: usize = 32;

/// Cells of tables may be many, so their looks are said once. Notebooks have styles of their own for tables.
const STYLE: &str = ".phalanx-run .phx{border-collapse:collapse;margin:0;font-size:12px}\
    .phalanx-run .phx th,.phalanx-run .phx td{text-align:left;padding:1px 14px 1px 0;border:0;background:none;\
    border-bottom:1px solid rgba(128,128,128,.2);color:inherit;white-space:nowrap}\
    .phalanx-run .phx td:last-child{white-space:normal;overflow-wrap:anywhere}\
    .phalanx-run .phx i{display:inline-block;width:8px;height:8px;border-radius:2px;margin-right:5px}\
    .phalanx-run .phx tr.slow td{background-color:rgba(255,193,7,.2)}\
    .phalanx-run .phx td.share{background-image:linear-gradient(#2b74d9,#2b74d9);background-position:0 100%;\
    background-size:var(--share) 2px;background-repeat:no-repeat}";

/// A column: its head, what it shows, and by what it is sorted where that is another.
struct Column {
    head: &'static str,
    text: fn(&Rank) -> String,
    key: Option<fn(&Rank) -> String>,
}

const COLUMNS: [Column; 8] = [
    Column { head: "Host", text: |rank| rank.host.clone(), key: None },
    Column { head: "Executor", text: |rank| rank.executor.clone(), key: None },
    Column { head: "GPUs", text: |rank| rank.gpus.clone(), key: None },
    Column {
        head: "Step",
        text: |rank| rank.step.map(|step| steps(step, rank.of)).unwrap_or_default(),
        key: Some(|rank| rank.step.map_or("-1".into(), |step| step.to_string())),
    },
    Column { head: "Steps/s", text: |rank| rank.rate.map(number).unwrap_or_default(), key: None },
    Column { head: COLLECTIVES, text: |rank| share(rank.collective_share), key: None },
    Column { head: DATA, text: |rank| share(rank.data_share), key: None },
    Column { head: "Reported", text: |rank| rank.values.clone(), key: None },
];
const COLLECTIVES: &str = "In collectives";
const DATA: &str = "Waiting for data";

fn share(share: Option<f64>) -> String {
    share.map(percent).unwrap_or_default()
}

/// The ranks, or that there are none yet.
pub(super) fn table(html: &mut Html, told: &Told, room: Room) {
    if told.ranks.is_empty() {
        return html.say("span", MUTED, "No rank has a place yet.");
    }
    let slow = told.slow_ranks();
    let all = told.ranks_left_out.saturating_add(told.ranks.len() as u64);
    let is_folded = room == Room::Cell && all > MAX_CELL_RANKS as u64;
    html.element("style", &[], |html| html.text(STYLE));
    if !slow.is_empty() {
        let color = format!("color:{BROWN};font-weight:600");
        html.say("div", &color, &format!("\u{25bc} slow: {}", ranges(&slow)));
    }
    let height = if room == Room::Cell { "overflow:auto;max-height:24em" } else { "overflow:auto" };
    let mut shown = told.ranks.len();
    html.styled("div", height, |html| {
        if is_folded {
            shown = groups(html, &told.ranks, &slow);
        } else {
            each(html, &told.ranks, &slow, room);
        }
    });
    let rest = told.ranks_left_out.saturating_add((told.ranks.len() - shown) as u64);
    if rest > 0 {
        html.say("div", MUTED, &format!("and {}", counted(rest, "more rank")));
    }
}

fn each(html: &mut Html, ranks: &[Rank], slow: &[u32], room: Room) {
    let columns: Vec<&Column> =
        COLUMNS.iter().filter(|column| ranks.iter().any(|rank| !(column.text)(rank).is_empty())).collect();
    // Spark's UI has a script that sorts tables of this class, by these keys.
    let class = if room == Room::Page { "phx sortable" } else { "phx" };
    html.element("table", &[("class", class)], |html| {
        html.element("thead", &[], |html| {
            html.element("tr", &[], |html| {
                let heads = columns.iter().map(|column| column.head);
                ["Rank", "State"].into_iter().chain(heads).for_each(|head| html.say("th", "", head));
            });
        });
        html.element("tbody", &[], |html| {
            for rank in ranks {
                let is_slow = rank.rank.is_some_and(|rank| slow.contains(&rank));
                html.element("tr", &[("class", if is_slow { "slow" } else { "" })], |html| {
                    html.say("td", "", &rank.rank.map(|rank| rank.to_string()).unwrap_or_default());
                    html.element("td", &[], |html| state(html, &rank.state));
                    columns.iter().for_each(|column| cell(html, column, rank, room));
                });
            }
        });
    });
}

fn cell(html: &mut Html, column: &Column, rank: &Rank, room: Room) {
    let text = (column.text)(rank);
    let is_share = [COLLECTIVES, DATA].contains(&column.head) && !text.is_empty();
    let length = if is_share { format!("--share:{text}") } else { String::new() };
    let key = column.key.filter(|_| room == Room::Page).map(|key| key(rank)).unwrap_or_default();
    let attributes = [
        ("class", if is_share { "share" } else { "" }),
        ("style", length.as_str()),
        ("sorttable_customkey", key.as_str()),
    ];
    html.element("td", &attributes, |html| html.text(&text));
}

fn state(html: &mut Html, state: &str) {
    html.say("i", &format!("background:{}", color_of(state)), "");
    html.text(&spaced(state));
}

/// Rows of ranks that are in the same state on the same host, those first that are not as they should be; how many
/// ranks they have.
fn groups(html: &mut Html, ranks: &[Rank], slow: &[u32]) -> usize {
    let mut groups: BTreeMap<(&str, &str), Vec<&Rank>> = BTreeMap::new();
    for rank in ranks {
        groups.entry((&rank.host, &rank.state)).or_default().push(rank);
    }
    let numbers = |ranks: &[&Rank]| -> Vec<u32> {
        let mut numbers: Vec<u32> = ranks.iter().filter_map(|rank| rank.rank).collect();
        numbers.sort_unstable();
        numbers
    };
    let slow_of = |ranks: &[&Rank]| -> Vec<u32> {
        numbers(ranks).into_iter().filter(|rank| slow.contains(rank)).collect()
    };
    let mut rows: Vec<_> = groups.into_iter().map(|(key, ranks)| (key, slow_of(&ranks), ranks)).collect();
    rows.sort_by_key(|(_, _, ranks)| ranks[0].rank);
    rows.sort_by_key(|((_, state), slow, ranks)| {
        (["running", "finished"].contains(state), slow.is_empty(), std::cmp::Reverse(ranks.len()))
    });
    rows.truncate(MAX_GROUPS);
    html.element("table", &[("class", "phx")], |html| {
        html.element("tbody", &[], |html| {
            for ((host, state), slow, ranks) in &rows {
                html.element("tr", &[("class", if slow.is_empty() { "" } else { "slow" })], |html| {
                    html.say("td", "", if host.is_empty() { "no host yet" } else { host });
                    html.say("td", "", &ranges(&numbers(ranks)));
                    html.element("td", &[], |html| self::state(html, state));
                    html.say("td", "", &span(ranks));
                    let slow =
                        if slow.is_empty() { String::new() } else { format!("slow: {}", ranges(slow)) };
                    html.say("td", "", &slow);
                });
            }
        });
    });
    rows.iter().map(|(_, _, ranks)| ranks.len()).sum()
}

/// `step 170 to 180`.
fn span(ranks: &[&Rank]) -> String {
    let steps = || ranks.iter().filter_map(|rank| rank.step);
    match steps().min().zip(steps().max()) {
        None => String::new(),
        Some((least, most)) if least == most => format!("step {least}"),
        Some((least, most)) => format!("step {least} to {most}"),
    }
}
