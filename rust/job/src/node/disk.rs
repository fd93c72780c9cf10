//! What a node does before its ranks run, beside its own thread: files, which a disk may hold up, and the guard, which
//! a warm pool may.
//!
//! - NODEDISK-1 (answers-meanwhile): before its ranks run, a node makes its folders and writes its files in a thread
//!   beside its own. It goes on telling the hub that it is there. When it is to end it says so to the hub at once,
//!   whatever the disk does, and heeds what the hub says to that.
//! - NODEDISK-2 (bounded): a disk that takes longer than `join_timeout` fails the job.
//! - NODEDISK-3 (pool-too): NODEDISK-1 holds for a pool that a node waits for, too. A node that is to end starts no
//!   rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::select;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use crate::node::finish::{AfterAttempt, after_done};
use crate::node::line::Line;
use crate::node::process::{INTERRUPT_EVERY, Process};

/// What came of the work.
pub(crate) enum Worked<T> {
    /// It is done, and the node goes on.
    Done(T),
    /// The node had to end, and the hub knows that it has. The work was waited for all the same.
    Ended(AfterAttempt),
}

/// Has `work` done, and answers the hub and the node's process meanwhile. It is told by a flag once the node has to
/// end, and `patience` is how long a disk may take, for work that has no end of its own.
///
/// # Errors
/// Those of `work`; [`ErrorKind::Timeout`] if it takes longer than `patience`, [`ErrorKind::Unreachable`] if the hub is
/// gone, or if the process wants to end and the hub says nothing to that, [`ErrorKind::Io`] if there is no thread to be
/// had. The hub has heard of each, if it was there.
pub(crate) fn beside<T: Send>(
    line: &Line,
    process: &Process,
    patience: Option<Duration>,
    work: impl FnOnce(&AtomicBool) -> Result<T> + Send,
) -> Result<Worked<T>> {
    let is_ending = AtomicBool::new(false);
    // What the thread borrows is there until it ends: the last wait for it is that of the scope.
    std::thread::scope(|scope| {
        let (tell, worked) = crossbeam_channel::bounded(1);
        let is_ending = &is_ending;
        let thread = std::thread::Builder::new()
            .name("phalanx-prelaunch".into())
            .spawn_scoped(scope, move || drop(tell.send(work(is_ending))))
            .map_err(|e| line.fails(Error::io("start a thread", &e)))?;
        let late = patience.map_or(Deadline::never(), Deadline::after);
        let (problem, interrupted) = loop {
            let orders = line.orders();
            select! {
                recv(worked) -> worked => {
                    let failed = |_| Error::new(ErrorKind::Io, "what its ranks need could not be made");
                    let done = worked.map_err(failed).and_then(|done| done);
                    return done.map(Worked::Done).map_err(|e| line.fails(e));
                }
                recv(orders) -> order => if let Ok(HubMessage::Stop { .. }) = order {
                    break (None, None);
                },
                default(INTERRUPT_EVERY) => {}
            }
            if let Some(reason) = process.interrupted() {
                break (None, Some(reason));
            }
            if let Some(why) = line.given_up() {
                is_ending.store(true, Ordering::Release);
                return Err(Error::new(ErrorKind::Unreachable, why));
            }
            if late.passed() {
                let late =
                    format!("the disk for its files has not answered for {:?}", patience.unwrap_or_default());
                break (Some(late), None);
            }
        };
        is_ending.store(true, Ordering::Release);
        let tell = |line: &Line, interrupted: Option<String>| {
            let done = NodeMessage::Done { problem: problem.clone(), interrupted, output: Vec::new() };
            line.tell(Instant::now(), done);
        };
        tell(line, interrupted.clone());
        match (after_done(line, process, interrupted, || !thread.is_finished(), tell), problem) {
            (_, Some(problem)) => Err(Error::new(ErrorKind::Timeout, problem)),
            (ended, None) => ended.map(Worked::Ended),
        }
    })
}
