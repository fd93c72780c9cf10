//! Whose the checkpoints of a run are that nobody gave a name.
//!
//! - TYPES-27 (same-program): the owner of a program is the same whenever its user runs it again: from another working
//!   directory, on another day, and where a scheduler copies it into a new folder for each run.

use serde::{Deserialize, Serialize};

/// Who ran what. Runs of one owner find each other's checkpoints; `python/phalanx/checkpoint/owner.py` keeps the others
/// out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owner {
    /// Who runs it, as the caller knows that.
    pub user: String,
    /// What it is in.
    pub kind: OwnerKind,
    /// The module's name, the path of a file, a notebook or a program; empty for a session, which has none.
    pub place: String,
    /// The qualified name of a function or a class; empty where all of the place runs.
    pub name: String,
    /// The line of a function that has no name; 0 for others.
    pub line: u32,
}

/// What a training function is in, or what is run as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnerKind {
    /// A Python module.
    Module,
    /// A Python file.
    File,
    /// A notebook whose path is known.
    Notebook,
    /// What somebody typed, in a notebook whose path isn't known, or in a shell.
    Session,
    /// A program that isn't Python's.
    Program,
}

impl Owner {
    /// The owner with a place that is the same in each run.
    ///
    /// Of a path only what stands behind the last folder that a machine has named is kept: a container of YARN, a
    /// folder of spark-submit's, a commit that was checked out for one job. A folder that a person has named stays,
    /// with all that it is in: `cats/train.py` and `dogs/train.py` are two programs.
    #[must_use]
    pub fn settled(mut self) -> Owner {
        if self.kind != OwnerKind::Module {
            self.place = of_people(&self.place).to_string();
        }
        self
    }

    /// The owner as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// A path from behind the last folder in it that a machine has named.
fn of_people(path: &str) -> &str {
    let mut rest = path;
    let mut at = 0;
    for folder in path.split_inclusive('/') {
        at += folder.len();
        if folder.strip_suffix('/').is_some_and(is_machines) {
            rest = &path[at..];
        }
    }
    rest
}

/// Whether a folder's name is one that no person gives: it has eight or more hexadecimal digits in a row, letters and
/// at least two numerals among them, as a UUID or a commit has; or it is YARN's, or `tempfile`'s.
fn is_machines(folder: &str) -> bool {
    let is_code = |word: &str| {
        let numerals = word.chars().filter(char::is_ascii_digit).count();
        word.len() >= 8
            && (2..word.len()).contains(&numerals)
            && word.chars().all(|c| c.is_ascii_digit() || matches!(c, 'a'..='f'))
    };
    // container_1700000000000_0001_01_000002, or container_e12_17...: when the cluster was started, in milliseconds.
    let is_yarns = |prefix: &str| {
        let is_time = |part: &str| part.len() >= 10 && part.chars().all(|c| c.is_ascii_digit());
        folder.strip_prefix(prefix).is_some_and(|rest| rest.split('_').take(2).any(is_time))
    };
    let of_tempfile = |rest: &str| {
        rest.len() == 8 && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    folder.split(|c: char| !c.is_ascii_alphanumeric()).any(is_code)
        || is_yarns("container_")
        || is_yarns("application_")
        || folder.strip_prefix("tmp").is_some_and(of_tempfile)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settled(place: &str) -> String {
        let owner = Owner {
            user: "ada".into(),
            kind: OwnerKind::File,
            place: place.into(),
            name: "train".into(),
            line: 0,
        };
        owner.settled().place
    }

    #[test]
    fn a_copy_that_is_made_for_one_run_is_the_same_program() {
        for (path, kept) in [
            ("/home/ada/cats/train.py", "/home/ada/cats/train.py"),
            ("/home/ada/2026-11-27/train.py", "/home/ada/2026-11-27/train.py"),
            (
                "/home/ada/20261127/face2face/application_2/tmp/a.py",
                "/home/ada/20261127/face2face/application_2/tmp/a.py",
            ),
            (
                "/d/application_1700000000000_0001/container_e1_1700000000000_0001_01_000001/src/train.py",
                "src/train.py",
            ),
            ("/tmp/spark-1f0a9c33-5a07-4a3d-9d1b-0c6a8d3d5e21/train.py", "train.py"),
            ("/Repos/.internal/commits/8a37a5fe02d9bd1a1bfe1da58a4d9a2a1ac1c2d3/cats/nb", "cats/nb"),
            ("/tmp/nightly_20261127_1a2b3c4d/train.py", "train.py"),
            ("/tmp/tmpq1_x9zkd/train.py", "train.py"),
            ("train.py", "train.py"),
            ("", ""),
        ] {
            assert_eq!(settled(path), kept, "TYPES-27");
        }
    }

    #[test]
    fn a_modules_name_is_no_path() {
        let owner = Owner {
            user: "ada".into(),
            kind: OwnerKind::Module,
            place: "1a2b3c4d/cats".into(),
            name: String::new(),
            line: 0,
        };
        assert_eq!(owner.clone().settled(), owner);
    }

    proptest! {
        #[test]
        fn wherever_a_run_has_its_copy_the_owner_is_the_same(
            code in "[0-9a-f]{4}[0-9]{2}[a-f]{2}[0-9a-f]{0,32}",
            above in "(/[a-z0-9.-]{1,12}){0,4}",
            below in "([g-z]{1,9}/){0,3}[g-z]{1,9}\\.py",
        ) {
            prop_assert_eq!(settled(&format!("{above}/spark-{code}/{below}")), below, "TYPES-27");
        }

        #[test]
        fn a_settled_place_stays_as_it_is(path in "[a-z0-9/_-]{0,60}") {
            let once = settled(&path);
            prop_assert_eq!(settled(&once), once);
        }
    }
}
