//! What a sender keeps of flows: which context is theirs, and how often it has been told.

use std::{collections::BTreeMap, time::Duration};

use super::header::Fixed;

/// How often a context is sent before it is relied on.
const FIRST: u8 = 3;
/// After how long it is sent again, which doubles each time.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// The longest that grows to.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// No sooner than after so many packets, so that flows of few packets are compressed at all.
const AGAIN_PACKETS: u32 = 8;
/// For so many flows it is known whether they have had a packet before.
const SEEN: usize = 1024;

/// How a packet is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) cid: u16,
    pub(super) generation: u8,
    /// With its headers, to be known from now on.
    pub(super) full: bool,
}

#[derive(Debug)]
struct Slot {
    fixed: Fixed,
    generation: u8,
    used: u64,
    /// How often it is still to be sent at once.
    first: u8,
    interval: Duration,
    again: Duration,
    packets: u32,
}

/// Contexts by what is fixed in them. The one that has not been used for longest gives way.
#[derive(Debug)]
pub(super) struct Contexts {
    max: usize,
    slots: Vec<Slot>,
    by_fixed: BTreeMap<Fixed, u16>,
    clock: u64,
    /// Hashes of what has been seen, each in its place.
    seen: Vec<u32>,
    pub(super) evicted: u64,
}

impl Contexts {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            slots: Vec::new(),
            by_fixed: BTreeMap::new(),
            clock: 0,
            seen: vec![0; SEEN],
            evicted: 0,
        }
    }

    /// The context of the next packet with this fixed part. The first packet has none, as most flows of a single one are better
    /// without, and do not drive out others.
    pub(super) fn next(&mut self, now: Duration, fixed: &Fixed) -> Option<Context> {
        self.clock += 1;
        let cid = match self.by_fixed.get(fixed).copied() {
            Some(cid) => cid,
            None if self.is_new(fixed) => return None,
            None => self.make(fixed)?,
        };
        let slot = self.slots.get_mut(usize::from(cid))?;
        slot.used = self.clock;
        slot.packets = slot.packets.saturating_add(1);
        let full = if slot.first > 0 {
            slot.first -= 1;
            slot.again = now.saturating_add(AGAIN_MIN);
            slot.interval = AGAIN_MIN;
            true
        } else if now >= slot.again && slot.packets > AGAIN_PACKETS {
            slot.interval = (slot.interval * 2).min(AGAIN_MAX);
            slot.again = now.saturating_add(slot.interval);
            true
        } else {
            false
        };
        if full {
            slot.packets = 0;
        }
        Some(Context {
            cid,
            generation: slot.generation,
            full,
        })
    }

    fn is_new(&mut self, fixed: &Fixed) -> bool {
        // 0 stands for none.
        let hash = hash(fixed).max(1);
        let place = &mut self.seen[hash as usize % SEEN];
        std::mem::replace(place, hash) != hash
    }

    fn make(&mut self, fixed: &Fixed) -> Option<u16> {
        // A restarted sender has the same context for a flow, or likely one that cannot be taken for an old one.
        let mut generation = (hash(fixed) >> 24) as u8;
        let cid = if self.slots.len() < self.max {
            self.slots.len()
        } else {
            let slots = self.slots.iter().enumerate();
            let (cid, oldest) = slots.min_by_key(|(_, slot)| slot.used)?;
            generation = oldest.generation.wrapping_add(1);
            self.by_fixed.remove(&oldest.fixed);
            self.evicted += 1;
            cid
        };
        let slot = Slot {
            fixed: *fixed,
            generation,
            used: self.clock,
            first: FIRST,
            interval: AGAIN_MIN,
            again: Duration::ZERO,
            packets: 0,
        };
        if cid < self.slots.len() {
            self.slots[cid] = slot;
        } else {
            self.slots.push(slot);
        }
        let cid = u16::try_from(cid).ok()?;
        self.by_fixed.insert(*fixed, cid);
        Some(cid)
    }

    /// The far end does not know one. Returns whether there is such a context still, which is sent anew then.
    pub(super) fn missing(&mut self, cid: u16, generation: u8) -> bool {
        let slot = self.slots.get_mut(usize::from(cid));
        match slot.filter(|slot| slot.generation == generation) {
            Some(slot) => {
                slot.first = FIRST;
                true
            }
            None => false,
        }
    }

    /// The far end may have been restarted.
    pub(super) fn all_missing(&mut self) {
        for slot in &mut self.slots {
            slot.first = FIRST;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// FNV-1a.
fn hash(fixed: &Fixed) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    fixed.bytes().iter().fold(0x811c_9dc5, mix)
}
