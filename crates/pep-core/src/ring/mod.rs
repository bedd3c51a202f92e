//! Ring buffer of one direction: absolute stream positions mapped onto a fixed extent.
//!
//! A ring holds the stream's bytes `head..tail`. It lies in an extent of memory that never moves
//! and uses the first `size` bytes of it, so that it can grow without a byte being copied.
//!
//! Position `p` lies at offset `(p - base) mod size`. Growing keeps every byte in place: `base`
//! becomes `head - offset(head)`. That equals the old base modulo the old size, so that the new
//! base with the old size is still the old map. A writer that publishes `base` before `size`
//! therefore leaves a valid map at every instant, even one at which the process dies.

use std::ops::Range;

#[cfg(test)]
mod tests;

/// Up to two ranges of offsets into an extent. The second is where a ring wraps around, or the next
/// [chunk](crate::chunks) lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ranges {
    /// First in the stream. Empty only when both are.
    pub first: Range<u64>,
    /// Continuation of the stream, in a ring at the start of the extent; often empty.
    pub second: Range<u64>,
}

impl Ranges {
    /// Bytes in both.
    pub fn len(&self) -> u64 {
        (self.first.end - self.first.start) + (self.second.end - self.second.start)
    }

    /// Returns the first `count` bytes of the ranges, or all.
    pub fn up_to(self, count: u64) -> Self {
        let first = self.first.start..self.first.end.min(self.first.start.saturating_add(count));
        let rest = count - (first.end - first.start);
        let second = self.second.start..self.second.end.min(self.second.start.saturating_add(rest));
        Self { first, second }
    }

    /// Adds a continuation of the stream. Returns whether there was room for it.
    pub(crate) fn add(&mut self, range: Range<u64>) -> bool {
        if self.is_empty() {
            self.first = range;
        } else if self.second.is_empty() && self.first.end == range.start {
            self.first.end = range.end;
        } else if self.second.is_empty() {
            self.second = range;
        } else if self.second.end == range.start {
            self.second.end = range.end;
        } else {
            return false;
        }
        true
    }

    /// Reports whether both are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Map of one ring. Holds no bytes.
///
/// Invariants: `head <= tail <= head + size`; `size` is a power of two, `size_min <= size <=
/// extent`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingMap {
    head: u64,
    tail: u64,
    base: u64,
    size: u64,
    extent: u64,
}

impl RingMap {
    /// Returns an empty ring of `size` bytes at the start of an extent of `extent` bytes.
    ///
    /// # Panics
    /// Unless both are powers of two and `size <= extent`.
    pub fn new(size: u64, extent: u64) -> Self {
        assert!(size.is_power_of_two() && extent.is_power_of_two() && size <= extent);
        Self {
            head: 0,
            tail: 0,
            base: 0,
            size,
            extent,
        }
    }

    /// Returns the map of a ring that a predecessor left, which may grow up to `extent` bytes.
    ///
    /// # Panics
    /// Unless both sizes are powers of two, and `head <= tail <= head + size`.
    pub fn resume(span: Range<u64>, base: u64, size: u64, extent: u64) -> Self {
        let (head, tail) = (span.start, span.end);
        assert!(head <= tail && tail - head <= size);
        Self {
            head,
            tail,
            base,
            ..Self::new(size, extent.max(size))
        }
    }

    /// Stream position of the oldest byte held, equal to the number of bytes taken out.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Stream position after the newest byte held, equal to the number of bytes put in.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Stream position at offset 0.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Bytes the ring can hold.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes held.
    pub fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Reports whether the ring is empty.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Reports whether the ring is full.
    pub fn is_full(&self) -> bool {
        self.len() == self.size
    }

    /// Place of the next bytes of the stream. Empty when the ring is full.
    pub fn space(&self) -> Ranges {
        self.ranges(self.tail, self.size - self.len())
    }

    /// Place of the bytes held, oldest first. Empty when the ring is.
    pub fn data(&self) -> Ranges {
        self.ranges(self.head, self.len())
    }

    /// Counts `count` bytes that were written into [`space`](Self::space).
    ///
    /// # Panics
    /// When there was less space.
    pub fn fill(&mut self, count: u64) {
        assert!(count <= self.size - self.len(), "{count} into {self:?}");
        self.tail += count;
    }

    /// Removes `count` bytes of [`data`](Self::data). An empty ring restarts at offset 0, whose
    /// pages are in the cache.
    ///
    /// # Panics
    /// When fewer were held.
    pub fn drain(&mut self, count: u64) {
        assert!(count <= self.len(), "{count} out of {self:?}");
        self.head += count;
        if self.is_empty() {
            self.base = self.head;
        }
    }

    /// Reports whether [`grow`](Self::grow) can succeed: the extent has room, and the bytes held do
    /// not wrap around.
    pub fn can_grow(&self) -> bool {
        self.size < self.extent && self.data().second.is_empty()
    }

    /// Doubles the ring; no byte moves.
    ///
    /// # Panics
    /// Unless [`can_grow`](Self::can_grow).
    pub fn grow(&mut self) {
        assert!(self.can_grow(), "{self:?}");
        self.base = self.head.wrapping_sub(self.offset(self.head));
        self.size *= 2;
    }

    /// Shrinks an empty ring to `size` bytes at the start of its extent.
    ///
    /// # Panics
    /// When it is not empty, or `size` is not a power of two or larger than the ring.
    pub fn shrink(&mut self, size: u64) {
        assert!(self.is_empty() && size.is_power_of_two() && size <= self.size);
        self.base = self.head;
        self.size = size;
    }

    fn offset(&self, position: u64) -> u64 {
        position.wrapping_sub(self.base) & (self.size - 1)
    }

    fn ranges(&self, from: u64, len: u64) -> Ranges {
        let start = self.offset(from);
        let before_end = len.min(self.size - start);
        Ranges {
            first: start..start + before_end,
            second: 0..len - before_end,
        }
    }
}
