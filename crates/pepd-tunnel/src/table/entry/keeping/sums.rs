//! Checksums of chunks that wait for long, to detect changed memory.

use pep_core::chunks::CHUNK;

use super::FlowBuffers;

impl FlowBuffers {
    pub(super) fn copy_chunk(&self, start: u64, into: &mut [u8]) {
        let data = self.outgoing.held(start, CHUNK).expect("a chunk in memory");
        self.memory.slot.read(self.outward, &data, into);
    }

    /// Returns whether a chunk matches its checksum, if there is one. Ends the flow otherwise.
    pub(super) fn is_unchanged(&mut self, start: u64, bytes: &[u8]) -> bool {
        let sum = self.keeping.sums.remove(&start);
        let unchanged = sum.is_none_or(|sum| sum == crc32fast::hash(bytes));
        if !unchanged {
            self.lose(start, &"checksum mismatch: memory was overwritten");
        }
        unchanged
    }

    /// Returns whether all chunks that begin before `until` match.
    pub(super) fn are_unchanged(&mut self, until: u64) -> bool {
        let mut bytes = Vec::new();
        while let Some((start, _)) = self.keeping.sums.first_key_value()
            && *start < until
        {
            let start = *start;
            bytes.resize(CHUNK as usize, 0);
            self.copy_chunk(start, &mut bytes);
            if !self.is_unchanged(start, &bytes) {
                return false;
            }
        }
        true
    }

    /// Changes a byte in memory, as by a fault.
    #[cfg(test)]
    pub(crate) fn damage(&mut self, position: u64) {
        let space = self.outgoing.held(position, 1).expect("a byte in memory");
        self.memory
            .slot
            .write(self.outward, &space, &[!position as u8]);
    }

    pub(super) fn sum_up(&mut self, most: &mut usize) {
        let mut bytes = Vec::new();
        let fulls = self.outgoing.full_chunks(self.keeping.announced);
        let new = fulls.filter(|start| !self.keeping.sums.contains_key(start));
        let new: Vec<_> = new.take(*most).collect();
        *most -= new.len();
        for start in new {
            bytes.resize(CHUNK as usize, 0);
            self.copy_chunk(start, &mut bytes);
            self.keeping.sums.insert(start, crc32fast::hash(&bytes));
        }
    }
}
