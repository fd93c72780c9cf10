//! News for ranks that run, and the notes of programs that know of none: GUARD-15 to GUARD-17.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{LONG, Output, ended, next_event, sh, with_guard};
use phalanx_supervisor::{
    ExitStatus, Guard, GuardEvent, Launch, PipeReader, RankLog, RankSocket, notes, pump,
};
use phalanx_testkit::{eventually, temp_dir};
use phalanx_types::contract::ProfileRequest;
use phalanx_types::{RankNews, RankNote};

const GRACE: Duration = Duration::from_secs(5);

/// Prints each packet that comes, in a line of its own, until one has the number 1000.
const READER: &str = r#"while :; do
    packet=$(dd bs=4096 count=1 <&3 2>/dev/null | tr -d '\0'); echo "news $packet"
    case "$packet" in *:1000,*) exit 0;; esac
done"#;

fn profile(number: u32) -> RankNews {
    RankNews::Profile(ProfileRequest { number, millis: 100 })
}

/// A rank whose notes are heard.
struct Heard {
    socket: RankSocket,
    notes: crossbeam_channel::Receiver<RankNote>,
    output: Output,
}

fn heard(guard: &Guard, launch: &Launch) -> Heard {
    let pipes = guard.launch(launch).unwrap();
    let directory = temp_dir("news");
    let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
    let (send, got) = crossbeam_channel::unbounded();
    let socket = pipes.notes.clone();
    let readers = vec![
        pump(pipes.output, Arc::clone(&log), Box::new(|| {})).unwrap(),
        notes(pipes.notes, Box::new(move |note| send.send(note).unwrap())).unwrap(),
    ];
    assert!(matches!(next_event(guard), GuardEvent::Started { .. }));
    Heard { socket, notes: got, output: Output::with(directory, log, readers) }
}

#[test]
fn programs_that_know_no_news_tell_their_notes_as_ever() {
    let one = r#"{\"phase\": \"one\"}"#;
    let wrapped = format!(r#"echo "{one}" >&3"#);
    let program = |program: &str, args: &[&str]| Launch {
        program: program.into(),
        args: args.iter().map(ToString::to_string).collect(),
        ..Launch::default()
    };
    let lines: Vec<String> = (0..3000).map(|number| format!("line {number}")).collect();
    let cases: Vec<(Launch, Vec<&str>)> = vec![
        (sh(0, &wrapped), vec!["one"]),
        (program("bash", &["-c", &wrapped]), vec!["one"]),
        (program("env", &["A=b", "sh", "-c", &wrapped]), vec!["one"]),
        (program("bash", &["-c", "sh -c \"$0\"; true", &wrapped]), vec!["one"]),
        (sh(0, r#"printf '{"pha' >&3; printf '' >&3; printf 'se": "one"}\n' >&3"#), vec!["one"]),
        // Into a buffer of its own, which it writes when that is full.
        (
            sh(0, r#"awk 'BEGIN { for (i = 0; i < 3000; i++) printf "{\"phase\": \"line %d\"}\n", i }' >&3"#),
            lines.iter().map(String::as_str).collect(),
        ),
        (sh(0, &format!(r#"echo "{one}" >&3; exec 3>&-; echo x 2>/dev/null >&3; exit 0"#)), vec!["one"]),
    ];
    with_guard(GRACE, |guard| {
        for (launch, expected) in cases {
            let rank = heard(guard, &launch);
            rank.socket.tell(&profile(1));
            assert!(matches!(ended(guard), (0, ExitStatus::Code(_))));
            rank.output.readers.into_iter().for_each(PipeReader::join);
            let phases = rank.notes.iter().map(|note| match note {
                RankNote::Phase(name) => name,
                other => panic!("{other:?}"),
            });
            assert_eq!(phases.collect::<Vec<_>>(), expected, "GUARD-17: {launch:?}");
        }
    });
}

#[test]
fn a_rank_that_has_closed_its_end_runs_on_and_is_told_nothing() {
    with_guard(GRACE, |guard| {
        let rank = heard(guard, &sh(0, "exec 3>&-; echo closed; while read -r line; do :; done; sleep 1000"));
        rank.output.said("closed");
        eventually("its notes are over", LONG, || rank.output.readers[1].is_finished());
        (1..=1000).for_each(|number| rank.socket.tell(&profile(number)));
        rank.socket.send_news();
    });
}

#[test]
fn a_rank_that_is_stopped_keeps_nobody_and_finds_the_newest_when_it_goes_on() {
    with_guard(GRACE, |guard| {
        let rank = heard(guard, &sh(0, &format!("echo pid $$; kill -STOP $$; {READER}")));
        let pid = rank.output.pid("pid");
        let stat = format!("/proc/{pid}/stat");
        eventually("it is stopped", LONG, || std::fs::read_to_string(&stat).unwrap().contains(") T "));
        (1..=1000).for_each(|number| rank.socket.tell(&profile(number)));
        guard.signal(0, 18);
        eventually("it has the newest", LONG, || {
            // As the node does it at each of its passes.
            rank.socket.send_news();
            rank.output.text().contains(":1000,")
        });
        let text = rank.output.text();
        let told = text.lines().filter(|line| line.contains("profile")).count();
        assert!(told < 100, "GUARD-15, GUARD-16: what was overtaken is not there: {told}");
        assert_eq!(ended(guard), (0, ExitStatus::Code(0)));
    });
}

#[test]
fn news_reach_a_rank_through_the_programs_around_it() {
    let wrappers: [&[&str]; 3] = [
        &["env", "A=b", "sh", "-c", READER],
        &["bash", "-c", "sh -c \"$0\"; true", READER],
        &["sh", "-c", READER],
    ];
    with_guard(GRACE, |guard| {
        for wrapper in wrappers {
            let args = wrapper[1..].iter().map(ToString::to_string).collect();
            let rank = heard(guard, &Launch { program: wrapper[0].into(), args, ..Launch::default() });
            rank.socket.tell(&profile(1000));
            assert_eq!(ended(guard), (0, ExitStatus::Code(0)), "{wrapper:?}");
            let packet = r#"{"version":1,"kind":"profile","number":1000,"millis":100}"#;
            // The output may come behind the end.
            eventually(&format!("{wrapper:?} wrote it"), LONG, || rank.output.text().contains(packet));
        }
    });
}
