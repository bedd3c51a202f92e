//! Custody accounting: bytes that pepd has acknowledged to a host and that no other machine has
//! yet. Limits per flow, host, peer and site, in memory and on disk.
//!
//! ```text
//!             all                  each of them has a bound in memory and one on disk;
//!            /   \                 a flow takes only what fits into all bounds above it
//!        site     site
//!          |        |
//!        peer     peer             a part of what is left above them
//!        /  \        \
//!     host  host      host
//!     /  \      \        \
//!  flow  flow   flow     flow
//! ```
//!
//! **Fairness.** Bytes in custody cannot be withdrawn while the link is down, so no flow, and no
//! host with many flows, may take everything. Nor may a peer, which may invent hosts: where other
//! peers have flows, it holds at most [`PEER_SHARE`] times what is left to its site and to all. A
//! host holds at most [`HOST_SHARE`] times what that leaves to its peer, or [`SHARE`] times where
//! no other host has a flow. A flow holds at most [`SHARE`] times what that leaves to its host.
//! These are dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for
//! shared-memory packet switches", IEEE/ACM Transactions on Networking, 1998), at three levels.
//!
//! - A single host gets 8/9 of everything, and its only flow 64/73.
//! - Beside others it gets 2/3 at most, by however many flows; n hosts that take at the same pace
//!   get 2/(2n + 1) each.
//! - A host that comes when another has taken its maximum still gets 7 % with its first flow.
//!
//! Beside other peers, a peer gets 2/3 at most, and its only host 4/7. A peer that comes when
//! another has taken its maximum still gets 6 % with its first flow.
//!
//! In memory, earlier flows then have more than [their share](Ledger::surplus), and have to move
//! the surplus to disk. Flows of unknown hosts each hold at most [`SHARE`] times what is left.
//!
//! **Threads.** Each thread has its own ledger, and they [share](Ledger::sharing) bounds and held
//! bytes. A [`try_take`](Ledger::try_take) counts at once in all ledgers, or fails. A host with
//! flows in n ledgers counts as n hosts, and gets 1 - 1/3^n at most: 8/9 with two ledgers. Other
//! hosts get their part of the rest. A common account of each host would need a lock.
//!
//! **No silly windows.** A refused flow is served again only when [`REOPEN`] more bytes fit, not
//! for each byte that becomes free.

mod patience;
mod pool;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod tests;

pub use patience::Patience;

use crate::hosts::Host;
use pool::{Account, Owner, Pool};

/// Maximum of open files in `custody.directory`.
pub const FILES_OPEN: usize = 16;

/// Maximum of a flow, and of the only host, as a multiple of what is left.
pub const SHARE: u64 = 8;

/// Maximum of a host beside others with flows, as a multiple of what is left.
pub const HOST_SHARE: u64 = 2;

/// Maximum of a peer beside others with flows, as a multiple of what is left.
pub const PEER_SHARE: u64 = 2;

/// Bytes that have to fit before a refused flow is served again, or a sixteenth of the smallest
/// bound above it if that is less.
pub const REOPEN: u64 = 256 << 10;

/// Storage of bytes in custody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the arena.
    Memory,
    /// In the spill directory.
    Disk,
}

impl Place {
    /// Both places.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];
}

/// Maximum bytes held, by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In memory.
    pub memory: u64,
    /// On disk.
    pub disk: u64,
}

impl Bounds {
    /// No bounds beyond those of the levels above.
    pub const NONE: Self = Self {
        memory: u64::MAX,
        disk: u64::MAX,
    };

    fn by_place(self) -> [u64; 2] {
        [self.memory, self.disk]
    }
}

/// A site of a [`Ledger`], and of those that share with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteKey(usize);

/// A flow of a [`Ledger`]. Reused for another flow after it was [closed](Ledger::close).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey(usize);

/// Held bytes and bounds of all flows.
#[derive(Debug)]
pub struct Ledger {
    all: Pool,
    sites: Vec<Pool>,
    flows: Vec<Option<FlowAccount>>,
    free: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct FlowAccount {
    site: SiteKey,
    owner: Owner,
    account: Account,
    /// The flow was refused, and waits for more than a byte.
    waits: [bool; 2],
}

impl Ledger {
    /// Returns an empty ledger with these bounds for all flows together.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            all: Pool::new(bounds),
            sites: Vec::new(),
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Returns an empty ledger for another thread, with the bounds and sites of `other`. The flows
    /// of both count together. Sites added later are not shared.
    pub fn sharing(other: &Self) -> Self {
        Self {
            all: other.all.sharing(),
            sites: other.sites.iter().map(Pool::sharing).collect(),
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Returns the site that was added as number `index`, from 0.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn site(&self, index: usize) -> SiteKey {
        assert!(index < self.sites.len(), "site {index}");
        SiteKey(index)
    }

    /// Adds a site.
    pub fn add_site(&mut self, bounds: Bounds) -> SiteKey {
        self.sites.push(Pool::new(bounds));
        SiteKey(self.sites.len() - 1)
    }

    /// Adds a flow of a peer. All flows of a peer are to be in one ledger.
    ///
    /// # Panics
    /// When the site is of another ledger.
    pub fn open(&mut self, site: SiteKey, peer: usize, bounds: Bounds) -> FlowKey {
        assert!(site.0 < self.sites.len());
        self.sites[site.0].open(peer);
        self.all.open(peer);
        let flow = Some(FlowAccount {
            site,
            owner: Owner { peer, host: None },
            account: Account::new(bounds),
            waits: [false; 2],
        });
        let key = self.free.pop().unwrap_or(self.flows.len());
        if key == self.flows.len() {
            self.flows.push(flow);
        } else {
            self.flows[key] = flow;
        }
        FlowKey(key)
    }

    /// Assigns a flow, with its held bytes, to a host. To be called once.
    pub fn belong(&mut self, flow: FlowKey, host: Host) {
        let (of_flow, pools) = self.above(flow);
        debug_assert!(of_flow.owner.host.is_none(), "belong() called twice");
        of_flow.owner.host = Some(host);
        let held = of_flow.account.held();
        for pool in pools {
            pool.join(host, held);
        }
    }

    /// Removes a flow that has ended, with its held bytes.
    pub fn close(&mut self, flow: FlowKey) {
        for place in Place::ALL {
            self.give_back(flow, place, self.held(flow, place));
        }
        let owner = self.flow(flow).owner;
        for pool in self.above(flow).1 {
            pool.close(owner);
        }
        self.flows[flow.0] = None;
        self.free.push(flow.0);
    }

    /// Bytes held by a flow.
    pub fn held(&self, flow: FlowKey, place: Place) -> u64 {
        self.flow(flow).account.held()[place as usize]
    }

    /// Bytes held by the flows of a site, in all ledgers that share it.
    pub fn held_by_site(&self, site: SiteKey, place: Place) -> u64 {
        self.sites[site.0].held(place)
    }

    /// Bytes held by all flows, in all ledgers that share.
    pub fn held_by_all(&self, place: Place) -> u64 {
        self.all.held(place)
    }

    /// Takes `bytes` for a flow, if its bounds allow them.
    #[must_use]
    pub fn try_take(&mut self, flow: FlowKey, place: Place, bytes: u64) -> bool {
        let waits = self.flow(flow).waits[place as usize];
        let wanted = if waits {
            bytes.max(self.reopen(flow, place))
        } else {
            bytes
        };
        let (of_flow, [site, all]) = self.above(flow);
        let (owner, held) = (of_flow.owner, of_flow.account.held()[place as usize]);
        let sizes = (wanted, bytes);
        let fits = of_flow.account.left(place) >= wanted;
        let by_site = fits && site.try_take(owner, place, held, sizes);
        let taken = by_site && all.try_take(owner, place, held, sizes);
        if taken {
            of_flow.account.take(place, bytes);
        } else if by_site {
            site.give_back(owner, place, bytes);
        }
        of_flow.waits[place as usize] = !taken;
        taken
    }

    /// Takes `bytes` for a flow beyond any bound, for bytes that it has already.
    pub fn take(&mut self, flow: FlowKey, place: Place, bytes: u64) {
        let (of_flow, pools) = self.above(flow);
        of_flow.account.take(place, bytes);
        for pool in pools {
            pool.take(of_flow.owner, place, bytes);
        }
    }

    /// Returns `bytes` of a flow.
    ///
    /// # Panics
    /// When it held fewer.
    pub fn give_back(&mut self, flow: FlowKey, place: Place, bytes: u64) {
        let (of_flow, pools) = self.above(flow);
        of_flow.account.give_back(place, bytes);
        for pool in pools {
            pool.give_back(of_flow.owner, place, bytes);
        }
    }

    /// Bytes of the flow beyond its share, or of its host or its peer beyond theirs. With that many
    /// bytes of this flow fewer, none exceeds its share, or the flow has none.
    pub fn surplus(&self, flow: FlowKey, place: Place) -> u64 {
        let of_flow = self.flow(flow);
        let held = of_flow.account.held()[place as usize];
        let pools = [&self.sites[of_flow.site.0], &self.all];
        let surplus = pools.map(|pool| pool.surplus(of_flow.owner, place, held));
        surplus[0].max(surplus[1])
    }

    /// Reports whether the flow was refused, and has got nothing since.
    pub fn waits(&self, flow: FlowKey, place: Place) -> bool {
        self.flow(flow).waits[place as usize]
    }

    /// Reports whether a flow may hold `bytes` more.
    pub fn fits(&self, flow: FlowKey, place: Place, bytes: u64) -> bool {
        let of_flow = self.flow(flow);
        let held = of_flow.account.held()[place as usize];
        let mut pools = [&self.sites[of_flow.site.0], &self.all].into_iter();
        of_flow.account.left(place) >= bytes
            && pools.all(|pool| pool.fits(of_flow.owner, place, held, bytes))
    }

    fn reopen(&self, flow: FlowKey, place: Place) -> u64 {
        let of_flow = self.flow(flow);
        let site = &self.sites[of_flow.site.0];
        let bounds = [
            of_flow.account.most(place),
            site.most(place),
            self.all.most(place),
        ];
        let bounds = bounds.map(|most| most / 16);
        bounds.into_iter().fold(REOPEN, u64::min)
    }

    fn flow(&self, flow: FlowKey) -> &FlowAccount {
        self.flows[flow.0].as_ref().expect("an open flow")
    }

    /// Returns a flow and the pools that it takes from.
    fn above(&mut self, flow: FlowKey) -> (&mut FlowAccount, [&mut Pool; 2]) {
        let of_flow = self.flows[flow.0].as_mut().expect("an open flow");
        let site = &mut self.sites[of_flow.site.0];
        (of_flow, [site, &mut self.all])
    }
}
