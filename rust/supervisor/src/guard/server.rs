//! The guard itself: one thread that waits for orders, for the client's end and for its children's ends, and acts.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use phalanx_io::monotonic_ns;
use phalanx_types::Deadline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, wait};

use super::client_watch::{ClientWatch, LOOK_AT_CLIENT};
use super::control::{Control, Incoming, Start};
use super::launch::Launch;
use super::start::{Fork, Side, fork_rank, start_program};
use super::state::{GuardState, Step};
use super::tree::{Tree, describe, is_ending, signal_child};
use super::wire::{BUILD, EXIT_OTHER_BUILD, ExitStatus, GuardMessage};
use crate::sys;

/// How long the last report may wait for a client that doesn't read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// How often at most the guard goes through all processes of the machine, of which there can be thousands.
const SCAN_EVERY: Duration = Duration::from_millis(20);

/// How often in a row the guard kills before it looks at its socket again, if every time shows it new children.
const KILL_ROUNDS: usize = 200;

/// The guard's `main`: `phalanx-guard BUILD CLIENT_PID GRACE_MS OWNER_PID`, with the control socket as standard input.
/// The owner is the client's parent, if the guard is to outlive its client, else 0.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let pid = |text: &String| text.parse().ok().map(Pid::from_raw);
    let parsed = match &args[..] {
        [build, ..] if build != BUILD => return ExitCode::from(EXIT_OTHER_BUILD),
        [_, client, grace_ms, owner] => pid(client).flatten().zip(grace_ms.parse().ok()).zip(pid(owner)),
        _ => None,
    };
    let Some(((client, grace_ms), owner)) = parsed else {
        let _ = writeln!(io::stderr(), "phalanx-guard is started by Phalanx, as the guard of a job's ranks");
        return ExitCode::from(2);
    };
    let grace = Duration::from_millis(grace_ms);
    let set_up = sys::close_from(3)
        .and_then(|()| {
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(Into::into)
        })
        .and_then(|placeholder| {
            let watch = owner
                .map_or_else(|| Ok(ClientWatch::on_parent(client)), |o| ClientWatch::on_owner(client, o))?;
            Server::set_up(watch, placeholder, grace, None)
        });
    serve(set_up);
    ExitCode::SUCCESS
}

/// Where a forked guard finds the pidfd of its client.
const CLIENT_FD: i32 = 4;

/// Makes this process, which a pool has just forked and which has no other thread, the guard of one job's ranks.
///
/// It has to have the control socket as descriptor 0, `/dev/null` as 1 to 3, and a pidfd of the client as 4; everything
/// above is closed. Where it is `owned`, that is a pidfd of the client's owner, to which it may be left. `fork` makes a
/// copy of the process. Returns `None` when the guard is over, and `Some` in a process that it forked as a rank:
/// descriptors and session are a rank's then, signals still default and blocked.
pub fn serve_forked(grace: Duration, owned: bool, fork: Fork<'_>) -> Option<io::Result<Launch>> {
    let set_up = sys::close_from(CLIENT_FD.unsigned_abs() + 1)
        .and_then(|()| Ok((sys::inherited(sys::NOTES_FD)?, sys::inherited(CLIENT_FD)?)))
        .and_then(|(null, client)| {
            Server::set_up(ClientWatch::by_pidfd(client, owned), null, grace, Some(fork))
        });
    serve(set_up)
}

/// Serves the client at the other end of standard input; what it returns is in a forked rank.
fn serve(set_up: io::Result<Server<'_>>) -> Option<io::Result<Launch>> {
    let mut control = Control::on_stdin();
    match set_up {
        Ok(server) => server.run(control),
        Err(error) => {
            let problem = Some(format!("the guard could not be set up: {error}"));
            control.report(&GuardMessage::Over { problem });
            None
        }
    }
}

/// A guard that serves.
struct Server<'f> {
    /// How ranks are forked, in a guard that can.
    fork: Option<Fork<'f>>,
    client: ClientWatch,
    grace: Duration,
    child_ended: OwnedFd,
    tree: Tree,
    state: GuardState,
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
    fn set_up(
        client: ClientWatch,
        placeholder: OwnedFd,
        grace: Duration,
        fork: Option<Fork<'f>>,
    ) -> io::Result<Server<'f>> {
        if placeholder.as_raw_fd() != sys::NOTES_FD {
            return Err(io::Error::other("standard input, output and error must be open"));
        }
        let child_ended = sys::block_signals()?;
        // Out of the client's session, so that what is meant for its terminal or its process group isn't for us.
        // Fails only for a group leader, which has left already.
        let _ = rustix::process::setsid();
        rustix::process::set_child_subreaper(Some(getpid()))?;
        rustix::thread::set_name(c"phalanx-guard")?;
        Ok(Server {
            fork,
            client,
            grace,
            child_ended,
            tree: Tree::of_this_process(),
            state: GuardState::Serving,
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
            if self.client.is_gone() {
                self.state.stop(Instant::now(), self.grace);
            }
            if let Some(rank) = self.take_orders(&mut control) {
                // What the guard has open and waits for is closed already, and none of this process's.
                std::mem::forget((self, control));
                return Some(rank);
            }
            let any_left = self.reap(&mut control);
            // A pool's guard has those of jobs below it, which go on without the pool.
            let is_over = if self.fork.is_some() { self.ranks.is_empty() } else { !any_left };
            if self.stays_without_client() && is_over {
                self.state.stop(Instant::now(), self.grace);
            }
            match self.state.step(Instant::now(), any_left) {
                Step::Serve => {}
                Step::Ask => self.ask(),
                Step::Kill => self.kill(&mut control),
                Step::Empty => break None,
                Step::GiveUp => {
                    let left = self.tree.children(self.ranks.keys().copied());
                    break Some(format!("SIGKILL did not end {}", describe(&left)));
                }
            }
            self.wait(&control, self.state.patience(Instant::now()));
        };
        control.report(&GuardMessage::Over { problem });
        let end = Deadline::after(LAST_WORDS);
        while control.has_unsent() && !end.passed() && !self.client.is_gone() {
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
                    // A child that nobody waited for, see GUARD-7.
                    if let Some((pid, _)) = self.ranks.iter().find(|(_, of)| **of == rank) {
                        sys::signal_child(*pid, number);
                    }
                }
                Ok(Some(Incoming::Stop)) => self.state.stop(Instant::now(), self.grace),
                Ok(Some(Incoming::Kill)) => self.state.kill(Instant::now()),
                Err(_) if self.stays_without_client() => {}
                // The client has let go of its guard, or isn't our client: both times nobody wants the ranks.
                Err(_) => self.state.stop(Instant::now(), self.grace),
            }
        }
        None
    }

    /// Whether what was started is its owner's, and the control socket's end not the end of it.
    fn stays_without_client(&self) -> bool {
        self.client.is_owner && self.any_started
    }

    fn launch(&mut self, start: Start) -> Started {
        let Start { launch, by_fork, output, notes } = start;
        let rank = launch.rank;
        let started = match &mut self.fork {
            _ if self.state != GuardState::Serving => Err("the ranks are being ended".to_string()),
            Some(fork) if by_fork => match fork_rank(*fork, launch, &output, &notes) {
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
                GuardMessage::Started {
                    rank,
                    pid: pid.as_raw_nonzero().get().unsigned_abs(),
                    at_ns: monotonic_ns(),
                }
            }
            Err(reason) => GuardMessage::NotStarted { rank, reason, at_ns: monotonic_ns() },
        };
        Started::Told(report)
    }

    /// Takes in what has ended, and says whether any child is left.
    fn reap(&mut self, control: &mut Control) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let how = match (status.exit_status(), status.terminating_signal()) {
                        (Some(code), _) => ExitStatus::Code(code),
                        (None, Some(signal)) => ExitStatus::Signal(signal),
                        (None, None) => continue,
                    };
                    let (asked, killed) = (self.asked.remove(&pid), self.killed.remove(&pid));
                    let by_itself = asked.unwrap_or(!killed);
                    if let Some(rank) = self.ranks.remove(&pid) {
                        control.report(&GuardMessage::Ended { rank, how, by_itself, at_ns: monotonic_ns() });
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
        match &self.client.pidfd {
            // A pidfd stays readable, so once that is known it must not wake us any more.
            Some(pidfd) if self.state == GuardState::Serving => fds.push(PollFd::new(pidfd, PollFlags::IN)),
            Some(_) => {}
            None => patience = Some(patience.map_or(LOOK_AT_CLIENT, |p| p.min(LOOK_AT_CLIENT))),
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
    Told(GuardMessage),
    InRank(io::Result<Launch>),
}
