//! Which libtorch this crate is made for, and what is wrong with the one that is there.
//!
//! The build script includes this file, so that both use the same words. It needs nothing but `std`.

use std::path::{Path, PathBuf};

/// The version that `tch` 0.26 is made for: its C++ part calls functions whose signatures change with each version.
pub(crate) const REQUIRED: &str = "2.13.0";
/// As for `tch`: set, any version will do.
pub(crate) const BYPASS: &str = "LIBTORCH_BYPASS_VERSION_CHECK";

const REMEDY: &str = "install torch 2.13.0, put its environment's bin folder first on PATH and set \
     LIBTORCH_USE_PYTORCH=1, or set LIBTORCH to an unpacked libtorch 2.13.0";

/// What is wrong, in one sentence, and what to do.
pub(crate) fn misfit(what: &str) -> String {
    format!("phalanx-torch needs libtorch {REQUIRED}, but {what}: {REMEDY}")
}

/// The version of the libtorch in the folder `root`, without the part after `+`; `None` if nothing there tells.
///
/// `root` is what holds `lib` and `include`: an unpacked libtorch, or the package `torch` of a Python environment.
pub(crate) fn version_of(root: &Path) -> Option<String> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let quoted = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?.to_owned();
        Some(line.trim().trim_matches(['\'', '"']).to_owned())
    };
    let version = read("build-version")
        .or_else(|| read("version.py").and_then(quoted))
        .or_else(|| read("include/torch/headeronly/version.h").and_then(|text| defined(&text)))
        .or_else(|| read("include/torch/csrc/api/include/torch/version.h").and_then(|text| defined(&text)))?;
    Some(version.trim().split('+').next().unwrap_or_default().to_owned())
}

/// The version that a header defines in three macros.
fn defined(header: &str) -> Option<String> {
    let number = |name: &str| {
        let value =
            header.lines().find_map(|line| line.trim().strip_prefix("#define ")?.strip_prefix(name))?;
        value.trim().parse::<u32>().ok()
    };
    let (major, minor) = (number("TORCH_VERSION_MAJOR ")?, number("TORCH_VERSION_MINOR ")?);
    Some(format!("{major}.{minor}.{}", number("TORCH_VERSION_PATCH ")?))
}

/// Whether the libtorch in `root` is the one that is needed; the sentence that says why not.
pub(crate) fn check(root: &Path) -> Result<(), String> {
    if std::env::var_os(BYPASS).is_some() {
        return Ok(());
    }
    match version_of(root) {
        Some(version) if version == REQUIRED => Ok(()),
        Some(version) => Err(misfit(&format!("{} is version {version}", root.display()))),
        None => Err(misfit(&format!("nothing in {} tells its version", root.display()))),
    }
}

/// The folder whose `lib` holds the library that a process has mapped, as `/proc/self/maps` lists it.
#[allow(dead_code, reason = "the build script has nothing loaded")]
pub(crate) fn loaded_root(maps: &str) -> Option<PathBuf> {
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        Path::new(path).file_name()?.to_str()?.starts_with("libtorch_cpu.so").then_some(path)
    })?;
    Path::new(path).parent()?.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(file: &str, contents: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
        folder
    }

    #[test]
    fn a_libtorch_tells_its_version_in_a_file_a_module_or_a_header() {
        let header =
            "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 13\n#define TORCH_VERSION_PATCH 0\n";
        for (file, contents) in [
            ("build-version", "2.13.0+cpu\n"),
            ("version.py", "from typing import Optional\n__version__ = '2.13.0+cu130'\ndebug = False\n"),
            ("include/torch/headeronly/version.h", header),
            ("include/torch/csrc/api/include/torch/version.h", header),
        ] {
            let folder = folder(file, contents);
            assert_eq!(version_of(folder.path()).as_deref(), Some("2.13.0"), "{file}");
            assert_eq!(check(folder.path()), Ok(()), "{file}");
        }
    }

    #[test]
    fn another_version_or_none_is_one_sentence_with_a_remedy() {
        if std::env::var_os(BYPASS).is_some() {
            return;
        }
        let old = check(folder("build-version", "2.4.1").path()).unwrap_err();
        assert!(old.starts_with("phalanx-torch needs libtorch 2.13.0, but "), "{old}");
        assert!(old.contains(" is version 2.4.1: install torch 2.13.0"), "{old}");
        let empty = check(folder("other", "").path()).unwrap_err();
        assert!(empty.contains("tells its version") && !empty.contains('\n'), "{empty}");
    }

    #[test]
    fn the_libtorch_that_is_loaded_is_found_among_what_is_mapped() {
        let maps = "00400000-00452000 r-xp 00000000 08:02 1 /usr/bin/digits\n\
                    7f0000000000-7f0000001000 r--p 00000000 08:02 2 /opt/my torch/lib/libtorch_cpu.so\n";
        assert_eq!(loaded_root(maps), Some("/opt/my torch".into()));
        assert_eq!(loaded_root("7f00-7f01 rw-p 00000000 00:00 0 [heap]\n"), None);
    }
}
