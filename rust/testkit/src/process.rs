//! Looking at processes through `/proc`.

use std::collections::BTreeSet;
use std::fs;

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// Its short name.
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z`...
    pub state: char,
}

impl Process {
    /// The process with this id; a zombie is one, too.
    pub fn find(pid: u32) -> Option<Process> {
        let stat = String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?).into_owned();
        let (before, after) = stat.rsplit_once(')')?;
        let mut fields = after.split_ascii_whitespace();
        Some(Process {
            pid,
            name: before.split_once('(')?.1.to_string(),
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
        })
    }

    /// Whether it still runs: is not dead and waiting to be waited for.
    pub fn runs(&self) -> bool {
        !matches!(self.state, 'Z' | 'X')
    }
}

/// Every process.
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| Process::find(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Whether the process runs. A zombie doesn't.
pub fn alive(pid: u32) -> bool {
    Process::find(pid).is_some_and(|process| process.runs())
}

/// The children of `pid`, zombies included.
pub fn children(pid: u32) -> Vec<Process> {
    processes().into_iter().filter(|process| process.parent == pid).collect()
}

/// The children of `pid`, theirs, and so on, zombies included.
pub fn descendants(pid: u32) -> Vec<Process> {
    let all = processes();
    let mut family = BTreeSet::from([pid]);
    let mut found: Vec<Process> = Vec::new();
    loop {
        let next: Vec<&Process> =
            all.iter().filter(|p| family.contains(&p.parent) && !family.contains(&p.pid)).collect();
        if next.is_empty() {
            return found;
        }
        family.extend(next.iter().map(|process| process.pid));
        found.extend(next.into_iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_a_descendant_until_it_is_waited_for() {
        let me = std::process::id();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id();
        assert!(
            alive(pid)
                && children(me).iter().any(|p| p.pid == pid)
                && descendants(me).iter().any(|p| p.pid == pid)
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!alive(pid) && Process::find(pid).is_none_or(|process| process.parent != me));
    }
}
