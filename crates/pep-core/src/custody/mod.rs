//! What is in custody: bytes that a host was told we have, and that nobody else has yet. Who may hold how many of
//! them, where.
//!
//! ```text
//!             all                  each of them has a bound in memory and one on disk;
//!            /   \                 a flow takes only what fits into those of itself, of its site and of all
//!        site     site
//!        /  \        \
//!     host  host      host         a part of what is left above them
//!     /  \      \        \
//!  flow  flow   flow     flow
//! ```
//!
//! **Fairness.** What is in custody cannot be withdrawn while the link is away, so nobody may take all: neither a flow, nor a host by many
//! flows. A host holds at most [`HOST_SHARE`] times what is left to its site and to all, or [`SHARE`] times where no other host has a flow;
//! and a flow at most [`SHARE`] times what that leaves to its host (dynamic thresholds: Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking, 1998, at two levels).
//!
//! - A host alone gets 8/9 of everything, and its one flow 64/73.
//! - Beside others it gets 2/3 at most, by however many flows; n hosts that take at the same pace get 2/(2n + 1) each.
//! - One that comes when another has taken all it could alone still gets 7 % with its first flow.
//!
//! In memory, flows that were there before have more than [their part](Ledger::surplus) then, and are to move it to the disk.
//! Flows of unknown hosts hold at most [`SHARE`] times what is left, each by itself.
//!
//! **No silly windows.** Who was refused is served again only when there is room for [`REOPEN`] more, not for each byte that becomes free.

mod patience;
mod pool;
#[cfg(test)]
mod shares;
#[cfg(test)]
mod tests;

pub use patience::Patience;

use crate::hosts::Host;
use pool::{Account, Pool};

/// A flow holds at most so many times what is left, and a host where there is no other.
pub const SHARE: u64 = 8;

/// A host holds at most so many times what is left, where another has flows, too.
pub const HOST_SHARE: u64 = 2;

/// Who was refused gets nothing before so many bytes fit, or a sixteenth of the least bound above him if that is less.
pub const REOPEN: u64 = 256 << 10;

/// Where bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the arena.
    Memory,
    /// In the spill folder.
    Disk,
}

impl Place {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Memory, Self::Disk];
}

/// Bytes that may be held at most, by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// In memory.
    pub memory: u64,
    /// On disk.
    pub disk: u64,
}

impl Bounds {
    /// As much as those above allow.
    pub const NONE: Self = Self {
        memory: u64::MAX,
        disk: u64::MAX,
    };

    fn by_place(self) -> [u64; 2] {
        [self.memory, self.disk]
    }
}

/// A site of a [`Ledger`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteKey(usize);

/// A flow of a [`Ledger`]. May be given to another one once it was [closed](Ledger::close).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowKey(usize);

/// What is held by whom, and what may be.
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
    host: Option<Host>,
    account: Account,
    /// It was refused, and waits for more than a byte.
    waits: [bool; 2],
}

impl Ledger {
    /// Nobody holds anything, and all together may hold so much.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            all: Pool::new(bounds),
            sites: Vec::new(),
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Another site.
    pub fn add_site(&mut self, bounds: Bounds) -> SiteKey {
        self.sites.push(Pool::new(bounds));
        SiteKey(self.sites.len() - 1)
    }

    /// A flow begins.
    ///
    /// # Panics
    /// When the site is of another ledger.
    pub fn open(&mut self, site: SiteKey, bounds: Bounds) -> FlowKey {
        assert!(site.0 < self.sites.len());
        let flow = Some(FlowAccount {
            site,
            host: None,
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

    /// A flow is this host's, with what it holds already. To be said once.
    pub fn belong(&mut self, flow: FlowKey, host: Host) {
        let (of_flow, pools) = self.above(flow);
        debug_assert!(of_flow.host.is_none(), "said twice");
        of_flow.host = Some(host);
        let held = of_flow.account.held();
        for pool in pools {
            pool.join(host, held);
        }
    }

    /// A flow has ended: it holds nothing any more.
    pub fn close(&mut self, flow: FlowKey) {
        for place in Place::ALL {
            self.give_back(flow, place, self.held(flow, place));
        }
        if let Some(host) = self.flow(flow).host {
            for pool in self.above(flow).1 {
                pool.leave(host);
            }
        }
        self.flows[flow.0] = None;
        self.free.push(flow.0);
    }

    /// What a flow holds.
    pub fn held(&self, flow: FlowKey, place: Place) -> u64 {
        self.flow(flow).account.held()[place as usize]
    }

    /// What the flows of a site hold.
    pub fn held_by_site(&self, site: SiteKey, place: Place) -> u64 {
        self.sites[site.0].held(place)
    }

    /// What all hold.
    pub fn held_by_all(&self, place: Place) -> u64 {
        self.all.held(place)
    }

    /// Takes `bytes` for a flow, if it may hold so many more.
    #[must_use]
    pub fn try_take(&mut self, flow: FlowKey, place: Place, bytes: u64) -> bool {
        let waits = self.flow(flow).waits[place as usize];
        let wanted = if waits {
            bytes.max(self.reopen(flow, place))
        } else {
            bytes
        };
        let fits = self.fits(flow, place, wanted);
        self.flow_mut(flow).waits[place as usize] = !fits;
        if fits {
            self.take(flow, place, bytes);
        }
        fits
    }

    /// Takes `bytes` for a flow, whatever is left: for what it has already.
    pub fn take(&mut self, flow: FlowKey, place: Place, bytes: u64) {
        let (of_flow, pools) = self.above(flow);
        of_flow.account.take(place, bytes);
        for pool in pools {
            pool.take(of_flow.host, place, bytes);
        }
    }

    /// A flow holds `bytes` less.
    ///
    /// # Panics
    /// When it held fewer.
    pub fn give_back(&mut self, flow: FlowKey, place: Place, bytes: u64) {
        let (of_flow, pools) = self.above(flow);
        of_flow.account.give_back(place, bytes);
        for pool in pools {
            pool.give_back(of_flow.host, place, bytes);
        }
    }

    /// What a flow holds beyond its part, or its host beyond that of the host: so many bytes fewer of this flow, and neither had more than
    /// that, or the flow had none.
    pub fn surplus(&self, flow: FlowKey, place: Place) -> u64 {
        let of_flow = self.flow(flow);
        let held = of_flow.account.held()[place as usize];
        let pools = [&self.sites[of_flow.site.0], &self.all];
        let surplus = pools.map(|pool| pool.surplus(of_flow.host, place, held));
        surplus[0].max(surplus[1])
    }

    /// Whether the flow was refused, and has got nothing since.
    pub fn waits(&self, flow: FlowKey, place: Place) -> bool {
        self.flow(flow).waits[place as usize]
    }

    /// True where a flow may hold so many bytes more.
    pub fn fits(&self, flow: FlowKey, place: Place, bytes: u64) -> bool {
        let of_flow = self.flow(flow);
        let held = of_flow.account.held()[place as usize];
        let mut pools = [&self.sites[of_flow.site.0], &self.all].into_iter();
        of_flow.account.left(place) >= bytes
            && pools.all(|pool| pool.fits(of_flow.host, place, held, bytes))
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

    fn flow_mut(&mut self, flow: FlowKey) -> &mut FlowAccount {
        self.flows[flow.0].as_mut().expect("an open flow")
    }

    /// A flow, and the pools that it takes from.
    fn above(&mut self, flow: FlowKey) -> (&mut FlowAccount, [&mut Pool; 2]) {
        let of_flow = self.flows[flow.0].as_mut().expect("an open flow");
        let site = &mut self.sites[of_flow.site.0];
        (of_flow, [site, &mut self.all])
    }
}
