//! The variables of the ranks' environment that come from a run's caller.
//!
//! - JOB-25 (refused-by-name): a variable that can't be, or that is Phalanx's to set, is refused by its name before
//!   anything starts. No message has a value: it may be a secret.

use std::collections::BTreeMap;

use phalanx_types::contract::NAMES;
use phalanx_types::{Error, ErrorKind, Result};

use crate::node::{KEPT, own_variable};
use crate::settings::{Settings, VARIABLES};

/// The variables that a caller gives its ranks: those of this process that `spark.phalanx.env.pass` names, as far as it
/// has them, and those that are `given`, which win.
///
/// # Errors
/// [`ErrorKind::Invalid`] as JOB-25 says, and as [`Settings::read`].
pub fn rank_variables(
    settings: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let pass = Settings::read(settings)?.env_pass;
    for (name, from) in
        given.keys().map(|name| (name, "env")).chain(pass.iter().map(|name| (name, "spark.phalanx.env.pass")))
    {
        let refused = |why: &str| {
            let named = if name.contains('\0') { "a variable" } else { name };
            Err(Error::new(ErrorKind::Invalid, format!("{from} can't give ranks {named:?}: {why}")))
        };
        if name.is_empty() || name.contains(['=', '\0']) {
            return refused("no environment variable can have this name");
        }
        if given.get(name).is_some_and(|value| value.contains('\0')) {
            return refused("its value contains a NUL byte");
        }
        if is_phalanxs(name) {
            return refused("Phalanx sets it");
        }
    }
    let passed = pass.into_iter().filter_map(|name| own_variable(&name).map(|value| (name, value)));
    Ok(passed.chain(given.clone()).collect())
}

/// Whether a variable is Phalanx's to set.
fn is_phalanxs(name: &str) -> bool {
    let users = KEPT.contains(&name) || VARIABLES.iter().any(|variable| variable.name == name);
    let named = || NAMES.iter().any(|(kind, own)| kind.starts_with("ENV_") && *own == name);
    !users && (name.starts_with("PHALANX_") || named())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
    }

    #[test]
    fn what_is_given_wins_over_what_is_passed_and_what_is_not_there_is_left_out() {
        let settings = map(&[("spark.phalanx.env.pass", "PATH, HOME, NOT_THERE_AT_ALL")]);
        let found = rank_variables(&settings, &map(&[("HOME", "/given"), ("TOKEN", "t=1")])).unwrap();
        assert_eq!((found["HOME"].as_str(), found["TOKEN"].as_str()), ("/given", "t=1"));
        assert_eq!(found["PATH"], std::env::var("PATH").unwrap());
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_variable_that_can_not_be_given_is_refused_by_its_name_and_without_its_value() {
        let none = BTreeMap::new();
        for name in
            ["RANK", "MASTER_ADDR", "PHALANX_PAYLOAD", "PHALANX_NEW", "CUDA_VISIBLE_DEVICES", "", "A=B"]
        {
            let refused = rank_variables(&none, &map(&[(name, "hidden")])).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{name}");
            let said = refused.to_string();
            assert!(said.contains(name) && !said.contains("hidden"), "JOB-25: {said}");
        }
        let zero = rank_variables(&none, &map(&[("TOKEN", "hid\0den")])).unwrap_err().to_string();
        assert!(zero.contains("TOKEN") && !zero.contains("hid"), "JOB-25: {zero}");
        let passed = rank_variables(&map(&[("spark.phalanx.env.pass", "RANK")]), &none).unwrap_err();
        assert!(passed.to_string().contains("spark.phalanx.env.pass"), "{passed}");
        for name in ["OMP_NUM_THREADS", "PHALANX_CHECKPOINT_DIR"] {
            assert!(rank_variables(&none, &map(&[(name, "1")])).is_ok(), "{name}");
        }
    }
}
