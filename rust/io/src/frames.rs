//! Frames: a length (`u32`, little-endian) and that many bytes.
//!
//! IO-3 (limit-first): nothing is kept or allocated for a length that the receiver hasn't allowed.

use phalanx_types::{Error, ErrorKind, Result};

const LENGTH_BYTES: usize = 4;

/// Appends a frame to `out`, whose body is what `body` appends; the body's length. Limits are the receiver's.
pub fn write_frame(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) -> usize {
    let start = out.len() + LENGTH_BYTES;
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    body(out);
    let length = out.len() - start;
    // A longer one is refused by any receiver.
    let header = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    out[start - LENGTH_BYTES..start].copy_from_slice(&header);
    length
}

/// The body of the first frame in `bytes`, and how many bytes the frame takes; `None` if more are needed.
///
/// # Errors
/// [`ErrorKind::Protocol`] for an empty frame, or one of more than `max_bytes`.
pub fn split_frame(bytes: &[u8], max_bytes: usize) -> Result<Option<(&[u8], usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > max_bytes {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!("a frame of {length} bytes where 1 to {max_bytes} are allowed"),
        ));
    }
    Ok(rest.get(..length).map(|body| (body, LENGTH_BYTES + length)))
}

/// A buffer that grew beyond this is given back once it is empty: a thousand connections that are quiet cost little.
const KEPT_CAPACITY: usize = 4 << 10;

/// What has come of a stream and was not taken yet.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    taken: usize,
}

impl FrameBuffer {
    /// Adds what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.forget_taken();
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next whole frame's body; `None` while it isn't complete.
    ///
    /// # Errors
    /// As [`split_frame`]; there is no going on with the stream then.
    pub fn next_frame(&mut self, max_bytes: usize) -> Result<Option<&[u8]>> {
        if self.taken == self.bytes.len() {
            self.forget_taken();
            self.bytes.shrink_to(KEPT_CAPACITY);
            return Ok(None);
        }
        let frame = split_frame(&self.bytes[self.taken..], max_bytes)?;
        Ok(frame.map(|(body, used)| {
            self.taken += used;
            body
        }))
    }

    fn forget_taken(&mut self) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(write_frame(&mut out, |out| out.extend_from_slice(body)), body.len());
        out
    }

    #[test]
    fn frames_are_put_together_from_single_bytes() {
        let mut buffer = FrameBuffer::default();
        let mut got = Vec::new();
        for byte in [frame(b"one"), frame(b"2")].concat() {
            buffer.push(&[byte]);
            while let Some(body) = buffer.next_frame(8).unwrap() {
                got.push(body.to_vec());
            }
        }
        assert_eq!(got, [&b"one"[..], b"2"]);
    }

    #[test]
    fn a_buffer_whose_frames_are_taken_holds_no_memory_for_the_longest() {
        let mut buffer = FrameBuffer::default();
        buffer.push(&frame(&vec![7; 1 << 20]));
        assert_eq!(buffer.next_frame(1 << 20).unwrap().unwrap().len(), 1 << 20);
        assert_eq!(buffer.next_frame(1 << 20).unwrap(), None);
        assert!(buffer.bytes.capacity() <= KEPT_CAPACITY);
    }

    #[test]
    fn several_frames_of_one_read_are_taken_one_by_one() {
        let stream = [frame(b"one"), frame(b"two"), frame(b"three")[..5].to_vec()].concat();
        let mut buffer = FrameBuffer::default();
        buffer.push(&stream);
        assert_eq!(buffer.next_frame(8).unwrap(), Some(&b"one"[..]));
        assert_eq!(buffer.next_frame(8).unwrap(), Some(&b"two"[..]));
        assert_eq!(buffer.next_frame(8).unwrap(), None);
        buffer.push(b"hree");
        assert_eq!(buffer.next_frame(8).unwrap(), Some(&b"three"[..]));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_of_it_has_come() {
        for bytes in [&u32::MAX.to_le_bytes()[..], b"GET / HTTP/1.1", &[0; 4]] {
            let mut buffer = FrameBuffer::default();
            buffer.push(bytes);
            assert_eq!(buffer.next_frame(4096).unwrap_err().kind(), ErrorKind::Protocol, "IO-3");
        }
    }

    proptest! {
        #[test]
        fn frames_survive_and_partial_ones_wait(
            body in proptest::collection::vec(any::<u8>(), 1..99),
            cut in 0usize..64,
        ) {
            let bytes = frame(&body);
            let partial = cut.min(bytes.len() - 1);
            prop_assert_eq!(split_frame(&bytes[..partial], 1 << 20).unwrap(), None);
            prop_assert_eq!(split_frame(&bytes, 1 << 20).unwrap(), Some((&body[..], bytes.len())));
        }
    }
}
