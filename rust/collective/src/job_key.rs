//! What a rank's node gave it for its groups: the key from which they have theirs, and whether they encrypt.
//!
//! - GROUP-53 (own-file): a rank of a job has the key from the private folder that its node made for it, and from
//!   nowhere else: not from its environment, and never from the store. Where the file is missing, nothing is joined.
//! - GROUP-54 (no-guess): whether groups encrypt is said or not said; what is said in other words is an error.

use std::ffi::OsString;
use std::path::Path;

use phalanx_types::contract::{ENV_ENCRYPTION, ENV_RANK_DIR, FILE_GROUPS_KEY};
use phalanx_types::{Error, ErrorKind, Key, Result};

/// The key of the job whose rank this process is; `None` in a process that no job started, as under torchrun.
///
/// # Errors
/// [`ErrorKind::Io`] or [`ErrorKind::Protocol`] if a rank's folder has no such key.
pub fn job_key() -> Result<Option<Key>> {
    key_in(std::env::var_os(ENV_RANK_DIR))
}

fn key_in(directory: Option<OsString>) -> Result<Option<Key>> {
    let Some(directory) = directory else { return Ok(None) };
    let path = Path::new(&directory).join(FILE_GROUPS_KEY);
    let bytes = std::fs::read(&path)
        .map_err(|e| Error::io(format_args!("read the key of the job's groups, {}", path.display()), &e))?;
    let no_key = |_| Error::new(ErrorKind::Protocol, format!("{} is not a valid key", path.display()));
    bytes.try_into().map(Key::from_bytes).map(Some).map_err(no_key)
}

/// Whether this process is to encrypt what it sends to other hosts: [`crate::GroupOptions::encryption`].
///
/// # Errors
/// [`ErrorKind::Invalid`] if its environment says neither.
pub fn job_encryption() -> Result<bool> {
    encryption_of(std::env::var_os(ENV_ENCRYPTION))
}

fn encryption_of(said: Option<OsString>) -> Result<bool> {
    match said.as_deref().map(|said| said.to_string_lossy()) {
        None => Ok(false),
        Some(said) if said == "on" => Ok(true),
        Some(said) if said == "off" => Ok(false),
        Some(said) => Err(Error::new(
            ErrorKind::Invalid,
            format!("{ENV_ENCRYPTION} is {said:?}: it has to be on or off"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_encrypts_if_it_is_told_to_and_believes_no_other_words() {
        assert!(!encryption_of(None).unwrap() && !encryption_of(Some("off".into())).unwrap());
        assert!(encryption_of(Some("on".into())).unwrap());
        for other in ["", "true", "On"] {
            let error = encryption_of(Some(other.into())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "GROUP-54: {error}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "uses files")]
    fn a_rank_has_its_key_from_its_folder_or_none_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let rank = || Some(folder.path().as_os_str().to_owned());
        assert!(key_in(None).unwrap().is_none());
        assert_eq!(key_in(rank()).unwrap_err().kind(), ErrorKind::Io, "GROUP-53");
        std::fs::write(folder.path().join(FILE_GROUPS_KEY), [7; 31]).unwrap();
        assert_eq!(key_in(rank()).unwrap_err().kind(), ErrorKind::Protocol, "GROUP-53");
        std::fs::write(folder.path().join(FILE_GROUPS_KEY), [7; 32]).unwrap();
        assert_eq!(key_in(rank()).unwrap(), Some(Key::from_bytes([7; 32])));
    }
}
