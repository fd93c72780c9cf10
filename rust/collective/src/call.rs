//! What a rank called: enough to tell whether two ranks called the same, and to name both calls if they didn't.
//!
//! Three words of 64 bits, so that a call fits beside the flag that announces it.

use std::fmt::{self, Display};

use crate::dtype::{DType, ReduceOp};

/// An operation of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Operation {
    /// Every rank gets the reduction of all.
    AllReduce = 1,
    /// One rank gets it.
    Reduce,
    /// Every rank gets one rank's buffer.
    Broadcast,
    /// Every rank gets every rank's buffer.
    AllGather,
    /// Every rank gets its part of the reduction.
    ReduceScatter,
    /// Every rank gets a part of every rank's buffer.
    AllToAll,
    /// One rank gets every rank's buffer.
    Gather,
    /// Every rank gets a part of one rank's buffer.
    Scatter,
    /// Nobody goes on until all are there.
    Barrier,
    /// A message to one rank.
    Send,
    /// A message from one rank, or from any.
    Receive,
    /// The end: what was sent is handed over.
    Leave,
}

impl Operation {
    pub(crate) const ALL: [Operation; 12] = [
        Operation::AllReduce,
        Operation::Reduce,
        Operation::Broadcast,
        Operation::AllGather,
        Operation::ReduceScatter,
        Operation::AllToAll,
        Operation::Gather,
        Operation::Scatter,
        Operation::Barrier,
        Operation::Send,
        Operation::Receive,
        Operation::Leave,
    ];

    /// Its name in logs and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::Reduce => "reduce",
            Operation::Broadcast => "broadcast",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllToAll => "all_to_all",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::Barrier => "barrier",
            Operation::Send => "send",
            Operation::Receive => "recv",
            Operation::Leave => "leave",
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Operation> {
        Operation::ALL.into_iter().find(|operation| *operation as u8 == code)
    }
}

/// Words of an encoded call.
pub(crate) const CALL_WORDS: usize = 3;

/// One call: equal on all ranks, or the group is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call([u64; CALL_WORDS]);

impl Call {
    pub(crate) fn new(operation: Operation) -> Call {
        Call([operation as u64, 0, 0])
    }

    pub(crate) fn of_type(mut self, dtype: DType) -> Call {
        self.0[0] |= (dtype as u64) << 8;
        self
    }

    pub(crate) fn reducing(mut self, op: ReduceOp) -> Call {
        // Not the factor of a premul-sum: each rank may have its own.
        self.0[0] |= u64::from(op.code()) << 16;
        self
    }

    pub(crate) fn with_root(mut self, root: usize) -> Call {
        // One more, so that none is told from rank 0.
        self.0[0] |= (root as u64 + 1) << 32;
        self
    }

    pub(crate) fn of_bytes(mut self, bytes: usize) -> Call {
        self.0[1] = bytes as u64;
        self
    }

    /// Sizes that differ between ranks but that all ranks know.
    pub(crate) fn of_counts(mut self, counts: &[usize]) -> Call {
        // FNV-1a: no protection against forgery is needed, only against mistakes.
        self.0[2] = counts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, count| {
            (hash ^ *count as u64).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self
    }

    pub(crate) fn words(self) -> [u64; CALL_WORDS] {
        self.0
    }

    pub(crate) fn from_words(words: [u64; CALL_WORDS]) -> Call {
        Call(words)
    }

    pub(crate) fn operation(self) -> Option<Operation> {
        Operation::from_code(self.0[0] as u8)
    }

    pub(crate) fn dtype(self) -> Option<DType> {
        DType::from_code((self.0[0] >> 8) as u8)
    }

    pub(crate) fn bytes(self) -> u64 {
        self.0[1]
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [head, bytes, counts] = self.0;
        let Some(operation) = self.operation() else { return f.write_str("nothing yet") };
        write!(f, "{}(", operation.name())?;
        let mut separator = "";
        if (head >> 16) as u8 != 0 {
            write!(f, "{}", ReduceOp::name_of_code((head >> 16) as u8))?;
            separator = ", ";
        }
        if let Some(dtype) = self.dtype() {
            write!(f, "{separator}{}", dtype.name())?;
            separator = ", ";
        }
        if operation != Operation::Barrier {
            write!(f, "{separator}{bytes} bytes")?;
            separator = ", ";
        }
        if counts != 0 {
            // The sizes themselves are too many to be passed around; that they differ can be seen.
            write!(f, "{separator}sizes #{:06x}", counts & 0xff_ffff)?;
            separator = ", ";
        }
        if head >> 32 != 0 {
            write!(f, "{separator}root {}", (head >> 32) - 1)?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reads_like_its_source() {
        let call = Call::new(Operation::AllReduce).of_type(DType::F32).reducing(ReduceOp::Sum).of_bytes(4096);
        assert_eq!(call.to_string(), "all_reduce(sum, float32, 4096 bytes)");
        assert_eq!(Call::new(Operation::Barrier).to_string(), "barrier()");
        let call = Call::new(Operation::Broadcast).of_bytes(0).with_root(0);
        assert_eq!(call.to_string(), "broadcast(0 bytes, root 0)");
        assert_eq!(Call::from_words([0; 3]).to_string(), "nothing yet");
        assert_eq!(Call::from_words(call.words()), call);
    }

    #[test]
    fn whatever_differs_between_ranks_makes_calls_differ() {
        let call = Call::new(Operation::Reduce).of_type(DType::F32).reducing(ReduceOp::Sum).of_bytes(8);
        for other in [
            Call::new(Operation::AllReduce).of_type(DType::F32).reducing(ReduceOp::Sum).of_bytes(8),
            Call::new(Operation::Reduce).of_type(DType::I32).reducing(ReduceOp::Sum).of_bytes(8),
            Call::new(Operation::Reduce).of_type(DType::F32).reducing(ReduceOp::Max).of_bytes(8),
            Call::new(Operation::Reduce).of_type(DType::F32).reducing(ReduceOp::Sum).of_bytes(12),
            call.with_root(0),
            call.of_counts(&[1, 2]),
        ] {
            assert_ne!(call, other);
        }
        assert_ne!(call.of_counts(&[1, 2]), call.of_counts(&[2, 1]));
        assert_ne!(call.with_root(0), call.with_root(1));
    }
}
