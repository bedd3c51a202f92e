//! Recovery of a predecessor's map from its records.
//!
//! The word of a chunk gives its bytes. It is written before the first of them comes. It changes
//! only once no byte in the chunk is needed any more, or they are stored elsewhere. So at whatever
//! instant the predecessor ended, the bytes between head and tail are where the words say, or
//! elsewhere. For a chunk that comes back, the word is written after the bytes.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{CHUNK, Change, ChunkMap};

/// Error for records that do not form a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("chunk table and disk do not cover all bytes from {head} to {tail}")]
pub struct Torn {
    head: u64,
    tail: u64,
}

impl ChunkMap {
    /// Recovers the map of which a predecessor recorded these words, of all chunks of the extent in
    /// order. It holds the bytes from `head` to `tail`; full chunks without a word may start at
    /// positions that are `on_disk`. Bytes that had come ahead are dropped.
    ///
    /// Its [changes](Self::changes) are those relative to the records. Only [occupied
    /// parts](Self::occupied) of the extent may keep their pages. Chunks that are not in memory
    /// count as [released](Self::release).
    ///
    /// # Errors
    /// When there is no such map.
    ///
    /// # Panics
    /// As [`ChunkMap::new`].
    pub fn recover(
        extent: u64,
        words: impl IntoIterator<Item = u64>,
        on_disk: &BTreeSet<u64>,
        (head, tail): (u64, u64),
    ) -> Result<Self, Torn> {
        let torn = Torn { head, tail };
        if head > tail {
            return Err(torn);
        }
        let mut map = Self {
            head,
            tail,
            highest: tail,
            base: head,
            ..Self::new(extent)
        };
        let ends = |start: u64| start.saturating_add(CHUNK);
        let mut here = BTreeMap::new();
        for (chunk, word) in (0_u32..).zip(words) {
            let Some(start) = word.checked_sub(1) else {
                continue;
            };
            let fits = u64::from(chunk) < extent / CHUNK && head < tail;
            if !fits || start >= tail || ends(start) <= head {
                map.changes.push(Change { chunk, word: 0 });
            } else if here.insert(start, chunk).is_some() {
                return Err(torn);
            }
        }
        if head == tail {
            return Ok(map);
        }
        let is_full = |start: &&u64| ends(**start) > head && ends(**start) <= tail;
        let known = here.keys().chain(on_disk.iter().filter(is_full));
        map.base = first_of_chunk(head, known.copied().next().ok_or(torn)?).ok_or(torn)?;
        let mut missed = here.len();
        while map.base + map.chunks.len() as u64 * CHUNK < tail {
            let start = map.base + map.chunks.len() as u64 * CHUNK;
            let chunk = here.get(&start).copied();
            if chunk.is_some() {
                missed -= 1;
            } else if on_disk.contains(&start) && ends(start) <= tail {
                map.released += 1;
            } else {
                return Err(torn);
            }
            map.chunks.push_back(chunk);
        }
        if missed > 0 {
            return Err(torn);
        }
        map.fresh = here.values().map(|chunk| chunk + 1).max().unwrap_or(0);
        let is_used = |chunk: &u32| here.values().any(|used| used == chunk);
        map.clean = (0..map.fresh).filter(|chunk| !is_used(chunk)).collect();
        // The number of its pages is unknown.
        map.reach = CHUNK;
        map.busiest = [map.in_use(), 0];
        Ok(map)
    }

    /// Starts of the chunks whose bytes between head and tail are not in memory.
    pub fn on_disk(&self) -> impl Iterator<Item = u64> {
        let starts = (self.base..self.tail).step_by(CHUNK as usize);
        let chunks = starts.zip(&self.chunks);
        chunks.filter_map(|(start, chunk)| chunk.is_none().then_some(start))
    }

    /// Parts of the extent that have bytes, or may have had some since the pages of others were
    /// freed, in rising order.
    pub fn occupied(&self) -> Vec<Range<u64>> {
        let used = self.chunks.iter().flatten().chain(&self.free);
        let mut used: Vec<_> = used.copied().collect();
        used.sort_unstable();
        let start = |chunk: u32| u64::from(chunk) * CHUNK;
        used.into_iter()
            .map(|chunk| start(chunk)..start(chunk) + CHUNK)
            .collect()
    }
}

/// Returns the start of the chunk at this position, given the start of another one.
fn first_of_chunk(position: u64, other: u64) -> Option<u64> {
    if other <= position {
        return Some(position - (position - other) % CHUNK);
    }
    let before = (other - position).next_multiple_of(CHUNK);
    other.checked_sub(before)
}
