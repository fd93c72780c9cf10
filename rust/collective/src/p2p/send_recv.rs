//! Sending and receiving as operations of a group.

use std::time::Duration;

use phalanx_types::Result;

use crate::group::Group;
use crate::p2p::messenger::{Messenger, Sought};

impl Group {
    /// Sends a message to a rank. Doesn't wait for the receiver to ask for it: what can't be handed over is kept, and
    /// sent by later calls of this group, or by [`Group::progress`].
    ///
    /// # Errors
    /// `ErrorKind::PeerLost` if that rank has left. The group stays usable (GROUP-66).
    pub fn send(&mut self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        let call = self.messenger.send_call(buffer, to)?;
        let refused = self.run(call, |group, _| group.messenger.hand_over(buffer, to, tag))?;
        refused.map_or(Ok(()), |error| Err(self.messenger.in_call(call, error)))
    }

    /// Receives the oldest message with this tag, from one rank or from any; returns who sent it.
    ///
    /// # Errors
    /// `ErrorKind::PeerLost` if that rank has left, or all others have, and no such message came before. The group
    /// stays usable (GROUP-66). `ErrorKind::Invalid` if the message is not as long as `buffer`.
    pub fn recv(&mut self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<usize> {
        let call = self.messenger.recv_call(buffer, from)?;
        let received = self.run(call, |group, watch| {
            let messenger = &group.messenger;
            loop {
                let rings = messenger.rings();
                messenger.advance()?;
                match messenger.seek(buffer, from, tag)? {
                    Sought::Found(source) => return Ok(Ok(source)),
                    Sought::Never(error) => return Ok(Err(error)),
                    Sought::NotYet => {}
                }
                (watch.idle)()?;
                messenger.sleep(rings, watch.longest_nap(false))?;
                watch.in_time(from)?;
            }
        })?;
        received.map_err(|error| self.messenger.in_call(call, error))
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
}
