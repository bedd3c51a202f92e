//! Sizes of the kernel's receive buffers of legs: each host and each peer has a part of memory.
//!
//! The kernel grows the buffer of a leg that pepd reads fast, and what is in it when reading stops
//! stays there. Without a bound, many unread legs take the machine's memory for
//! TCP. So a leg's buffer may have half of what the other legs of its party leave of the part. A
//! few legs then have all they want, n busy ones have a part by n + 1 each, and idle ones count
//! only with what they have grown by.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Size in bytes, as the kernel counts it, that every leg may have. The kernel starts with as much,
/// and has advertised half of it before pepd sees the connection: less would drop bytes that the
/// sender may send.
pub const LEAST: u64 = 128 << 10;

/// Minimum of a part, in bytes: one leg alone may then grow as far as the kernel's default allows.
const PART_MIN: u64 = 12 << 20;

/// Bytes that the buffers of one host or peer may grow by.
#[derive(Debug)]
pub struct ReceivePart {
    most: u64,
    taken: AtomicU64,
}

impl ReceivePart {
    /// Returns the part of a party where flows may take `memory` in all: an eighth of it.
    pub fn new(memory: u64) -> Self {
        Self {
            most: (memory / 8).max(PART_MIN),
            taken: AtomicU64::new(0),
        }
    }

    /// Bytes by which buffers have grown beyond [`LEAST`].
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }
}

/// Bytes that one leg has of a part, returned when dropped.
#[derive(Debug)]
pub struct ReceiveShare {
    part: Arc<ReceivePart>,
    bytes: u64,
}

impl ReceiveShare {
    /// Returns the share of a leg that has not grown.
    pub fn none(part: Arc<ReceivePart>) -> Self {
        Self { part, bytes: 0 }
    }

    /// Size that the leg's buffer may have: half of what the other legs leave.
    pub fn allowed(&self) -> u64 {
        let others = self.part.taken().saturating_sub(self.bytes);
        LEAST + self.part.most.saturating_sub(others) / 2
    }

    /// Counts the leg's buffer with this size, even beyond the part.
    pub fn count(&mut self, size: u64) {
        let bytes = size.saturating_sub(LEAST);
        self.part.taken.fetch_add(bytes, Relaxed);
        self.part.taken.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for ReceiveShare {
    fn drop(&mut self) {
        self.part.taken.fetch_sub(self.bytes, Relaxed);
    }
}

/// Change of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// None.
    Keep,
    /// The buffer gets this size, and the kernel tunes it no more.
    Resize(u64),
    /// The buffer keeps its size, since the sender may fill it, but the window gets no larger than
    /// that of a buffer of this size.
    Restrain(u64),
}

/// Returns the change of a buffer of `size` that may have `allowed`, and of which the rate of the
/// connection needs `wanted`.
pub fn change(size: u64, allowed: u64, wanted: u64) -> Change {
    // Not at each small difference: a restrained sender is a slow one.
    if size / 2 > allowed {
        return Change::Restrain(allowed);
    }
    match wanted.min(allowed) {
        new if new > size + size / 8 => Change::Resize(new),
        _ => Change::Keep,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn few_legs_have_all_they_want_and_many_have_little() {
        let part = Arc::new(ReceivePart::new(1 << 30));
        let leg = || ReceiveShare::none(Arc::clone(&part));
        let mut legs: Vec<_> = (0..8).map(|_| leg()).collect();
        for leg in &mut legs {
            assert!(leg.allowed() > 6 * MIB, "the kernel's usual maximum");
            leg.count(6 * MIB);
        }
        legs.extend((0..2000).map(|_| leg()));
        for leg in &mut legs[8..] {
            leg.count(leg.allowed().min(6 * MIB));
        }
        assert!(part.taken() <= 128 * MIB, "{}", part.taken());
        assert!(legs.last().is_some_and(|leg| leg.allowed() < 2 * LEAST));
        legs.truncate(1);
        assert!(legs[0].allowed() > 60 * MIB, "the others have ended");
        drop(legs);
        assert_eq!(part.taken(), 0);
    }

    #[test]
    fn a_leg_alone_is_as_large_as_the_kernel_makes_it_although_memory_is_small() {
        let leg = ReceiveShare::none(Arc::new(ReceivePart::new(16 * MIB)));
        assert!(leg.allowed() >= 6 * MIB);
    }

    #[test]
    fn a_buffer_changes_where_it_is_too_large_or_its_rate_needs_more() {
        assert_eq!(change(2 * MIB, MIB, 8 * MIB), Change::Keep);
        assert_eq!(change(3 * MIB, MIB, 0), Change::Restrain(MIB));
        assert_eq!(change(MIB, 4 * MIB, 0), Change::Keep);
        assert_eq!(change(MIB, 4 * MIB, 3 * MIB), Change::Resize(3 * MIB));
        assert_eq!(change(MIB, 4 * MIB, 9 * MIB), Change::Resize(4 * MIB));
    }

    proptest! {
        /// Buffers that take what they may never exceed the part, in any order.
        #[test]
        fn legs_that_take_what_they_may_stay_within_the_part(
            steps in vec((0..40usize, any::<bool>()), 1..300),
        ) {
            let part = Arc::new(ReceivePart::new(256 * MIB));
            let mut legs: Vec<_> = (0..40)
                .map(|_| ReceiveShare::none(Arc::clone(&part)))
                .collect();
            for (leg, grows) in steps {
                let size = if grows { legs[leg].allowed() } else { 0 };
                legs[leg].count(size);
                prop_assert!(part.taken() <= 32 * MIB);
            }
        }
    }
}
