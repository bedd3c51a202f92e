//! Contexts of a sender's flows, and their announcement to the far end.

use std::{collections::BTreeMap, time::Duration};

use super::header::Fixed;

/// First pause between the packets of a context that announce it, before it is relied on: the first
/// two packets, then after pauses that double. So a burst of losses does not take all of them.
const PAUSE_FIRST: u32 = 4;
/// Maximum pause.
const PAUSE_MAX: u32 = 1024;
/// Number of announcements before a context is relied on, if the far end does not confirm it: with
/// packets 1, 2, 6 and 14. Packets in between have none.
const FIRST: u8 = 4;
/// Factor for taking a context from an idle flow: one without any of the last packets, this times
/// the maximum number of contexts. With permanently more flows than contexts, each would otherwise
/// lose its own before it is useful.
const IDLE: u64 = 4;
/// Time of the first repetition, which doubles each time.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Maximum of that time.
const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Minimum number of packets before it, so that flows of few packets are compressed at all.
const AGAIN_PACKETS: u32 = 8;
/// Number of flows for which it is known if they have had a packet before.
const SEEN: usize = 1024;

/// Context of a packet, and the form in which it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) cid: u16,
    pub(super) generation: u8,
    pub(super) form: ContextForm,
}

/// Part of its context that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContextForm {
    /// Number only: the far end knows the context.
    Short,
    /// Complete context, to be stored.
    Full,
    /// None: the far end may not know it yet.
    Without,
}

#[derive(Debug)]
struct Slot {
    fixed: Fixed,
    generation: u8,
    used: u64,
    announcement: Option<Announcement>,
    interval: Duration,
    again: Duration,
    packets: u32,
}

impl Slot {
    fn form(&mut self, now: Duration, confirms: bool) -> ContextForm {
        if let Some(announcement) = &mut self.announcement {
            let full = announcement.is_next();
            if announcement.sent >= FIRST && !confirms {
                self.announcement = None;
            }
            if !full {
                return ContextForm::Without;
            }
            self.again = now.saturating_add(AGAIN_MIN);
            self.interval = AGAIN_MIN;
        } else if now >= self.again && self.packets > AGAIN_PACKETS {
            self.interval = (self.interval * 2).min(AGAIN_MAX);
            self.again = now.saturating_add(self.interval);
        } else {
            return ContextForm::Short;
        }
        self.packets = 0;
        ContextForm::Full
    }
}

/// Announcement of a context that is not relied on yet.
#[derive(Clone, Copy, Debug, Default)]
struct Announcement {
    /// Number of announcements so far.
    sent: u8,
    /// Packets until the next announcement, and the pause after that.
    left: u32,
    pause: u32,
}

impl Announcement {
    /// Returns whether the next packet carries it.
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

/// Contexts by their fixed part, with LRU replacement.
#[derive(Debug)]
pub(super) struct Contexts {
    max: usize,
    slots: Vec<Slot>,
    by_fixed: BTreeMap<Fixed, u16>,
    clock: u64,
    /// True if the far end confirms contexts.
    confirms: bool,
    /// Hashes of seen fixed parts, in a hash table.
    seen: Vec<u32>,
    pub(super) evicted: u64,
    /// Packets of flows without a free context.
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

    /// Returns the context of the next packet with this fixed part. The first packet gets none:
    /// most flows of a single packet are better without, and do not drive out others.
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
        let form = slot.form(now, self.confirms);
        Some(Context {
            cid,
            generation: slot.generation,
            form,
        })
    }

    fn is_new(&mut self, fixed: &Fixed) -> bool {
        // 0 means none.
        let hash = hash(fixed).max(1);
        let place = &mut self.seen[hash as usize % SEEN];
        std::mem::replace(place, hash) != hash
    }

    fn make(&mut self, fixed: &Fixed) -> Option<u16> {
        // A restarted sender picks the same context for a flow, or likely one that differs from the
        // old one.
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
            announcement: Some(Announcement::default()),
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

    /// Notes that the far end does not know a context. Returns true if it still exists; it is then
    /// announced again.
    pub(super) fn missing(&mut self, cid: u16, generation: u8) -> bool {
        let slot = self.get(cid, generation);
        slot.map(|slot| slot.announcement = Some(Announcement::default()))
            .is_some()
    }

    /// Notes that the far end knows a context. Returns true if it still exists; it is then relied
    /// on.
    pub(super) fn known(&mut self, cid: u16, generation: u8) -> bool {
        let slot = self.get(cid, generation);
        slot.map(|slot| slot.announcement = None).is_some()
    }

    fn get(&mut self, cid: u16, generation: u8) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::from(cid));
        slot.filter(|slot| slot.generation == generation)
    }

    /// Announces all contexts again: the far end may have restarted.
    pub(super) fn all_missing(&mut self) {
        for slot in &mut self.slots {
            slot.announcement = Some(Announcement::default());
        }
    }

    /// Sets whether the far end confirms contexts.
    pub(super) fn set_confirms(&mut self, confirms: bool) {
        self.confirms = confirms;
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

/// Computes an FNV-1a hash.
fn hash(fixed: &Fixed) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    fixed.bytes().iter().fold(0x811c_9dc5, mix)
}
