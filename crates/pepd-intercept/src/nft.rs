//! The table in nft's language, and the `nft` command that installs it.

mod ask;
mod command;
mod installed;
mod text;

pub use ask::generation;
pub(super) use ask::{contains, counters, element, table_exists};
pub use command::{Nft, NftError};
pub(crate) use installed::Installed;
pub use text::install_transaction;
pub(crate) use text::{
    chain_transaction, empty_transaction, forget_filtered_transaction, hosts_transaction,
    networks_transaction, probe_transaction, remove_transaction,
};

use std::sync::atomic::{AtomicU32, Ordering};

use ring::rand::{SecureRandom as _, SystemRandom};

use super::rules::{Family, Filtered, Hook, Limited};

/// Name of the set of interfaces by which SYNs arrived recently.
pub const SEEN_SET: &str = "seen";

/// Seconds for which an interface is remembered after its last SYN. The remaining timeout tells
/// when that SYN arrived.
pub const SEEN_SECONDS: u32 = 86_400;

/// Maximum number of interfaces remembered; a machine has a handful.
const SEEN_ELEMENTS: u32 = 256;

/// Seconds for which the addresses of a SYN are remembered. A host answers pepd's SYN-ACK within a
/// round trip, and repeats a lost answer (its first data) within its retransmission timeout.
const RECENT_SECONDS: u32 = 10;

/// Seconds after which pepd tries again whether packets of a host to a port, or of a server, reach
/// it.
const FILTERED_SECONDS: u32 = 300;

/// Maximum number of such ports of hosts, and of servers, some 1 MB. Connections of further ones
/// get no answer.
const FILTERED_ELEMENTS: u32 = 8_192;

/// Seconds within which packets of a connection may arrive late: half a minute at most for each way
/// through a queue or an outage, as TIME_WAIT assumes.
const ENDED_SECONDS: u32 = 60;

/// Seconds for which it is remembered that a server leg does not leave by the link. pepd asks right
/// after connect(), and the kernel then has sent the SYN.
const OFF_LINK_SECONDS: u32 = 2;

/// Milliseconds within which packets of a handshake may be of one burst. Retransmissions come after
/// a second, or after growing times from 200 ms on.
const FRESH_MS: u32 = 500;

/// Maximum number of elements of a set of recent SYNs, some 6 MB (IPv4) or 9 MB (IPv6). A flood may
/// fill it; new flows then pass unaccelerated until it has drained.
const RECENT_ELEMENTS: u32 = 65_536;

/// Milliseconds for which a forwarded SYN may take through the rules of all programs, such as one
/// that waits in a queue of a program (NFQUEUE). A later one passes unaccelerated. A host repeats
/// its SYN after a second: it may do so while no pepd runs.
const ASKED_MS: u32 = 500;

/// Seconds for which the mark of a SYN is kept, as the SYN itself: pepd reads it when it holds the
/// SYN, or when the host has answered its SYN-ACK.
const MARKS_SECONDS: u32 = RECENT_SECONDS;

/// Maximum number of marks of SYNs kept, some 4 MB. Further SYNs are dropped; hosts repeat them.
const MARKS_ELEMENTS: u32 = 65_536;

/// Maximum number of hosts whose rates are measured, some 16 MB (IPv6). Packets of further hosts
/// count in the total only.
const RATE_ELEMENTS: u32 = 65_536;

/// Seconds after its last packet for which a host's rate is kept: longer than its burst takes to
/// refill.
const RATE_SECONDS: u32 = 10;

/// Maximum number of hosts of a peer remembered (IPv6: networks of 64 bits), some 2 MB (IPv6) per
/// site. Errors about packets of further hosts leave by the link.
const SPOKEN_ELEMENTS: u32 = 16_384;

/// Seconds for which a host is remembered after its last packet. An error arrives at once, or when
/// a neighbour has not answered for some seconds.
const SPOKEN_SECONDS: u32 = 60;

/// Sets with elements of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Set {
    /// Hosts at their flow limit: addresses, or the first of each /64.
    Hosts,
    /// Networks of this machine, except those of uplinks.
    Near,
    /// Hosts with their rates of packets.
    Rates(Limited),
    /// Recently opened connections.
    Recent,
    /// SYNs that meet rules of other programs now.
    Asked,
    /// Connections whose packets do not reach pepd: addresses, of hosts or servers, and ports of
    /// servers.
    Filtered(Filtered),
    /// Packets of handshakes that may not have reached pepd.
    Unheard,
    /// Packets of handshakes of the last half second.
    Fresh,
    /// Connections that pepd has reset, from host to server.
    Ended,
    /// Server legs that leave by another interface than the link.
    OffLink,
}

/// Names for a family in rules and sets.
pub(super) trait Names {
    /// Returns the payload protocol, as in `ip saddr`.
    fn payload(self) -> &'static str;

    /// Returns the protocol name, as in `meta nfproto`.
    fn nfproto(self) -> &'static str;

    /// Returns the type of an address in a set.
    fn address_type(self) -> &'static str;

    /// Returns the address of pepd's listeners.
    fn listen_address(self) -> &'static str;

    /// Returns the name of a set: that of its use, and the family's number.
    fn set(self, of: Set) -> String;

    /// Returns the name of ICMP, as in `icmp type`.
    fn icmp(self) -> &'static str;

    /// Returns the ICMP types of routers on their own link: redirects, advertisements,
    /// solicitations and neighbour discovery.
    fn icmp_of_routers(self) -> &'static [&'static str];

    /// Returns the ICMP type of redirects.
    fn icmp_redirect(self) -> &'static str;

    /// Returns the types of ICMP errors that hosts need.
    fn icmp_errors(self) -> &'static [&'static str];

    /// Returns the offsets of a quoted packet's protocol and ports, in bits from the start of ICMP:
    /// behind 8 bytes of ICMP header, in or behind an IP header without options.
    fn quoted(self) -> Quoted;

    /// Returns the name of the set of hosts whose packets came out of the TUN of that lane.
    fn spoken_set(self, lane: usize) -> String;

    /// Returns the ICMP types that tunnels of packets do not carry.
    fn icmp_not_carried(self) -> Vec<&'static str>;
}

impl Names for Family {
    fn payload(self) -> &'static str {
        match self {
            Self::V4 => "ip",
            Self::V6 => "ip6",
        }
    }

    fn nfproto(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "ipv4_addr",
            Self::V6 => "ipv6_addr",
        }
    }

    fn listen_address(self) -> &'static str {
        match self {
            Self::V4 => "127.0.0.1",
            Self::V6 => "::1",
        }
    }

    fn set(self, of: Set) -> String {
        let name = match of {
            Set::Hosts => "hosts",
            Set::Near => "near",
            Set::Rates(Limited::Held) => "rates",
            Set::Rates(Limited::Copied) => "copied",
            Set::Recent => "recent",
            Set::Asked => "asked",
            Set::Filtered(Filtered::Host) => "filtered_hosts",
            Set::Filtered(Filtered::Server) => "filtered_servers",
            Set::Unheard => "unheard",
            Set::Fresh => "fresh",
            Set::Ended => "ended",
            Set::OffLink => "off_link",
        };
        format!("{name}{}", self.number())
    }

    fn spoken_set(self, lane: usize) -> String {
        match self {
            Self::V4 => format!("peers4_{lane}"),
            Self::V6 => format!("peers6_{lane}"),
        }
    }

    fn icmp(self) -> &'static str {
        match self {
            Self::V4 => "icmp",
            Self::V6 => "icmpv6",
        }
    }

    fn icmp_of_routers(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &["redirect", "router-advertisement", "router-solicitation"],
            Self::V6 => &[
                "nd-router-solicit",
                "nd-router-advert",
                "nd-neighbor-solicit",
                "nd-neighbor-advert",
                "nd-redirect",
            ],
        }
    }

    fn icmp_redirect(self) -> &'static str {
        match self {
            Self::V4 => "redirect",
            Self::V6 => "nd-redirect",
        }
    }

    fn icmp_not_carried(self) -> Vec<&'static str> {
        [self.icmp_errors(), self.icmp_of_routers()].concat()
    }

    fn icmp_errors(self) -> &'static [&'static str] {
        match self {
            Self::V4 => &[
                "destination-unreachable",
                "time-exceeded",
                "parameter-problem",
            ],
            Self::V6 => &[
                "destination-unreachable",
                "packet-too-big",
                "time-exceeded",
                "parameter-problem",
            ],
        }
    }

    fn quoted(self) -> Quoted {
        match self {
            Self::V4 => Quoted {
                protocol: 8 * (8 + 9),
                source: 8 * (8 + 20),
                destination: 8 * (8 + 22),
            },
            Self::V6 => Quoted {
                protocol: 8 * (8 + 6),
                source: 8 * (8 + 40),
                destination: 8 * (8 + 42),
            },
        }
    }
}

/// Name of the map of the marks of hosts' SYNs. Its keys are hashes of the four addresses: nft
/// 1.0.6 fails with map keys longer than 16 bytes.
pub const MARKS_MAP: &str = "marks";

/// Seed of the hashes. pepd draws a new one for each table that it installs, so that a host cannot
/// choose a SYN that collides with another's.
static MARKS_SEED: AtomicU32 = AtomicU32::new(0);

/// Draws a new seed. It stays unchanged if the kernel has no randomness.
pub(super) fn draw_marks_seed() {
    let mut seed = [0; 4];
    if SystemRandom::new().fill(&mut seed).is_ok() {
        MARKS_SEED.store(u32::from_ne_bytes(seed), Ordering::Relaxed);
    }
}

pub(super) fn marks_seed() -> u32 {
    MARKS_SEED.load(Ordering::Relaxed)
}

/// Modulus of the hashes.
pub(super) const MARKS_MODULUS: u32 = u32::MAX;

/// Offsets returned by [`Family::quoted`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Quoted {
    protocol: u16,
    source: u16,
    destination: u16,
}

/// Mask of the part of an IPv6 address that identifies a host.
const HOST_MASK: &str = "ffff:ffff:ffff:ffff::";

impl Hook {
    /// Returns the type of the hook's chains.
    const fn kind(self) -> &'static str {
        match self {
            Self::OutputRoute => "route",
            _ => "filter",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::PreroutingRaw
            | Self::PreroutingRawNext
            | Self::PreroutingDnat
            | Self::PreroutingLast
            | Self::PreroutingVeryLast => "prerouting",
            Self::InputLast => "input",
            Self::OutputRaw | Self::OutputRoute | Self::OutputLast => "output",
            Self::PostroutingSnat => "postrouting",
            Self::ForwardMangle | Self::ForwardLast => "forward",
        }
    }

    const fn priority(self) -> i32 {
        match self {
            Self::PreroutingRaw | Self::OutputRaw => -301,
            Self::OutputRoute => -300,
            Self::PreroutingRawNext => -299,
            Self::PreroutingDnat => -99,
            Self::PreroutingLast | Self::OutputLast => 1000,
            Self::PreroutingVeryLast => 1001,
            Self::PostroutingSnat => 99,
            Self::ForwardMangle => -150,
            Self::InputLast | Self::ForwardLast => i32::MAX,
        }
    }
}

/// Returns the bits that a mark keeps when pepd's bits are set to `mark`.
///
/// nft prints `mark & keep | mark` with the bits of `mark` in `keep` as well. Written that way from
/// the start, the installed rule equals the listed one.
const fn kept_bits(mask: u32, mark: u32) -> u32 {
    !mask | mark
}
