//! Custody of what a leg gives while the link is away: more than may soon be sent, in memory, then on disk.
//!
//! ```text
//!          head         sent      announced          in memory        on disk      in memory   tail
//!   [ out ] |-----------|------------|----------------------|---------------------|-----------|
//!           peer may     the session   the session does not    chunks that left     what comes
//!           lack it      may send it   know of it              memory, last first   now
//! ```
//!
//! The session is told of no more than it may soon send. So whatever is behind that can leave memory: full chunks, the youngest ones
//! first, as they are needed last. They come back in order before their turn. Until a chunk is known to be on the disk, and from when it is on
//! its way back, its bytes or its place are kept as well, so that a disk that fails costs nothing but room.

mod spilling;
mod sums;

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use pep_core::{
    chunks::CHUNK,
    custody::{FlowKey, Patience, Place},
    hosts::Host,
    site::KeepWhen,
};
use pepd_sys::leg::SiteRuntime;

use super::FlowBuffers;
use crate::{
    custody::{RECORD, Spot},
    table::{Key, kept::Custody},
};

/// How far behind the oldest byte of a flow others may be: beyond any disk.
pub(in crate::table) const WINDOW: u64 = 1 << 50;
/// Chunks of a flow that are on their way to the disk, or back, at one time.
const UNDER_WAY: usize = 8;
/// Chunks of an extent that are left for what comes and for what comes back.
const SPARE: u64 = 8;
/// Memory is scarce where it has no room for so many bytes more.
const SCARCE: u64 = 4 * CHUNK;
/// One part in so many of a flow's bytes is kept back from the session then.
const KEPT_BACK: u64 = 4;
/// A record that cannot be read is tried again so often, a second apart.
const READS: u32 = 5;
/// What becomes of a flow's bytes while the link is away.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) site: usize,
    pub(crate) when: KeepWhen,
    /// How long they are kept.
    pub(crate) hold: Duration,
}

impl Policy {
    /// That of a site.
    pub(crate) fn for_site(site: &SiteRuntime) -> Self {
        Self {
            site: site.id.index(),
            when: site.keep,
            hold: site.hold,
        }
    }
}

/// Who a flow is to the custody, and by which policy it is kept.
#[derive(Debug, Clone)]
pub(crate) struct CustodyHandle {
    pub(crate) custody: Rc<Custody>,
    pub(crate) key: Key,
    pub(crate) policy: Policy,
}

/// Why what a flow had given us is not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It was held for as long as may be.
    Expired,
    /// The disk does not give it back, or memory has changed.
    Damaged,
}

/// A flow's custody.
#[derive(Debug)]
pub(in crate::table) struct Keeping {
    keeper: CustodyHandle,
    account: FlowKey,
    /// The link is away.
    away: bool,
    /// The session knows of bytes below this.
    announced: u64,
    /// Chunks that are not in memory only, by the position of their first byte.
    spilled: BTreeMap<u64, Chunk>,
    /// Checksums of chunks that have been here for a while.
    sums: BTreeMap<u64, u32>,
    /// There was no room for what the leg has.
    refused: bool,
    ending: Ending,
    /// Bytes of memory beyond what it may have, for what had to come back.
    over: u64,
    patience: Patience,
    loss: Option<Loss>,
}

/// The end of what the leg gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    /// The session does not know of it yet.
    Unsaid,
    Said,
}

#[derive(Debug, Clone, Copy)]
enum Chunk {
    /// On its way to the disk; still in memory.
    Leaving,
    /// On the disk only, and could not be read so many times.
    Away(Spot, u32),
    /// The same, and on its way back.
    Coming(u32),
}

impl Keeping {
    pub(in crate::table) fn new(keeper: CustodyHandle) -> Self {
        let account = keeper.custody.open(keeper.policy.site);
        Self {
            keeper,
            account,
            away: false,
            announced: 0,
            spilled: BTreeMap::new(),
            sums: BTreeMap::new(),
            refused: false,
            ending: Ending::None,
            over: 0,
            patience: Patience::default(),
            loss: None,
        }
    }

    /// What it has of memory beyond the beginning changes.
    pub(super) fn settle(&mut self, from: u64, to: u64) {
        self.over = self.over.saturating_sub(from.saturating_sub(to));
        let ledger = &mut *self.keeper.custody.ledger.borrow_mut();
        if to < from {
            ledger.give_back(self.account, Place::Memory, from - to);
        } else {
            ledger.take(self.account, Place::Memory, to - from);
        }
    }

    /// Whether more is taken from the leg than may soon be sent.
    fn holds_more_than_needed(&self) -> bool {
        match self.keeper.policy.when {
            KeepWhen::Never => false,
            KeepWhen::Outage => self.away,
            KeepWhen::Always => true,
        }
    }

    /// Chunks that are on their way, or back.
    fn under_way(&self) -> usize {
        let chunks = self.spilled.values();
        chunks
            .filter(|chunk| !matches!(chunk, Chunk::Away(..)))
            .count()
    }

    /// Whether chunks are on their way back.
    fn fetches(&self) -> bool {
        let mut chunks = self.spilled.values();
        chunks.any(|chunk| matches!(chunk, Chunk::Coming(_)))
    }

    /// The first byte that is on the disk only.
    fn first_on_disk(&self) -> Option<u64> {
        let mut chunks = self.spilled.iter();
        let away = chunks.find(|(_, chunk)| !matches!(chunk, Chunk::Leaving));
        away.map(|(start, _)| *start)
    }

    fn give_disk_back(&self) {
        let ledger = &mut *self.keeper.custody.ledger.borrow_mut();
        ledger.give_back(self.account, Place::Disk, RECORD);
    }
}

/// What is on its way then is forgotten when it arrives.
impl Drop for Keeping {
    fn drop(&mut self) {
        let custody = &self.keeper.custody;
        custody.ledger.borrow_mut().close(self.account);
        for chunk in self.spilled.values() {
            if let Chunk::Away(spot, _) = chunk {
                custody.forget(*spot);
            }
        }
    }
}

impl FlowBuffers {
    /// Goes on with what a predecessor kept: in memory, and of what is `on_disk` what it takes of that.
    pub(in crate::table) fn begin_keeping(&mut self, on_disk: &mut BTreeMap<u64, Spot>) {
        let (outward, initial) = (self.outward as usize, self.initial);
        self.keeping.settle(initial, self.charged[outward]);
        for start in self.outgoing.on_disk() {
            let spot = on_disk.remove(&start).expect("where the map has it from");
            self.keeping.spilled.insert(start, Chunk::Away(spot, 0));
            let ledger = &mut *self.keeping.keeper.custody.ledger.borrow_mut();
            ledger.take(self.keeping.account, Place::Disk, RECORD);
        }
        // Of what was taken before, the peer may have as much as it likes; not of what was on disk, of which no session knew.
        let first_away = self.keeping.first_on_disk();
        self.keeping.announced = first_away.unwrap_or(self.outgoing.tail());
        if self.source_finished {
            self.keeping.ending = Ending::Unsaid;
        }
    }

    /// Its client is on this host, whose part of custody it takes. To be said once.
    pub(in crate::table) fn belong_to(&mut self, host: Host) {
        let ledger = &mut *self.keeping.keeper.custody.ledger.borrow_mut();
        ledger.belong(self.keeping.account, host);
    }

    /// The link is away, or is back.
    pub(crate) fn set_link_down(&mut self, away: bool) {
        if self.keeping.away != away {
            self.keeping.away = away;
            self.keeping.patience = Patience::default();
            self.wake();
        }
    }

    /// What becomes of its bytes while the link is away.
    pub(in crate::table) fn policy(&self) -> Policy {
        self.keeping.keeper.policy
    }

    /// Whether the link is away.
    pub(crate) fn is_link_down(&self) -> bool {
        self.keeping.away
    }

    /// How many bytes the leg may give now.
    pub(super) fn appetite(&self) -> u64 {
        let wanted = if self.keeping.holds_more_than_needed() {
            u64::MAX
        } else {
            self.unsent_max.saturating_sub(self.unsent())
        };
        if self.keeping.spilled.is_empty() {
            return wanted;
        }
        // Without a chunk to come back to, what is on the disk would stay there for good.
        let kept = (self.spare() / 2).max(1);
        let free = (self.outgoing.available() as u64).saturating_sub(kept);
        wanted.min(self.outgoing.left_begun() + free * CHUNK)
    }

    /// Chunks that are not given to what the session knows of.
    fn spare(&self) -> u64 {
        SPARE.min(self.outgoing.extent() / CHUNK / 4)
    }

    /// True where bytes go to the disk in an outage.
    fn may_spill(&self) -> bool {
        let keeper = &self.keeping.keeper;
        keeper.policy.when != KeepWhen::Never && keeper.custody.spill.borrow().is_some()
    }

    /// Number of the youngest bytes that are kept back from the session where memory is scarce.
    ///
    /// The session notices an outage late, and sends all that it knows of until then. Bytes that
    /// were sent stay in memory. If they filled it, pepd could take no more of the flow. Of few
    /// bytes none are kept back, so that a flow that waits for memory gets on.
    fn kept_back(&self) -> u64 {
        let ledger = self.keeping.keeper.custody.ledger.borrow();
        if ledger.fits(self.keeping.account, Place::Memory, SCARCE) {
            return 0;
        }
        self.outgoing.len() / KEPT_BACK / CHUNK * CHUNK
    }

    /// Memory that is taken for bytes from the leg, or may be.
    pub(super) fn charged_for_leg(&self) -> u64 {
        self.charged[self.outward as usize] - self.keeping.over
    }

    /// Takes memory for bytes from the leg.
    pub(super) fn try_grow(&mut self, more: u64) -> bool {
        let account = self.keeping.account;
        let custody = Rc::clone(&self.keeping.keeper.custody);
        let ledger = &mut *custody.ledger.borrow_mut();
        if !ledger.try_take(account, Place::Memory, more) {
            return false;
        }
        if !self.memory.share.try_grow(more) {
            ledger.give_back(account, Place::Memory, more);
            return false;
        }
        self.charged[self.outward as usize] += more;
        self.keeping.over = 0;
        true
    }

    fn lose(&mut self, position: u64, error: &dyn std::fmt::Display) {
        if self.keeping.loss.is_some() {
            return;
        }
        let Key { peer, flow } = self.keeping.keeper.key;
        let flow = flow.number();
        tracing::error!(peer, flow, position, %error, "bytes in custody are damaged: their flow is reset");
        let counters = &self.keeping.keeper.custody.counters;
        counters.update(|stats| stats.custody_flows_damaged += 1);
        self.keeping.loss = Some(Loss::Damaged);
        self.wake();
    }

    /// Why the flow cannot go on, if it cannot.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.keeping.loss
    }

    /// Bytes that the session knows of and has not sent.
    pub(super) fn announced_and_unsent(&self) -> u64 {
        self.keeping.announced.saturating_sub(self.sent.get())
    }

    /// Whether some session may have known of all bytes that the leg has given.
    pub(in crate::table) fn is_announced(&self) -> bool {
        self.keeping.announced >= self.outgoing.tail()
    }

    /// Whether the session does not know of all that the leg has given.
    pub(crate) fn is_behind(&self) -> bool {
        !self.is_announced() || self.keeping.ending == Ending::Unsaid
    }

    /// The leg has given its last byte.
    pub(crate) fn finish(&mut self) {
        self.source_finished = true;
        self.publish_direction(self.outward);
        self.keeping.ending = Ending::Unsaid;
    }

    /// Another session goes on from here. What it is told of at once, and whether nothing follows that.
    pub(crate) fn known_so_far(&mut self, from: u64) -> (u64, bool) {
        self.keeping.announced = self.keeping.announced.max(from);
        self.advance();
        if self.source_finished {
            self.keeping.ending = Ending::Unsaid;
        }
        (self.keeping.announced, self.says_end())
    }

    /// Whether the session is to be told that the stream ends here; once.
    pub(crate) fn says_end(&mut self) -> bool {
        let all = self.keeping.announced == self.outgoing.tail();
        let now = all && self.keeping.ending == Ending::Unsaid;
        if now {
            self.keeping.ending = Ending::Said;
        }
        now
    }

    /// How far the session may send now. What is to be sent next comes back from the disk.
    pub(crate) fn advance(&mut self) -> u64 {
        if self.keeping.loss.is_some() {
            return self.keeping.announced;
        }
        let head = self.outgoing.head();
        let ahead = self.sent.get().max(head) + self.unsent_max;
        let first_away = self.keeping.first_on_disk();
        let mut until = self.outgoing.tail().min(ahead);
        if let Some(first) = first_away {
            until = until.min(first);
        }
        if self.keeping.holds_more_than_needed() || first_away.is_some() || self.may_spill() {
            // What is on its way must leave room for what comes.
            until = until.min(head + self.outgoing.extent() - self.spare() * CHUNK);
        }
        if self.may_spill() {
            until = until.min(self.outgoing.tail() - self.kept_back());
        }
        let announced = self.keeping.announced;
        if until > announced && self.are_unchanged(until) {
            self.keeping.announced = until;
        }
        let due = ahead + self.spare() * CHUNK;
        if first_away.is_some() && !self.keeping.away && self.fetch(due) {
            // What is due later has its place.
            self.spill(UNDER_WAY, due);
        }
        self.keeping.announced
    }

    /// A second has passed: it is that late. What cannot go on is ended, what has waited for room tries again, and what
    /// has been here for a while gets checksums; of `sums` chunks at most.
    pub(crate) fn keep(&mut self, now: Duration, sums: &mut usize) {
        if self.keeping.away {
            let (held, delivered) = (self.outgoing.len(), self.outgoing.head());
            let stuck = self.keeping.patience.note(now, held, delivered);
            if stuck >= self.keeping.keeper.policy.hold && self.keeping.loss.is_none() {
                self.keeping.loss = Some(Loss::Expired);
                self.wake();
            }
            self.sum_up(sums);
        }
        let ledger = self.keeping.keeper.custody.ledger.borrow();
        let surplus = ledger.surplus(self.keeping.account, Place::Memory) / CHUNK;
        drop(ledger);
        if surplus > 0 && self.keeping.holds_more_than_needed() {
            self.spill(surplus as usize, 0);
        }
        let waits = std::mem::take(&mut self.keeping.refused) || !self.keeping.spilled.is_empty();
        if waits {
            self.wake();
        }
    }
}
