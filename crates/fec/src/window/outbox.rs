//! Repair packets that have been computed and wait until they are due.

use std::time::Duration;

use super::slot::Slot;
use crate::wire::Header;

/// How many can wait.
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

    /// How many more can wait.
    pub(super) fn room(&self) -> usize {
        ROOM - self.len
    }

    /// When the first is due.
    pub(super) fn due(&self) -> Option<Duration> {
        (self.len > 0).then(|| self.places[self.front].due)
    }

    /// Takes the first out.
    pub(super) fn pop(&mut self) -> Option<(Header, &[u8])> {
        self.len = self.len.checked_sub(1)?;
        let place = &self.places[self.front];
        self.front = (self.front + 1) % ROOM;
        Some((place.header, place.symbol.symbol()))
    }

    /// Puts one in, behind those that are not due later, if there is room. The symbol is left as it was there, and is to be
    /// exchanged.
    pub(super) fn push(&mut self, due: Duration, header: Header, symbol: &mut Slot) {
        let place = &mut self.places[(self.front + self.len) % ROOM];
        (place.due, place.header) = (due, header);
        std::mem::swap(&mut place.symbol, symbol);
        self.sink(due);
        self.len += 1;
    }

    /// The last one goes before those that are due later.
    fn sink(&mut self, due: Duration) {
        for at in (self.front..self.front + self.len).rev() {
            if self.places[at % ROOM].due <= due {
                return;
            }
            self.places.swap(at % ROOM, (at + 1) % ROOM);
        }
    }
}
