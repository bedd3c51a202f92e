//! Credit of peers: memory taken from the budget before a peer may send.
//!
//! ```text
//!   limits.memory
//!   |== base of each peer ==|------ lent by need ------|  own flows' sent bytes, and new flows  |
//!   0               up to 1/8                         1/2                                       1
//!
//!   one peer     | granted, in flight | received, for legs |
//!                  <= base + lendable bytes / peers that need more than their base,
//!                     and beside others two thirds of what is free
//! ```
//!
//! Granted credit cannot be withdrawn, so a peer gets what it needs and no more. Its need is what
//! arrived within its window (eight round trips and some reports), or an estimate from the link's
//! figures. Credit that it does not need any more gets used up and is not granted again. Granted
//! credit is taken from the budget; received bytes are charged to their flows, which frees their
//! credit.
//!
//! Bytes received ahead of missing ones are part of a peer's need. Bytes that only wait for a leg
//! are not: all flows of a peer share its part, and those with stalled servers would starve the
//! others.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use pep_core::budget::{BESIDE, MemoryBudget, MemoryPart, Share};
use tunnel::session::Session;

use super::table::Table;

/// Divisor: all bases together take up to this part of the budget.
const BASES: u64 = 8;
/// Divisor: all credit together takes up to this part of the budget.
pub(super) const ALL: u64 = 2;
/// Minimum of bytes below which a peer would make no progress.
const MIN: u64 = 4 << 10;
/// Credit as a multiple of what arrives within a [`round`]. On lossy links bytes wait for others
/// that are in their fourth transmission, and received bytes count as well.
const ROUNDS: u64 = 8;
/// Shortest period that gives a measurement.
const PERIOD_MIN: Duration = Duration::from_millis(10);

/// Returns the bytes that a peer may send while its needs are unknown: `wanted`, or its part of the
/// bases.
pub(super) fn base(budget: u64, peers: usize, wanted: u64) -> u64 {
    let part = budget / BASES / peers.max(1) as u64;
    part.min(wanted).max(MIN)
}

/// Returns a [`ROUNDS`]th of the peer's window: about a round trip, plus the delay of reports on
/// slow paths.
pub(super) fn round(session: &Session) -> Duration {
    session.peer_window() / ROUNDS as u32
}

/// Sums over the peers of all threads. Threads that grant at the same time may exceed the maximum
/// by one grant each; the budget itself is never exceeded.
#[derive(Debug)]
pub(super) struct Pool {
    /// Maximum of all peers together, in flight and received.
    all: u64,
    bases: AtomicU64,
    /// Bytes of all peers, in flight and received.
    had: AtomicU64,
    /// Number of peers that need more than their base.
    claimants: AtomicU64,
    peers: AtomicU64,
}

impl Pool {
    /// Creates the sums, without peers.
    pub(super) fn new(budget: &MemoryBudget) -> Arc<Self> {
        Arc::new(Self {
            all: budget.limit() / ALL,
            bases: AtomicU64::new(0),
            had: AtomicU64::new(0),
            claimants: AtomicU64::new(0),
            peers: AtomicU64::new(0),
        })
    }
}

/// The credit of the peers of one thread.
#[derive(Debug)]
pub(super) struct Credits {
    accounts: Vec<Account>,
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Account {
    base: u64,
    /// Bytes in flight that are allowed while the need is unknown.
    minimum: u64,
    /// Estimated need; 0 without a session.
    need: u64,
    /// Credit granted and not yet used, no less than the base.
    granted: Share,
    /// Received bytes that legs have not taken.
    taken: u64,
    /// Bytes and claims of this account within the sums of all.
    counted: (u64, u64),
    meter: Meter,
}

/// A session's figures that determine credit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    /// Bytes received since the session began, as the peer counts them: also those of reset
    /// streams that it says to have sent.
    pub(super) received: u64,
    /// Bytes of streams that have come since the session began.
    pub(super) came: u64,
    /// Bytes allowed since the session began.
    pub(super) allowed: u64,
    /// Received bytes held for legs.
    pub(super) taken: u64,
    /// Part of `taken` that legs could have taken already.
    pub(super) waiting: u64,
}

impl Usage {
    pub(super) fn new(session: &Session, table: &Table) -> Self {
        Self {
            received: session.session_received(),
            came: table.came(),
            allowed: session.session_allowed(),
            taken: table.taken(),
            waiting: table.waiting(),
        }
    }

    fn in_flight(&self) -> u64 {
        self.allowed.saturating_sub(self.received)
    }
}

impl Credits {
    /// Creates the value without peers.
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self {
            accounts: Vec::new(),
            pool: Arc::clone(pool),
        }
    }

    /// Adds a peer, which may have `minimum` bytes in flight while its need is unknown. Takes its
    /// [base] from the budget, as a part of the peer's memory.
    pub(super) fn add(&mut self, base: u64, minimum: u64, memory: &Arc<MemoryPart>) {
        let mut granted = Share::none_of(memory);
        granted.grow(base);
        self.pool.bases.fetch_add(base, Relaxed);
        self.pool.peers.fetch_add(1, Relaxed);
        let mut account = Account {
            base,
            minimum,
            need: 0,
            granted,
            taken: 0,
            counted: (0, 0),
            meter: Meter::default(),
        };
        account.count(&self.pool);
        self.accounts.push(account);
    }

    /// Resets a peer's account when its session ends.
    pub(super) fn on_end(&mut self, peer: usize) {
        let account = &mut self.accounts[peer];
        (account.need, account.taken, account.meter) = (0, 0, Meter::default());
        account.hold(0);
        account.count(&self.pool);
    }

    /// Returns the offset up to which the peer may send.
    pub(super) fn grant(
        &mut self,
        peer: usize,
        now: Duration,
        round: impl FnOnce() -> Duration,
        usage: &Usage,
    ) -> u64 {
        let account = &mut self.accounts[peer];
        let came = account.meter.note(now, round, usage.came);
        account.need = account.minimum.max(came.saturating_mul(ROUNDS));
        account.taken = usage.taken;
        account.count(&self.pool);
        let most = account.most(&self.pool);
        let target = account.need.max(account.base).min(most);
        let ahead = usage.taken.saturating_sub(usage.waiting);
        let more = target
            .saturating_sub(ahead)
            .min(most.saturating_sub(usage.taken));
        let in_flight = usage.in_flight().max(more);
        let granted = account.hold(in_flight).max(usage.in_flight());
        account.count(&self.pool);
        usage.received.saturating_add(granted)
    }

    /// Returns the peer's maximum of bytes, in flight and received.
    pub(super) fn most(&self, peer: usize) -> u64 {
        self.accounts[peer].most(&self.pool)
    }

    /// Returns the credit granted and not yet used.
    #[cfg(test)]
    pub(super) fn granted(&self) -> u64 {
        let accounts = self.accounts.iter();
        accounts.map(|account| account.granted.bytes()).sum()
    }
}

impl Account {
    /// Corrects the sums by what has changed in this account.
    fn count(&mut self, pool: &Pool) {
        let has = (self.granted.bytes() + self.taken).max(self.base);
        let claims = u64::from(self.need > self.base);
        let (had, claimed) = std::mem::replace(&mut self.counted, (has, claims));
        // Sums wrap, so that a difference may be negative.
        if has != had {
            pool.had.fetch_add(has.wrapping_sub(had), Relaxed);
        }
        if claims != claimed {
            let difference = claims.wrapping_sub(claimed);
            pool.claimants.fetch_add(difference, Relaxed);
        }
    }

    /// Returns the peer's maximum, in flight and received: its base and its part of what can be
    /// lent, as far as that is free. Beside other peers it leaves half as much as it is lent: what
    /// it has of the credit, it may keep. Call [`count`](Self::count) first.
    fn most(&self, pool: &Pool) -> u64 {
        let lendable = pool.all.saturating_sub(pool.bases.load(Relaxed));
        let part = lendable / pool.claimants.load(Relaxed).max(1);
        let others = pool.had.load(Relaxed).saturating_sub(self.counted.0);
        let free = pool.all.saturating_sub(others + self.base);
        let free = match pool.peers.load(Relaxed) {
            0 | 1 => free,
            _ => free / (BESIDE + 1) * BESIDE,
        };
        self.base + part.min(free)
    }

    /// Takes the bytes in flight from the budget, as far as it has them. Returns how many it took.
    fn hold(&mut self, in_flight: u64) -> u64 {
        let (had, wanted) = (self.granted.bytes(), in_flight.max(self.base));
        if wanted <= had {
            self.granted.give_back(had - wanted);
            return in_flight;
        }
        let mut more = wanted - had;
        while more > 0 && !self.granted.try_grow(more) {
            more /= 2;
        }
        in_flight.min(had + more)
    }
}

/// Recent maximum of bytes received within a [`round`].
#[derive(Debug, Default)]
struct Meter {
    since: Duration,
    received: u64,
    /// Maximum of each of the last two periods.
    most: [u64; 2],
}

impl Meter {
    fn note(&mut self, now: Duration, round: impl FnOnce() -> Duration, received: u64) -> u64 {
        if received < self.received {
            // A smaller count belongs to a new session.
            *self = Self::default();
        }
        let period = now.saturating_sub(self.since);
        if period >= PERIOD_MIN {
            let round = round().max(PERIOD_MIN);
            if period >= round {
                let came = (received - self.received) as f64;
                let share = round.as_secs_f64() / period.as_secs_f64();
                self.most = [(came * share) as u64, self.most[0]];
                (self.since, self.received) = (now, received);
            }
        }
        self.most[0].max(self.most[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const RTT: Duration = Duration::from_millis(100);

    struct Hub {
        budget: Arc<MemoryBudget>,
        credits: Credits,
        peers: Vec<Usage>,
        now: Duration,
    }

    impl Hub {
        fn new(peers: usize, limit: u64, minimum: u64) -> Self {
            let budget = Arc::new(MemoryBudget::new(limit));
            let mut credits = Credits::new(&Pool::new(&budget));
            let base = base(limit, peers, minimum);
            for _ in 0..peers {
                credits.add(base, minimum, &Arc::new(MemoryPart::new(&budget)));
            }
            let new = Usage {
                received: 0,
                came: 0,
                allowed: base,
                taken: 0,
                waiting: 0,
            };
            Self {
                budget,
                credits,
                peers: vec![new; peers],
                now: Duration::ZERO,
            }
        }

        fn grant(&mut self, peer: usize) {
            let usage = &mut self.peers[peer];
            let until = self.credits.grant(peer, self.now, || RTT, usage);
            usage.allowed = usage.allowed.max(until);
            let granted: u64 = self.peers.iter().map(Usage::in_flight).sum();
            assert!(
                granted <= self.budget.taken(),
                "every granted byte is taken from the budget"
            );
            assert!(self.budget.taken() <= self.budget.limit());
        }

        /// Advances by a round trip: all that peers may send arrives, and legs take it if they are
        /// `fast`.
        fn turn(&mut self, sending: &[usize], fast: bool, most: u64) {
            self.now += RTT;
            for &peer in sending {
                let usage = &mut self.peers[peer];
                let come = usage.in_flight().min(most);
                usage.received += come;
                usage.came += come;
                let stays = if fast { 0 } else { come };
                (usage.taken, usage.waiting) = (usage.taken + stays, usage.waiting + stays);
                self.grant(peer);
            }
            for peer in 0..self.peers.len() {
                self.grant(peer);
            }
        }

        fn held(&self) -> u64 {
            let peers = self.peers.iter();
            peers.map(|usage| usage.in_flight() + usage.taken).sum()
        }
    }

    #[test]
    fn one_peer_alone_fills_a_long_fat_path() {
        let mut hub = Hub::new(1, 1024 * MIB, 16 * MIB);
        for _ in 0..5 {
            hub.turn(&[0], true, 50 * MIB);
        }
        // 4 Gbit/s at 100 ms.
        assert!(hub.peers[0].in_flight() >= 50 * MIB * ROUNDS);
        assert!(hub.held() <= 512 * MIB);
    }

    #[test]
    fn several_greedy_peers_get_their_parts_within_the_budget() {
        for limit in [MIB, 16 * MIB, 64 * MIB] {
            let mut hub = Hub::new(4, limit, 4 * MIB);
            let base = base(limit, 4, 4 * MIB);
            // The first peer takes what it can while the others are idle.
            for _ in 0..10 {
                hub.turn(&[0], true, u64::MAX);
            }
            let alone = hub.peers[0].in_flight();
            for _ in 0..20 {
                hub.turn(&[0, 1, 2, 3], true, u64::MAX);
            }
            let all: Vec<_> = hub.peers.iter().map(Usage::in_flight).collect();
            let (minimum, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
            assert!(
                *minimum >= base && most - minimum <= base,
                "{all:?} of {limit}"
            );
            assert!(alone + base >= *most, "{alone}, {all:?} of {limit}");
            assert!(hub.held() <= limit / 2);
        }
    }

    #[test]
    fn peers_with_stalled_legs_stay_within_the_budget() {
        let mut hub = Hub::new(3, 64 * MIB, 16 * MIB);
        for _ in 0..50 {
            hub.turn(&[0, 1, 2], false, u64::MAX);
        }
        assert!(hub.held() <= 32 * MIB, "{}", hub.held());
        assert!(hub.peers.iter().all(|usage| usage.in_flight() == 0));
    }

    #[test]
    fn flows_whose_legs_take_nothing_leave_others_of_their_peer_what_these_need() {
        let mut hub = Hub::new(1, 64 * MIB, MIB);
        while hub.peers[0].taken < 8 * MIB {
            hub.turn(&[0], false, 100_000);
        }
        assert!(hub.peers[0].in_flight() >= MIB);
        for _ in 0..10 {
            hub.turn(&[0], true, u64::MAX);
        }
        assert!(hub.peers[0].in_flight() > 16 * MIB);
        assert!(hub.held() <= 32 * MIB, "{}", hub.held());
    }

    #[test]
    fn what_came_ahead_of_missing_bytes_is_part_of_what_is_needed() {
        let mut hub = Hub::new(1, 64 * MIB, MIB);
        hub.peers[0].taken = 8 * MIB;
        for _ in 0..20 {
            hub.turn(&[0], true, 100_000);
        }
        assert_eq!(hub.peers[0].in_flight(), 0);
    }

    #[test]
    fn what_a_peer_does_not_need_any_more_others_get() {
        let mut hub = Hub::new(2, 64 * MIB, MIB);
        for _ in 0..20 {
            hub.turn(&[0], true, u64::MAX);
        }
        assert!(hub.peers[0].in_flight() > 16 * MIB);
        for _ in 0..1000 {
            hub.turn(&[0], true, 100_000);
        }
        assert!(hub.peers[0].in_flight() <= MIB);
        for _ in 0..20 {
            hub.turn(&[1], true, u64::MAX);
        }
        assert!(hub.peers[1].in_flight() > 16 * MIB);
        hub.credits.on_end(1);
        hub.peers[1].allowed = hub.peers[1].received;
        hub.grant(0);
        assert!(hub.budget.taken() <= 3 * MIB);
    }

    /// A peer that says to have sent bytes on streams that it resets needs no more credit for it.
    #[test]
    fn what_never_came_is_no_need() {
        let mut hub = Hub::new(2, 64 * MIB, MIB);
        for _ in 0..20 {
            hub.now += RTT;
            hub.peers[0].received = hub.peers[0].allowed;
            hub.grant(0);
        }
        assert!(hub.peers[0].in_flight() <= MIB);
    }

    #[test]
    fn what_a_peer_keeps_unused_leaves_others_a_part() {
        let mut hub = Hub::new(20, 64 * MIB, MIB / 4);
        for _ in 0..20 {
            hub.turn(&[0], true, u64::MAX);
        }
        let hoarded = hub.peers[0].in_flight();
        for _ in 0..20 {
            hub.turn(&[1], true, u64::MAX);
        }
        assert_eq!(hub.peers[0].in_flight(), hoarded, "no credit is withdrawn");
        let got = hub.peers[1].in_flight();
        assert!(
            hoarded >= 15 * MIB && got >= 5 * MIB,
            "{got} beside {hoarded}"
        );
    }

    #[test]
    fn peers_of_two_threads_share_the_budget() {
        let mut hub = Hub::new(2, 64 * MIB, MIB);
        let mut alone = Hub::new(2, 64 * MIB, MIB);
        let mut second = Credits::new(&hub.credits.pool);
        second.add(0, MIB, &Arc::new(MemoryPart::new(&hub.budget)));
        for _ in 0..20 {
            hub.turn(&[0, 1], true, u64::MAX);
            alone.turn(&[0, 1], true, u64::MAX);
        }
        let (two, usage) = (alone.peers[0].in_flight(), &mut hub.peers[0].clone());
        assert_eq!(hub.peers[0].in_flight(), two);
        // A peer of the other thread wants its part.
        (usage.received, usage.allowed) = (0, 0);
        let mut others = 0;
        for _ in 0..20 {
            hub.now += RTT;
            usage.received = usage.allowed;
            usage.came = usage.received;
            usage.allowed = second.grant(0, hub.now, || RTT, usage);
            others = usage.in_flight();
            hub.turn(&[0, 1], true, u64::MAX);
        }
        assert!(hub.held() + others <= 32 * MIB, "{} {others}", hub.held());
        assert!(
            others >= 8 * MIB && hub.peers[0].in_flight() < two,
            "{others}"
        );
    }

    #[test]
    fn while_our_own_flows_have_the_budget_little_more_is_granted() {
        let mut hub = Hub::new(1, 64 * MIB, MIB);
        let mut flow = Share::take(&hub.budget, 4096).unwrap();
        assert!(flow.try_grow(46 * MIB));
        for _ in 0..10 {
            hub.turn(&[0], true, u64::MAX);
        }
        assert!(hub.peers[0].in_flight() >= MIB);
        // As much as is left of seven eighths.
        assert!(hub.budget.taken() < 52 * MIB, "{}", hub.budget.taken());
        drop(flow);
        for _ in 0..10 {
            hub.turn(&[0], true, u64::MAX);
        }
        assert!(hub.peers[0].in_flight() > 16 * MIB);
    }
}
