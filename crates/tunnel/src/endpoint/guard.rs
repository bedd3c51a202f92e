//! Limits on the work that unauthenticated senders can cause.
//!
//! ```text
//!                   one of 20 a second
//!   INITIATION ---+-------------------------------------------------> read
//!                 |  no cookie
//!                 +------------> COOKIE
//!                 |  cookie      +--> source of a peer: 2/5  --+
//!                 +--------------+--> new source:       3/10 --+----> read
//!                                +--> all sources:      3/10 --+
//!                                      in turn
//! ```

mod shares;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use super::{Carrier, Limits, Remote};
use crate::crypto::{CookieJar, Key};
use shares::{Shares, Standing};

/// Subnets whose initiations are counted separately; more of them share.
const SUBNETS: usize = 1024;

/// Tenths of the initiations with a cookie: for sources of peers, and for new sources.
const FOR_PEERS: u32 = 4;
const FOR_NEW: u32 = 3;

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
    for_peers: Bucket,
    for_new: Bucket,
    for_all: Bucket,
    per_source: Bucket,
    /// Subnets where peers were heard.
    expected: BTreeMap<IpAddr, Bucket>,
    blocks: Shares,
    subnets: Vec<Bucket>,
    subnet_key: u64,
    pub cookies: CookieJar,
}

impl Guard {
    pub fn new(limits: &Limits, secret: &Key, subnet_key: u64) -> Self {
        let tenths = |tenths: u32| Bucket::new(limits.initiations * tenths / 10);
        let for_all = limits.initiations * (10 - FOR_PEERS - FOR_NEW) / 10;
        let per_source = Bucket::new(limits.initiations_per_source);
        Self {
            open: Bucket::new(limits.initiations_open),
            for_peers: tenths(FOR_PEERS),
            for_new: tenths(FOR_NEW),
            for_all: Bucket::new(for_all),
            per_source,
            expected: BTreeMap::new(),
            blocks: Shares::new(for_all),
            subnets: vec![per_source; SUBNETS],
            subnet_key,
            cookies: CookieJar::new(secret),
        }
    }

    /// Replaces the addresses where peers were heard.
    pub fn expect(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let before = std::mem::take(&mut self.expected);
        let subnets = addresses.map(subnet_of);
        self.expected = subnets
            .map(|subnet| {
                let bucket = before.get(&subnet).unwrap_or(&self.per_source);
                (subnet, *bucket)
            })
            .collect();
    }

    /// Decides on an initiation; `signed` are the bytes that `mac2` covers. A TCP connection proves
    /// its address as a cookie does.
    pub fn admit(&mut self, now: Duration, from: Remote, signed: &[u8], mac2: &[u8]) -> Admission {
        if self.open.take(now) {
            return Admission::Read;
        }
        let has_cookie = || {
            mac2.iter().any(|byte| *byte != 0)
                && self.cookies.is_ours(now, from.address, signed, mac2)
        };
        if from.carrier == Carrier::Udp && !has_cookie() {
            return Admission::Cookie;
        }
        if self.admit_source(now, from.address.ip()) {
            Admission::Read
        } else {
            Admission::Ignore
        }
    }

    /// Admits an initiation of a source that receives at its address.
    fn admit_source(&mut self, now: Duration, ip: IpAddr) -> bool {
        let subnet = subnet_of(ip);
        if let Some(own) = self.expected.get_mut(&subnet) {
            if !own.has(now) {
                return false;
            }
            if Bucket::take_all(now, [own, &mut self.for_peers]) {
                return true;
            }
        }
        let (block, at) = (block_of(ip), self.place(subnet));
        let budget = match self.blocks.visit(now, block) {
            Standing::New if self.for_new.has(now) => &mut self.for_new,
            Standing::New | Standing::Due => &mut self.for_all,
            Standing::Early => return false,
        };
        let admitted = Bucket::take_all(now, [&mut self.subnets[at], budget]);
        if admitted {
            self.blocks.pay(now, block);
        }
        admitted
    }

    fn place(&self, subnet: IpAddr) -> usize {
        let mut hasher = DefaultHasher::new();
        (self.subnet_key, subnet).hash(&mut hasher);
        hasher.finish() as usize % SUBNETS
    }
}

/// Returns the network that one host may have: an IPv4 address, or an IPv6 /64.
pub fn subnet_of(ip: IpAddr) -> IpAddr {
    prefix(ip, 64)
}

/// Returns the network that one site may have: an IPv4 address, or an IPv6 /48 (RFC 6177).
pub fn block_of(ip: IpAddr) -> IpAddr {
    prefix(ip, 48)
}

fn prefix(ip: IpAddr, bits: u32) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) & u128::MAX << (128 - bits)).into(),
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

    fn has(&self, now: Duration) -> bool {
        self.paid.saturating_sub(now) <= self.tolerance
    }

    pub fn take(&mut self, now: Duration) -> bool {
        Self::take_all(now, [self])
    }

    /// Takes one from each, if each has one.
    fn take_all<const N: usize>(now: Duration, mut buckets: [&mut Self; N]) -> bool {
        let have = buckets.iter().all(|bucket| bucket.has(now));
        if have {
            for bucket in &mut buckets {
                bucket.paid = bucket.paid.max(now) + bucket.interval;
            }
        }
        have
    }
}
