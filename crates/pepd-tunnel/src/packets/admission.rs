//! Which packets of a peer go on to hosts here, and by the chain of which site.
//!
//! A peer may send whatever it likes: what answers nothing that a site of its takes is dropped before any booster sees it.

use std::{fmt, net::SocketAddr, time::Duration};

use boosters::ip::{FlowKey, Ip};
use pep_core::site::{Protocol, is_martian};

use super::{Carried, groups::ends};

/// How often it is said that no site takes what the peer sends: once a site is missing at one end, this goes on.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// What of a peer's packets was dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Those that no router would have let go on.
    pub martian: u64,
    /// Those that no site has to do with.
    pub foreign: u64,
    /// The last of these.
    pub last: Option<Stranger>,
}

/// A packet that no site has to do with, by its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    key: FlowKey,
    /// The type of ICMP, which says more than its addresses: a site that takes some does not take all.
    kind: Option<u8>,
}

impl Stranger {
    fn new(ip: &Ip<'_>) -> Self {
        let key = ip.key();
        let is_icmp = [Protocol::ICMP, Protocol::ICMPV6].contains(&Protocol(key.protocol));
        let kind = ip.payload().first().copied();
        Self {
            key,
            kind: kind.filter(|_| is_icmp && !ip.fragment),
        }
    }
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FlowKey { protocol, from, to } = self.key;
        let protocol = Protocol(protocol);
        if let Some(kind) = self.kind {
            return write!(f, "{protocol} (type {kind}) from {} to {}", from.0, to.0);
        }
        if protocol.has_ports() && (from.1, to.1) != (0, 0) {
            let (from, to) = (SocketAddr::from(from), SocketAddr::from(to));
            return write!(f, "{protocol} from {from} to {to}");
        }
        write!(f, "{protocol} from {} to {}", from.0, to.0)
    }
}

/// Lets packets of a peer in.
#[derive(Debug, Default)]
pub(super) struct Admission {
    strangers: Strangers,
    /// What of them has been counted elsewhere.
    counted: [u64; 2],
    /// When the last line was written of them, and how many they were.
    told: Option<(Duration, u64)>,
}

impl Admission {
    /// The first site to whose hosts a packet of the peer's may go: it answers one that the site takes, is an ICMP error about one, or is for a group
    /// that the site names. Both its ends may be hosts (or a group).
    pub(super) fn site_of(&mut self, sites: &[Carried], packet: &[u8]) -> Option<usize> {
        if is_martian(packet) {
            self.strangers.martian += 1;
            return None;
        }
        let of_group = ends(packet).is_some_and(|(_, to)| to.is_multicast());
        let found = sites.iter().position(|site| match of_group {
            true => site.answers.admit_group(packet),
            false => site.answers.admit(packet),
        });
        if found.is_none() {
            self.strangers.foreign += 1;
            self.strangers.last = Ip::parse(packet).as_ref().map(Stranger::new);
        }
        found
    }

    /// What was dropped.
    pub(super) fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// How many packets were dropped since this was last asked for: martian, and foreign ones.
    pub(super) fn take_counts(&mut self) -> [u64; 2] {
        let counts = [self.strangers.martian, self.strangers.foreign];
        let before = std::mem::replace(&mut self.counted, counts);
        [counts[0] - before[0], counts[1] - before[1]]
    }

    /// A packet to tell of, if it is time to, and how many were like it since then.
    pub(super) fn poll_line(&mut self, now: Duration) -> Option<(Stranger, u64)> {
        let foreign = self.strangers.foreign;
        let before = match self.told {
            Some((at, before)) if now < at + LOG_EVERY || before == foreign => return None,
            Some((_, before)) => before,
            None => 0,
        };
        let last = self.strangers.last?;
        self.told = Some((now, foreign));
        Some((last, foreign - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_written_of_what_no_site_takes_and_after_a_while_another() {
        let mut udp = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        udp.extend([203, 0, 113, 5, 10, 1, 0, 2]);
        udp.extend([0x13, 0xc4, 0x1b, 0x58, 0, 8, 0, 0]);
        let mut admission = Admission::default();
        let at = Duration::from_secs;
        assert_eq!(admission.poll_line(at(1)), None);
        let mut give = |seconds| {
            assert_eq!(admission.site_of(&[], &udp), None);
            let line = admission.poll_line(at(seconds));
            line.map(|(packet, count)| (packet.to_string(), count))
        };
        let named = "udp from 203.0.113.5:5060 to 10.1.0.2:7000".to_owned();
        assert_eq!(give(1), Some((named.clone(), 1)));
        assert_eq!((give(2), give(600)), (None, None));
        assert_eq!(give(601), Some((named, 3)));
        assert_eq!(admission.poll_line(at(9999)), None, "no more of them");
        assert_eq!(
            (admission.take_counts(), admission.take_counts()),
            ([0, 4], [0, 0])
        );
        // From itself: nothing to tell of.
        udp[12..16].copy_from_slice(&[10, 1, 0, 2]);
        assert_eq!(admission.site_of(&[], &udp), None);
        assert_eq!(admission.take_counts(), [1, 0]);
        let mut ping = udp;
        (ping[9], ping[15]) = (1, 9);
        assert_eq!(admission.site_of(&[], &ping), None);
        let last = admission.strangers().last.expect("one");
        assert_eq!(last.to_string(), "icmp (type 19) from 10.1.0.9 to 10.1.0.2");
    }
}
