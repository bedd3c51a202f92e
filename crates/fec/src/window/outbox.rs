//! Computed repair packets that wait until they are due.

use std::time::Duration;

use super::slot::Slot;
use crate::wire::Header;

/// Maximum number of waiting repair packets.
pub(super) const ROOM: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Outbox {
    places: Vec<Place>,
    front: usize,
    len: usize,
}

#[derive(Clone, Debug)]
struct Place {
    due: Duration,
    header: Header,
    symbol: Slot,
}

impl Outbox {
    pub(super) fn new(packet_max: usize) -> Self {
        let place = Place {
            due: Duration::ZERO,
            header: Header::WindowData { id: 0 },
            symbol: Slot::new(packet_max),
        };
        Self {
            places: vec![place; ROOM],
            front: 0,
            len: 0,
        }
    }

    /// Free places.
    pub(super) fn room(&self) -> usize {
        ROOM - self.len
    }

    /// Time at which the first is due.
    pub(super) fn due(&self) -> Option<Duration> {
        (self.len > 0).then(|| self.places[self.front].due)
    }

    /// Removes and returns the first.
    pub(super) fn pop(&mut self) -> Option<(Header, &[u8])> {
        self.len = self.len.checked_sub(1)?;
        let place = &self.places[self.front];
        self.front = (self.front + 1) % ROOM;
        Some((place.header, place.symbol.symbol()))
    }

    /// Adds a repair packet, behind those that are not due later, if there is room. Takes the
    /// symbol in exchange for another one.
    pub(super) fn push(&mut self, due: Duration, header: Header, symbol: &mut Slot) {
        let place = &mut self.places[(self.front + self.len) % ROOM];
        (place.due, place.header) = (due, header);
        std::mem::swap(&mut place.symbol, symbol);
        self.sink(due);
        self.len += 1;
    }

    /// Moves the last one before those that are due later.
    fn sink(&mut self, due: Duration) {
        for at in (self.front..self.front + self.len).rev() {
            if self.places[at % ROOM].due <= due {
                return;
            }
            self.places.swap(at % ROOM, (at + 1) % ROOM);
        }
    }
}
