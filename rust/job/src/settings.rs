//! Every `spark.phalanx.*` setting: one table for all languages.
//!
//! SET-1: a value that can't be read is an error that names the key, the value and what is allowed. SET-2:
//! `docs/configuration.md` has exactly this table; a test compares them. SET-3: the defaults here are those of
//! [`Policy`], [`LogPolicy`] and [`WarmPolicy`].

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_rendezvous::wire;
use phalanx_types::{Error, ErrorKind, FailureKind, Job, LogPolicy, Policy, Result, WarmPolicy};

const PREFIX: &str = "spark.phalanx.";

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// How it is called, e.g. `spark.phalanx.grace`.
    pub key: &'static str,
    /// Its value where nobody sets it.
    pub default: &'static str,
    /// What it means, for people.
    pub meaning: &'static str,
    takes: Takes,
}

/// What a setting's value is, and where it goes.
#[derive(Debug, Clone, Copy)]
enum Takes {
    Time(fn(&mut Settings) -> &mut Duration, Zero),
    Bytes(fn(&mut Settings) -> &mut u64, Zero),
    Flag(fn(&mut Settings) -> &mut bool),
    Count(fn(&mut Settings) -> &mut u32),
    Kinds(fn(&mut Settings) -> &mut Vec<FailureKind>),
    Choice(fn(&mut Settings) -> &mut String, &'static [&'static str]),
    Modules(fn(&mut Settings) -> &mut Vec<String>),
}

/// Whether 0 is a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Zero {
    Allowed,
    Refused,
}

/// All settings, in the order of the documentation.
pub const SETTINGS: [Setting; 17] = [
    Setting {
        key: "spark.phalanx.joinTimeout",
        default: "120s",
        meaning: "How long after the start every task must have joined; then the run fails and says which are missing.",
        takes: Takes::Time(|s| &mut s.policy.join_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.connectTimeout",
        default: "3s",
        meaning: "How long a task tries to reach the driver directly before it exchanges addresses through Spark's barrier.",
        takes: Takes::Time(|s| &mut s.policy.connect_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.grace",
        default: "30s",
        meaning: "How long ranks have between SIGTERM and SIGKILL when a run is ended.",
        takes: Takes::Time(|s| &mut s.policy.grace, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.nodeTimeout",
        default: "30s",
        meaning: "A node that the driver has not heard of for this long is lost.",
        takes: Takes::Time(|s| &mut s.policy.node_timeout, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.maxRestarts",
        default: "0",
        meaning: "How often the ranks of a run start again after a failure, all failures together.",
        takes: Takes::Count(|s| &mut s.policy.max_restarts),
    },
    Setting {
        key: "spark.phalanx.restartOn",
        default: "lost_node,signal,hang",
        meaning: "The kinds of failure after which they do.",
        takes: Takes::Kinds(|s| &mut s.policy.restart_on),
    },
    Setting {
        key: "spark.phalanx.hangTimeout",
        default: "0s",
        meaning: "A run whose ranks all make no progress for this long fails, with their stacks; 0 for never.",
        takes: Takes::Time(|s| &mut s.policy.hang_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.results.maxBytes",
        default: "64m",
        meaning: "Results of ranks other than 0 that are larger stay behind; rank 0's has no limit.",
        takes: Takes::Bytes(|s| &mut s.policy.max_other_result_bytes, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.logs.maxFileBytes",
        default: "1g",
        meaning: "What a rank's log keeps on its host: beyond it, the older half of the output is dropped, with a notice.",
        takes: Takes::Bytes(|s| &mut s.logs.max_file_bytes, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.logs.maxLiveLag",
        default: "64m",
        meaning: "The live view skips ahead when it is this far behind a rank's output.",
        takes: Takes::Bytes(|s| &mut s.logs.max_live_lag_bytes, Zero::Refused),
    },
    Setting {
        key: "spark.phalanx.logs.drainTimeout",
        default: "10s",
        meaning: "How long a finished run waits for the live view to catch up.",
        takes: Takes::Time(|s| &mut s.logs.drain_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.logs.live",
        default: "true",
        meaning: "Whether the ranks' output is shown at the driver while they run.",
        takes: Takes::Flag(|s| &mut s.logs.live),
    },
    Setting {
        key: "spark.phalanx.slots.timeout",
        default: "30s",
        meaning: "How long a run waits for executors to register when the cluster has too few task slots yet.",
        takes: Takes::Time(|s| &mut s.slots_timeout, Zero::Allowed),
    },
    Setting {
        key: "spark.phalanx.stage",
        default: "auto",
        meaning: "What starts the ranks of a Python run: executors' JVMs, Python workers, or the first of the two that is possible.",
        takes: Takes::Choice(|s| &mut s.stage, &["auto", "jvm", "python"]),
    },
    Setting {
        key: "spark.phalanx.warm.enabled",
        default: "true",
        meaning: "Whether ranks in Python are forked from a process that has imported torch already, which stays for the next run.",
        takes: Takes::Flag(|s| &mut s.warm.enabled),
    },
    Setting {
        key: "spark.phalanx.warm.imports",
        default: "",
        meaning: "What that process imports besides torch, numpy and cloudpickle; it only imports, and must start no thread.",
        takes: Takes::Modules(|s| &mut s.warm.imports),
    },
    Setting {
        key: "spark.phalanx.warm.idleTimeout",
        default: "10min",
        meaning: "How long that process stays without a run.",
        takes: Takes::Time(|s| &mut s.warm.idle_timeout, Zero::Refused),
    },
];

impl Setting {
    /// What its value is: `time`, `bytes`, `boolean`, or its choices.
    pub fn unit(&self) -> String {
        match self.takes {
            Takes::Time(..) => "time".into(),
            Takes::Bytes(..) => "bytes".into(),
            Takes::Flag(_) => "boolean".into(),
            Takes::Count(_) => "number".into(),
            Takes::Kinds(_) => "kinds of failure".into(),
            Takes::Choice(_, choices) => choices.join(", "),
            Takes::Modules(_) => "modules".into(),
        }
    }

    fn name(&self) -> &'static str {
        self.key.strip_prefix(PREFIX).unwrap_or(self.key)
    }

    fn read(&self, text: &str, into: &mut Settings) -> Result<()> {
        let lower = text.trim().to_lowercase();
        let refused = |allowed: &str| {
            Err(Error::new(ErrorKind::Invalid, format!("{} is {text:?}, but has to be {allowed}", self.key)))
        };
        match self.takes {
            Takes::Time(field, zero) => match with_unit(&lower, millis_of, "s").map(|ms| ms.round() as u64) {
                None => refused("a time such as 500ms, 30s, 5min or 2h (a plain number means seconds)"),
                Some(0) if zero == Zero::Refused => refused("more than 0"),
                Some(ms) => {
                    *field(into) = Duration::from_millis(ms);
                    Ok(())
                }
            },
            Takes::Bytes(field, zero) => match with_unit(&lower, bytes_of, "b").map(|b| b.round() as u64) {
                None => refused("a size such as 512k, 64m or 1g (a plain number means bytes)"),
                Some(0) if zero == Zero::Refused => refused("more than 0"),
                Some(bytes) => {
                    *field(into) = bytes;
                    Ok(())
                }
            },
            Takes::Flag(field) => match lower.parse() {
                Ok(flag) => {
                    *field(into) = flag;
                    Ok(())
                }
                Err(_) => refused("true or false"),
            },
            Takes::Count(field) => match lower.parse() {
                Ok(count) => {
                    *field(into) = count;
                    Ok(())
                }
                Err(_) => refused("a whole number, 0 or more"),
            },
            Takes::Kinds(field) => match kinds(&lower) {
                Some(kinds) => {
                    *field(into) = kinds;
                    Ok(())
                }
                None => {
                    let all: Vec<&str> = retryable().map(FailureKind::name).collect();
                    refused(&format!("some of {}, with commas between them", all.join(", ")))
                }
            },
            Takes::Choice(field, choices) => match choices.iter().find(|choice| **choice == lower) {
                Some(choice) => {
                    *field(into) = (*choice).to_string();
                    Ok(())
                }
                None => refused(&format!("one of {}", choices.join(", "))),
            },
            Takes::Modules(field) => {
                let names: Vec<String> = text
                    .split(',')
                    .map(|name| name.trim().to_string())
                    .filter(|name| !name.is_empty())
                    .collect();
                if names
                    .iter()
                    .any(|name| name.contains(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')))
                {
                    return refused("names of Python modules with commas between them");
                }
                *field(into) = names;
                Ok(())
            }
        }
    }
}

/// The settings of one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Deadlines and limits of the job.
    pub policy: Policy,
    /// What is kept and shown of the ranks' output.
    pub logs: LogPolicy,
    /// Whether and from what ranks are forked.
    pub warm: WarmPolicy,
    /// How long to wait for task slots.
    pub slots_timeout: Duration,
    /// `auto`, `jvm` or `python`.
    pub stage: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: Policy::default(),
            logs: LogPolicy::default(),
            warm: WarmPolicy::default(),
            slots_timeout: Duration::from_secs(30),
            stage: "auto".into(),
        }
    }
}

impl Settings {
    /// Reads the settings among the keys of `conf`; what is not there has its default. Other keys don't matter.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a value that can't be read.
    pub fn read(conf: &BTreeMap<String, String>) -> Result<Settings> {
        let mut settings = Settings::default();
        for setting in &SETTINGS {
            if let Some(text) = conf.get(setting.key) {
                setting.read(text, &mut settings)?;
            }
        }
        Ok(settings)
    }

    /// A job under these settings, with a fresh id.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the numbers don't fit together.
    pub fn job(&self, name: &str, ranks: u32, tasks: u32, use_gpu: bool) -> Result<Job> {
        let mut job = Job::new(wire::hex(&wire::random_token()?[..8]), name, ranks, tasks)?;
        job.use_gpu = use_gpu;
        job.policy = self.policy.clone();
        job.logs = self.logs.clone();
        job.warm = self.warm.clone();
        Ok(job)
    }
}

/// A sentence for every `spark.phalanx.*` key that is no setting, with the nearest one that is.
pub fn unknown_keys<'a>(keys: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let unknown = |key: &&str| key.starts_with(PREFIX) && !SETTINGS.iter().any(|s| s.key == *key);
    keys.into_iter()
        .filter(unknown)
        .map(|key| {
            // Compared without the prefix, which would make any two keys look alike.
            let name = key[PREFIX.len()..].to_lowercase();
            let nearness =
                |s: &Setting| strsim::normalized_damerau_levenshtein(&s.name().to_lowercase(), &name);
            let near = SETTINGS.iter().max_by(|a, b| nearness(a).total_cmp(&nearness(b)));
            let hint = near.filter(|s| nearness(s) >= 0.6).map(|s| format!("; did you mean {}?", s.key));
            format!("{key} is no setting of Phalanx and has no effect{}", hint.unwrap_or_default())
        })
        .collect()
}

/// A number with a unit, in Spark's notation.
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

/// The kinds that a run can be restarted after: all but the caller's own wish.
fn retryable() -> impl Iterator<Item = FailureKind> {
    FailureKind::ALL.into_iter().filter(|kind| *kind != FailureKind::Cancelled)
}

/// Names with commas between them; none at all is a list, too.
fn kinds(text: &str) -> Option<Vec<FailureKind>> {
    text.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| retryable().find(|kind| kind.name() == name))
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> Result<Settings> {
        Settings::read(&BTreeMap::from([(format!("{PREFIX}{key}"), value.to_string())]))
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_policies() {
        let written: BTreeMap<String, String> =
            SETTINGS.iter().map(|s| (s.key.to_string(), s.default.to_string())).collect();
        assert_eq!(Settings::read(&written).unwrap(), Settings::default(), "SET-3");
    }

    #[test]
    fn times_and_sizes_are_read_in_sparks_notation() {
        for (text, ms) in [
            ("30s", 30_000),
            ("5min", 300_000),
            ("5m", 300_000),
            ("250ms", 250),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("45", 45_000),
            (" 1.5 S ", 1500),
        ] {
            let settings = read("joinTimeout", text).unwrap();
            assert_eq!(settings.policy.join_timeout, Duration::from_millis(ms), "{text}");
        }
        for (text, bytes) in
            [("64m", 64 << 20), ("1g", 1 << 30), ("512kb", 512 << 10), ("10b", 10), ("4096", 4096)]
        {
            assert_eq!(read("logs.maxFileBytes", text).unwrap().logs.max_file_bytes, bytes, "{text}");
        }
        assert!(!read("logs.live", "False").unwrap().logs.live);
        assert_eq!(read("grace", "0").unwrap().policy.grace, Duration::ZERO);
        assert_eq!(read("maxRestarts", "3").unwrap().policy.max_restarts, 3);
        let kinds = read("restartOn", "Exception, signal").unwrap().policy.restart_on;
        assert_eq!(kinds, [FailureKind::Exception, FailureKind::Signal]);
        assert_eq!(read("restartOn", "").unwrap().policy.restart_on, []);
        assert_eq!(read("stage", "JVM").unwrap().stage, "jvm");
        assert_eq!(read("warm.imports", " a.b, c,").unwrap().warm.imports, ["a.b", "c"]);
    }

    #[test]
    fn a_bad_value_is_named_with_its_key_and_what_is_allowed() {
        for (key, text, allowed) in [
            ("joinTimeout", "soon", "a time such as 500ms, 30s"),
            ("joinTimeout", "64m g", "a time such as"),
            ("joinTimeout", "-1s", "a time such as"),
            ("joinTimeout", "1.s", "a time such as"),
            ("joinTimeout", "0s", "more than 0"),
            ("logs.maxFileBytes", "1 gallon", "a size such as 512k, 64m or 1g"),
            ("logs.live", "yes", "true or false"),
            ("grace", "", "a time such as"),
            ("stage", "scala", "one of auto, jvm, python"),
            ("warm.imports", "torchvision os", "names of Python modules"),
            ("maxRestarts", "-1", "a whole number, 0 or more"),
            ("restartOn", "signal,bad luck", "some of exception, signal, exit_code"),
            ("restartOn", "cancelled", "some of exception"),
        ] {
            let error = read(key, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let said = error.to_string();
            for part in [&format!("{PREFIX}{key}"), &format!("{text:?}"), "has to be", allowed] {
                assert!(said.contains(part), "SET-1: {part} in {said}");
            }
        }
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest() {
        let keys = ["spark.phalanx.jointimeout", "spark.master", "spark.phalanx.grace", "spark.phalanx.zzz"];
        let expected = [
            "spark.phalanx.jointimeout is no setting of Phalanx and has no effect; did you mean spark.phalanx.joinTimeout?",
            "spark.phalanx.zzz is no setting of Phalanx and has no effect",
        ];
        assert_eq!(unknown_keys(keys), expected);
    }

    #[test]
    fn the_page_has_exactly_the_table() {
        let page =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md"))
                .unwrap();
        let expected: Vec<String> = SETTINGS
            .iter()
            .map(|s| format!("| `{}` | `{}` | {} | {} |", s.key, s.default, s.unit(), s.meaning))
            .collect();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `spark.phalanx.")).collect();
        assert_eq!(rows, expected, "SET-2");
    }
}
