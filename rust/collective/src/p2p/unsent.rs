//! What a rank had sent and could not hand over before it left, in words.

use std::fmt::{self, Display};
use std::time::Duration;

use phalanx_types::{Error, ErrorKind};

/// Messages to one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsent {
    pub(crate) to: usize,
    pub(crate) messages: usize,
    /// Of all of them, without their headers.
    pub(crate) bytes: usize,
}

impl Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.messages {
            1 => write!(f, "a message of {} bytes", self.bytes),
            many => write!(f, "{many} messages of {} bytes in all", self.bytes),
        }
    }
}

/// Why not all was delivered: `late` waited to be taken when the time was over, during which nothing was; the
/// receivers of what is `lost` are gone. None if all was delivered.
pub(crate) fn undelivered(lost: &[Unsent], late: &[Unsent], waited: Duration) -> Option<Error> {
    let of_lost = lost.iter().map(|unsent| format!("rank {} has left without receiving {unsent}", unsent.to));
    let seconds = waited.as_secs_f64();
    let of_late = late
        .iter()
        .map(|unsent| format!("rank {} has received nothing of {unsent} for {seconds:.1} s", unsent.to));
    let parts: Vec<String> = of_lost.chain(of_late).collect();
    let kind = if late.is_empty() { ErrorKind::PeerLost } else { ErrorKind::Timeout };
    (!parts.is_empty()).then(|| Error::new(kind, parts.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_delivered_is_said_with_its_receiver_and_how_long_it_was_waited_for() {
        let one = Unsent { to: 3, messages: 1, bytes: 1 << 20 };
        let some = Unsent { to: 5, messages: 2, bytes: 10 };
        assert!(undelivered(&[], &[], Duration::ZERO).is_none());
        let error = undelivered(&[one], &[some], Duration::from_millis(1250)).unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        let text = "rank 3 has left without receiving a message of 1048576 bytes; rank 5 has received nothing of \
                    2 messages of 10 bytes in all for 1.2 s";
        assert_eq!(error.to_string(), text);
        assert_eq!(undelivered(&[some], &[], Duration::ZERO).unwrap().kind(), ErrorKind::PeerLost);
    }
}
