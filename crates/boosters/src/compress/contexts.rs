//! What a sender keeps of flows: which context is theirs, and how often it has been told.

use std::{collections::BTreeMap, time::Duration};

use super::header::Fixed;

/// Which of a context's packets have it, until it is relied on: the first two, and after each a pause of packets that doubles, so that a burst of
/// losses does not take all of them.
const PAUSE_FIRST: u32 = 4;
/// The longest pause.
const PAUSE_MAX: u32 = 1024;
/// How often a context is sent before it is relied on, where the far end does not say that it knows it: with packets 1, 2, 6 and 14. What comes
/// in between needs none.
const FIRST: u8 = 4;
/// A context is taken away from a flow that has had none of the last packets, as many as this times the most contexts. Where there are more flows than
/// contexts all the time, each would otherwise lose its own before it is of use.
const IDLE: u64 = 4;
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
    pub(super) how: How,
}

/// What a packet has of its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Its number alone: the far end knows it.
    Short,
    /// All of it, to be known from now on.
    Full,
    /// Nothing: the far end perhaps does not know it yet.
    Without,
}

#[derive(Debug)]
struct Slot {
    fixed: Fixed,
    generation: u8,
    used: u64,
    telling: Option<Telling>,
    interval: Duration,
    again: Duration,
    packets: u32,
}

impl Slot {
    fn how(&mut self, now: Duration, confirms: bool) -> How {
        if let Some(telling) = &mut self.telling {
            let full = telling.is_next();
            if telling.sent >= FIRST && !confirms {
                self.telling = None;
            }
            if !full {
                return How::Without;
            }
            self.again = now.saturating_add(AGAIN_MIN);
            self.interval = AGAIN_MIN;
        } else if now >= self.again && self.packets > AGAIN_PACKETS {
            self.interval = (self.interval * 2).min(AGAIN_MAX);
            self.again = now.saturating_add(self.interval);
        } else {
            return How::Short;
        }
        self.packets = 0;
        How::Full
    }
}

/// A context that is not relied on yet.
#[derive(Clone, Copy, Debug, Default)]
struct Telling {
    /// How often it has been sent.
    sent: u8,
    /// Packets until it is sent again, and the pause after that.
    left: u32,
    pause: u32,
}

impl Telling {
    /// Whether the next packet has it.
    fn is_next(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.sent = self.sent.saturating_add(1);
        self.left = self.pause.saturating_sub(1);
        self.pause = match self.pause {
            0 => PAUSE_FIRST,
            pause => (pause * 2).min(PAUSE_MAX),
        };
        true
    }
}

/// Contexts by what is fixed in them. The one that has not been used for longest gives way.
#[derive(Debug)]
pub(super) struct Contexts {
    max: usize,
    slots: Vec<Slot>,
    by_fixed: BTreeMap<Fixed, u16>,
    clock: u64,
    /// The far end says what it knows.
    confirms: bool,
    /// Hashes of what has been seen, each in its place.
    seen: Vec<u32>,
    pub(super) evicted: u64,
    /// Packets of flows that there was no context for.
    pub(super) refused: u64,
}

impl Contexts {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            slots: Vec::new(),
            by_fixed: BTreeMap::new(),
            clock: 0,
            confirms: false,
            seen: vec![0; SEEN],
            evicted: 0,
            refused: 0,
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
        let how = slot.how(now, self.confirms);
        Some(Context {
            cid,
            generation: slot.generation,
            how,
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
            if self.clock - oldest.used <= IDLE * self.max as u64 {
                self.refused += 1;
                return None;
            }
            generation = oldest.generation.wrapping_add(1);
            self.by_fixed.remove(&oldest.fixed);
            self.evicted += 1;
            cid
        };
        let slot = Slot {
            fixed: *fixed,
            generation,
            used: self.clock,
            telling: Some(Telling::default()),
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
        let slot = self.get(cid, generation);
        slot.map(|slot| slot.telling = Some(Telling::default()))
            .is_some()
    }

    /// The far end knows one. Returns whether there is such a context still, which is relied on then.
    pub(super) fn known(&mut self, cid: u16, generation: u8) -> bool {
        let slot = self.get(cid, generation);
        slot.map(|slot| slot.telling = None).is_some()
    }

    fn get(&mut self, cid: u16, generation: u8) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(cid));
        slot.filter(|slot| slot.generation == generation)
    }

    /// The far end may have been restarted.
    pub(super) fn all_missing(&mut self) {
        for slot in &mut self.slots {
            slot.telling = Some(Telling::default());
        }
    }

    /// Whether the far end says what it knows.
    pub(super) fn set_confirms(&mut self, confirms: bool) {
        self.confirms = confirms;
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
