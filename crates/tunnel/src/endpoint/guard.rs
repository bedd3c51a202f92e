//! How much work strangers can make us do.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::Limits;
use crate::crypto::{CookieJar, Key, Mac};

/// Sources whose initiations are counted; more of them share.
const SOURCES: usize = 1024;

/// Initiations that are remembered, so that each is answered once.
const REMEMBERED: usize = 256;

/// What to do with an initiation that was written for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Read it.
    Read,
    /// Ask for the same with a cookie.
    Cookie,
    /// Nothing.
    Ignore,
}

/// Decides whose initiations are read.
pub(super) struct Guard {
    open: Bucket,
    with_cookie: Bucket,
    sources: Vec<Bucket>,
    source_key: u64,
    pub cookies: CookieJar,
    /// `mac1` of the initiations that were answered, the next one to be forgotten at `oldest`.
    answered: Vec<Mac>,
    oldest: usize,
}

impl Guard {
    pub fn new(limits: &Limits, secret: &Key, source_key: u64) -> Self {
        Self {
            open: Bucket::new(limits.initiations_open),
            with_cookie: Bucket::new(limits.initiations),
            sources: vec![Bucket::new(limits.initiations_per_source); SOURCES],
            source_key,
            cookies: CookieJar::new(secret),
            answered: Vec::new(),
            oldest: 0,
        }
    }

    /// Whether to read an initiation: `signed` is what `mac2` is over.
    pub fn admit(
        &mut self,
        now: Duration,
        from: SocketAddr,
        signed: &[u8],
        mac2: &[u8],
    ) -> Admission {
        if self.open.take(now) {
            return Admission::Read;
        }
        if mac2.iter().all(|byte| *byte == 0) || !self.cookies.is_ours(now, from, signed, mac2) {
            return Admission::Cookie;
        }
        let source = self.source(from.ip());
        if self.sources[source].take(now) && self.with_cookie.take(now) {
            Admission::Read
        } else {
            Admission::Ignore
        }
    }

    /// Whether that initiation was answered already.
    pub fn is_known(&self, mac1: &Mac) -> bool {
        self.answered.contains(mac1)
    }

    pub fn remember(&mut self, mac1: Mac) {
        if self.answered.len() < REMEMBERED {
            self.answered.push(mac1);
        } else {
            self.answered[self.oldest] = mac1;
            self.oldest = (self.oldest + 1) % REMEMBERED;
        }
    }

    fn source(&self, ip: IpAddr) -> usize {
        let mut hasher = DefaultHasher::new();
        self.source_key.hash(&mut hasher);
        match ip {
            IpAddr::V4(ip) => ip.octets().hash(&mut hasher),
            IpAddr::V6(ip) => ip.octets()[..8].hash(&mut hasher),
        }
        hasher.finish() as usize % SOURCES
    }
}

/// So many in a second, and as many at once (the generic cell rate algorithm: ITU-T I.371).
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    interval: Duration,
    tolerance: Duration,
    /// When all would be paid for.
    paid: Duration,
}

impl Bucket {
    pub fn new(per_second: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self {
            interval,
            tolerance: interval * per_second.max(1).saturating_sub(1),
            paid: Duration::ZERO,
        }
    }

    pub fn take(&mut self, now: Duration) -> bool {
        let paid = self.paid.max(now);
        let free = paid - now <= self.tolerance;
        if free {
            self.paid = paid + self.interval;
        }
        free
    }
}
