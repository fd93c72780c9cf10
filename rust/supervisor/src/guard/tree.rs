//! The processes below the guard: which there are, and signals to them and to nobody else.
//!
//! GUARD-7 rests on two arguments. *Direct children* are signalled by process id. Only the guard waits for them, and it
//! does so in the same thread. So between looking and signalling their ids can't go to other processes. *Deeper
//! processes* are signalled through pidfds, from the top down. The pidfd is opened first. Then the process's parent is
//! read. It must be a process that is proven already, and it must still be alive afterwards, so its id meant that
//! process all along. And a process that descends from a subreaper once does so for life.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};

/// The processes below this one.
#[derive(Debug)]
pub(crate) struct Tree {
    this: Pid,
    /// Whether `/proc` shows this process's own id namespace; that of another would prove nothing.
    has_proc: bool,
}

impl Tree {
    /// The processes below the calling one.
    pub(crate) fn of_this_process() -> Tree {
        let this = getpid();
        let link = fs::read_link("/proc/self").ok();
        let has_proc = link.is_some_and(|link| link.to_str() == Some(&this.to_string()));
        Tree { this, has_proc }
    }

    /// The direct children, dead ones that nobody waited for included. Without `/proc`, `known` is all there is.
    ///
    /// The kernel may leave one out while others come and go, so callers look again until there are none.
    pub(crate) fn children(&self, known: impl Iterator<Item = Pid>) -> Vec<Pid> {
        let mut children: Vec<Pid> = known.collect();
        if self.has_proc {
            match fs::read_to_string("/proc/thread-self/children") {
                Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(parse_pid)),
                Err(_) => children
                    .extend(all_parents().into_iter().filter(|(_, p)| *p == self.this).map(|(c, _)| c)),
            }
        }
        children.sort_unstable_by_key(|pid| pid.as_raw_nonzero());
        children.dedup();
        children
    }

    /// SIGKILL to everything below `direct`, which must be children of this process that nobody waited for yet.
    pub(crate) fn kill_below(&self, direct: &[Pid]) {
        if !self.has_proc || direct.is_empty() {
            return;
        }
        let mut by_parent: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for (child, parent) in all_parents() {
            if parent != self.this {
                by_parent.entry(parent).or_default().push(child);
            }
        }
        let mut proven: Vec<(Pid, OwnedFd)> = direct
            .iter()
            .filter(|pid| by_parent.contains_key(pid))
            .filter_map(|pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?)))
            .collect();
        let mut next = 0;
        while next < proven.len() {
            for child in by_parent.remove(&proven[next].0).unwrap_or_default() {
                // No pidfds in this kernel, or no descriptors left: what remains is re-parented to us as its parents
                // die, and has its turn then.
                let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else { continue };
                let (parent, parent_fd) = &proven[next];
                if parent_of(child) == Some(*parent) && !has_ended(parent_fd) {
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                    proven.push((child, pidfd));
                }
            }
            next += 1;
        }
    }
}

/// Signals a direct child that nobody waited for. A refusal (another user's process) is for the deadline to find.
#[allow(clippy::disallowed_methods, reason = "nobody has waited for the child, so the id is its own")]
pub(crate) fn signal_child(child: Pid, signal: Signal) {
    let _ = kill_process(child, signal);
}

/// `pids` for people: name, id and state of each.
pub(crate) fn describe(pids: &[Pid]) -> String {
    let one = |pid: &Pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let state = stat_of(*pid).map_or('?', |stat| stat.state);
        format!("{} (pid {pid}, state {state})", name.trim_end())
    };
    pids.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Whether the process of `pidfd` has ended, waited for or not.
pub(crate) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// Every process with its parent.
fn all_parents() -> Vec<(Pid, Pid)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| parse_pid(entry.ok()?.file_name().to_str()?))
        .filter_map(|pid| Some((pid, parent_of(pid)?)))
        .collect()
}

pub(super) fn parent_of(pid: Pid) -> Option<Pid> {
    stat_of(pid)?.parent
}

/// When a process began, in ticks of the clock since the machine did: with its id, what no other process has.
pub(crate) fn started_at(pid: Pid) -> Option<u64> {
    stat_of(pid).map(|stat| stat.started_at)
}

/// Whether a process is on its way out already, whatever is sent to it now.
pub(super) fn is_ending(pid: Pid) -> bool {
    /// `linux/sched.h`
    const PF_EXITING: u32 = 4;
    stat_of(pid).is_some_and(|stat| stat.flags & PF_EXITING != 0)
}

/// What the kernel shows of a process.
struct Stat {
    state: char,
    parent: Option<Pid>,
    flags: u32,
    started_at: u64,
}

/// From `/proc/PID/stat`, see proc(5). The name, in parentheses, may hold anything, so what counts comes after the last
/// one.
fn stat_of(pid: Pid) -> Option<Stat> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = parse_pid(fields.next()?);
    let flags = fields.nth(4)?.parse().ok()?;
    Some(Stat { state, parent, flags, started_at: fields.nth(12)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::parent_id;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn own_children_are_found_and_die_with_what_is_below_them() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 1000 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let grandchild = parse_pid(line.trim()).unwrap();
        let pid = Pid::from_child(&child);

        let tree = Tree::of_this_process();
        assert!(all_parents().contains(&(pid, tree.this)));
        assert_eq!(parent_of(grandchild), Some(pid));
        tree.kill_below(&[pid]);
        assert!(child.wait().unwrap().success(), "the shell outlives its killed child and wait returns");
    }

    #[test]
    fn a_process_that_is_not_below_is_not_killed() {
        let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
        let tree = Tree::of_this_process();
        tree.kill_below(&[]);
        // A claim that init is a child of ours proves nothing about us, whose parents lead elsewhere.
        if let Some(parent) = parse_pid(&parent_id().to_string()) {
            assert_ne!(parent_of(parent), Some(tree.this));
        }
        assert!(bystander.try_wait().unwrap().is_none(), "GUARD-7");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_hides_no_parent() {
        let this = getpid();
        let stat = stat_of(this).unwrap();
        assert!(stat.state.is_ascii_alphabetic());
        assert_eq!(stat.parent, rustix::process::getppid());
        assert!(stat.started_at > 0 && started_at(this) == Some(stat.started_at));
        assert!(describe(&[this]).contains(&format!("pid {this}")));
    }
}
