//! Sending and receiving as operations of a group.

use std::time::Duration;

use phalanx_types::Result;

use crate::group::Group;
use crate::p2p::messenger::Messenger;
use crate::wait::{AwaitedRank, Watch};

impl Group {
    /// Sends a message to a rank. Doesn't wait for the receiver to ask for it: what can't be handed over is kept, and
    /// sent by later calls of this group, or by [`Group::progress`].
    pub fn send(&mut self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        let call = self.messenger.send_call(buffer, to)?;
        self.run(call, |group, _| group.messenger.hand_over(buffer, to, tag))
    }

    /// Receives the oldest message with this tag, from one rank or from any; returns who sent it.
    ///
    /// # Errors
    /// `ErrorKind::Invalid` if it is not as long as `buffer`.
    pub fn recv(&mut self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<usize> {
        let call = self.messenger.recv_call(buffer, from)?;
        self.run(call, |group, watch| {
            let messenger = &group.messenger;
            loop {
                let seen = messenger.doorbell();
                messenger.mailboxes().progress()?;
                if let Some(source) = messenger.take(buffer, from, tag)? {
                    return Ok(source);
                }
                group.wait_for_messages(watch, seen, from)?;
            }
        })
    }

    /// The same if it has arrived already; `None` if not.
    pub fn try_recv(&mut self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        self.check_usable()?;
        self.messenger.try_recv(buffer, from, tag)
    }

    /// [`Messenger::progress`]
    pub fn progress(&mut self, patience: Duration) -> Result<bool> {
        self.check_usable()?;
        self.messenger.progress(patience)
    }

    /// [`Messenger::has_unsent`]
    pub fn has_unsent(&self) -> bool {
        self.messenger.has_unsent()
    }

    /// For sending and receiving on other threads, while the group is used on this one.
    pub fn messenger(&self) -> Messenger {
        self.messenger.clone()
    }

    /// Waits until messages may have moved, or a nap.
    fn wait_for_messages(&self, watch: &Watch<'_>, seen: u32, whom: Option<usize>) -> Result<()> {
        let messenger = &self.messenger;
        let is_near = |rank: &usize| self.topology.host_of(self.rank).contains(rank);
        if let (Some(record), Some(rank)) = (messenger.record(), whom.filter(is_near)) {
            let has_changed = |value: u32| value != seen;
            return watch.until(&record.doorbell, has_changed, &|| AwaitedRank { rank, last_call: None });
        }
        if let Some(rank) = whom {
            messenger.listen_to(rank)?;
        }
        if messenger.nap(seen, whom, Duration::MAX)? {
            return Ok(());
        }
        let (has_ended, is_busy) = {
            let mut mailboxes = messenger.mailboxes();
            (mailboxes.ended(whom), mailboxes.is_busy())
        };
        if has_ended {
            watch.not_left(whom)?;
        } else if !is_busy {
            watch.still_there(whom)?;
        }
        watch.in_time(whom)
    }
}
