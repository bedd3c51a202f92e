//! Where the bytes of a stream are that does not come in order: positions mapped onto chunks of an extent.
//!
//! ```text
//!   stream    |..head-------tail      placed-----highest|
//!   chunks    |    3    |    0    |  none   |    2      |      1 and 4 are free, 5 and beyond were never used
//! ```
//!
//! A chunk is taken when the first of its bytes comes, and is free when the last one has left, or when nobody needs any of its
//! bytes any more though some before them are still needed. Of free ones that which became free last is taken first: its pages are in
//! the cache. So an extent has as many pages as bytes are held, wherever in the stream
//! they are, and not as many as have ever passed through it. A [ring](crate::ring) is simpler, and enough where bytes
//! come in order and few are held.

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

/// How far beyond the first byte held others may be, in an extent of so many bytes: the first one may be the last of its
/// chunk.
pub const fn window(extent: u64) -> u64 {
    extent.saturating_sub(CHUNK)
}

/// The map of one direction of a stream. Holds no bytes.
///
/// Bytes that are next in the stream may be elsewhere for a while: [released](ChunkMap::release) and later [placed again](ChunkMap::restore).
///
/// Invariant: `base <= head <= tail <= highest <= head + window`, and no more chunks are in use than the extent has.
#[derive(Debug, Clone)]
pub struct ChunkMap {
    head: u64,
    tail: u64,
    highest: u64,
    window: u64,
    /// Chunks of the extent.
    count: usize,
    /// The position at which the first of `chunks` begins.
    base: u64,
    /// Which chunk of the extent each one of the stream is; none where no byte of it has come, or is needed any more.
    chunks: VecDeque<Option<u32>>,
    /// How many of these were let go before their turn.
    released: usize,
    /// Chunks that were set aside for bytes that come back.
    promised: Vec<u32>,
    /// Chunks that had bytes and have pages.
    free: Vec<u32>,
    /// Chunks whose pages were given back.
    clean: Vec<u32>,
    /// This one, and all after it, were never used.
    fresh: u32,
    /// Bytes of the first chunk that may have pages.
    reach: u64,
    /// Chunks in use at most since the map has [aged](Self::age), and between that and the time before.
    busiest: [usize; 2],
    /// What has changed and is to be written down.
    changes: Vec<Change>,
}

/// A chunk has other bytes than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which one of the extent.
    pub chunk: u32,
    /// The position of its first byte and 1, or 0 where it is free.
    pub word: u64,
}

impl ChunkMap {
    /// Holds nothing, in an extent of so many bytes.
    ///
    /// # Panics
    /// Unless there is room for two chunks, and none left beside chunks.
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

    /// The same, but bytes may be held up to `window` behind the oldest one: more than the extent has room for, so that some of them
    /// have to be elsewhere.
    #[must_use]
    pub fn with_window(self, window: u64) -> Self {
        let window = window.max(self.window);
        Self { window, ..self }
    }

    /// What a successor must know of the map since the last call, besides [head](Self::head) and [tail](Self::tail), which is enough to
    /// [recover](Self::recover) it. To be written down in this order: after a head that has changed, before a byte comes into a
    /// chunk, and before a tail that has.
    pub fn changes(&mut self) -> impl Iterator<Item = Change> {
        self.changes.drain(..)
    }

    /// Position of the oldest byte held: so many have left.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Position of the first byte that has not come.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The position after the last byte that has come.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// Bytes below this may come.
    pub fn allowed(&self) -> u64 {
        self.head.saturating_add(self.window)
    }

    /// Bytes held that are next in the stream.
    pub fn len(&self) -> u64 {
        self.tail - self.head
    }

    /// Whether there is none of these.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether no byte is held, neither next nor ahead.
    pub fn is_clear(&self) -> bool {
        self.head == self.highest
    }

    /// Bytes of chunks that are in use, with those between that nothing has come of yet, and of free ones; as long as the
    /// first chunk has been enough, only what was used of it. No more than so many have pages.
    pub fn reserved(&self) -> u64 {
        self.reserved_of(self.in_use(), self.free.len(), self.reach)
    }

    /// What [`reserved`](Self::reserved) is once a chunk more is in use.
    pub fn reserved_with_another(&self) -> u64 {
        let free = self.free.len().saturating_sub(1);
        (self.in_use() + 1 + free) as u64 * CHUNK
    }

    /// Chunks with bytes that are needed, those between that nothing has come of yet, and those that were set aside.
    fn in_use(&self) -> usize {
        self.chunks.len() - self.released + self.promised.len()
    }

    /// What [`reserved`](Self::reserved) is once the bytes from the tail on, below `end`, have [space](Self::space), if none has come
    /// ahead.
    pub fn reserved_for(&self, end: u64) -> u64 {
        let used = end.saturating_sub(self.base);
        let chunks = (used.div_ceil(CHUNK) as usize).max(self.chunks.len());
        let more = chunks - self.chunks.len();
        let free = self.free.len().saturating_sub(more);
        let in_use = chunks - self.released + self.promised.len();
        // Where only one is in use, it is the last.
        let of_last = used.saturating_sub((chunks.max(1) as u64 - 1) * CHUNK);
        self.reserved_of(in_use, free, self.reach.max(pages(of_last)))
    }

    fn reserved_of(&self, chunks: usize, free: usize, reach: u64) -> u64 {
        if chunks + free <= 1 && self.fresh <= 1 {
            return reach;
        }
        (chunks + free) as u64 * CHUNK
    }

    /// How many of the next `most` bytes lie in one chunk, or in two if there is little left of the first or it is not
    /// the only one.
    pub fn stretch(&self, most: u64) -> u64 {
        let left = self.left();
        let bulk = self.len() >= CHUNK / 2 || left < CHUNK / 4;
        let stretch = if bulk { left + CHUNK } else { left };
        self.up_to(stretch.min(most))
    }

    /// How many of the next `most` bytes have space while no more than so many bytes are [reserved](Self::reserved).
    pub fn stretch_within(&self, most: u64, reserved: u64) -> u64 {
        let left = self.left().min(most);
        let fewer = reserved.saturating_sub(self.tail - self.base).min(left);
        let fits = |len: &u64| self.reserved_for(self.tail + len) <= reserved;
        let len = [left, fewer].into_iter().find(fits).unwrap_or(0);
        self.up_to(len)
    }

    /// Bytes left of the chunk in which the next byte goes.
    fn left(&self) -> u64 {
        CHUNK - (self.tail - self.base) % CHUNK
    }

    fn up_to(&self, len: u64) -> u64 {
        let room = self.left_begun() + self.available() as u64 * CHUNK;
        len.min(self.allowed() - self.tail).min(room)
    }

    /// Bytes left of the chunk in which the next byte goes, if there is one already.
    pub fn left_begun(&self) -> u64 {
        let begun = self.tail < self.base + self.chunks.len() as u64 * CHUNK;
        if begun { self.left() } else { 0 }
    }

    /// Bytes of the extent.
    pub fn extent(&self) -> u64 {
        self.count as u64 * CHUNK
    }

    /// Chunks that nothing is in.
    pub fn available(&self) -> usize {
        self.count.saturating_sub(self.in_use())
    }

    /// Where the bytes of full chunks begin that are here, the last one first; none before `position`.
    pub fn full_chunks(&self, position: u64) -> impl Iterator<Item = u64> {
        let full = (self.tail - self.base) / CHUNK;
        let first = position.max(self.head) - self.base;
        let first = first.div_ceil(CHUNK) as usize;
        let fulls = (first..full as usize).rev();
        let here = fulls.filter(|index| self.chunks[*index].is_some());
        here.map(|index| self.base + index as u64 * CHUNK)
    }

    /// Sets a chunk aside for bytes that come back: as good as in use. Returns whether there was one.
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

    /// Bytes for which a chunk was [set aside](Self::promise) do not come back.
    pub fn break_promise(&mut self) {
        self.free.extend(self.promised.pop());
    }

    /// Where a chunk of bytes goes that was [released](Self::release), and for which one was [set aside](Self::promise): from its first
    /// byte on.
    ///
    /// # Panics
    /// When it is here, or no bytes of the stream begin a chunk there, or none was set aside.
    pub fn restore(&mut self, from: u64) -> Ranges {
        assert!((from - self.base).is_multiple_of(CHUNK) && from < self.tail);
        let index = self.index(from);
        let chunk = self.promised.pop().expect("a chunk that was set aside");
        let before = self.chunks[index].replace(chunk);
        assert!(before.is_none(), "it is here");
        self.released -= 1;
        let word = from + 1;
        self.changes.push(Change { chunk, word });
        self.ranges(from, CHUNK)
    }

    /// Where bytes of the stream go, whatever of those before them is missing. `None` where some of them have come in order or are
    /// beyond what is [allowed](Self::allowed), or are more than [a chunk's](CHUNK). They count as held once the tail is moved past
    /// them by [`fill`](Self::fill).
    pub fn place(&mut self, from: u64, len: u64) -> Option<Ranges> {
        let end = from.checked_add(len)?;
        if from < self.tail || end > self.allowed() || len > CHUNK {
            return None;
        }
        let at = self.reserve(from, len);
        self.highest = self.highest.max(end);
        Some(at)
    }

    /// Where the next `len` bytes of the stream go, as many as a [`stretch`](Self::stretch) has.
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

    /// `count` bytes more have come, next in the stream.
    ///
    /// # Panics
    /// When they are more than are allowed.
    pub fn fill(&mut self, count: u64) {
        assert!(count <= self.allowed() - self.tail, "{count} into {self:?}");
        self.tail += count;
        self.highest = self.highest.max(self.tail);
    }

    /// Where the oldest bytes held are, as many as lie in two pieces.
    pub fn data(&self) -> Ranges {
        self.ranges(self.head, self.len())
    }

    /// Where bytes are that are held, from position `from` on, no more than [a chunk's](CHUNK); `None` where some of them are not.
    pub fn held(&self, from: u64, len: u64) -> Option<Ranges> {
        let end = from.checked_add(len)?;
        if from < self.head || end > self.tail || len > CHUNK {
            return None;
        }
        let at = self.ranges(from, len);
        (at.len() == len).then_some(at)
    }

    /// Whether more than is [reserved](Self::reserved) is needed for the next [stretch](Self::stretch) of at most `most` bytes.
    pub fn grows_by(&self, most: u64) -> bool {
        self.reserved_for(self.tail + self.stretch(most)) > self.reserved()
    }

    /// Nobody needs these bytes any more, though they may need some before them: chunks that lie wholly within are free. What of
    /// them has not come, or has left, is left out of account.
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

    /// What has come ahead of missing bytes is given up: it will come again.
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

    /// No byte is held: the next one goes to the beginning of a chunk.
    fn rewind(&mut self) {
        while let Some(last) = self.chunks.pop_back() {
            if let Some(chunk) = last {
                self.let_go(chunk);
            }
        }
        self.released = 0;
        self.base = self.head;
    }

    /// `count` bytes have left.
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

    /// A while is over: what was in use before it, and is not any more, [needs no pages](Self::spare). To have pages again costs
    /// more than to copy what goes into them.
    pub fn age(&mut self) {
        self.busiest = [self.in_use(), self.busiest[0]];
    }

    /// Where a free chunk was whose pages are to be given back, since there are more free ones than were in use lately: since the
    /// map has [aged](Self::age) for the last time but one. To be asked until there is none.
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

    /// One of the chunks that are kept for what comes next all the same, whose pages are to be given back: for want of memory. None while
    /// there is only one in all.
    pub fn last_spare(&mut self) -> Option<Range<u64>> {
        if self.fresh <= 1 {
            return None;
        }
        let chunk = self.free.pop()?;
        self.clean.push(chunk);
        let start = u64::from(chunk) * CHUNK;
        Some(start..start + CHUNK)
    }

    /// All pages were given back. Of no effect unless the map [is clear](Self::is_clear).
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

    /// The first bytes of these, as many as lie in two pieces.
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

/// So many free chunks keep their pages, besides those that were in use lately.
const SPARE_MIN: usize = 2;
