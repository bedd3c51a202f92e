//! What is in custody: bytes that a host was told we have, and that nobody else has yet. Who may hold how many of
//! them, where.
//!
//! ```text
//!             all                  each of them has a bound in memory and one on disk;
//!            /   \                 a flow takes only what fits into those of itself, of its site and of all
//!        site     site
//!        /  \        \
//!     flow  flow      flow
//! ```
//!
//! **Fairness.** What is in custody cannot be withdrawn while the link is away, so nobody may take all. A flow holds at most
//! [`SHARE`] times what is left to its site and to all (dynamic thresholds: Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking, 1998). One flow alone gets 8/9 of everything; n flows
//! that want all get 8/(8n + 1) each; and there is always something left for one that begins. In memory, flows that were
//! there before have more than [their part](Ledger::surplus) then, and are to move it to the disk.
//!
//! **No silly windows.** Who was refused is served again only when there is room for [`REOPEN`] more, not for each byte that becomes free.

mod patience;
#[cfg(test)]
mod tests;

pub use patience::Patience;

/// A flow holds at most so many times what is left.
pub const SHARE: u64 = 8;

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
    all: Account,
    sites: Vec<Account>,
    flows: Vec<Option<FlowAccount>>,
    free: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    most: [u64; 2],
    held: [u64; 2],
}

#[derive(Debug, Clone, Copy)]
struct FlowAccount {
    site: SiteKey,
    account: Account,
    /// It was refused, and waits for more than a byte.
    waits: [bool; 2],
}

impl Account {
    fn new(bounds: Bounds) -> Self {
        Self {
            most: bounds.by_place(),
            held: [0; 2],
        }
    }

    fn left(&self, place: Place) -> u64 {
        let place = place as usize;
        self.most[place].saturating_sub(self.held[place])
    }
}

impl Ledger {
    /// Nobody holds anything, and all together may hold so much.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            all: Account::new(bounds),
            sites: Vec::new(),
            flows: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Another site.
    pub fn add_site(&mut self, bounds: Bounds) -> SiteKey {
        self.sites.push(Account::new(bounds));
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

    /// A flow has ended: it holds nothing any more.
    pub fn close(&mut self, flow: FlowKey) {
        for place in Place::ALL {
            self.give_back(flow, place, self.held(flow, place));
        }
        self.flows[flow.0] = None;
        self.free.push(flow.0);
    }

    /// What a flow holds.
    pub fn held(&self, flow: FlowKey, place: Place) -> u64 {
        self.flow(flow).account.held[place as usize]
    }

    /// What the flows of a site hold.
    pub fn held_by_site(&self, site: SiteKey, place: Place) -> u64 {
        self.sites[site.0].held[place as usize]
    }

    /// What all hold.
    pub fn held_by_all(&self, place: Place) -> u64 {
        self.all.held[place as usize]
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
        for account in self.accounts(flow) {
            account.held[place as usize] += bytes;
        }
    }

    /// A flow holds `bytes` less.
    ///
    /// # Panics
    /// When it held fewer.
    pub fn give_back(&mut self, flow: FlowKey, place: Place, bytes: u64) {
        for account in self.accounts(flow) {
            let held = &mut account.held[place as usize];
            *held = held.checked_sub(bytes).expect("not more than was taken");
        }
    }

    /// What a flow holds beyond its part: so many bytes fewer, and it had no more than that.
    pub fn surplus(&self, flow: FlowKey, place: Place) -> u64 {
        let of_flow = self.flow(flow);
        let held = of_flow.account.held[place as usize];
        let left = self.left(flow, place).saturating_mul(SHARE);
        // With r bytes fewer there are r more left, and its part is SHARE * r larger.
        held.saturating_sub(left).div_ceil(1 + SHARE)
    }

    /// Whether the flow was refused, and has got nothing since.
    pub fn waits(&self, flow: FlowKey, place: Place) -> bool {
        self.flow(flow).waits[place as usize]
    }

    /// What is left in the tightest of the accounts above a flow.
    fn left(&self, flow: FlowKey, place: Place) -> u64 {
        let site = &self.sites[self.flow(flow).site.0];
        site.left(place).min(self.all.left(place))
    }

    fn fits(&self, flow: FlowKey, place: Place, bytes: u64) -> bool {
        let of_flow = self.flow(flow);
        let site = &self.sites[of_flow.site.0];
        let within = |account: &Account, above: &Account| {
            let left = above.left(place).checked_sub(bytes);
            let held = account.held[place as usize].saturating_add(bytes);
            left.is_some_and(|left| held <= left.saturating_mul(SHARE))
        };
        of_flow.account.left(place) >= bytes
            && within(&of_flow.account, site)
            && within(&of_flow.account, &self.all)
    }

    fn reopen(&self, flow: FlowKey, place: Place) -> u64 {
        let of_flow = self.flow(flow);
        let above = [&of_flow.account, &self.sites[of_flow.site.0], &self.all];
        let bounds = above.map(|account| account.most[place as usize] / 16);
        bounds.into_iter().fold(REOPEN, u64::min)
    }

    fn flow(&self, flow: FlowKey) -> &FlowAccount {
        self.flows[flow.0].as_ref().expect("an open flow")
    }

    fn flow_mut(&mut self, flow: FlowKey) -> &mut FlowAccount {
        self.flows[flow.0].as_mut().expect("an open flow")
    }

    fn accounts(&mut self, flow: FlowKey) -> [&mut Account; 3] {
        let of_flow = self.flows[flow.0].as_mut().expect("an open flow");
        let site = &mut self.sites[of_flow.site.0];
        [&mut of_flow.account, site, &mut self.all]
    }
}
