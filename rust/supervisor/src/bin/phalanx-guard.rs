//! The guard as a program; see `phalanx_supervisor::guard`.

fn main() -> std::process::ExitCode {
    phalanx_supervisor::guard::main()
}
