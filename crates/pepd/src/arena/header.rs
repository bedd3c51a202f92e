//! The header of a slot: what a successor must know of a flow.
//!
//! ```text
//!   0  state | 8 cookie of the client leg | 16 cookie of the server leg (once it has lived a second)
//!  64  up:   head | tail | base | size | fin in | fin out
//! 128  down: the same
//! ```

use std::sync::atomic::Ordering::Release;

use pep_core::relay::{Direction, Ending, Half, HalfState};

use crate::sys::memory::SharedMemory;

/// Of one header; four cache lines.
pub(super) const HEADER_BYTES: usize = 256;

const STATE: usize = 0;
const COOKIES: usize = 8;
const HALVES: usize = 64;
const HALF_BYTES: usize = 64;
const HEAD: usize = 0;
const TAIL: usize = 8;
const BASE: usize = 16;
const SIZE: usize = 24;
const FIN_IN: usize = 32;
const FIN_OUT: usize = 40;

/// How far a flow has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotState {
    /// No flow.
    Free = 0,
    /// Accepted; its server leg is not connected and no byte was received.
    Accepted = 1,
    /// Both legs are there.
    Relaying = 2,
    /// Being closed; no byte moves any more.
    Closed = 3,
}

/// A slot's header in shared memory.
///
/// One task writes it, in an order that is right at every instant; stores are released, so that
/// they become visible in that order.
pub(super) struct Header<'a> {
    memory: &'a SharedMemory,
    offset: usize,
}

impl<'a> Header<'a> {
    pub(super) fn new(memory: &'a SharedMemory, offset: usize) -> Self {
        Self { memory, offset }
    }

    fn store(&self, field: usize, value: u64) {
        self.memory
            .atomic(self.offset + field)
            .store(value, Release);
    }

    pub(super) fn publish_state(&self, state: SlotState) {
        self.store(STATE, state as u64);
    }

    pub(super) fn publish_cookies(&self, cookies: [u64; 2]) {
        for (index, cookie) in cookies.into_iter().enumerate() {
            self.store(COOKIES + 8 * index, cookie);
        }
    }

    /// Tail before head: `head <= tail` at every instant. Base before size: with the new base and
    /// the old size the map is still the old one.
    pub(super) fn publish_half(&self, direction: Direction, half: &Half) {
        let start = HALVES + direction as usize * HALF_BYTES;
        let ring = half.ring();
        let fin_in = matches!(
            half.state(),
            HalfState::Draining(Ending::Fin) | HalfState::Shut
        );
        for (field, value) in [
            (TAIL, ring.tail()),
            (HEAD, ring.head()),
            (BASE, ring.base()),
            (SIZE, ring.size()),
            (FIN_IN, fin_in.into()),
            (FIN_OUT, (half.state() == HalfState::Shut).into()),
        ] {
            self.store(start + field, value);
        }
    }
}
