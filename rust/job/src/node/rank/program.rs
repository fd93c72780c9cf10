//! The command lines of ranks and of warm pools.
//!
//! - NODE-34 (own-package): a rank's `phalanx` is the package of the node that starts it, whatever other Phalanx is
//!   installed there. Its folder is the last on the rank's path, so it shadows no module of the user's.

use phalanx_supervisor::python_program;
use phalanx_types::RankProgram;

use crate::node::home::Home;

/// The modules whose `main` a rank and a warm pool run.
const RANK: &str = "phalanx.rank.entry";
const POOL: &str = "phalanx.warm_pool.entry";

/// The command line of a rank.
pub(crate) fn of_rank(program: &RankProgram, home: &Home) -> Vec<String> {
    match program {
        RankProgram::Python(python) => entry(python.as_ref(), RANK, home),
        RankProgram::Command(line) => line.clone(),
    }
}

/// The command line of a warm pool for such ranks; empty if there can be none.
pub(crate) fn of_pool(program: &RankProgram, home: &Home) -> Vec<String> {
    match program {
        RankProgram::Python(python) => entry(python.as_ref(), POOL, home),
        RankProgram::Command(_) => Vec::new(),
    }
}

fn entry(python: Option<&String>, module: &str, home: &Home) -> Vec<String> {
    python_program(python.unwrap_or(&home.python), module, &home.package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_phalanxs_entry_by_the_drivers_python_or_the_node_s_or_a_program_of_the_users() {
        let home =
            Home { package: "/home/python".into(), python: "/usr/bin/python3".into(), ..Home::default() };
        let own = of_rank(&RankProgram::Python(None), &home);
        assert_eq!(
            (own[0].as_str(), own[1].as_str(), own[3].as_str()),
            ("/usr/bin/python3", "-c", "/home/python")
        );
        assert!(own[2].contains("from phalanx.rank.entry import main"), "NODE-34");
        let told = of_pool(&RankProgram::Python(Some("python9".into())), &home);
        assert!(told[0] == "python9" && told[2].contains("phalanx.warm_pool"));
        let program = RankProgram::Command(vec!["/bin/true".into(), "x".into()]);
        assert_eq!(of_rank(&program, &home), ["/bin/true", "x"]);
        assert!(of_pool(&program, &home).is_empty());
    }
}
