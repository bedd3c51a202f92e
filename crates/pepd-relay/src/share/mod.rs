//! Sharing of the link's rate among the flows that send into it: registration.
//!
//! A flow is listed when it begins to send, and then sends at the level (see [`pep_core::share`]).
//! Every 100 ms the [`Sampler`] reads from the kernel how much the sockets of all listed flows have
//! sent, and sets SO_MAX_PACING_RATE where the rate changes. So flows count nothing themselves, and
//! a flow that waits for its socket for long is still paced at the current level. A flow with
//! nothing left to send or to be acknowledged is removed from the list. Its only cost is then a
//! flag to check when it sends again.
//!
//! ```text
//!   flow                     SharedLink                   Sampler, while two are listed
//!   sent something      --> newcomers ----------------->  TCP_INFO of each socket
//!   and is not listed        level <--------------------  the level of all
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
use pep_core::share::newcomer_level;
use pepd_sys::leg::{self, Terms};
use tokio::sync::Notify;
use units::Rate;

pub use sampler::Sampler;

/// Link whose rate flows share.
#[derive(Debug)]
pub struct SharedLink {
    /// Bytes of IP packets per second.
    rate: u64,
    /// Share of the rate per flow.
    level: AtomicU64,
    /// Flows listed, newcomers included.
    listed: AtomicU64,
    newcomers: Mutex<Vec<Arc<Sender>>>,
    crowded: Notify,
}

impl SharedLink {
    /// Creates a link without senders.
    pub fn new(rate: Rate) -> Arc<Self> {
        let rate = rate.bytes_per_second().max(1);
        Arc::new(Self {
            rate,
            level: AtomicU64::new(rate),
            listed: AtomicU64::new(0),
            newcomers: Mutex::default(),
            crowded: Notify::new(),
        })
    }

    /// Returns the rate at which each flow may send now, in bit/s of IP packets.
    pub fn level_bits(&self) -> u64 {
        self.level.load(Relaxed).saturating_mul(8)
    }

    /// Returns the number of flows that send into the link. A flow that sends alone stays counted
    /// until another comes.
    pub fn senders(&self) -> u64 {
        self.listed.load(Relaxed)
    }

    /// Returns whether there are flows to share the rate.
    fn is_crowded(&self) -> bool {
        self.senders() > 1
    }

    async fn wait_until_crowded(&self) {
        while !self.is_crowded() {
            self.crowded.notified().await;
        }
    }

    /// Lists a sender that begins.
    fn list(&self, sender: &Arc<Sender>) {
        self.newcomers.lock().push(Arc::clone(sender));
        let listed = self.listed.fetch_add(1, Relaxed) + 1;
        if listed > 1 {
            self.crowded.notify_one();
        }
        let level = newcomer_level(self.rate, self.level.load(Relaxed), listed);
        sender.pace_at(level, self.rate);
    }

    fn take_newcomers(&self) -> Vec<Arc<Sender>> {
        mem::take(&mut self.newcomers.lock())
    }
}

/// Flow that sends, or has sent, into the link.
#[derive(Debug)]
struct Sender {
    /// Leg of the flow; dangling when the flow has ended.
    leg: Weak<OwnedFd>,
    terms: Terms,
    listed: AtomicBool,
    /// True until the first sample of a leg that had sent nothing before it was listed.
    begins: AtomicBool,
    /// SO_MAX_PACING_RATE set last; 0 if none was.
    pace: AtomicU64,
}

impl Sender {
    /// Changes of less than a 64th are not worth a system call.
    const FINE: u64 = 64;

    /// Paces its packets at `level` of the link's `rate`.
    fn pace_at(&self, level: u64, rate: u64) {
        let pace = u128::from(self.terms.full) * u128::from(level) / u128::from(rate);
        // The kernel takes 0 as "do not send". Not above `full`, which fits.
        let pace = u64::try_from(pace).unwrap_or(self.terms.full).max(1);
        let last = self.pace.load(Relaxed);
        let near = pace.abs_diff(last) <= last / Self::FINE && level < rate;
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
    /// True before the first byte is sent.
    begins: bool,
    /// `None` after a long time with nothing to send.
    sender: Option<Arc<Sender>>,
}

impl FlowShare {
    /// Creates the share of a flow that has not sent anything.
    pub fn new(link: Arc<SharedLink>, terms: Terms) -> Self {
        Self {
            link,
            terms,
            begins: true,
            sender: None,
        }
    }

    /// Notes that the flow has just sent bytes by `leg`.
    pub fn on_sent(&mut self, leg: &Arc<OwnedFd>) {
        let begins = mem::take(&mut self.begins);
        let sender = self.sender.get_or_insert_with(|| {
            Arc::new(Sender {
                leg: Arc::downgrade(leg),
                terms: self.terms,
                listed: AtomicBool::new(false),
                begins: AtomicBool::new(begins),
                pace: AtomicU64::new(0),
            })
        });
        // Whoever removes it from the list looks at the socket afterwards, and sees the bytes sent.
        if !sender.listed.load(SeqCst) && !sender.listed.swap(true, SeqCst) {
            self.link.list(sender);
        }
    }

    /// Notes that the flow has not sent anything for a while.
    pub(crate) fn on_quiet(&mut self) {
        self.sender.take_if(|sender| !sender.listed.load(Relaxed));
    }
}
