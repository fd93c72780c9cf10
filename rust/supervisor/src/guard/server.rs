//! The guard itself: one thread that waits for orders, for the host's end and for its children's, and acts.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use phalanx_types::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, wait};

use super::control::{Control, Incoming, Start};
use super::forked::Side;
use super::phase::{Phase, Step};
use super::tree::{Tree, describe, has_ended, is_ending, parent_of, signal_child};
use super::wire::{BUILD, EXIT_OTHER_BUILD, ExitHow, Launch, Report, now_ns};
use crate::sys;

/// How often a guard without a pidfd of its host looks whether it is still the host's child.
const LOOK_AT_HOST: Duration = Duration::from_millis(250);

/// How long the last report may wait for a host that doesn't read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How often at most the guard goes through all processes of the machine, of which there can be thousands.
const SCAN_EVERY: Duration = Duration::from_millis(20);

/// How often in a row the guard kills before it looks at its socket again, if every time shows it new children.
const KILL_ROUNDS: usize = 200;

/// The guard's `main`: `phalanx-guard BUILD HOST_PID GRACE_MS OWNER_PID`, with the control socket as standard input.
/// The owner is the host's parent, if the guard is to outlive its host, else 0.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pid = |text: &String| text.parse().ok().map(Pid::from_raw);
    let parsed = match &args[..] {
        [build, ..] if build != BUILD => return ExitCode::from(EXIT_OTHER_BUILD),
        [_, host, grace_ms, owner] => pid(host).flatten().zip(grace_ms.parse().ok()).zip(pid(owner)),
        _ => None,
    };
    let Some(((host, grace_ms), owner)) = parsed else {
        let _ = writeln!(io::stderr(), "phalanx-guard is started by Phalanx, as the guard of a job's ranks");
        return ExitCode::from(2);
    };
    let grace = Duration::from_millis(grace_ms);
    let set_up = sys::close_from(3)
        .and_then(|()| {
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(Into::into)
        })
        .and_then(|placeholder| {
            let watch =
                owner.map_or_else(|| Ok(HostWatch::on_parent(host)), |o| HostWatch::on_owner(host, o))?;
            Server::set_up(watch, placeholder, grace, None)
        });
    serve(set_up);
    ExitCode::SUCCESS
}

/// Serves the host at the other end of standard input; what it returns is in a forked rank.
pub(super) fn serve(set_up: io::Result<Server<'_>>) -> Option<io::Result<Launch>> {
    let mut control = Control::on_stdin();
    match set_up {
        Ok(server) => server.run(control),
        Err(error) => {
            let problem = Some(format!("the guard could not be set up: {error}"));
            control.report(&Report::Over { problem });
            None
        }
    }
}

/// How the guard hears of its host's end, besides the control socket, which a fork of the host may keep open.
#[derive(Debug)]
pub(super) struct HostWatch {
    /// The host, where it is the guard's parent.
    parent: Option<Pid>,
    pidfd: Option<OwnedFd>,
    /// Whether this is the host's owner: the guard then stays without its host, as long as it has children.
    is_owner: bool,
}

impl HostWatch {
    fn on_parent(pid: Pid) -> HostWatch {
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok();
        HostWatch { parent: Some(pid), pidfd, is_owner: false }
    }

    /// By a pidfd that came from the host itself.
    pub(super) fn by_pidfd(pidfd: OwnedFd) -> HostWatch {
        HostWatch { parent: None, pidfd: Some(pidfd), is_owner: false }
    }

    /// On `owner`, which has to be the parent of `host`, this process's own parent: so the ids are theirs.
    fn on_owner(host: Pid, owner: Pid) -> io::Result<HostWatch> {
        let pidfd = pidfd_open(owner, PidfdFlags::empty())?;
        if parent_of(host) != Some(owner) || getppid() != Some(host) {
            return Err(io::Error::other("its host, or the process that started it, has gone"));
        }
        Ok(HostWatch { parent: None, pidfd: Some(pidfd), is_owner: true })
    }

    /// Whether the host is gone. As long as it is this process's parent, its id, and so the pidfd, is the host's.
    fn is_gone(&self) -> bool {
        self.parent.is_some_and(|pid| getppid() != Some(pid)) || self.pidfd.as_ref().is_some_and(has_ended)
    }
}

/// Makes a copy of this process: the child's id, or `None` in the child.
pub(super) type Fork<'f> = &'f mut dyn FnMut() -> io::Result<Option<Pid>>;

pub(super) struct Server<'f> {
    /// How ranks are forked, in a guard that can.
    fork: Option<Fork<'f>>,
    host: HostWatch,
    grace: Duration,
    child_ended: OwnedFd,
    tree: Tree,
    phase: Phase,
    /// Running ranks.
    ranks: HashMap<Pid, u32>,
    /// Children that had their one SIGTERM, and whether they were ending by then.
    asked: HashMap<Pid, bool>,
    /// Children that had a SIGKILL.
    killed: HashSet<Pid>,
    next_scan: Instant,
    /// Whether any rank was started.
    any_started: bool,
    /// `/dev/null`. Keeps descriptor 3 from being anything else, see [`sys::make_rank`].
    _placeholder: OwnedFd,
}

impl<'f> Server<'f> {
    /// A guard in this process, which has the control socket as descriptor 0, `placeholder` as 3, and no threads.
    pub(super) fn set_up(
        host: HostWatch,
        placeholder: OwnedFd,
        grace: Duration,
        fork: Option<Fork<'f>>,
    ) -> io::Result<Server<'f>> {
        if placeholder.as_raw_fd() != sys::NOTES_FD {
            return Err(io::Error::other("standard input, output and error must be open"));
        }
        let child_ended = sys::block_signals()?;
        // Out of the host's session, so that what is meant for its terminal or its process group isn't for us.
        // Fails only for a group leader, which has left already.
        let _ = rustix::process::setsid();
        rustix::process::set_child_subreaper(Some(getpid()))?;
        rustix::thread::set_name(c"phalanx-guard")?;
        Ok(Server {
            fork,
            host,
            grace,
            child_ended,
            tree: Tree::of_this_process(),
            phase: Phase::Serving,
            ranks: HashMap::new(),
            asked: HashMap::new(),
            killed: HashSet::new(),
            next_scan: Instant::now(),
            any_started: false,
            _placeholder: placeholder,
        })
    }

    /// Until everything is over: `None`. In a rank that was forked, the launch that it is.
    fn run(mut self, mut control: Control) -> Option<io::Result<Launch>> {
        let problem = loop {
            if self.host.is_gone() {
                self.phase.stop(Instant::now(), self.grace);
            }
            if let Some(rank) = self.take_orders(&mut control) {
                // What the guard has open and waits for is closed already, and none of this process's.
                std::mem::forget((self, control));
                return Some(rank);
            }
            let any_left = self.reap(&mut control);
            if self.stays_without_host() && !any_left {
                self.phase.stop(Instant::now(), self.grace);
            }
            match self.phase.step(Instant::now(), any_left) {
                Step::Serve => {}
                Step::Ask => self.ask(),
                Step::Kill => self.kill(&mut control),
                Step::Empty => break None,
                Step::GiveUp => {
                    let left = self.tree.children(self.ranks.keys().copied());
                    break Some(format!("SIGKILL did not end {}", describe(&left)));
                }
            }
            self.wait(&control, self.phase.patience(Instant::now()));
        };
        control.report(&Report::Over { problem });
        let end = Deadline::after(LAST_WORDS);
        while control.has_unsent() && !end.passed() && !self.host.is_gone() {
            self.wait(&control, end.left());
            control.flush();
        }
        None
    }

    /// Does what there is to do; in a rank that was forked, the launch that it is.
    fn take_orders(&mut self, control: &mut Control) -> Option<io::Result<Launch>> {
        control.flush();
        while control.fd().is_some() {
            match control.next_order() {
                Ok(None) => return None,
                Ok(Some(Incoming::Launch(start))) => match self.launch(*start) {
                    Started::Told(report) => control.report(&report),
                    Started::InRank(launch) => return Some(launch),
                },
                Ok(Some(Incoming::Signal { rank, number })) => {
                    // SUP-3: a child that nobody waited for.
                    if let Some((pid, _)) = self.ranks.iter().find(|(_, of)| **of == rank) {
                        sys::signal_child(*pid, number);
                    }
                }
                Ok(Some(Incoming::Stop)) => self.phase.stop(Instant::now(), self.grace),
                Ok(Some(Incoming::Kill)) => self.phase.kill(Instant::now()),
                Err(_) if self.stays_without_host() => {}
                // The host has let go of its guard, or isn't our host: both times nobody wants the ranks.
                Err(_) => self.phase.stop(Instant::now(), self.grace),
            }
        }
        None
    }

    /// Whether what was started is its owner's, and the control socket's end not the end of it.
    fn stays_without_host(&self) -> bool {
        self.host.is_owner && self.any_started
    }

    fn launch(&mut self, start: Start) -> Started {
        let Start { launch, by_fork, output, notes } = start;
        let rank = launch.rank;
        let started = match &mut self.fork {
            _ if self.phase != Phase::Serving => Err("the ranks are being ended".to_string()),
            Some(fork) if by_fork => match super::forked::start(*fork, launch, &output, &notes) {
                Ok(Side::Guard(pid)) => Ok(pid),
                Ok(Side::Rank(launch)) => {
                    std::mem::forget((output, notes));
                    return Started::InRank(launch);
                }
                Err(reason) => Err(reason),
            },
            None if by_fork => Err("its guard can't fork ranks".to_string()),
            _ => start_program(&launch, output, &notes),
        };
        let report = match started {
            Ok(pid) => {
                self.ranks.insert(pid, rank);
                self.any_started = true;
                Report::Started { rank, pid: pid.as_raw_nonzero().get().unsigned_abs(), at_ns: now_ns() }
            }
            Err(reason) => Report::NotStarted { rank, reason, at_ns: now_ns() },
        };
        Started::Told(report)
    }

    /// Takes in what has ended, and says whether any child is left.
    fn reap(&mut self, control: &mut Control) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let how = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => ExitHow::Code(code),
                        (None, Some(signal)) => ExitHow::Signal(signal),
                        (None, None) => continue,
                    };
                    let (asked, killed) = (self.asked.remove(&pid), self.killed.remove(&pid));
                    let by_itself = asked.unwrap_or(!killed);
                    if let Some(rank) = self.ranks.remove(&pid) {
                        control.report(&Report::Ended { rank, how, by_itself, at_ns: now_ns() });
                    }
                }
                Ok(None) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    fn ask(&mut self) {
        for child in self.tree.children(self.ranks.keys().copied()) {
            if let Entry::Vacant(first) = self.asked.entry(child) {
                first.insert(is_ending(child));
                signal_child(child, Signal::TERM);
                // A stopped process could not act on it, and would hold up the end for the whole grace.
                signal_child(child, Signal::CONT);
            }
        }
    }

    /// Kills all there is, and what comes to light by that, as long as it brings anything new to light: a process
    /// that forks and exits again and again must not win by the guard's waiting.
    fn kill(&mut self, control: &mut Control) {
        for _ in 0..KILL_ROUNDS {
            let children = self.tree.children(self.ranks.keys().copied());
            let mut any_new = false;
            for child in &children {
                signal_child(*child, Signal::KILL);
                any_new |= self.killed.insert(*child);
            }
            if Instant::now() >= self.next_scan {
                self.tree.kill_below(&children);
                self.next_scan = Instant::now() + SCAN_EVERY;
            }
            if !self.reap(control) || !any_new {
                return;
            }
        }
    }

    /// Until there is something to do, or `patience` is over.
    fn wait(&self, control: &Control, patience: Option<Duration>) {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(&self.child_ended, PollFlags::IN)];
        if let Some(fd) = control.fd() {
            let out = if control.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN | out));
        }
        let mut patience = patience;
        match &self.host.pidfd {
            // A pidfd stays readable, so once that is known it must not wake us any more.
            Some(pidfd) if self.phase == Phase::Serving => fds.push(PollFd::new(pidfd, PollFlags::IN)),
            Some(_) => {}
            None => patience = Some(patience.map_or(LOOK_AT_HOST, |p| p.min(LOOK_AT_HOST))),
        }
        let timeout = patience.and_then(|patience| Timespec::try_from(patience).ok());
        let _ = poll(&mut fds, timeout.as_ref());
        // One read takes all that the descriptor has; what it says is that waiting is worth while.
        let mut info = [0_u8; 4096];
        let _ = rustix::io::read(&self.child_ended, &mut info);
    }
}

/// A launch that was tried, on either side of a fork.
enum Started {
    Told(Report),
    InRank(io::Result<Launch>),
}

/// Starts a rank as a program; in words, why it can't be.
fn start_program(launch: &Launch, output: OwnedFd, notes: &OwnedFd) -> Result<Pid, String> {
    let cannot = |why: &str| format!("can't start {:?}: {why}", launch.program);
    if let Some(cwd) = launch.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Err(cannot(&format!("its working directory {} is not there", cwd.display())));
    }
    let errors = output.try_clone().map_err(|error| cannot(&error.to_string()))?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).stdin(Stdio::null()).stdout(output).stderr(errors);
    for name in &launch.env_remove {
        command.env_remove(name);
    }
    command.envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.env("PHALANX_NOTES_FD", sys::NOTES_FD.to_string());
    if let Some(cwd) = &launch.cwd {
        command.current_dir(cwd);
    }
    sys::make_rank(&mut command, notes.as_raw_fd(), getpid());
    match command.spawn() {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => Err(cannot(&start_error(launch, &error))),
    }
}

fn start_error(launch: &Launch, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound if launch.program.contains('/') => {
            "no such file, or the interpreter that its first line names is not there".to_string()
        }
        io::ErrorKind::NotFound => {
            let set = launch.env.iter().rev().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone());
            let inherited = || {
                std::env::var("PATH").ok().filter(|_| !launch.env_remove.iter().any(|name| name == "PATH"))
            };
            let path = set.or_else(inherited).unwrap_or_default();
            format!("no such program on the rank's PATH ({path})")
        }
        io::ErrorKind::PermissionDenied => "permission denied".to_string(),
        io::ErrorKind::ArgumentListTooLong => "its arguments and environment are too long".to_string(),
        io::ErrorKind::InvalidInput => "an argument or a variable holds a NUL byte".to_string(),
        _ => error.to_string(),
    }
}
