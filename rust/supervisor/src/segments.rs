//! Where in its two files each byte of a rank's output stands.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::Arc;

/// A segment with more gaps than this is closed early, so that the index stays small.
const MAX_EXTENTS: usize = 4096;

/// The segment before, if there is one, and the current one.
#[derive(Debug)]
pub(crate) struct Segments {
    end: u64,
    kept: VecDeque<Segment>,
}

#[derive(Debug)]
struct Segment {
    file: Arc<File>,
    /// The offset at which it was begun.
    start: u64,
    /// Ascending, and apart: between them bytes were lost, or a notice stands.
    extents: Vec<Extent>,
}

/// `length` bytes of the rank from `offset` on stand in the file from `at` on.
#[derive(Debug, Clone, Copy)]
struct Extent {
    offset: u64,
    at: u64,
    length: u64,
}

/// Where an offset is.
#[derive(Debug)]
pub(crate) enum Place {
    /// `length` bytes from the offset on stand in `file` from `at` on.
    File { file: Arc<File>, at: u64, length: u64 },
    /// Nowhere; the next byte that is kept, or is to come, has this offset. `lost`: it never was written, else it was
    /// forgotten with its segment.
    Missing { resume_at: u64, lost: bool },
    /// It was not written yet.
    NotYet,
}

impl Segments {
    /// One empty segment.
    pub(crate) fn new(file: Arc<File>) -> Segments {
        Segments { end: 0, kept: VecDeque::from([Segment { file, start: 0, extents: Vec::new() }]) }
    }

    /// How many bytes there were, lost ones included.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Where `offset` is.
    pub(crate) fn find(&self, offset: u64) -> Place {
        if offset >= self.end {
            return Place::NotYet;
        }
        let found = self.kept.iter().find_map(|segment| {
            let after = segment.extents.partition_point(|extent| extent.offset + extent.length <= offset);
            segment.extents.get(after).map(|extent| (&segment.file, *extent))
        });
        let lost = self.kept.front().is_some_and(|segment| offset >= segment.start);
        match found {
            Some((file, Extent { offset: start, at, length })) if start <= offset => {
                let into = offset - start;
                Place::File { file: Arc::clone(file), at: at + into, length: length - into }
            }
            Some((_, extent)) => Place::Missing { resume_at: extent.offset, lost },
            None => Place::Missing { resume_at: self.end, lost },
        }
    }

    /// The next `length` bytes were written to the current segment's file at `at`.
    pub(crate) fn written(&mut self, at: u64, length: u64) {
        let offset = self.end;
        self.end += length;
        let Some(segment) = self.kept.back_mut() else { return };
        match segment.extents.last_mut() {
            Some(last) if (last.offset + last.length, last.at + last.length) == (offset, at) => {
                last.length += length
            }
            _ => segment.extents.push(Extent { offset, at, length }),
        }
    }

    /// The next `length` bytes were written nowhere.
    pub(crate) fn lost(&mut self, length: u64) {
        self.end += length;
    }

    /// Whether the current segment should be closed for its many gaps.
    pub(crate) fn is_crowded(&self) -> bool {
        self.kept.back().is_some_and(|segment| segment.extents.len() >= MAX_EXTENTS)
    }

    /// Begins a new segment, forgets all but the one before, and says at which offset the kept ones begin.
    pub(crate) fn begin(&mut self, file: Arc<File>) -> u64 {
        self.kept.push_back(Segment { file, start: self.end, extents: Vec::new() });
        while self.kept.len() > 2 {
            self.kept.pop_front();
        }
        self.kept.front().map_or(0, |segment| segment.start)
    }
}
