//! The arguments of a distributor and of a run.

use phalanx_types::{Error, ErrorKind, Result};

/// The number of ranks, from what a caller gave: `number` where that is an integer, and how it `shows` else.
///
/// # Errors
/// [`ErrorKind::WrongType`] where it is no integer, [`ErrorKind::Invalid`] where it isn't positive.
pub fn num_processes(number: Option<i64>, shown: &str) -> Result<u32> {
    let Some(number) = number else {
        return Err(Error::new(ErrorKind::WrongType, format!("num_processes has to be an int, not {shown}")));
    };
    if number <= 0 {
        return Err(Error::new(ErrorKind::Invalid, "num_processes has to be a positive integer"));
    }
    u32::try_from(number)
        .map_err(|_| Error::new(ErrorKind::Invalid, format!("num_processes is {number}, which is too many")))
}

/// What a run is to train by, as the caller's language sees it.
#[derive(Debug, Clone, Copy)]
pub enum TrainObject<'a> {
    /// A function.
    Function,
    /// A Python file.
    File {
        /// Where it was looked for, absolute.
        path: &'a str,
        /// What was there.
        found: Found,
        /// The name by which Spark's shipped files were looked through, too.
        shipped: Option<&'a str>,
    },
    /// Neither: how it shows.
    Other(&'a str),
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A folder that is no program.
    Directory,
    /// Anything that can be read, or a folder that `python` would run.
    File,
}

impl Found {
    /// What a language says of a path.
    pub fn of(is_file: bool, is_directory: bool) -> Found {
        match (is_directory, is_file) {
            (true, _) => Found::Directory,
            (false, true) => Found::File,
            (false, false) => Found::Nothing,
        }
    }
}

/// Whether there is something to run; `keywords` are the names of its keyword arguments.
///
/// # Errors
/// [`ErrorKind::WrongType`] for what is neither a function nor a file, [`ErrorKind::Invalid`] for a file with keyword
/// arguments, [`ErrorKind::MissingFile`] and [`ErrorKind::Directory`] for a path where no file is.
pub fn check_train_object(object: &TrainObject<'_>, keywords: &[String]) -> Result<()> {
    let (path, found, shipped) = match *object {
        TrainObject::Function => return Ok(()),
        TrainObject::Other(shown) => {
            return Err(Error::new(
                ErrorKind::WrongType,
                format!("train_object has to be a function or the path of a Python file, not {shown}"),
            ));
        }
        TrainObject::File { path, found, shipped } => (path, found, shipped),
    };
    if !keywords.is_empty() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "Running pytorch file does not support key-word type arguments: {}; \
                 pass them as command line arguments",
                keywords.join(", ")
            ),
        ));
    }
    match found {
        Found::File => Ok(()),
        Found::Directory => {
            let message = format!("the training file {path} is a directory without a __main__.py");
            Err(Error::new(ErrorKind::Directory, message))
        }
        Found::Nothing => {
            let also = shipped.map(|name| {
                format!(", and none of the name {name} among the files that Spark shipped (--files)")
            });
            let also = also.unwrap_or_default();
            Err(Error::new(ErrorKind::MissingFile, format!("there is no training file {path}{also}")))
        }
    }
}
