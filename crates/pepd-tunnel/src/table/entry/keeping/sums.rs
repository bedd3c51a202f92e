//! Checksums of chunks that wait long: what is handed on is what came.

use pep_core::chunks::CHUNK;

use super::FlowBuffers;

impl FlowBuffers {
    pub(super) fn copy_chunk(&self, start: u64, into: &mut [u8]) {
        let data = self
            .outgoing
            .held(start, CHUNK)
            .expect("a chunk that is here");
        self.memory.slot.read(self.outward, &data, into);
    }

    /// Whether a chunk is what it was when it came, as far as that is known. Ends the flow if not.
    pub(super) fn is_unchanged(&mut self, start: u64, bytes: &[u8]) -> bool {
        let sum = self.keeping.sums.remove(&start);
        let unchanged = sum.is_none_or(|sum| sum == crc32fast::hash(bytes));
        if !unchanged {
            self.lose(start, &"a checksum says that memory was written to");
        }
        unchanged
    }

    /// Whether chunks that begin before `until` are what they were.
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

    /// Changes a byte in memory, as nobody should.
    #[cfg(test)]
    pub(crate) fn damage(&mut self, position: u64) {
        let space = self
            .outgoing
            .held(position, 1)
            .expect("a byte that is here");
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
