//! As JOB-16 says, the cases of `tests/contract/checks.json`, which the tests of Python and Scala run through theirs.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use phalanx_job::Settings;
use phalanx_job::preflight::{
    self, Conf, DriverGpus, Found, ProfileNeed, Said, SlotNeed, Slots, TrainObject, Wish,
};
use phalanx_types::{FailureKind, Result};
use serde_json::{Value, json};

/// What a case came to: its value, and what is to be logged.
type Decision = Result<(Value, Vec<String>)>;

type Decide = fn(&Value) -> Decision;

/// What is decided of each part of the table, and the field that its cases have the value in.
const PARTS: [(&str, &str, Decide); 14] = [
    ("num_processes", "value", num_processes),
    ("given", "", given),
    ("num_tasks", "tasks", num_tasks),
    ("driver_limited", "ranks", driver_limited),
    ("devices", "devices", devices),
    ("dynamic_allocation", "", may_start),
    ("encryption", "", may_start),
    ("profile", "profile", profile),
    ("executor_cores", "cores", executor_cores),
    ("most_slots", "slots", most_slots),
    ("slots", "", slots),
    ("leases", "gives", leases),
    ("train_file", "", train_file),
    ("stage_failure", "sentence", stage_failure),
];

fn table() -> BTreeMap<String, Value> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/contract/checks.json");
    let mut table: BTreeMap<String, Value> =
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    table.remove("about").unwrap();
    table
}

#[test]
fn every_case_of_the_table_is_decided_as_it_says() {
    let table = table();
    let parts: Vec<&str> = table.keys().map(String::as_str).collect();
    let mut known: Vec<&str> = PARTS.iter().map(|(part, ..)| *part).collect();
    known.sort_unstable();
    assert_eq!(parts, known);
    for (part, field, decide) in PARTS {
        for (number, case) in table[part].as_array().unwrap().iter().enumerate() {
            let which = format!("JOB-16: {part}, case {}", number + 1);
            match (decide(case), case.get("error")) {
                (Err(error), Some(sentence)) => {
                    assert_eq!(error.to_string(), sentence.as_str().unwrap(), "{which}");
                    assert_eq!(error.kind().name(), case["kind"], "{which}");
                }
                (Ok((value, said)), None) => {
                    assert!(field.is_empty() || value == case[field], "{which}: {value}");
                    let lines = texts(case, "warning").chain(texts(case, "log"));
                    assert_eq!(said, lines.collect::<Vec<_>>(), "{which}");
                }
                (outcome, _) => panic!("{which}: {outcome:?}"),
            }
        }
    }
}

fn texts<'a>(case: &'a Value, name: &str) -> impl Iterator<Item = String> + 'a {
    let value = case.get(name).cloned().unwrap_or(Value::Null);
    let all = match value {
        Value::Null => Vec::new(),
        Value::Array(all) => all,
        one => vec![one],
    };
    all.into_iter().map(|text| text.as_str().unwrap().to_string())
}

fn number(case: &Value, name: &str) -> u32 {
    case[name].as_u64().unwrap().try_into().unwrap()
}

fn conf(case: &Value) -> Conf {
    serde_json::from_value(case.get("conf").cloned().unwrap_or(json!({}))).unwrap()
}

fn num_processes(case: &Value) -> Decision {
    let shown = format!("{} (float)", case["value"]);
    Ok((json!(preflight::num_processes(case["value"].as_i64(), &shown)?), Vec::new()))
}

fn given(case: &Value) -> Decision {
    // How a language writes what a distributor is given as settings is its own; whether they can be read is not.
    let setting = |key: &str, name: &str| {
        let value = case["given"].get(name)?;
        let text = match (name, value) {
            ("hang_timeout", seconds) => format!("{}ms", seconds.as_i64()? * 1000),
            (_, Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
            (_, other) => other.to_string(),
        };
        Some((key.to_string(), text))
    };
    let settings: BTreeMap<String, String> = match case.get("settings") {
        Some(settings) => serde_json::from_value(settings.clone()).unwrap(),
        None => [
            setting("spark.phalanx.maxRestarts", "max_restarts"),
            setting("spark.phalanx.maxPreemptions", "max_preemptions"),
            setting("spark.phalanx.restartOn", "restart_on"),
            setting("spark.phalanx.hangTimeout", "hang_timeout"),
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    Settings::read(&settings)?;
    Ok((Value::Null, Vec::new()))
}

fn plan(case: &Value, local_mode: bool, key: &str) -> Result<preflight::Plan> {
    let mut conf = conf(case);
    conf.extend(case["amount"].as_str().map(|amount| (key.to_string(), amount.to_string())));
    let use_gpu = local_mode || case["use_gpu"].as_bool().unwrap();
    let driver_has_gpus = case.get("gpu").is_some_and(|gpu| gpu.as_bool().unwrap());
    let ranks = number(case, "num_processes");
    preflight::plan(&Wish { ranks, local_mode, use_gpu, driver_has_gpus, conf: &conf })
}

fn num_tasks(case: &Value) -> Decision {
    let plan = plan(case, false, preflight::PLAN_KEYS[1])?;
    Ok((json!(plan.tasks), plan.warning.into_iter().collect()))
}

fn driver_limited(case: &Value) -> Decision {
    let plan = plan(case, true, preflight::PLAN_KEYS[0])?;
    Ok((json!(plan.ranks), plan.warning.into_iter().collect()))
}

fn executor_cores(case: &Value) -> Decision {
    Ok((json!(preflight::executor_cores(&conf(case)).unwrap_or(0)), Vec::new()))
}

fn lease(gpus: &Value, visible: Option<&str>, ranks: usize) -> Result<preflight::Lease> {
    let addresses: Vec<String> = serde_json::from_value(gpus.clone()).unwrap();
    DriverGpus {
        ranks: ranks.try_into().unwrap(),
        use_gpu: true,
        local_mode: true,
        master: "local[1]",
        addresses: Some(&addresses),
        visible,
    }
    .lease()
}

fn devices(case: &Value) -> Decision {
    let count = case["addresses"].as_array().unwrap().len();
    let lease = lease(&case["addresses"], case["visible"].as_str(), count)?;
    preflight::release(lease.id);
    Ok((json!(lease.gpus), Vec::new()))
}

fn leases(case: &Value) -> Decision {
    let others: Vec<preflight::Lease> = case["taken"]
        .as_array()
        .unwrap()
        .iter()
        .map(|count| lease(&case["gpus"], None, count.as_u64().unwrap() as usize).unwrap())
        .collect();
    let outcome = lease(&case["gpus"], None, number(case, "count") as usize);
    for other in others.iter().chain(&outcome) {
        preflight::release(other.id);
    }
    Ok((json!(outcome?.gpus), Vec::new()))
}

fn may_start(case: &Value) -> Decision {
    Ok((Value::Null, preflight::may_start(&conf(case))?.into_iter().collect()))
}

fn profile(case: &Value) -> Decision {
    let is = |name: &str| case.get(name).is_some_and(|told| told.as_bool().unwrap());
    let profile = preflight::profile(&ProfileNeed {
        use_gpu: is("use_gpu"),
        local_mode: is("local_mode"),
        of_dataframe: is("of_dataframe"),
        spark: case["spark"].as_str().unwrap(),
        conf: &conf(case),
    })?;
    let numbers = profile.map(|profile| {
        let own = profile.executors.map(|own| [own.cores.into(), own.gpus.into(), own.overhead_mib]);
        let of_task: [u64; 2] = [profile.cpus.into(), profile.gpus.into()];
        of_task.into_iter().chain(own.into_iter().flatten()).collect::<Vec<_>>()
    });
    Ok((json!(numbers), Vec::new()))
}

fn most_slots(case: &Value) -> Decision {
    Ok((json!(preflight::most_slots(case["master"].as_str().unwrap(), &conf(case))), Vec::new()))
}

fn slots(case: &Value) -> Decision {
    let need = SlotNeed {
        tasks: number(case, "tasks"),
        master: case["master"].as_str().unwrap(),
        conf: &conf(case),
        profile: None,
        timeout: Duration::from_millis(case["timeout_ms"].as_u64().unwrap()),
    };
    let mut said = Vec::new();
    let mut waited = Duration::ZERO;
    let there = case["there"].as_array().unwrap();
    for looks in 0.. {
        let now = there.get(looks as usize).or(there.last()).and_then(Value::as_u64).unwrap();
        match preflight::look(&need, Some(now.try_into().unwrap()), waited, looks)? {
            Slots::Enough => break,
            Slots::Wait { pause, log } => {
                said.extend(log);
                waited += pause;
            }
        }
    }
    Ok((Value::Null, said))
}

fn train_file(case: &Value) -> Decision {
    let found = match case["found"].as_str().unwrap() {
        "file" => Found::File,
        "directory" => Found::Directory,
        _ => Found::Nothing,
    };
    let shipped = case.get("shipped").and_then(Value::as_str);
    let keywords: Vec<String> = texts(case, "keywords").collect();
    let object = TrainObject::File { path: "PATH", found, shipped };
    preflight::check_train_object(&object, &keywords)?;
    Ok((Value::Null, Vec::new()))
}

fn stage_failure(case: &Value) -> Decision {
    let said = Said { class: case["class"].as_str().unwrap(), text: case["text"].as_str().unwrap() };
    let failure = preflight::explain(&[said]);
    assert_eq!(failure.kind.name(), case.get("kind").map_or("start", |kind| kind.as_str().unwrap()));
    Ok((json!(failure.sentence), Vec::new()))
}

#[test]
fn long_words_of_sparks_are_cut() {
    let failure = preflight::explain(&[Said { class: "X", text: &"ü".repeat(900) }]);
    assert_eq!(failure.sentence.chars().count(), 503);
}

#[test]
fn a_cancel_is_seen_in_a_cause_as_well() {
    let outer = Said { class: "RuntimeException", text: "no" };
    let cause = Said { class: "SparkException", text: "[SPARK_JOB_CANCELLED] Job 1 cancelled" };
    assert_eq!(preflight::explain(&[outer, cause]).kind, FailureKind::Cancelled);
    assert_eq!(preflight::explain(&[outer]).kind, FailureKind::Start);
}
