//! Spark's configuration, as far as a language was asked for it.

use std::collections::BTreeMap;

/// What is set, by key.
pub type Conf = BTreeMap<String, String>;

/// The number that `key` is set to; `None` where it is unset or no number: Spark itself says what is wrong with its
/// settings.
pub(super) fn number(conf: &Conf, key: &str) -> Option<u32> {
    conf.get(key)?.trim().parse().ok()
}

/// Whether `key` is set to true.
pub(super) fn is_true(conf: &Conf, key: &str) -> bool {
    conf.get(key).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}

/// `spark.master`; empty where it isn't told.
pub(super) fn master(conf: &Conf) -> &str {
    conf.get("spark.master").map_or("", String::as_str)
}

/// Whether the driver is the only executor: no dynamic allocation, slots that never change, and no GPUs for tasks.
pub(super) fn is_local(master: &str) -> bool {
    master == "local" || master.starts_with("local[")
}
