//! Every `spark.phalanx.*` setting: one table for all languages.
//!
//! JOB-21 (names-the-key): a value that can't be read is an error that names the key, the value and what is allowed.
//! JOB-22 (same-table): `docs/configuration.md` has exactly this table; a test compares them.
//! JOB-23 (same-defaults): the defaults here are those of [`Policy`], [`LogPolicy`] and [`WarmPolicy`].
//! JOB-24 (same-variables): the same page has exactly the variables below.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_rendezvous::wire;
use phalanx_types::{
    CheckpointPolicy, CpuPolicy, Error, ErrorKind, EveryReport, FailureKind, Gang, Job, LocalRanks,
    LogPolicy, MAX_CHECKPOINT_NAME_BYTES, Owner, Policy, Result, WarmPolicy,
};

use crate::preflight::{self, EncryptionWish};
use crate::units::{bytes, time};

mod resources;
mod table;

use resources::{CPU_KEYS, read_cpus};
pub(crate) use resources::{GPUS_PER_RANK, MEMORY_PER_RANK, Resources, TASK_CPUS};
pub use table::{SETTINGS, Setting, VARIABLES, Variable};
use table::{Takes, Zero};

const PREFIX: &str = "spark.phalanx.";

impl Setting {
    /// What its value is: `time`, `bytes`, `boolean`, or its choices.
    pub fn unit(&self) -> String {
        match self.takes {
            Takes::Time(..) => "time".into(),
            Takes::Bytes(..) => "bytes".into(),
            Takes::Flag(_) => "boolean".into(),
            Takes::Count(_) => "number".into(),
            Takes::Limit(_) => "number or unlimited".into(),
            Takes::Text(_) => "command".into(),
            Takes::Kinds(_) => "kinds of failure".into(),
            Takes::Choice(_, choices) => choices.join(", "),
            Takes::Folder(_) => "folder or URI".into(),
            Takes::Name(_) => "name".into(),
            Takes::Names(_) => "names".into(),
            Takes::Networks(_) => "networks".into(),
            Takes::Host(_) => "host".into(),
            Takes::Output(_) => "auto, all, dedup, errors, off, or ranks".into(),
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
            Takes::Time(field, zero) => match time(&lower) {
                None => refused("a time such as 500ms, 30s, 5min or 2h (a plain number means seconds)"),
                Some(time) if zero == Zero::Refused && time.is_zero() => refused("more than 0"),
                Some(time) => keep(field(into), time),
            },
            Takes::Bytes(field, zero) => match bytes(&lower) {
                None => refused("a size such as 512k, 64m or 1g (a plain number means bytes)"),
                Some(0) if zero == Zero::Refused => refused("more than 0"),
                Some(bytes) => keep(field(into), bytes),
            },
            Takes::Flag(field) => match lower.parse() {
                Ok(flag) => keep(field(into), flag),
                Err(_) => refused("true or false"),
            },
            Takes::Count(field) => match lower.parse() {
                Ok(count) => keep(field(into), count),
                Err(_) => refused("a whole number, 0 or more"),
            },
            Takes::Limit(field) => match lower.parse() {
                Ok(count) => keep(field(into), Some(count)),
                Err(_) if lower == "unlimited" => keep(field(into), None),
                Err(_) => refused("a whole number, 0 or more, or unlimited"),
            },
            Takes::Text(field) => keep(field(into), text.trim().to_string()),
            Takes::Kinds(field) => match kinds(&lower) {
                Some(kinds) => keep(field(into), kinds),
                None => {
                    let all: Vec<&str> = retryable().map(FailureKind::name).collect();
                    refused(&format!("one or more of {}, separated by commas", all.join(", ")))
                }
            },
            Takes::Choice(choose, choices) => match choices.iter().find(|choice| **choice == lower) {
                Some(choice) => {
                    choose(into, choice);
                    Ok(())
                }
                None => refused(&format!("one of {}", choices.join(", "))),
            },
            Takes::Output(field) => match lower.parse() {
                Ok(shown) => keep(field(into), shown),
                Err(_) => refused("one of auto, all, dedup, errors, off, or ranks such as 0,3"),
            },
            Takes::Networks(field) => match listed(text).map(str::parse).collect::<Result<_>>() {
                Ok(networks) => keep(field(into), networks),
                Err(_) => refused("networks such as 10.0.0.0/8, separated by commas"),
            },
            Takes::Host(field) => {
                let host = text.trim();
                // An IPv6 address has more than one colon; what has one has a port.
                if host.matches(':').count() == 1
                    || host.contains(|c: char| c.is_whitespace() || "/,@[]".contains(c))
                {
                    return refused("a name or an address of a host, without a port");
                }
                *field(into) = host.to_string();
                Ok(())
            }
            Takes::Folder(field) => {
                let folder = text.trim();
                if !(folder.is_empty() || folder.starts_with('/') || folder.contains(":/")) {
                    return refused("an absolute path, or a URI such as s3a://bucket/logs");
                }
                *field(into) = folder.to_string();
                Ok(())
            }
            Takes::Name(field) => {
                let plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
                if text.starts_with(['-', '.']) || !text.chars().all(plain) {
                    return refused(
                        "letters, digits, '_', '-' and '.', and to begin with neither '-' nor '.'",
                    );
                }
                if text.len() > MAX_CHECKPOINT_NAME_BYTES {
                    return refused(&format!("at most {MAX_CHECKPOINT_NAME_BYTES} bytes long"));
                }
                *field(into) = text.to_string();
                Ok(())
            }
            Takes::Names(field) => {
                let names: Vec<String> = listed(text).map(str::to_string).collect();
                if names
                    .iter()
                    .any(|name| name.contains(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')))
                {
                    return refused("names separated by commas");
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
    /// Where the ranks' checkpoints are.
    pub checkpoint: CheckpointPolicy,
    /// What the number of a rank's threads follows from.
    pub cpus: CpuPolicy,
    /// What each task and each rank is to have.
    pub(crate) resources: Resources,
    /// What the folders of the run's data sets are called.
    pub data_folder: String,
    /// Of which ranks every report is wanted.
    pub every_report: EveryReport,
    /// What tasks are told for the driver's host; empty for what Spark tells them.
    pub hub_host: String,
    /// Where the hub listens; empty for where Spark's driver does.
    pub hub_bind: String,
    /// What a run's tasks are to Spark; `None` for what the cluster asks for. What follows is in the policy.
    pub gang: Option<Gang>,
    /// How long to wait for task slots.
    pub slots_timeout: Duration,
    /// `auto`, `jvm` or `python`.
    pub stage: String,
    /// In which order rows of data sets come: `auto`, `computed` or `content`.
    pub data_order: String,
    /// `auto`, `rich`, `plain` or `off`.
    pub progress: String,
    /// `auto`, `direct` or `relay`.
    pub connect: String,
    /// Variables of the caller's environment that its ranks get, by name.
    pub env_pass: Vec<String>,
    /// What is wanted of encryption between hosts; what follows from it is in the policy.
    pub encryption: EncryptionWish,
    /// Whether gloo and NCCL may be plain where the rest is encrypted.
    pub allow_plain_gradients: bool,
    /// What counts as a node for the ranks' local numbers and their GPUs.
    pub local_ranks: LocalRanks,
    /// How long a model's process stays without a task.
    pub predict_idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            policy: Policy::default(),
            logs: LogPolicy::default(),
            warm: WarmPolicy::default(),
            checkpoint: CheckpointPolicy::default(),
            cpus: CpuPolicy::default(),
            resources: Resources::default(),
            data_folder: String::new(),
            every_report: EveryReport::default(),
            hub_host: String::new(),
            hub_bind: String::new(),
            gang: None,
            slots_timeout: Duration::from_secs(30),
            stage: "auto".into(),
            data_order: "auto".into(),
            progress: "auto".into(),
            connect: "auto".into(),
            env_pass: Vec::new(),
            encryption: EncryptionWish::Auto,
            allow_plain_gradients: false,
            local_ranks: LocalRanks::default(),
            predict_idle: Duration::from_secs(600),
        }
    }
}

impl Settings {
    /// Reads the settings among the keys of `conf`, and those of Spark's that they follow; what is not there has its
    /// default. Other keys don't matter.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a value that can't be read, and for two that contradict each other.
    pub fn read(conf: &BTreeMap<String, String>) -> Result<Settings> {
        let mut settings = Settings::default();
        for setting in &SETTINGS {
            if let Some(text) = conf.get(setting.key) {
                setting.read(text, &mut settings)?;
            }
        }
        settings.allow_plain_gradients |= preflight::ignores_ssl(conf);
        settings.policy.encryption =
            preflight::encryption(settings.encryption, settings.allow_plain_gradients, conf)?;
        read_cpus(conf, &settings.resources, &mut settings.cpus);
        if settings.cpus.local_mode {
            // The ranks of the driver are one task.
            settings.policy.elastic.min_ranks = 0;
        }
        let is_elastic = settings.policy.elastic.min_ranks > 0;
        settings.policy.gang = preflight::gang(settings.gang, is_elastic, settings.cpus.local_mode, conf);
        settings.policy.executor_blocks = preflight::has_executor_blocks(conf);
        settings.data_folder = conf.get(DATA_FOLDER).cloned().unwrap_or_default();
        settings.every_report = conf.get(EVERY_REPORT).map_or(Ok(EveryReport::None), |told| told.parse())?;
        settings.checkpoint.owner = owner(conf, &settings.checkpoint.name)?;
        Ok(settings)
    }

    /// A job under these settings, with a fresh id.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the numbers don't fit together.
    pub fn job(&self, name: &str, ranks: u32, tasks: u32, use_gpu: bool) -> Result<Job> {
        let mut job = Job::new(hex::encode(&wire::random_token()?[..8]), name, ranks, tasks)?;
        job.use_gpu = use_gpu;
        job.local_ranks = self.local_ranks;
        job.policy = self.policy.clone();
        job.logs = self.logs.clone();
        job.warm = self.warm.clone();
        job.checkpoint = self.checkpoint.clone();
        job.cpus = self.cpus.clone();
        job.data_folder = self.data_folder.clone();
        job.every_report = self.every_report;
        job.check()?;
        Ok(job)
    }
}

/// What a distributor says beside the settings: whether the ranks are on the driver's host, outside of any task.
const LOCAL_MODE: &str = "phalanx.localMode";
/// The same: what the folders of the run's data sets are called.
const DATA_FOLDER: &str = "phalanx.dataFolder";
/// The same: of which ranks every report is wanted, `first` or `all`.
const EVERY_REPORT: &str = "phalanx.everyReport";
/// The same: whose the run's checkpoints are, an [`Owner`] as JSON.
const OWNER: &str = "phalanx.owner";

/// Whose checkpoints of this name are; of a name that was given nobody's.
fn owner(conf: &BTreeMap<String, String>, name: &str) -> Result<Option<Owner>> {
    let Some(told) = conf.get(OWNER).filter(|_| name.is_empty()) else { return Ok(None) };
    let read: serde_json::Result<Owner> = serde_json::from_str(told);
    let unread =
        |e| Error::new(ErrorKind::Invalid, format!("{OWNER} can't be read as an owner of checkpoints: {e}"));
    read.map(|owner| Some(owner.settled())).map_err(unread)
}

/// Every key that [`Settings::read`] looks at: the settings, and those of Spark's that they follow.
pub fn keys() -> impl Iterator<Item = &'static str> {
    let followed = preflight::ENCRYPTION_KEYS.into_iter().chain(preflight::GANG_KEYS).chain(CPU_KEYS);
    SETTINGS.iter().map(|setting| setting.key).chain(followed)
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
            format!("{key} is not a Phalanx setting and has no effect{}", hint.unwrap_or_default())
        })
        .collect()
}

/// The kinds that a run can be restarted after: all but the caller's own wish, and what has a budget of its own.
fn retryable() -> impl Iterator<Item = FailureKind> {
    let is_other = |kind: &FailureKind| matches!(kind, FailureKind::Cancelled | FailureKind::Preempted);
    FailureKind::ALL.into_iter().filter(move |kind| !is_other(kind))
}

fn keep<T>(field: &mut T, value: T) -> Result<()> {
    *field = value;
    Ok(())
}

/// What stands between commas; nothing at all is a list, too.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty())
}

fn kinds(text: &str) -> Option<Vec<FailureKind>> {
    listed(text).map(|name| retryable().find(|kind| kind.name() == name)).collect()
}

#[cfg(test)]
mod tests {
    use phalanx_types::{Encryption, ExecutorLog, OwnerKind, ShownOutput};

    use super::*;

    fn read(key: &str, value: &str) -> Result<Settings> {
        Settings::read(&BTreeMap::from([(format!("{PREFIX}{key}"), value.to_string())]))
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_policies() {
        let written: BTreeMap<String, String> =
            SETTINGS.iter().map(|s| (s.key.to_string(), s.default.to_string())).collect();
        assert_eq!(Settings::read(&written).unwrap(), Settings::default(), "JOB-23");
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
        assert_eq!(read("hub.host", " fd00::1").unwrap().hub_host, "fd00::1");
        for (name, executor) in ExecutorLog::ALL {
            assert_eq!(read("logs.executor", name).unwrap().logs.executor, executor);
        }
        assert_eq!(read("logs", " 0, 3").unwrap().logs.shown, ShownOutput::Ranks(vec![0, 3]));
        assert_eq!(read("logs.directory", " s3a://b/Logs").unwrap().logs.directory, "s3a://b/Logs");
        let networks = read("store.allowedNetworks", "127.0.0.6, fd00::/8").unwrap().policy.store_networks;
        assert_eq!(networks, ["127.0.0.6".parse().unwrap(), "fd00::/8".parse().unwrap()]);
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
            ("logs.directory", "logs", "an absolute path, or a URI"),
            ("checkpoint.name", "a/b", "letters, digits,"),
            ("checkpoint.name", "ü".repeat(51).as_str(), "at most 100 bytes"),
            ("logs", "some", "one of auto, all, dedup, errors, off, or ranks such as 0,3"),
            ("stage", "scala", "one of auto, jvm, python"),
            ("connect", "never", "one of auto, direct, relay"),
            ("data.order", "sorted", "one of auto, computed, content"),
            ("hub.host", "driver.example:7077", "without a port"),
            ("hub.bindAddress", "10.0.0.0/8", "a name or an address of a host"),
            ("warm.imports", "torchvision os", "names separated by commas"),
            ("store.allowedNetworks", "10.0.0.0/99", "networks such as 10.0.0.0/8"),
            ("maxRestarts", "-1", "a whole number, 0 or more"),
            ("restartOn", "signal,bad luck", "one or more of exception, signal, exit_code"),
            ("restartOn", "cancelled", "one or more of exception"),
        ] {
            let error = read(key, text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let said = error.to_string();
            for part in [&format!("{PREFIX}{key}"), &format!("{text:?}"), "has to be", allowed] {
                assert!(said.contains(part), "JOB-21: {part} in {said}");
            }
        }
    }

    #[test]
    fn encryption_follows_sparks_rpc_unless_it_is_set() {
        let crypto = [("spark.authenticate", "true"), ("spark.network.crypto.enabled", "true")];
        let sasl = [("spark.authenticate", "true"), ("spark.authenticate.enableSaslEncryption", "true")];
        let (rpc, ui) = ([("spark.ssl.rpc.enabled", "true")], [("spark.ssl.enabled", "true")]);
        let allowed = ("spark.phalanx.encryption.allowPlainGradients", "true");
        let pysparks = ("pytorch.spark.distributor.ignoreSsl", "TRUE");
        let decided = |conf: &[(&str, &str)]| {
            let conf = conf.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
            Settings::read(&conf).unwrap().policy.encryption
        };
        let on = Encryption::On { plain_gradients: false };
        assert_eq!((decided(&crypto), decided(&sasl), decided(&rpc)), (on, on, on));
        assert_eq!((decided(&[]), decided(&ui), decided(&crypto[1..])), Default::default());
        assert_eq!(decided(&[rpc[0], ("spark.phalanx.encryption", "off")]), Encryption::Off);
        assert_eq!(decided(&[("spark.phalanx.encryption", "Required")]), on);
        for plain in [allowed, pysparks] {
            assert_eq!(decided(&[rpc[0], plain]), Encryption::On { plain_gradients: true });
            assert_eq!(decided(&[plain]), Encryption::Off);
        }
    }

    #[test]
    fn checkpoints_without_a_name_have_an_owner() {
        let told =
            r#"{"user":"ada","kind":"file","place":"/tmp/spark-1f0a9c33/a.py","name":"train","line":0}"#;
        let mut conf = BTreeMap::from([(OWNER.to_string(), told.to_string())]);
        let owner = Settings::read(&conf).unwrap().checkpoint.owner.unwrap();
        assert_eq!((owner.place.as_str(), owner.kind), ("a.py", OwnerKind::File));
        conf.insert(format!("{PREFIX}checkpoint.name"), "cats".into());
        assert_eq!(Settings::read(&conf).unwrap().checkpoint.owner, None);
        let refused = Settings::read(&BTreeMap::from([(OWNER.into(), "{}".into())])).unwrap_err();
        assert!(refused.to_string().contains("phalanx.owner can't be read"), "{refused}");
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest() {
        let keys = ["spark.phalanx.jointimeout", "spark.master", "spark.phalanx.grace", "spark.phalanx.zzz"];
        let expected = [
            "spark.phalanx.jointimeout is not a Phalanx setting and has no effect; did you mean \
             spark.phalanx.joinTimeout?",
            "spark.phalanx.zzz is not a Phalanx setting and has no effect",
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
        assert_eq!(rows, expected, "JOB-22");
        let variables: Vec<String> =
            VARIABLES.iter().map(|v| format!("| `{}` | {} |", v.name, v.meaning)).collect();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `PHALANX_")).collect();
        assert_eq!(rows, variables, "JOB-24");
    }
}
