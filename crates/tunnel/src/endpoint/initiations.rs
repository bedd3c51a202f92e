//! Outstanding initiations, and the time of the next one.

use std::{collections::VecDeque, time::Duration};

use super::{
    Limits, PeerConfig, Remote,
    datagram::{self, INITIATION},
    local::Local,
    terms::Terms,
};
use crate::{
    crypto::{Initiating, MAC_LEN, Mac, MacKey},
    session::Unreached,
};

/// Maximum number of outstanding initiations: at one per second, older ones are forgotten after as
/// many seconds.
const OUTSTANDING: usize = 16;

/// Tries for which the end with the larger key does not answer the other end's initiations.
const PRECEDENCE: u32 = 3;

/// Pauses before a peer that has shut down is called again; doubles each time up to the maximum.
const REST: u32 = 2;
const REST_MAX: u32 = 8;

/// Consecutive refusals after which the next initiation waits for its regular time.
const REFUSALS: u32 = 3;

/// Lifetime of a cookie.
const COOKIE_LIFE: Duration = Duration::from_secs(120);

#[derive(Default)]
pub(super) struct Initiations {
    outstanding: VecDeque<Outstanding>,
    /// Earliest time of the next initiation.
    pub next: Duration,
    /// Failed rounds.
    pub tries: u32,
    cookie: Option<(Mac, Duration)>,
    /// Remotes still to be called in this round.
    pub round: VecDeque<Remote>,
    /// Set if the peer has shut down: retry intervals before it is called again.
    rest: Option<u32>,
    /// Refusals for a low counter that were followed by another initiation at once.
    refused: u32,
}

/// An unanswered initiation.
pub(super) struct Outstanding {
    pub index: u32,
    pub handshake: Initiating,
    pub sent: Duration,
    /// Remote that was called.
    pub to: Remote,
    pub counter: u64,
    /// Hosts that the local end does not reach, as it said.
    pub said: Unreached,
    mac1: Mac,
}

impl Initiations {
    pub fn has(&self, index: u32) -> bool {
        self.outstanding.iter().any(|sent| sent.index == index)
    }

    pub fn get(&mut self, index: u32) -> Option<&mut Outstanding> {
        self.outstanding.iter_mut().find(|sent| sent.index == index)
    }

    /// Returns when the last outstanding initiation was sent.
    pub fn last(&self) -> Option<Duration> {
        self.outstanding.back().map(|sent| sent.sent)
    }

    /// Returns true if so few were sent that an answer can still be expected.
    pub fn are_new(&self) -> bool {
        self.tries <= PRECEDENCE
    }

    /// Forgets an initiation whose answer was read.
    pub fn answered(&mut self, index: u32) {
        self.outstanding.retain(|sent| sent.index != index);
    }

    /// Begins another round at once after a refusal, unless that has not helped several times.
    pub fn refused(&mut self, now: Duration) {
        if self.refused < REFUSALS {
            self.refused += 1;
            self.restart(now);
        }
    }

    /// Records that new keys exist.
    pub fn succeeded(&mut self, now: Duration) {
        self.outstanding.clear();
        self.round.clear();
        self.tries = 0;
        self.next = now;
        self.rest = None;
        self.refused = 0;
    }

    /// Stops calling the peer for a while.
    pub fn rest(&mut self, now: Duration, retry: Duration) {
        self.outstanding.clear();
        self.round.clear();
        self.next = now + retry * REST;
        self.rest = Some(2 * REST);
    }

    /// Begins another round at once.
    pub fn restart(&mut self, now: Duration) {
        self.round.clear();
        self.next = now;
    }

    /// Returns true if the peer has shut down and is not called for a while.
    pub fn is_resting(&self) -> bool {
        self.rest.is_some()
    }

    /// Handles a cookie for the next initiation, which is then due at once.
    pub fn on_cookie(&mut self, now: Duration, index: u32, open: impl FnOnce(&Mac) -> Option<Mac>) {
        let Some(sent) = self.outstanding.iter().find(|sent| sent.index == index) else {
            return;
        };
        if let Some(cookie) = open(&sent.mac1) {
            let is_first = self.cookie(now).is_none();
            self.cookie = Some((cookie, now));
            // With a cookie, the regular retry suffices.
            if is_first {
                self.next = self.next.min(now);
            }
        }
    }

    fn cookie(&self, now: Duration) -> Option<Mac> {
        let (cookie, at) = self.cookie?;
        (at + COOKIE_LIFE > now).then_some(cookie)
    }

    /// Appends an initiation for `to` to `out`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the message contains all of them"
    )]
    pub fn write(
        &mut self,
        now: Duration,
        to: Remote,
        index: u32,
        terms: &Terms,
        peer: &PeerConfig,
        mac: &MacKey,
        (local, limits): (&mut Local, &Limits),
        out: &mut Vec<u8>,
    ) {
        if self.round.is_empty() {
            self.next = now + local.retry(limits) * self.rest.unwrap_or(1);
            self.rest = self.rest.map(|pauses| (pauses * 2).min(REST_MAX));
            self.tries = self.tries.saturating_add(1);
        } else {
            self.next = now + limits.stagger;
        }
        let seed = local.seed();
        let (us, start) = (&local.identity, out.len());
        datagram::begin(INITIATION, index, out);
        let (key, psk) = (&peer.public_key, &peer.psk);
        let Ok(handshake) = Initiating::begin(us, key, psk, seed, &terms.emit(), out) else {
            out.truncate(start);
            return;
        };
        let mac1 = mac.mac(&out[start..]);
        out.extend_from_slice(&mac1);
        let mac2 = self.cookie(now).map_or([0; MAC_LEN], |cookie| {
            MacKey::new(&cookie).mac(&out[start..])
        });
        out.extend_from_slice(&mac2);
        if self.outstanding.len() == OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Outstanding {
            index,
            handshake,
            sent: now,
            to,
            counter: terms.counter,
            said: terms.unreached,
            mac1,
        });
    }
}
