//! The crate's only unsafe code: system calls that no safe crate offers.
//!
//! All but [`peer_uid`] and [`SharedWords`] runs in a pool or a guard, which have one thread, or in a rank between fork
//! and exec, or as the first thing that a forked rank does.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

/// The descriptor on which a rank finds its socket to the node.
pub(crate) const NOTES_FD: RawFd = 3;

/// Signals that mean a bug in the guard itself; they stay deliverable so that it can't loop on one.
const FAULTS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT, libc::SIGTRAP, libc::SIGSYS];

/// The signal on which a rank writes its Python stacks: a real-time one that nobody uses, of this C library's numbers
/// (with glibc `SIGRTMIN+7`, 41).
pub fn stacks_signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Memory that several processes have. It is used as atomic words only.
#[derive(Debug)]
pub(crate) struct SharedWords(NonNull<[AtomicU64]>);

// SAFETY: it is used as atomics only, and belongs to no thread.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps so many bytes from the beginning of a memfd.
    ///
    /// # Errors
    /// `InvalidInput` unless it has as many and is sealed against becoming shorter.
    pub(crate) fn map(memfd: impl AsFd, bytes: usize) -> io::Result<SharedWords> {
        let is_sealed = fcntl_get_seals(&memfd)?.contains(SealFlags::SHRINK);
        let has = usize::try_from(fstat(&memfd)?.st_size).unwrap_or(0);
        if !is_sealed || has < bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no sealed memory of this size"));
        }
        let (fd, access) = (memfd.as_fd().as_raw_fd(), libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the kernel chooses where, so nothing that is mapped is replaced.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("memory at no address"))?;
        Ok(SharedWords(NonNull::slice_from_raw_parts(at, bytes / 8)))
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: whole pages of memory, which are aligned, and are there as long as this is: their file can't become
        // shorter. Other processes may write them at any time; they are atomics, for which every value is valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, in just this size, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), self.0.len() * 8) };
    }
}

/// Signals a direct child of the guard that nobody waited for yet. A refusal is for the caller of the guard to miss.
pub(crate) fn signal_child(child: Pid, number: i32) {
    // SAFETY: takes no pointers; the process id is the child's until the guard's only thread reaps it.
    let _ = unsafe { libc::kill(child.as_raw_nonzero().get(), number) };
}

/// Closes every descriptor from `first` on: what the client had open without close-on-exec must reach no rank, nor be
/// kept open by the guard. To be called before the process opens anything, or by one that forgets what it had.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: the call takes no pointers. Nothing in this process uses a descriptor from `first` on: it is the first
    // thing that a guard does, or that a forked rank does, which forgets what the guard had.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if done == 0 {
        return Ok(());
    }
    // Kernels before 5.9, and some sandboxes, have no close_range.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| u32::try_from(*fd).is_ok_and(|fd| fd >= first))
        .collect();
    for fd in open {
        // SAFETY: as above; the directory's own descriptor is closed already, and closing it again only fails.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// A descriptor that this process was given by number.
pub(crate) fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl takes no pointers.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and nothing else owns it: a pool has put it there for the guard alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The user of the process at the other end of a Unix socket, when that was connected or began to listen.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub fn peer_uid(socket: &OwnedFd) -> io::Result<u32> {
    // rustix takes the peer's process id for one, which it is not (0) where that lives in another namespace of ids.
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes `size` bytes at most, which `peer` has.
    let done = unsafe {
        let to = (&raw mut peer).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut size)
    };
    if done == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}

/// Moves this process's own memory to huge pages, as far as it fills them and the kernel (Linux 6.1) will; nothing else
/// changes. A fork copies an entry for each page, and a Python that has imported torch has 70,000 small ones.
pub fn use_huge_pages() {
    const HUGE: usize = 2 << 20;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines() {
        let Some(range) = private_memory(line) else { continue };
        for start in
            (range.start.next_multiple_of(HUGE)..).step_by(HUGE).take_while(|at| at + HUGE <= range.end)
        {
            // SAFETY: the advice says in what kind of pages the kernel keeps a range; a range that is none any more is
            // refused. No byte of it changes.
            unsafe { libc::madvise(start as *mut libc::c_void, HUGE, libc::MADV_COLLAPSE) };
        }
    }
}

/// The addresses of a line of `/proc/self/maps`, if it is memory that can be written and has no file.
fn private_memory(line: &str) -> Option<std::ops::Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let private = fields.next()? == "rw-p" && matches!(fields.nth(3), None | Some("[heap]"));
    let address = |text| usize::from_str_radix(text, 16).ok();
    private.then_some(address(start)?..address(end)?)
}

/// Makes this process, which a guard has just forked, a rank: a session of its own, death with the guard, `/dev/null`
/// as standard input, `output` and `notes` in their places, and no other descriptor. Signals stay as the guard has
/// them: default and blocked.
///
/// Descriptor 3 must be `/dev/null`. Whatever the caller owns of descriptors is not open any more, and must be
/// forgotten, not dropped.
pub(crate) fn enter_rank(output: RawFd, notes: RawFd, guard: Pid) -> io::Result<()> {
    rustix::process::setsid()?;
    for (from, to) in [(NOTES_FD, 0), (output, 1), (output, 2), (notes, NOTES_FD)] {
        // SAFETY: takes no pointers. What is replaced is the guard's, of which this process keeps nothing.
        if unsafe { libc::dup2(from, to) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close_from(NOTES_FD.unsigned_abs() + 1)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The guard may have died before the line above: then no signal comes any more.
    if rustix::process::getppid() != Some(guard) {
        return Err(Errno::SRCH.into());
    }
    Ok(())
}

/// Gives every signal its default action, blocks all of them, and returns a descriptor that is readable when a child
/// has ended.
///
/// Blocked rather than handled: no handler can interrupt anything here. [`make_rank`] unblocks them in a rank.
pub(crate) fn block_signals() -> io::Result<OwnedFd> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: installs no handler. KILL, STOP and libc's own signals are refused, which is as well.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: sigset_t is plain data that sigfillset and sigemptyset initialise; all pointers are to live locals.
    // The descriptor that signalfd returns is new and owned by nobody else.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        for fault in FAULTS {
            libc::sigdelset(&raw mut all, fault);
        }
        let refused = libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        let mut child: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut child);
        libc::sigaddset(&raw mut child, libc::SIGCHLD);
        let fd = libc::signalfd(-1, &raw const child, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// Makes the process that `command` starts a rank: a session of its own, `notes` as descriptor 3, no signal blocked,
/// and death with the guard, whose only thread must be the one that spawns.
///
/// `notes` must be open, in the guard, until the command was spawned, and must not be descriptor 3 itself.
pub(crate) fn make_rank(command: &mut Command, notes: RawFd, guard: Pid) {
    let setup = move || {
        rustix::process::setsid()?;
        // SAFETY: sigset_t is plain data that sigemptyset initialises, and a live local. Both are
        // async-signal-safe. What arrived for the rank until now meets default actions, as it should.
        let refused = unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
        };
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        // SAFETY: takes no pointers; `notes` is open in this process, a fork of the guard's. The guard keeps
        // descriptor 3 occupied by a placeholder, so nothing of std's own is overwritten.
        if unsafe { libc::dup2(notes, NOTES_FD) } < 0 {
            return Err(io::Error::last_os_error());
        }
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The guard may have died before the line above: then no signal comes any more.
        if rustix::process::getppid() != Some(guard) {
            return Err(Errno::SRCH.into());
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only: no allocation, no lock, nothing that isn't async-signal-safe.
    unsafe { command.pre_exec(setup) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_the_process_s_own_is_moved() {
        let of = |line: &str| private_memory(line);
        assert_eq!(of("5644-5a4a r--p 00000000 00:00 0    [heap]"), None);
        assert_eq!(of("1000-2000 rw-p 00000000 00:00 0    [heap]"), Some(0x1000..0x2000));
        assert_eq!(
            of("7f84e8615000-7f84e9c15000 rw-p 00000000 00:00 0 "),
            Some(0x7f84_e861_5000..0x7f84_e9c1_5000)
        );
        for other in
            ["rw-s 00000000 00:01 9   /dev/zero", "rw-p 0 08:01 9   /lib/x.so", "rw-p 0 00:00 0  [stack]"]
        {
            assert_eq!(of(&format!("1000-2000 {other}")), None, "{other}");
        }
    }

    #[test]
    fn memory_is_as_it_was_in_huge_pages() {
        let memory: Vec<u8> = (0..8 << 20).map(|at: u32| at.to_le_bytes()[0] ^ at.to_le_bytes()[2]).collect();
        use_huge_pages();
        let same = (0..8 << 20)
            .zip(&memory)
            .all(|(at, is): (u32, _)| at.to_le_bytes()[0] ^ at.to_le_bytes()[2] == *is);
        assert!(same);
    }
}
