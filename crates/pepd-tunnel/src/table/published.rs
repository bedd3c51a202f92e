//! What is written down of a flow for a successor of this process, and what a successor makes of it.
//!
//! What a report acknowledges is written down before the report can leave: the session's events are taken note of after
//! datagrams have come and before others are made. And it is given up here only once the peer has acknowledged it in order.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    ops::Range,
    sync::Arc,
    time::Duration,
};

use pep_core::{
    arena::{Counters, DirectionRecord, Identity},
    budget::{MemoryBudget, Share},
    chunks::{ChunkMap, Torn},
    relay::{Direction, Side},
};
use pepd_relay::{
    arena::SlotState,
    flow::{self, FlowMemory},
    survive::Survivor,
};

use super::{
    CustodyHandle, FlowBuffers, Sizes,
    binding::Binding,
    entry::{Keeping, WINDOW},
};
use crate::custody::Spot;

/// Why a flow cannot go on in this process.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecoverError {
    /// What was written down and what the kernel says of the leg cannot both be.
    #[error("{moved} bytes went through its leg, where {minimum} to {most} are possible")]
    Leg { moved: u64, minimum: u64, most: u64 },
    /// What was written down of its bytes makes no sense.
    #[error(transparent)]
    Torn(#[from] Torn),
}

/// Chunks of what a flow's leg gave that a predecessor has left on disk, by where they begin.
pub(super) type OnDisk = BTreeMap<u64, Spot>;

/// A flow that was recovered, and what became of its leg.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) entry: FlowBuffers,
    /// Its host has all bytes and the end.
    pub(crate) shut: bool,
    /// Bytes that had moved without having been written down.
    pub(crate) repaired: u64,
}

impl FlowBuffers {
    /// Writes down what the flow is, and which socket its leg is (its cookie) if it has one. Before its peer hears of it, or hears that we
    /// have heard of it.
    pub(crate) fn publish(&mut self, identity: &Identity, leg: Option<io::Result<u64>>) {
        self.binding.token = identity.token;
        self.flags = identity.flags;
        let slot = &self.memory.slot;
        slot.publish_identity(identity);
        for side in Side::ALL {
            slot.publish_cookie(side, 0);
        }
        for direction in Direction::ALL {
            self.publish_direction(direction);
        }
        if let Some(leg) = leg {
            self.publish_leg(leg);
        }
        self.memory.slot.publish_state(SlotState::Accepted);
    }

    /// Who its client is, where that is written down.
    pub(super) fn client(&self) -> Option<SocketAddr> {
        let record = self.memory.slot.record()?;
        Some(record.identity.client)
    }

    /// Writes down which socket the leg is, by its cookie. Before it connects.
    pub(crate) fn publish_leg(&self, cookie: io::Result<u64>) {
        let side = match self.outward {
            Direction::Up => Side::Client,
            Direction::Down => Side::Server,
        };
        flow::publish_cookie(&self.memory.slot, side, cookie);
    }

    /// Writes down that the leg is connected.
    pub(crate) fn publish_connected(&self) {
        self.memory.slot.publish_state(SlotState::Relaying);
    }

    /// Writes down that the peer may hear of the flow from now on.
    pub(crate) fn publish_opened(&mut self) {
        self.flags.opened = true;
        self.memory.slot.publish_flags(self.flags);
    }

    /// Writes down that the client is about to be told the end, whatever may come for it.
    pub(crate) fn publish_answered(&mut self) {
        self.flags.answered = true;
        self.memory.slot.publish_flags(self.flags);
    }

    /// Whether it was.
    pub(crate) fn is_answered(&self) -> bool {
        self.flags.answered
    }

    /// Writes down that the leg is about to be closed.
    pub(super) fn publish_closed(&self) {
        self.memory.slot.publish_state(SlotState::Closed);
    }

    /// The leg has got the end.
    pub(crate) fn on_shut(&mut self) {
        self.shut = true;
        self.publish_direction(self.outward.other());
    }

    /// The peer's last byte is readable.
    pub(super) fn on_finished(&mut self) {
        self.finished = true;
        self.publish_direction(self.outward.other());
        self.wake();
    }

    /// Writes down how far a direction is.
    pub(super) fn publish_direction(&self, direction: Direction) {
        let outward = direction == self.outward;
        let map = if outward {
            &self.outgoing
        } else {
            &self.incoming
        };
        let half = DirectionRecord {
            head: map.head(),
            tail: map.tail(),
            base: 0,
            size: 0,
            fin_in: if outward {
                self.source_finished
            } else {
                self.finished
            },
            fin_out: !outward && self.shut,
        };
        self.memory.slot.publish_direction(direction, &half);
    }

    /// Writes down where a direction's bytes are, as far as that has changed.
    pub(super) fn publish_chunks(&mut self, direction: Direction) {
        let map = if direction == self.outward {
            &mut self.outgoing
        } else {
            &mut self.incoming
        };
        for change in map.changes() {
            let slot = &mut self.memory.slot;
            slot.publish_chunk(direction, change.chunk as usize, change.word);
        }
    }

    /// The flow of a predecessor, without its legs. Takes of what is `on_disk` what is not in memory.
    pub(super) fn recover<L>(
        survivor: Survivor<L>,
        sizes: Sizes,
        (initial, budget): (u64, &Arc<MemoryBudget>),
        keeper: CustodyHandle,
        on_disk: &mut OnDisk,
    ) -> Result<Recovered, RecoverError> {
        let identity = survivor.record.identity;
        let (outward, side) = match identity.kind {
            pep_core::arena::Kind::Far => (Direction::Down, Side::Server),
            _ => (Direction::Up, Side::Client),
        };
        let halves = survivor.record.halves;
        let (sent, received) = (halves[outward as usize], halves[outward.other() as usize]);
        let leg = survivor.counters[side as usize];
        let extent = survivor.slot.extent_bytes();
        let tail = read(&sent, leg.as_ref(), extent)?;
        // What was dropped since then the leg has never seen.
        let leg = leg.filter(|_| !identity.flags.answered);
        let (head, shut) = given(&received, leg.as_ref())?;
        let slot = survivor.slot;
        let map = |direction, starts: &BTreeSet<u64>, held| {
            let words = (0..slot.chunks()).map(|chunk| slot.chunk(direction, chunk));
            ChunkMap::recover(extent, words, starts, held)
        };
        let starts = on_disk.keys().copied().collect();
        let out = map(outward, &starts, (sent.head, tail))?.with_window(WINDOW);
        let inn = map(outward.other(), &BTreeSet::new(), (head, received.tail))?;
        let mut binding = Binding::new();
        binding.token = identity.token;
        binding.known = sent.head > 0 || received.tail > 0;
        let goes_on = outward == Direction::Down || identity.flags.opened;
        binding.suspended = goes_on.then_some(Duration::ZERO);
        let charged = Direction::ALL.map(|direction| {
            let map = if direction == outward { &out } else { &inn };
            map.reserved().max(initial)
        });
        let mut share = Share::none(budget);
        share.grow(charged.iter().sum());
        let mut entry = Self {
            finished: received.fin_in,
            source_finished: sent.fin_in,
            closed: false,
            shut,
            reset: None,
            binding,
            waker: None,
            memory: FlowMemory { slot, share },
            flags: identity.flags,
            outward,
            sent: Cell::new(out.head()),
            outgoing: out,
            incoming: inn,
            unsent_max: sizes.unsent,
            waits: Cell::new(false),
            initial,
            charged,
            extra: 0,
            keeping: Keeping::new(keeper),
        };
        entry.begin_keeping(on_disk);
        for direction in Direction::ALL {
            entry.publish_direction(direction);
            entry.publish_chunks(direction);
            entry.give_back_free(direction, extent);
        }
        let repaired = (tail - sent.tail) + (head - received.head);
        Ok(Recovered {
            entry,
            shut,
            repaired,
        })
    }

    /// Pages in which no byte is that is needed are given back.
    fn give_back_free(&mut self, direction: Direction, extent: u64) {
        let map = if direction == self.outward {
            &self.outgoing
        } else {
            &self.incoming
        };
        let mut start = 0;
        for Range { start: used, end } in map.occupied() {
            self.memory.slot.give_back(direction, start..used);
            start = end;
        }
        self.memory.slot.give_back(direction, start..extent);
    }
}

/// How many bytes were really taken from the leg.
fn read(sent: &DirectionRecord, leg: Option<&Counters>, extent: u64) -> Result<u64, RecoverError> {
    let Some(leg) = leg else {
        return Ok(sent.tail);
    };
    // Of what is on disk nothing is in the extent.
    let (minimum, most) = (sent.tail, sent.tail.saturating_add(extent));
    let moved = leg.read;
    if moved < minimum || moved > most {
        return Err(RecoverError::Leg {
            moved,
            minimum,
            most,
        });
    }
    Ok(moved)
}

/// How many bytes the leg really got, and whether it got the end.
fn given(received: &DirectionRecord, leg: Option<&Counters>) -> Result<(u64, bool), RecoverError> {
    let (minimum, most) = (received.head, received.tail);
    let Some(leg) = leg else {
        return Ok((minimum, received.fin_out));
    };
    let moved = leg.written;
    if leg.closed && !leg.fin_sent {
        // Its state does not tell whether it got the end, which then counts as a byte.
        if received.fin_in && moved == most + 1 {
            return Ok((most, true));
        }
        // It takes no more, so that it makes no difference.
        let plausible = (minimum..=most).contains(&moved);
        return Ok((if plausible { moved } else { minimum }, false));
    }
    if moved < minimum || moved > most {
        return Err(RecoverError::Leg {
            moved,
            minimum,
            most,
        });
    }
    Ok((moved, leg.fin_sent))
}
