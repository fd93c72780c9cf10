//! What the driver tells every node of a job: one value, packed once, carried without being read, and unpacked by the
//! node.
//!
//! - TYPES-12 (refuses-strangers): a spec of another version of Phalanx, or with a field that this one doesn't know, is
//!   refused with an error that says so.
//! - TYPES-13 (hides-token): the token is in here, and `Debug` never shows it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::error::{Error, ErrorKind, Result};
use crate::generation::Generation;
use crate::job::{Job, VERSION};

/// The version of this Phalanx.
pub const PACKAGE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What the driver tells every node of a job.
///
/// What the ranks execute (the payload) travels beside it: it may be large, and Spark then broadcasts it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The driver's version of Phalanx: [`PACKAGE_VERSION`] there.
    pub phalanx: String,
    /// The job.
    pub job: Job,
    /// Where nodes reach the hub: `host:port`.
    pub hub: String,
    /// The hub's public key: nodes speak with nobody else.
    pub hub_key: Vec<u8>,
    /// The job's secret.
    pub token: [u8; 32],
    /// The attempt that the nodes begin with: 0, or what the hub wanted the Spark stage submitted again for.
    pub attempt: Attempt,
    /// Whose blocks a carrier serves. Nodes are told theirs with their places.
    pub generation: Generation,
    /// What each rank runs.
    pub program: RankProgram,
    /// Variables for the ranks, beyond those of the machine that they run on and those of the placement.
    pub env: BTreeMap<String, String>,
    /// The driver's GPUs, for its own node or the tasks of a local master; empty where Spark gives tasks theirs.
    pub local_gpus: Vec<String>,
}

/// What a rank's process runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankProgram {
    /// Phalanx's entry for ranks, by this Python; `None` for the Python of the process that the node is in.
    Python(Option<String>),
    /// A program of the user's and its arguments; it is never forked from a warm pool.
    Command(Vec<String>),
}

impl fmt::Debug for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSpec(job {}, attempt {}, hub {})", self.job.id, self.attempt, self.hub)
    }
}

impl NodeSpec {
    /// The spec as bytes.
    pub fn pack(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads what [`NodeSpec::pack`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for another version, an unknown or missing field, or bytes that are no spec;
    /// [`ErrorKind::Invalid`] as [`Job::check`].
    pub fn unpack(bytes: &[u8]) -> Result<NodeSpec> {
        let broken = |e: serde_json::Error| {
            Error::new(
                ErrorKind::Protocol,
                format!("can't decode the node spec (this node reads version {VERSION}): {e}"),
            )
        };
        let any: AnyVersion = serde_json::from_slice(bytes).map_err(broken)?;
        if let Some(drivers) = any.phalanx.filter(|drivers| drivers != PACKAGE_VERSION) {
            let text = format!(
                "the driver has Phalanx {drivers}, but this executor has Phalanx {PACKAGE_VERSION}: give the \
                 executors the driver's jar, or their Python the driver's version of the package"
            );
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        crate::job::check_version(any.job.version)?;
        let spec: NodeSpec = serde_json::from_slice(bytes).map_err(broken)?;
        spec.job.check()?;
        Ok(spec)
    }
}

/// As much of a spec as every version has.
#[derive(Deserialize)]
struct AnyVersion {
    phalanx: Option<String>,
    job: AnyJob,
}

#[derive(Deserialize)]
struct AnyJob {
    version: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> NodeSpec {
        NodeSpec {
            phalanx: PACKAGE_VERSION.into(),
            job: Job::new("j1", "train", 4, 2).unwrap(),
            hub: "10.0.0.1:4000".into(),
            hub_key: vec![3; 44],
            token: [217; 32],
            attempt: Attempt::new(2),
            generation: Generation::new(17),
            program: RankProgram::Python(None),
            env: [("A".to_string(), "ü".to_string())].into(),
            local_gpus: Vec::new(),
        }
    }

    #[test]
    fn a_spec_travels_whole_and_another_version_is_refused_by_number() {
        assert_eq!(NodeSpec::unpack(&spec().pack()).unwrap(), spec());
        let mut json: serde_json::Value = serde_json::from_slice(&spec().pack()).unwrap();
        json["warp"] = 9.into();
        let unknown = NodeSpec::unpack(json.to_string().as_bytes()).unwrap_err();
        assert!(unknown.kind() == ErrorKind::Protocol && unknown.to_string().contains("warp"), "TYPES-12");
        json["job"]["version"] = 7.into();
        let other = NodeSpec::unpack(json.to_string().as_bytes()).unwrap_err();
        assert!(other.to_string().contains("version 7"), "TYPES-12: {other}");
        json["phalanx"] = "9.9.9".into();
        let package = NodeSpec::unpack(json.to_string().as_bytes()).unwrap_err();
        let said =
            format!("the driver has Phalanx 9.9.9, but this executor has Phalanx {PACKAGE_VERSION}: give ");
        assert!(package.to_string().contains(&said), "TYPES-12: {package}");
        assert_eq!(NodeSpec::unpack(b"").unwrap_err().kind(), ErrorKind::Protocol);
    }

    #[test]
    fn the_token_is_not_shown() {
        let shown = format!("{:?}", spec());
        assert!(shown.contains("j1") && !shown.contains("217"), "TYPES-13: {shown}");
    }
}
