//! Storage of the bytes of a stream that arrive out of order: positions mapped onto chunks of an
//! extent.
//!
//! ```text
//!   stream    |..head-------tail      placed-----highest|
//!   chunks    |    3    |    0    |  none   |    2      |    1 and 4 are free, 5 was never used
//! ```
//!
//! A chunk is taken for the first of its bytes. It is free again when the last one has left, or
//! when none of its bytes is needed although earlier ones still are. The most recently freed chunk
//! is taken first, as its pages are in the cache. So an extent has only as many pages as bytes
//! held, wherever in the stream they are. A [ring](crate::ring) is simpler, and sufficient where
//! bytes come in order and few are held.

use std::{collections::VecDeque, ops::Range};

use crate::ring::Ranges;

#[cfg(test)]
mod crashes;
mod recover;
#[cfg(test)]
mod tests;

pub use recover::Torn;

/// Bytes of a chunk.
pub const CHUNK: u64 = 64 << 10;

/// Distance beyond the first byte held that other bytes may have, in an extent of `extent` bytes.
/// The first one may be the last of its chunk.
pub const fn window(extent: u64) -> u64 {
    extent.saturating_sub(CHUNK)
}

/// Map of one direction of a stream. Holds no bytes.
///
/// Bytes that are next in the stream may be stored elsewhere for a while:
/// [released](ChunkMap::release) and later [placed again](ChunkMap::restore).
///
/// Invariant: `base <= head <= tail <= highest <= head + window`, and no more chunks are in use
/// than the extent has.
#[derive(Debug, Clone)]
pub struct ChunkMap {
    head: u64,
    tail: u64,
    highest: u64,
    window: u64,
    /// Chunks of the extent.
    count: usize,
    /// Position of the first byte of `chunks`.
    base: u64,
    /// Chunk of the extent for each chunk of the stream; `None` where no byte of it has come, or
    /// none is needed any more.
    chunks: VecDeque<Option<u32>>,
    /// Number of these that were released before their turn.
    released: usize,
    /// Chunks reserved for bytes that come back.
    promised: Vec<u32>,
    /// Free chunks with pages.
    free: Vec<u32>,
    /// Free chunks without pages.
    clean: Vec<u32>,
    /// First chunk that was never used; all after it were not either.
    fresh: u32,
    /// Bytes of the first chunk that may have pages.
    reach: u64,
    /// Maximum number of chunks in use: since the map last [aged](Self::age), and in the period
    /// before.
    busiest: [usize; 2],
    /// Changes to be recorded.
    changes: Vec<Change>,
}

/// New contents of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Chunk of the extent.
    pub chunk: u32,
    /// Position of its first byte plus 1, or 0 where it is free.
    pub word: u64,
}

impl ChunkMap {
    /// Returns an empty map of an extent of `extent` bytes.
    ///
    /// # Panics
    /// Unless the extent is a multiple of the chunk size, and has two chunks or more.
    pub fn new(extent: u64) -> Self {
        assert!(extent.is_multiple_of(CHUNK) && extent >= 2 * CHUNK);
        Self {
            head: 0,
            tail: 0,
            highest: 0,
            window: window(extent),
            count: (extent / CHUNK) as usize,
            base: 0,
            chunks: VecDeque::new(),
            released: 0,
            promised: Vec::new(),
            free: Vec::new(),
            clean: Vec::new(),
            fresh: 0,
            reach: 0,
            busiest: [0; 2],
            changes: Vec::new(),
        }
    }

    /// Changes the window: bytes up to `window` after the oldest one may be held. That may exceed
    /// the extent, so that some of them have to be stored elsewhere.
    #[must_use]
    pub fn with_window(self, window: u64) -> Self {
        let window = window.max(self.window);
        Self { window, ..self }
    }

    /// Returns the changes since the last call that a successor needs to [recover](Self::recover)
    /// the map, in addition to [head](Self::head) and [tail](Self::tail). To be recorded in this
    /// order: after a changed head, before a byte comes into a chunk, and before a changed tail.
    pub fn changes(&mut self) -> impl Iterator<Item = Change> {
        self.changes.drain(..)
    }

    /// Position of the oldest byte held, equal to the number of bytes that have left.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Position of the first byte that has not come.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Position after the last byte that has come.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Limit of the positions that may come.
    pub fn allowed(&self) -> u64 {
        self.head.saturating_add(self.window)
    }

    /// Number of bytes held that are next in the stream.
    pub fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Reports whether no byte is held that is next in the stream.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Reports whether no byte is held, neither next nor ahead.
    pub fn is_clear(&self) -> bool {
        self.head == self.highest
    }

    /// Bytes of chunks in use, including gaps between them, and of free ones. While the first chunk
    /// suffices, only the used part of it. Upper bound of the bytes that have pages.
    pub fn reserved(&self) -> u64 {
        self.reserved_of(self.in_use(), self.free.len(), self.reach)
    }

    /// Returns [`reserved`](Self::reserved) after one more chunk is taken.
    pub fn reserved_with_another(&self) -> u64 {
        let free = self.free.len().saturating_sub(1);
        (self.in_use() + 1 + free) as u64 * CHUNK
    }

    /// Number of chunks with needed bytes, of gaps between them, and of reserved chunks.
    fn in_use(&self) -> usize {
        self.chunks.len() - self.released + self.promised.len()
    }

    /// Returns [`reserved`](Self::reserved) after the bytes from the tail on, below `end`, have
    /// [space](Self::space), if none has come ahead.
    pub fn reserved_for(&self, end: u64) -> u64 {
        let used = end.saturating_sub(self.base);
        let chunks = (used.div_ceil(CHUNK) as usize).max(self.chunks.len());
        let more = chunks - self.chunks.len();
        let free = self.free.len().saturating_sub(more);
        let in_use = chunks - self.released + self.promised.len();
        // If only one is in use, it is the last.
        let of_last = used.saturating_sub((chunks.max(1) as u64 - 1) * CHUNK);
        self.reserved_of(in_use, free, self.reach.max(pages(of_last)))
    }

    fn reserved_of(&self, chunks: usize, free: usize, reach: u64) -> u64 {
        if chunks + free <= 1 && self.fresh <= 1 {
            return reach;
        }
        (chunks + free) as u64 * CHUNK
    }

    /// Returns how many of the next `most` bytes lie in one chunk, or in two if there is little
    /// left of the first or others are in use.
    pub fn stretch(&self, most: u64) -> u64 {
        let left = self.left();
        let bulk = self.len() >= CHUNK / 2 || left < CHUNK / 4;
        let stretch = if bulk { left + CHUNK } else { left };
        self.up_to(stretch.min(most))
    }

    /// Returns how many of the next `most` bytes have space while no more than `reserved` bytes are
    /// [reserved](Self::reserved).
    pub fn stretch_within(&self, most: u64, reserved: u64) -> u64 {
        let left = self.left().min(most);
        let fewer = reserved.saturating_sub(self.tail - self.base).min(left);
        let fits = |len: &u64| self.reserved_for(self.tail + len) <= reserved;
        let len = [left, fewer].into_iter().find(fits).unwrap_or(0);
        self.up_to(len)
    }

    /// Bytes left in the chunk of the next byte.
    fn left(&self) -> u64 {
        CHUNK - (self.tail - self.base) % CHUNK
    }

    fn up_to(&self, len: u64) -> u64 {
        let room = self.left_begun() + self.available() as u64 * CHUNK;
        len.min(self.allowed() - self.tail).min(room)
    }

    /// Bytes left in the chunk of the next byte, if there is one already.
    pub fn left_begun(&self) -> u64 {
        let begun = self.tail < self.base + self.chunks.len() as u64 * CHUNK;
        if begun { self.left() } else { 0 }
    }

    /// Bytes of the extent.
    pub fn extent(&self) -> u64 {
        self.count as u64 * CHUNK
    }

    /// Number of empty chunks.
    pub fn available(&self) -> usize {
        self.count.saturating_sub(self.in_use())
    }

    /// Starts of the full chunks in memory, the last one first; none before `position`.
    pub fn full_chunks(&self, position: u64) -> impl Iterator<Item = u64> {
        let full = (self.tail - self.base) / CHUNK;
        let first = position.max(self.head) - self.base;
        let first = first.div_ceil(CHUNK) as usize;
        let fulls = (first..full as usize).rev();
        let here = fulls.filter(|index| self.chunks[*index].is_some());
        here.map(|index| self.base + index as u64 * CHUNK)
    }

    /// Reserves a chunk for bytes that come back; it counts as in use. Returns whether there was
    /// one.
    #[must_use]
    pub fn promise(&mut self) -> bool {
        let any = self.available() > 0;
        if any {
            let chunk = self.take();
            self.promised.push(chunk);
            if self.fresh == 1 {
                self.reach = CHUNK;
            }
        }
        any
    }

    /// Cancels a [reservation](Self::promise): its bytes do not come back.
    pub fn break_promise(&mut self) {
        self.free.extend(self.promised.pop());
    }

    /// Returns the place of a chunk of bytes that was [released](Self::release), and for which one
    /// was [reserved](Self::promise). `from` is its first byte.
    ///
    /// # Panics
    /// When the chunk is in memory, no chunk starts at `from`, or none was reserved.
    pub fn restore(&mut self, from: u64) -> Ranges {
        assert!((from - self.base).is_multiple_of(CHUNK) && from < self.tail);
        let index = self.index(from);
        let chunk = self.promised.pop().expect("a reserved chunk");
        let before = self.chunks[index].replace(chunk);
        assert!(before.is_none(), "the chunk is in memory");
        self.released -= 1;
        let word = from + 1;
        self.changes.push(Change { chunk, word });
        self.ranges(from, CHUNK)
    }

    /// Returns the place of bytes of the stream, independent of missing bytes before them. `None`
    /// where some of them have come in order, are beyond the [limit](Self::allowed), or are more
    /// than [a chunk](CHUNK). They count as held once [`fill`](Self::fill) moves the tail past
    /// them.
    pub fn place(&mut self, from: u64, len: u64) -> Option<Ranges> {
        let end = from.checked_add(len)?;
        if from < self.tail || end > self.allowed() || len > CHUNK {
            return None;
        }
        let at = self.reserve(from, len);
        self.highest = self.highest.max(end);
        Some(at)
    }

    /// Returns the place of the next `len` bytes of the stream, within a
    /// [`stretch`](Self::stretch).
    pub fn space(&mut self, len: u64) -> Ranges {
        self.reserve(self.tail, len)
    }

    fn reserve(&mut self, from: u64, len: u64) -> Ranges {
        if len > 0 {
            let (first, last) = (self.index(from), self.index(from + len - 1));
            if self.chunks.len() <= last {
                self.chunks.resize(last + 1, None);
            }
            for index in first..=last {
                if self.chunks[index].is_none() {
                    let chunk = self.take();
                    self.chunks[index] = Some(chunk);
                    let word = self.base + index as u64 * CHUNK + 1;
                    self.changes.push(Change { chunk, word });
                }
            }
        }
        self.busiest[0] = self.busiest[0].max(self.in_use());
        let at = self.ranges(from, len);
        if self.fresh == 1 {
            self.reach = self.reach.max(pages(at.first.end));
        }
        at
    }

    fn take(&mut self) -> u32 {
        let known = self.free.pop().or_else(|| self.clean.pop());
        known.unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh - 1
        })
    }

    /// Counts `count` more bytes, next in the stream.
    ///
    /// # Panics
    /// When they are more than are allowed.
    pub fn fill(&mut self, count: u64) {
        assert!(count <= self.allowed() - self.tail, "{count} into {self:?}");
        self.tail += count;
        self.highest = self.highest.max(self.tail);
    }

    /// Returns the place of the oldest bytes held, as many as lie in two ranges.
    pub fn data(&self) -> Ranges {
        self.ranges(self.head, self.len())
    }

    /// Returns the place of held bytes from position `from` on, no more than [a chunk](CHUNK);
    /// `None` where some of them are missing.
    pub fn held(&self, from: u64, len: u64) -> Option<Ranges> {
        let end = from.checked_add(len)?;
        if from < self.head || end > self.tail || len > CHUNK {
            return None;
        }
        let at = self.ranges(from, len);
        (at.len() == len).then_some(at)
    }

    /// Reports whether the next [stretch](Self::stretch) of at most `most` bytes needs more than is
    /// [reserved](Self::reserved).
    pub fn grows_by(&self, most: u64) -> bool {
        self.reserved_for(self.tail + self.stretch(most)) > self.reserved()
    }

    /// Releases bytes that are no longer needed, although some before them may be: frees the chunks
    /// that lie wholly within. Bytes that have not come, or have left, are ignored.
    pub fn release(&mut self, bytes: Range<u64>) {
        let start = bytes.start.max(self.head) - self.base;
        let end = bytes.end.min(self.tail).saturating_sub(self.base);
        let whole = start.div_ceil(CHUNK)..end / CHUNK;
        for index in whole {
            if let Some(chunk) = self.chunks[index as usize].take() {
                self.let_go(chunk);
                self.released += 1;
            }
        }
    }

    /// Discards bytes that came ahead of missing ones; the peer retransmits them.
    pub fn forget_ahead(&mut self) {
        self.highest = self.tail;
        let kept = (self.tail - self.base).div_ceil(CHUNK) as usize;
        while self.chunks.len() > kept {
            if let Some(Some(chunk)) = self.chunks.pop_back() {
                self.let_go(chunk);
            }
        }
        if self.is_clear() {
            self.rewind();
        }
    }

    fn let_go(&mut self, chunk: u32) {
        self.free.push(chunk);
        self.changes.push(Change { chunk, word: 0 });
    }

    /// Puts the next byte at the start of a chunk, as none is held.
    fn rewind(&mut self) {
        while let Some(last) = self.chunks.pop_back() {
            if let Some(chunk) = last {
                self.let_go(chunk);
            }
        }
        self.released = 0;
        self.base = self.head;
    }

    /// Removes the oldest `count` bytes.
    ///
    /// # Panics
    /// When fewer are held.
    pub fn drain(&mut self, count: u64) {
        assert!(count <= self.len(), "{count} out of {self:?}");
        self.head += count;
        if self.is_clear() {
            self.rewind();
        }
        while self.base + CHUNK <= self.head
            && let Some(first) = self.chunks.pop_front()
        {
            match first {
                Some(chunk) => self.let_go(chunk),
                None => self.released = self.released.saturating_sub(1),
            }
            self.base += CHUNK;
        }
    }

    /// Starts a new period: chunks that were in use before it, and are not any more, [need no
    /// pages](Self::spare). Pages that were freed cost more to get again than to copy into.
    pub fn age(&mut self) {
        self.busiest = [self.in_use(), self.busiest[0]];
    }

    /// Returns the place of a free chunk whose pages should be freed, as there are more free chunks
    /// than were in use recently: since the map last [aged](Self::age) but one. To be called until
    /// `None`.
    pub fn spare(&mut self) -> Option<Range<u64>> {
        let busiest = self.busiest[0].max(self.busiest[1]);
        let keep = SPARE_MIN + busiest.saturating_sub(self.in_use());
        if self.free.len() <= keep {
            return None;
        }
        let chunk = self.free.remove(0);
        self.clean.push(chunk);
        let start = u64::from(chunk) * CHUNK;
        Some(start..start + CHUNK)
    }

    /// Returns the place of a free chunk that is kept for the next bytes, to free its pages when
    /// memory is short. `None` while there is only one chunk in all.
    pub fn last_spare(&mut self) -> Option<Range<u64>> {
        if self.fresh <= 1 {
            return None;
        }
        let chunk = self.free.pop()?;
        self.clean.push(chunk);
        let start = u64::from(chunk) * CHUNK;
        Some(start..start + CHUNK)
    }

    /// Records that all pages were freed. No effect unless the map [is clear](Self::is_clear).
    pub fn reset(&mut self) {
        if self.is_clear() {
            self.rewind();
            self.free.clear();
            self.clean.clear();
            self.fresh = 0;
            self.reach = 0;
            self.busiest = [0; 2];
        }
    }

    fn index(&self, position: u64) -> usize {
        ((position - self.base) / CHUNK) as usize
    }

    /// Returns the place of the first of these bytes, as many as lie in two ranges.
    fn ranges(&self, from: u64, len: u64) -> Ranges {
        let (mut at, end) = (from, from + len);
        let mut found = Ranges::default();
        while at < end {
            let Some(Some(chunk)) = self.chunks.get(self.index(at)) else {
                break;
            };
            let offset = (at - self.base) % CHUNK;
            let count = (CHUNK - offset).min(end - at);
            let start = u64::from(*chunk) * CHUNK + offset;
            if !found.add(start..start + count) {
                break;
            }
            at += count;
        }
        found
    }
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// Free chunks that keep their pages, in addition to those in use recently.
const SPARE_MIN: usize = 2;
