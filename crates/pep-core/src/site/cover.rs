//! Test whether one matcher takes everything that another one takes.

use ipnet::IpNet;

use super::{Matcher, PortRange, Protocol};

impl Matcher {
    /// Reports whether `self` takes every flow that `other` takes, comparing list by list. Never
    /// wrongly true; may be wrongly false where interfaces are involved.
    pub fn covers(&self, other: &Self) -> bool {
        protocols_cover(&self.protocol, &other.protocol)
            && prefixes_cover(&self.src, &other.src)
            && prefixes_cover(&self.dst, &other.dst)
            && ports_cover(&self.sport, &other.sport)
            && ports_cover(&self.dport, &other.dport)
            && all_in(&other.dscp, &self.dscp, 0..64)
            && (self.interface.is_empty()
                || !other.interface.is_empty()
                    && other
                        .interface
                        .iter()
                        .all(|name| self.interface.contains(name)))
    }

    /// Reports whether no flow can match: all sources are of one address family and all
    /// destinations of the other, or the protocols are those of another family.
    pub fn is_impossible(&self) -> bool {
        let is_v4 = |net: &IpNet| matches!(net, IpNet::V4(_));
        let some = |nets: &[IpNet], v4| nets.is_empty() || nets.iter().any(|net| is_v4(net) == v4);
        let carried = |v4| {
            self.protocol.is_empty() || self.protocol.iter().any(|protocol| protocol.is_of(v4))
        };
        let family_possible = |v4| carried(v4) && some(&self.src, v4) && some(&self.dst, v4);
        !family_possible(true) && !family_possible(false)
    }
}

fn protocols_cover(wide: &[Protocol], narrow: &[Protocol]) -> bool {
    let has = |protocol: &Protocol| wide.contains(protocol);
    let all = || (0..=u8::MAX).map(Protocol).all(|protocol| has(&protocol));
    wide.is_empty() || (!narrow.is_empty() && narrow.iter().all(has)) || all()
}

fn prefixes_cover(wide: &[IpNet], narrow: &[IpNet]) -> bool {
    if wide.is_empty() {
        return true;
    }
    let wide = IpNet::aggregate(&wide.to_vec());
    let covered = |net: &IpNet| wide.iter().any(|wide| wide.contains(net));
    if narrow.is_empty() {
        return ["0.0.0.0/0", "::/0"]
            .iter()
            .all(|any| covered(&any.parse().expect("a prefix")));
    }
    narrow.iter().all(covered)
}

fn ports_cover(wide: &[PortRange], narrow: &[PortRange]) -> bool {
    if wide.is_empty() {
        return true;
    }
    let any = [PortRange::ANY];
    let narrow = if narrow.is_empty() { &any } else { narrow };
    narrow.iter().all(|range| covered(*range, wide))
}

/// Walks up the ranges from the first port until a port is in none of them.
fn covered(range: PortRange, wide: &[PortRange]) -> bool {
    let mut sorted = wide.to_vec();
    sorted.sort_unstable();
    let mut next = u32::from(range.first());
    for wide in sorted {
        if u32::from(wide.first()) <= next {
            next = next.max(u32::from(wide.last()) + 1);
        }
    }
    next > u32::from(range.last())
}

fn all_in(narrow: &[u8], wide: &[u8], mut any: std::ops::Range<u8>) -> bool {
    if wide.is_empty() {
        return true;
    }
    if narrow.is_empty() {
        return any.all(|value| wide.contains(&value));
    }
    narrow.iter().all(|value| wide.contains(value))
}
