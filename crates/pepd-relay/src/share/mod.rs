//! Sharing of the link's rate among the flows that send into it: registration.
//!
//! A flow is listed when it begins to send, and then has a limit of its own (see
//! [`pep_core::share`]). Every 100 ms the [`Sampler`] reads from the kernel how much the sockets of
//! all listed flows have sent, and sets SO_MAX_PACING_RATE where a limit changes. So flows count
//! nothing themselves, and a flow that waits for its socket for long is still paced at its current
//! limit. A flow with nothing left to send or to be acknowledged is removed from the list. Its only
//! cost is then a flag to check when it sends again.
//!
//! The sampler also reads how much the link's interface has sent. What exceeds the flows' bytes is
//! other traffic, which flows give way to.
//!
//! ```text
//!   flow                     SharedLink                   Sampler, while one is listed
//!   sent something      --> newcomers ----------------->  TCP_INFO of each socket,
//!   and is not listed        levels <-------------------  counters of the interface
//!        `--- begins at -------'    each socket <-------  SO_MAX_PACING_RATE
//! ```

mod sampler;
#[cfg(test)]
mod tests;

use std::{
    mem,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use parking_lot::Mutex;
use pep_core::share::{Active, Place, Priority};
use pepd_sys::{
    leg::{self, Terms},
    socket::{self, Progress},
};
use tokio::sync::Notify;
use units::Rate;

pub use sampler::Sampler;

/// Flows since the last sample, and those then.
#[derive(Debug, Default)]
struct Newcomers {
    list: Vec<Arc<Sender>>,
    active: Active,
}

/// Link whose rate flows share.
#[derive(Debug)]
pub struct SharedLink {
    /// Bytes of IP packets per second.
    rate: u64,
    /// Interface whose other traffic counts.
    interface: Option<String>,
    /// Rate of each priority.
    levels: [AtomicU64; Priority::ALL.len()],
    /// The highest limit of a flow.
    limit: AtomicU64,
    /// Flows listed, newcomers included, by priority.
    listed: [AtomicU64; Priority::ALL.len()],
    /// Rate of other traffic, in bytes per second.
    other_rate: AtomicU64,
    /// Bytes of other traffic since the start.
    other_bytes: AtomicU64,
    newcomers: Mutex<Newcomers>,
    begun: Notify,
}

impl SharedLink {
    /// Creates a link without senders. Other traffic that leaves by `interface` counts.
    pub fn new(rate: Rate, interface: Option<String>) -> Arc<Self> {
        let rate = rate.bytes_per_second().max(1);
        Arc::new(Self {
            rate,
            interface,
            levels: Priority::ALL.map(|_| AtomicU64::new(rate)),
            limit: AtomicU64::new(rate),
            listed: Default::default(),
            other_rate: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            newcomers: Mutex::default(),
            begun: Notify::new(),
        })
    }

    /// Returns the highest rate at which a flow may send now, in bit/s of IP packets.
    pub fn limit_bits(&self) -> u64 {
        self.limit.load(Relaxed).saturating_mul(8)
    }

    /// Returns the number of flows that send into the link. A flow that sends alone may stay
    /// counted until another comes.
    pub fn senders(&self) -> u64 {
        self.listed.iter().map(|listed| listed.load(Relaxed)).sum()
    }

    /// Returns the rate of other traffic, in bit/s of IP packets; `None` if it does not count.
    pub fn other_bits(&self) -> Option<u64> {
        let bits = self.other_rate.load(Relaxed).saturating_mul(8);
        self.interface.as_ref().map(|_| bits)
    }

    /// Returns the bytes of other traffic since the start, counted while flows send and about once
    /// per second otherwise.
    pub fn other_bytes(&self) -> u64 {
        self.other_bytes.load(Relaxed)
    }

    /// Returns whether there are flows whose limits depend on others, or on other traffic.
    fn is_shared(&self) -> bool {
        let alone = if self.interface.is_some() { 0 } else { 1 };
        self.senders() > alone
    }

    async fn wait_until_shared(&self) {
        while !self.is_shared() {
            self.begun.notified().await;
        }
    }

    /// Lists a sender that begins.
    fn list(&self, sender: &Arc<Sender>) {
        let priority = sender.place.priority as usize;
        let level = self.levels[priority].load(Relaxed);
        let limit = {
            let mut newcomers = self.newcomers.lock();
            newcomers.list.push(Arc::clone(sender));
            newcomers.active.admit(self.rate, level, sender.place)
        };
        self.listed[priority].fetch_add(1, Relaxed);
        if self.is_shared() {
            self.begun.notify_one();
        }
        sender.pace_at(limit, self.rate);
    }

    /// Notes that a sender is no longer listed.
    fn unlist(&self, place: Place) {
        self.listed[place.priority as usize].fetch_sub(1, Relaxed);
    }

    fn take_newcomers(&self) -> Vec<Arc<Sender>> {
        mem::take(&mut self.newcomers.lock().list)
    }
}

/// Flow that sends, or has sent, into the link.
#[derive(Debug)]
struct Sender {
    /// Leg of the flow; dangling when the flow has ended.
    leg: Weak<OwnedFd>,
    terms: Terms,
    place: Place,
    listed: AtomicBool,
    /// Progress of the leg when it was last not listed, if known. What it sends before its first
    /// sample counts, though it is not paced.
    before: Mutex<Option<Progress>>,
    /// Progress of the leg when its flow ended, until it is sampled.
    last: Mutex<Option<Progress>>,
    /// SO_MAX_PACING_RATE set last; 0 if none was.
    pace: AtomicU64,
}

impl Sender {
    /// Changes of less than a 64th are not worth a system call.
    const FINE: u64 = 64;

    /// Paces its packets at `limit` of the link's `rate`.
    fn pace_at(&self, limit: u64, rate: u64) {
        let pace = u128::from(self.terms.full) * u128::from(limit) / u128::from(rate);
        // The kernel takes 0 as "do not send". Not above `full`, which fits.
        let pace = u64::try_from(pace).unwrap_or(self.terms.full).max(1);
        let last = self.pace.load(Relaxed);
        let near = pace.abs_diff(last) <= last / Self::FINE && limit < rate;
        if pace == last || near {
            return;
        }
        if let Some(leg) = self.leg.upgrade() {
            self.pace.store(pace, Relaxed);
            leg::set_pacing_or_warn(leg.as_fd(), pace);
        }
    }
}

/// Membership of one flow in the sharing of the link.
#[derive(Debug)]
pub struct FlowShare {
    link: Arc<SharedLink>,
    terms: Terms,
    place: Place,
    /// Progress of the leg when it was last not listed, if known, while there is no sender.
    before: Option<Progress>,
    /// `None` after a long time with nothing to send.
    sender: Option<Arc<Sender>>,
}

impl FlowShare {
    /// Creates the share of a flow; `begins` is true if its leg has not sent anything.
    pub fn new(link: Arc<SharedLink>, terms: Terms, place: Place, begins: bool) -> Self {
        Self {
            link,
            terms,
            place,
            before: begins.then(Progress::default),
            sender: None,
        }
    }

    /// Notes that the flow has just sent bytes by `leg`.
    pub fn on_sent(&mut self, leg: &Arc<OwnedFd>) {
        let before = &mut self.before;
        let sender = self.sender.get_or_insert_with(|| {
            Arc::new(Sender {
                leg: Arc::downgrade(leg),
                terms: self.terms,
                place: self.place,
                listed: AtomicBool::new(false),
                before: Mutex::new(before.take()),
                last: Mutex::default(),
                pace: AtomicU64::new(0),
            })
        });
        // Whoever removes it from the list looks at the socket afterwards, and sees the bytes sent.
        if !sender.listed.load(SeqCst) && !sender.listed.swap(true, SeqCst) {
            self.link.list(sender);
        }
    }

    /// Notes that the flow is about to close its leg. What it has sent since the last sample is
    /// not other traffic.
    pub(crate) fn on_end(&self) {
        let Some(sender) = &self.sender else { return };
        if let Some(leg) = sender.leg.upgrade() {
            *sender.last.lock() = socket::progress(leg.as_fd()).ok();
        }
    }

    /// Notes that the flow has not sent anything for a while.
    pub(crate) fn on_quiet(&mut self) {
        let unlisted = |sender: &mut Arc<Sender>| !sender.listed.load(SeqCst);
        if let Some(sender) = self.sender.take_if(unlisted) {
            self.before = sender.before.lock().take();
        }
    }
}
