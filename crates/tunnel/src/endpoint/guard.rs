//! Limits on the work that unauthenticated senders can cause.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::Limits;
use crate::crypto::{CookieJar, Key, Mac};

/// Sources whose initiations are counted separately; more of them share.
const SOURCES: usize = 1024;

/// Answered initiations that are remembered, so that each is answered only once.
const REMEMBERED: usize = 256;

/// Decision on an initiation with a valid first MAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Read it.
    Read,
    /// Answer with a cookie.
    Cookie,
    /// Ignore it.
    Ignore,
}

/// Admission control of initiations.
pub(super) struct Guard {
    open: Bucket,
    with_cookie: Bucket,
    sources: Vec<Bucket>,
    source_key: u64,
    pub cookies: CookieJar,
    /// `mac1` of answered initiations; the entry at `oldest` is replaced next.
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

    /// Decides on an initiation; `signed` are the bytes that `mac2` covers.
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

    /// Returns true if the initiation was answered already.
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

/// Rate limit per second with an equal burst (the generic cell rate algorithm: ITU-T I.371).
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    interval: Duration,
    tolerance: Duration,
    /// Time at which the bucket is empty again.
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
