//! Custody of a leg's bytes while the link is down: beyond what may soon be sent, first in memory,
//! then on disk.
//!
//! ```text
//!         head        sent     announced    in memory         on disk       in memory   tail
//!   [ out ] |-----------|-----------|------------------|-----------------|---------------|
//!            peer may    session      unknown to the    chunks that left   new bytes
//!            lack it     may send it  session           memory, last
//!                                                       ones first
//! ```
//!
//! The session knows only bytes that it may soon send. Everything behind them can leave memory:
//! full chunks, the youngest first, because they are needed last. They return in order before their
//! turn. Until a chunk is safely on the disk, and while it returns, its bytes or its place are
//! kept. A failing disk therefore costs room only.

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

/// Maximum distance between the oldest and the newest byte of a flow: beyond any disk.
pub(in crate::table) const WINDOW: u64 = 1 << 50;
/// Maximum of a flow's chunks in transfer to and from the disk.
const UNDER_WAY: usize = 8;
/// Chunks of an extent reserved for new and returning bytes.
const SPARE: u64 = 8;
/// Memory is scarce when less than this is free.
const SCARCE: u64 = 4 * CHUNK;
/// Divisor: this part of a flow's bytes is then withheld from the session.
const KEPT_BACK: u64 = 4;
/// Attempts to read a record, a second apart.
const READS: u32 = 5;
/// Custody policy of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) site: usize,
    pub(crate) when: KeepWhen,
    /// Time that bytes are kept.
    pub(crate) hold: Duration,
}

impl Policy {
    /// Returns the policy of a site.
    pub(crate) fn for_site(site: &SiteRuntime) -> Self {
        Self {
            site: site.id.index(),
            when: site.keep,
            hold: site.hold,
        }
    }
}

/// Key of a flow in custody, and its policy.
#[derive(Debug, Clone)]
pub(crate) struct CustodyHandle {
    pub(crate) custody: Rc<Custody>,
    pub(crate) key: Key,
    pub(crate) policy: Policy,
}

/// Reasons for which bytes in custody are not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The hold time has expired.
    Expired,
    /// The disk cannot read them, or memory has changed.
    Damaged,
}

/// Custody of one flow.
#[derive(Debug)]
pub(in crate::table) struct Keeping {
    keeper: CustodyHandle,
    account: FlowKey,
    /// The link is down.
    link_down: bool,
    /// Position below which the session knows the bytes.
    announced: u64,
    /// Chunks that are not in memory only, by position.
    spilled: BTreeMap<u64, Chunk>,
    /// Number of them in transfer to the disk, and from there.
    leaving: usize,
    returning: usize,
    /// Checksums of chunks that have waited for a while.
    sums: BTreeMap<u64, u32>,
    /// The leg's bytes found no room.
    refused: bool,
    ending: Ending,
    /// Memory beyond the limit, for chunks that had to return.
    over: u64,
    patience: Patience,
    loss: Option<Loss>,
}

/// The end of the leg's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    None,
    /// The session does not know of it yet.
    Unsaid,
    Said,
}

#[derive(Debug, Clone, Copy)]
enum Chunk {
    /// In transfer to the disk, and still in memory.
    Leaving,
    /// On the disk only; with the number of failed reads.
    OnDisk(Spot, u32),
    /// In transfer from the disk; with the number of failed reads.
    Returning(u32),
}

impl Keeping {
    pub(in crate::table) fn new(keeper: CustodyHandle) -> Self {
        let account = keeper.custody.open(keeper.policy.site, keeper.key.peer);
        Self {
            keeper,
            account,
            link_down: false,
            announced: 0,
            spilled: BTreeMap::new(),
            leaving: 0,
            returning: 0,
            sums: BTreeMap::new(),
            refused: false,
            ending: Ending::None,
            over: 0,
            patience: Patience::default(),
            loss: None,
        }
    }

    /// Records a change of the flow's memory beyond the initial bytes.
    pub(super) fn settle(&mut self, from: u64, to: u64) {
        self.over = self.over.saturating_sub(from.saturating_sub(to));
        let ledger = &mut *self.keeper.custody.ledger.borrow_mut();
        if to < from {
            ledger.give_back(self.account, Place::Memory, from - to);
        } else {
            ledger.take(self.account, Place::Memory, to - from);
        }
    }

    /// Returns whether pepd takes more from the leg than may soon be sent.
    fn holds_more_than_needed(&self) -> bool {
        match self.keeper.policy.when {
            KeepWhen::Never => false,
            KeepWhen::Outage => self.link_down,
            KeepWhen::Always => true,
        }
    }

    /// Records where a chunk is. There may be 100,000 on the disk: nothing may look at all of them.
    fn put(&mut self, start: u64, chunk: Chunk) {
        self.take_out(start);
        self.leaving += usize::from(matches!(chunk, Chunk::Leaving));
        self.returning += usize::from(matches!(chunk, Chunk::Returning(_)));
        self.spilled.insert(start, chunk);
    }

    /// Records that a chunk is in memory only.
    fn take_out(&mut self, start: u64) {
        let before = self.spilled.remove(&start);
        self.leaving -= usize::from(matches!(before, Some(Chunk::Leaving)));
        self.returning -= usize::from(matches!(before, Some(Chunk::Returning(_))));
    }

    /// Returns the number of chunks in transfer.
    fn under_way(&self) -> usize {
        self.leaving + self.returning
    }

    /// Returns whether chunks are returning.
    fn fetches(&self) -> bool {
        self.returning > 0
    }

    /// Returns the position of the first chunk that is on the disk only.
    fn first_on_disk(&self) -> Option<u64> {
        let mut chunks = self.spilled.iter();
        let link_down = chunks.find(|(_, chunk)| !matches!(chunk, Chunk::Leaving));
        link_down.map(|(start, _)| *start)
    }

    fn give_disk_back(&self) {
        let ledger = &mut *self.keeper.custody.ledger.borrow_mut();
        ledger.give_back(self.account, Place::Disk, RECORD);
    }
}

/// Chunks in transfer are freed when their answer arrives.
impl Drop for Keeping {
    fn drop(&mut self) {
        let custody = &self.keeper.custody;
        custody.ledger.borrow_mut().close(self.account);
        for chunk in self.spilled.values() {
            if let Chunk::OnDisk(spot, _) = chunk {
                custody.forget(*spot);
            }
        }
    }
}

impl FlowBuffers {
    /// Takes over a predecessor's custody: in memory, and the chunks of `on_disk` that the flow
    /// needs.
    pub(in crate::table) fn begin_keeping(&mut self, on_disk: &mut BTreeMap<u64, Spot>) {
        let (outward, initial) = (self.outward as usize, self.initial);
        self.keeping.settle(initial, self.charged[outward]);
        for start in self.outgoing.on_disk() {
            let spot = on_disk.remove(&start).expect("where the map has it from");
            self.keeping.put(start, Chunk::OnDisk(spot, 0));
            let ledger = &mut *self.keeping.keeper.custody.ledger.borrow_mut();
            ledger.take(self.keeping.account, Place::Disk, RECORD);
        }
        // The peer may have any of the bytes taken before, but none of those on disk, which no
        // session knew.
        let first_on_disk = self.keeping.first_on_disk();
        self.keeping.announced = first_on_disk.unwrap_or(self.outgoing.tail());
        if self.source_finished {
            self.keeping.ending = Ending::Unsaid;
        }
    }

    /// Sets the client's host, to whose share of custody the flow counts. To be called once.
    pub(in crate::table) fn belong_to(&mut self, host: Host) {
        self.host = Some(host);
        let ledger = &mut *self.keeping.keeper.custody.ledger.borrow_mut();
        ledger.belong(self.keeping.account, host);
    }

    /// Sets whether the link is down.
    pub(crate) fn set_link_down(&mut self, link_down: bool) {
        if self.keeping.link_down != link_down {
            self.keeping.link_down = link_down;
            self.keeping.patience = Patience::default();
            self.wake();
        }
    }

    /// Returns the flow's custody policy.
    pub(in crate::table) fn policy(&self) -> Policy {
        self.keeping.keeper.policy
    }

    /// Returns whether the link is down.
    pub(crate) fn is_link_down(&self) -> bool {
        self.keeping.link_down
    }

    /// Returns how many bytes pepd takes from the leg now.
    pub(super) fn acceptable(&self) -> u64 {
        let wanted = if self.keeping.holds_more_than_needed() {
            u64::MAX
        } else {
            self.unsent_max.saturating_sub(self.unsent())
        };
        if self.keeping.spilled.is_empty() {
            return wanted;
        }
        // Without a free chunk the bytes on disk could never return.
        let kept = (self.spare() / 2).max(1);
        let free = (self.outgoing.available() as u64).saturating_sub(kept);
        wanted.min(self.outgoing.left_begun() + free * CHUNK)
    }

    /// Returns the number of chunks withheld from bytes that the session knows.
    fn spare(&self) -> u64 {
        SPARE.min(self.outgoing.extent() / CHUNK / 4)
    }

    /// Returns whether bytes may go to the disk in an outage.
    fn may_spill(&self) -> bool {
        let keeper = &self.keeping.keeper;
        keeper.policy.when != KeepWhen::Never && keeper.custody.spill.borrow().is_some()
    }

    /// Returns how many of the youngest bytes are withheld from the session when memory is scarce.
    ///
    /// The session notices an outage late, and sends all bytes that it knows until then. Sent bytes
    /// stay in memory. If they filled it, pepd could take no more of the flow. Nothing is withheld
    /// of a few bytes, so that a flow that waits for memory makes progress.
    fn kept_back(&self) -> u64 {
        let ledger = self.keeping.keeper.custody.ledger.borrow();
        if ledger.fits(self.keeping.account, Place::Memory, SCARCE) {
            return 0;
        }
        self.outgoing.len() / KEPT_BACK / CHUNK * CHUNK
    }

    /// Returns the memory charged for bytes from the leg, within the limit.
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
        tracing::error!(peer, flow, position, %error, "flow reset: its bytes in custody are damaged; check the disk of `custody.directory`");
        let counters = &self.keeping.keeper.custody.counters;
        counters.update(|stats| stats.custody_flows_damaged += 1);
        self.keeping.loss = Some(Loss::Damaged);
        self.wake();
    }

    /// Returns the reason for which the flow cannot continue, if any.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.keeping.loss
    }

    /// Returns the bytes that the session knows and has not sent.
    pub(super) fn announced_and_unsent(&self) -> u64 {
        self.keeping.announced.saturating_sub(self.sent.get())
    }

    /// Returns the position below which some session may have known the leg's bytes.
    pub(in crate::table) fn announced(&self) -> u64 {
        self.keeping.announced
    }

    /// Returns whether some session may have known all bytes of the leg.
    pub(in crate::table) fn is_announced(&self) -> bool {
        self.keeping.announced >= self.outgoing.tail()
    }

    /// Returns whether the session lacks bytes or the end of the leg.
    pub(crate) fn is_behind(&self) -> bool {
        !self.is_announced() || self.keeping.ending == Ending::Unsaid
    }

    /// Handles the end of the leg's bytes.
    pub(crate) fn finish(&mut self) {
        self.source_finished = true;
        self.publish_direction(self.outward);
        self.keeping.ending = Ending::Unsaid;
    }

    /// Starts another session at `from`. Returns the position that it knows at once, and whether
    /// the stream ends there.
    pub(crate) fn known_so_far(&mut self, from: u64) -> (u64, bool) {
        self.keeping.announced = self.keeping.announced.max(from);
        self.advance();
        if self.source_finished {
            self.keeping.ending = Ending::Unsaid;
        }
        (self.keeping.announced, self.says_end())
    }

    /// Returns whether the session is to learn of the stream's end now; true once.
    pub(crate) fn says_end(&mut self) -> bool {
        let all = self.keeping.announced == self.outgoing.tail();
        let now = all && self.keeping.ending == Ending::Unsaid;
        if now {
            self.keeping.ending = Ending::Said;
        }
        now
    }

    /// Returns how far the session may send now. Starts to fetch the bytes needed next from the
    /// disk.
    pub(crate) fn advance(&mut self) -> u64 {
        if self.keeping.loss.is_some() {
            return self.keeping.announced;
        }
        let head = self.outgoing.head();
        let ahead = self.sent.get().max(head) + self.unsent_max;
        let first_on_disk = self.keeping.first_on_disk();
        let mut until = self.outgoing.tail().min(ahead);
        if let Some(first) = first_on_disk {
            until = until.min(first);
        }
        if self.keeping.holds_more_than_needed() || first_on_disk.is_some() || self.may_spill() {
            // Bytes in flight must leave room for new ones.
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
        if first_on_disk.is_some() && !self.keeping.link_down && self.fetch(due) {
            // Bytes needed later give up their place.
            self.spill(UNDER_WAY, due);
        }
        self.keeping.announced
    }

    /// Ends a flow that cannot continue, and wakes one that waits for room; called every second.
    /// Computes checksums of chunks that have waited for a while, up to `sums`.
    pub(crate) fn keep(&mut self, now: Duration, sums: &mut usize) {
        if self.keeping.link_down {
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
