//! The map of a predecessor, from what it has written down.
//!
//! A word of each chunk says which bytes are in it. It is written before the first of them comes, and only once no byte in the
//! chunk is needed any more does it change. So whatever the instant at which the predecessor ended, the bytes between head and
//! tail are where the words say.

use std::{collections::VecDeque, ops::Range};

use super::{CHUNK, Change, ChunkMap};

/// What was written down does not make a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("bytes {head} to {tail} are not where the table of chunks says")]
pub struct Torn {
    head: u64,
    tail: u64,
}

impl ChunkMap {
    /// The map of which a predecessor has written down these words, of all chunks of the extent in their order, and that holds the
    /// bytes from `head` to `tail`. What had come ahead is given up. Its [changes](Self::changes) are those to what was written
    /// down; of the extent only [what it occupies](Self::occupied) may keep its pages.
    ///
    /// # Errors
    /// When there is no such map.
    ///
    /// # Panics
    /// As [`ChunkMap::new`].
    pub fn recover(
        extent: u64,
        words: impl IntoIterator<Item = u64>,
        head: u64,
        tail: u64,
    ) -> Result<Self, Torn> {
        let torn = Torn { head, tail };
        if head > tail || tail - head > extent {
            return Err(torn);
        }
        let mut map = Self {
            head,
            tail,
            highest: tail,
            base: head,
            ..Self::new(extent)
        };
        let mut found = Vec::new();
        for (chunk, word) in (0_u32..).zip(words) {
            let Some(start) = word.checked_sub(1) else {
                continue;
            };
            let fits = u64::from(chunk) < extent / CHUNK;
            if fits && start < tail && start.saturating_add(CHUNK) > head {
                found.push((start, chunk));
            } else {
                map.changes.push(Change { chunk, word: 0 });
            }
        }
        if head == tail {
            let freed = found.iter().map(|(_, chunk)| Change {
                chunk: *chunk,
                word: 0,
            });
            map.changes.extend(freed);
            return Ok(map);
        }
        found.sort_unstable();
        let starts = found.iter().map(|(start, _)| *start);
        map.base = starts.clone().next().ok_or(torn)?;
        let mut in_a_row = (map.base..).step_by(CHUNK as usize).zip(starts);
        let covers = map.base + found.len() as u64 * CHUNK >= tail && map.base <= head;
        if !covers || in_a_row.any(|(expected, start)| expected != start) {
            return Err(torn);
        }
        map.chunks = found
            .iter()
            .map(|(_, chunk)| Some(*chunk))
            .collect::<VecDeque<_>>();
        map.fresh = found.iter().map(|(_, chunk)| chunk + 1).max().unwrap_or(0);
        let is_used = |chunk: &u32| found.iter().any(|(_, used)| used == chunk);
        map.clean = (0..map.fresh).filter(|chunk| !is_used(chunk)).collect();
        // How much of it has pages is not known.
        map.reach = CHUNK;
        map.busiest = [map.in_use(), 0];
        Ok(map)
    }

    /// Which parts of the extent have bytes in them, or may have had since the pages of others were given back, in rising order.
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
