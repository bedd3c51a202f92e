//! Buffers for packets.

/// Buffers of one size, up to a maximum number; allocated on first use, and reused.
#[derive(Debug)]
pub(super) struct Pool {
    buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    bytes: usize,
    max: usize,
}

impl Pool {
    pub(super) fn new(max: usize, bytes: usize) -> Self {
        Self {
            buffers: Vec::new(),
            free: Vec::new(),
            bytes,
            max,
        }
    }

    /// Returns a buffer with arbitrary content; `None` if all are in use.
    pub(super) fn take(&mut self) -> Option<u32> {
        if let Some(buffer) = self.free.pop() {
            return Some(buffer);
        }
        if self.buffers.len() == self.max {
            return None;
        }
        self.buffers.push(vec![0; self.bytes].into());
        Some(self.buffers.len() as u32 - 1)
    }

    pub(super) fn give_back(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    pub(super) fn get(&self, buffer: u32) -> &[u8] {
        &self.buffers[buffer as usize]
    }

    pub(super) fn get_mut(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.buffers[buffer as usize]
    }

    pub(super) fn in_use(&self) -> usize {
        self.buffers.len() - self.free.len()
    }

    pub(super) fn memory(&self) -> usize {
        self.buffers.len() * self.bytes
    }
}
