//! Files that are whole or absent.
//!
//! IO-2 (no-half-files): whoever opens a file by its path finds all of the bytes, or the file that was there before,
//! or none. A write that fails leaves nothing behind.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use phalanx_types::{Error, Result};
use tempfile::Builder;

/// Writes `bytes` to the file at `path`, whose folder exists. Only its owner can read it.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if the system refuses, with the path.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    fill_whole(path, |file| file.write_all(bytes))
}

/// Copies the file at `from` to `path`; else as [`write_whole`].
///
/// # Errors
/// As [`write_whole`], and if `from` can't be read.
pub fn copy_whole(from: &Path, path: &Path) -> Result<()> {
    let reading = |error| Error::io(format_args!("read {}", from.display()), &error);
    let mut source = File::open(from).map_err(reading)?;
    fill_whole(path, |file| io::copy(&mut source, file).map(drop))
}

#[allow(clippy::disallowed_methods, reason = "this is what others call instead")]
fn fill_whole(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<()> {
    let write = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = Builder::new().prefix(".unfinished-").tempfile_in(folder.unwrap_or(Path::new(".")))?;
        fill(file.as_file_mut())?;
        file.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(|error| Error::io(format_args!("write {}", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use phalanx_types::ErrorKind;

    use super::*;

    #[test]
    fn a_file_is_there_whole_and_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result");
        for bytes in [&b"first"[..], b"", b"second"] {
            write_whole(&path, bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes, "IO-2");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(copy_whole(&folder.path().join("none"), &path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"second", "IO-2");
        copy_whole(Path::new("/proc/self/comm"), &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read("/proc/self/comm").unwrap(), "IO-2");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_fails_leaves_nothing_behind_and_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        // A folder stands where the file should: the last step fails.
        let path = folder.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), "").unwrap();
        let error = write_whole(&path, b"bytes").unwrap_err();
        assert!(error.to_string().contains("taken"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "IO-2");
        let nowhere = folder.path().join("none/result");
        assert_eq!(write_whole(&nowhere, b"").unwrap_err().kind(), ErrorKind::Io);
    }
}
