//! Filter for packets of a peer: which go on to local hosts, and by the chain of which site.
//!
//! A peer may send any packet. Packets that are no replies to what a local site takes are dropped
//! before any booster sees them.

use std::{fmt, net::SocketAddr, time::Duration};

use boosters::ip::{FlowKey, Ip};
use pep_core::{
    reach::Reach,
    site::{PacketEnds, Protocol, is_martian},
};

use super::{Carried, groups::ends};

/// Interval between log lines on dropped packets of one cause. A site that is missing at one end
/// causes them all the time.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// Dropped packets of a peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strangers {
    /// Martian packets, which no router would forward.
    pub martian: u64,
    /// Unmatched packets, to which no site applies.
    pub unmatched: u64,
    /// The last unmatched packet.
    pub last: Option<Stranger>,
    /// Packets that `from` and `to` of the peer do not permit.
    pub forbidden: u64,
    /// The last of these.
    pub last_forbidden: Option<Stranger>,
}

/// Cause of drops that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// No site applies.
    Unmatched,
    /// `from` and `to` of the peer do not permit the packet.
    Forbidden,
}

/// Headers of a dropped packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stranger {
    key: FlowKey,
    /// The ICMP type, which tells more than the addresses: a site may take some types only.
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

/// Filter for packets of a peer.
#[derive(Debug, Default)]
pub(super) struct Admission {
    reach: Reach,
    strangers: Strangers,
    /// Drops already returned by [`take_counts`](Self::take_counts).
    counted: [u64; 3],
    /// Time of the last log line of each cause, and the count at that time.
    logged: [Option<(Duration, u64)>; 2],
}

impl Admission {
    /// Creates the filter for a peer of that reach.
    pub(super) fn new(reach: Reach) -> Self {
        Self {
            reach,
            ..Self::default()
        }
    }

    /// Returns the first site to whose hosts a packet of the peer may go. The packet must be a
    /// reply to one that the site takes, an ICMP error about one, or for a group that the site
    /// names. Both its addresses must be usable by hosts (or groups), and within the peer's reach.
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
            self.strangers.unmatched += 1;
            self.strangers.last = Ip::parse(packet).as_ref().map(Stranger::new);
            return None;
        }
        let is_admitted = PacketEnds::read(packet).is_some_and(|ends| self.reach.admits(&ends));
        let quoted = PacketEnds::read_quoted(packet);
        let may_say = quoted.is_none_or(|quoted| self.reach.admits_error_about(quoted.to));
        if !is_admitted || !may_say {
            self.strangers.forbidden += 1;
            self.strangers.last_forbidden = Ip::parse(packet).as_ref().map(Stranger::new);
            return None;
        }
        found
    }

    /// Returns the dropped packets.
    pub(super) fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Returns the packets dropped since the last call: martian, unmatched and forbidden.
    pub(super) fn take_counts(&mut self) -> [u64; 3] {
        let Strangers {
            martian,
            unmatched,
            forbidden,
            ..
        } = self.strangers;
        let counts = [martian, unmatched, forbidden];
        let before = std::mem::replace(&mut self.counted, counts);
        std::array::from_fn(|cause| counts[cause] - before[cause])
    }

    /// Returns the packet for a log line on this cause if one is due, and the number of such
    /// packets since the last line.
    pub(super) fn poll_line(&mut self, now: Duration, cause: Cause) -> Option<(Stranger, u64)> {
        let (dropped, last) = match cause {
            Cause::Unmatched => (self.strangers.unmatched, self.strangers.last),
            Cause::Forbidden => (self.strangers.forbidden, self.strangers.last_forbidden),
        };
        let logged = &mut self.logged[cause as usize];
        let before = match *logged {
            Some((at, before)) if now < at + LOG_EVERY || before == dropped => return None,
            Some((_, before)) => before,
            None => 0,
        };
        let last = last?;
        *logged = Some((now, dropped));
        Some((last, dropped - before))
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
        assert_eq!(admission.poll_line(at(1), Cause::Unmatched), None);
        let mut give = |seconds| {
            assert_eq!(admission.site_of(&[], &udp), None);
            let line = admission.poll_line(at(seconds), Cause::Unmatched);
            line.map(|(packet, count)| (packet.to_string(), count))
        };
        let named = "udp from 203.0.113.5:5060 to 10.1.0.2:7000".to_owned();
        assert_eq!(give(1), Some((named.clone(), 1)));
        assert_eq!((give(2), give(600)), (None, None));
        assert_eq!(give(601), Some((named, 3)));
        let line = admission.poll_line(at(9999), Cause::Unmatched);
        assert_eq!(line, None, "no more of them");
        assert_eq!(
            (admission.take_counts(), admission.take_counts()),
            ([0, 4, 0], [0; 3])
        );
        // Sent from its own address: a martian.
        udp[12..16].copy_from_slice(&[10, 1, 0, 2]);
        assert_eq!(admission.site_of(&[], &udp), None);
        assert_eq!(admission.take_counts(), [1, 0, 0]);
        let mut ping = udp;
        (ping[9], ping[15]) = (1, 9);
        assert_eq!(admission.site_of(&[], &ping), None);
        let last = admission.strangers().last.expect("one");
        assert_eq!(last.to_string(), "icmp (type 19) from 10.1.0.9 to 10.1.0.2");
    }
}
