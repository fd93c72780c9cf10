//! Finds libtorch in the way in which torch-sys does, says in one sentence what is wrong with it, and makes the
//! programs of this crate find it again when they run.
//!
//! It depends on nothing, so Cargo can run it before the build script of torch-sys, which says the same at length.

#![allow(clippy::print_stderr, reason = "Cargo shows a build script's standard error when it fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/libtorch.rs"]
mod libtorch;

use libtorch::{BYPASS, check, misfit};

/// Prints the folder of the package `torch` without importing it.
const WHERE_IS_TORCH: &str = "import importlib.util as u; s = u.find_spec('torch'); \
     print(s.submodule_search_locations[0] if s else '')";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/libtorch.rs");
    match find() {
        // What `cargo run` and `cargo test` start needs no LD_LIBRARY_PATH; torch's own libraries find one another.
        Ok(lib) => println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display()),
        Err(sentence) => {
            eprintln!("{sentence}");
            std::process::exit(1);
        }
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={name}");
    std::env::var_os(name).map(PathBuf::from)
}

/// The folder of the libraries.
fn find() -> Result<PathBuf, String> {
    variable(BYPASS);
    let (wheel, root, lib) =
        (variable("LIBTORCH_USE_PYTORCH"), variable("LIBTORCH"), variable("LIBTORCH_LIB"));
    let system = Path::new("/usr");
    let (root, lib) = if wheel.is_some() {
        let root = wheel_root()?;
        (root.clone(), root.join("lib"))
    } else if let Some(root) = root {
        (root.clone(), lib.unwrap_or(root).join("lib"))
    } else if system.join("lib/libtorch.so").exists() {
        (system.to_path_buf(), system.join("lib"))
    } else {
        return Err(misfit("neither LIBTORCH_USE_PYTORCH nor LIBTORCH is set"));
    };
    if !lib.join("libtorch_cpu.so").exists() {
        return Err(misfit(&format!("there is no libtorch_cpu.so in {}", lib.display())));
    }
    check(&root)?;
    Ok(lib)
}

/// The package `torch` of the Python that torch-sys asks, too.
fn wheel_root() -> Result<PathBuf, String> {
    let python = if variable("VIRTUAL_ENV").is_some() { "python" } else { "python3" };
    let output = Command::new(python)
        .args(["-c", WHERE_IS_TORCH])
        .output()
        .map_err(|error| misfit(&format!("{python} can't be run ({error})")))?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "" => Err(misfit(&format!("the {python} that is first on PATH has no torch"))),
        root => Ok(root.into()),
    }
}
