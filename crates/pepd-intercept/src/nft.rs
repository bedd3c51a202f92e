//! The table as nft reads it, and the `nft` command that installs it.

mod ask;
mod command;
mod text;

pub use ask::generation;
pub(super) use ask::{counters, element, table_exists};
pub use command::{Nft, NftError};
pub use text::install_transaction;
pub(crate) use text::{
    chain_transaction, empty_transaction, gate_transaction, hosts_transaction,
    networks_transaction, probe_transaction, remove_transaction,
};

use std::sync::atomic::{AtomicU32, Ordering};

use ring::rand::{SecureRandom as _, SystemRandom};

use super::rules::{Family, Hook};

/// The set of interfaces by which SYNs came in lately.
pub const SEEN_SET: &str = "seen";

/// How long an interface is remembered after the last SYN, in seconds. What is left of it says when
/// that was.
pub const SEEN_SECONDS: u32 = 86_400;

/// Interfaces that are remembered at most; a machine has a handful.
const SEEN_ELEMENTS: u32 = 256;

/// Seconds for which the addresses of a SYN are remembered: a host answers our SYN-ACK within
/// a round trip, and repeats a lost answer (its first data) within its retransmission timeout.
const RECENT_SECONDS: u32 = 10;

/// Elements of a set of recent SYNs at most, some 6 MB (IPv4) or 9 MB (IPv6). A flood may fill
/// it; then new flows pass unaccelerated until it has drained.
const RECENT_ELEMENTS: u32 = 65_536;

/// Seconds for which the mark of a SYN is kept: a host that has not heard pepd's SYN-ACK repeats
/// its SYN, and a held SYN is let go within less.
const MARKS_SECONDS: u32 = 60;

/// Marks of SYNs that are kept at most, some 4 MB. Server legs of those
/// beyond have none.
const MARKS_ELEMENTS: u32 = 65_536;

/// Hosts whose SYNs are counted by the second at most, some 16 MB (IPv6); those beyond count among
/// all only.
const RATE_ELEMENTS: u32 = 65_536;

/// Seconds after its last SYN for which a host is counted: longer than it needs to have its whole
/// burst again.
const RATE_SECONDS: u32 = 10;

/// Hosts of a peer that are remembered at most, some 2 MB (IPv6) for each site: errors about the
/// packets of those beyond go out by the link.
const SPOKEN_ELEMENTS: u32 = 16_384;

/// Seconds for which a host is remembered after its last packet: an error comes at once, or when a
/// neighbour has not answered for some seconds.
const SPOKEN_SECONDS: u32 = 60;

/// Names of a family in rules and sets.
pub(super) trait Names {
    /// As in `ip saddr`.
    fn payload(self) -> &'static str;

    /// As in `meta nfproto`.
    fn nfproto(self) -> &'static str;

    /// The type of an address in a set.
    fn address_type(self) -> &'static str;

    /// Where our listeners are.
    fn listen_address(self) -> &'static str;

    /// Hosts that have as many flows as one may have: addresses, or the first of each /64.
    fn hosts_set(self) -> &'static str;

    /// Networks that this machine is in, other than those of uplinks.
    fn near_set(self) -> &'static str;

    /// Hosts by how fast their SYNs come.
    fn rates_set(self) -> &'static str;

    /// As in `icmp type`.
    fn icmp(self) -> &'static str;

    /// What routers say to hosts of their own link: redirects, advertisements, solicitations,
    /// neighbours' addresses.
    fn icmp_of_routers(self) -> &'static [&'static str];

    /// The type of redirects.
    fn icmp_redirect(self) -> &'static str;

    /// The types of ICMP errors that hosts are to hear of.
    fn icmp_errors(self) -> &'static [&'static str];

    /// Where the protocol of a quoted packet is, and its ports, in bits from the beginning of ICMP:
    /// behind 8 bytes of its own, in or behind a header without options.
    fn quoted(self) -> Quoted;

    /// Hosts of whom packets came out of the TUN of that lane.
    fn spoken_set(self, lane: usize) -> String;

    /// ICMP types that tunnels of packets do not carry.
    fn icmp_not_carried(self) -> Vec<&'static str>;

    /// Connections that have begun lately.
    fn recent_set(self) -> &'static str;
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

    fn hosts_set(self) -> &'static str {
        match self {
            Self::V4 => "hosts4",
            Self::V6 => "hosts6",
        }
    }

    fn near_set(self) -> &'static str {
        match self {
            Self::V4 => "near4",
            Self::V6 => "near6",
        }
    }

    fn rates_set(self) -> &'static str {
        match self {
            Self::V4 => "rates4",
            Self::V6 => "rates6",
        }
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

    fn recent_set(self) -> &'static str {
        match self {
            Self::V4 => "recent4",
            Self::V6 => "recent6",
        }
    }
}

/// The map of the marks of hosts' SYNs. Its keys are hashes of their four addresses: nft 1.0.6
/// fails with keys of maps that are longer than 16 bytes.
pub const MARKS_MAP: &str = "marks";

/// Seed of the hashes. Drawn anew for each table that is installed, so that no host can make a SYN
/// whose hash is that of another.
static MARKS_SEED: AtomicU32 = AtomicU32::new(0);

/// Draws another seed. Where there is no randomness it stays as it is.
pub(super) fn draw_marks_seed() {
    let mut seed = [0; 4];
    if SystemRandom::new().fill(&mut seed).is_ok() {
        MARKS_SEED.store(u32::from_ne_bytes(seed), Ordering::Relaxed);
    }
}

pub(super) fn marks_seed() -> u32 {
    MARKS_SEED.load(Ordering::Relaxed)
}

/// Hashes are below this.
pub(super) const MARKS_MODULUS: u32 = u32::MAX;

/// See [`Family::quoted`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Quoted {
    protocol: u16,
    source: u16,
    destination: u16,
}

/// The part of an IPv6 address that tells hosts apart.
const HOST_MASK: &str = "ffff:ffff:ffff:ffff::";

impl Hook {
    /// The type of its chains.
    const fn kind(self) -> &'static str {
        match self {
            Self::OutputRoute => "route",
            _ => "filter",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::PreroutingRaw | Self::PreroutingDnat | Self::PreroutingLast => "prerouting",
            Self::OutputRaw | Self::OutputRoute => "output",
            Self::PostroutingLast => "postrouting",
            Self::ForwardMangle => "forward",
        }
    }

    const fn priority(self) -> i32 {
        match self {
            Self::PreroutingRaw | Self::OutputRaw | Self::OutputRoute => -300,
            Self::PreroutingDnat => -99,
            Self::PreroutingLast | Self::PostroutingLast => 1000,
            Self::ForwardMangle => -150,
        }
    }
}

/// Bits a mark keeps when ours are set to `mark`.
///
/// nft prints `mark & keep | mark` with the bits of `mark` in `keep` as well; written so from the
/// beginning, what we install is what it lists.
const fn kept_bits(mask: u32, mark: u32) -> u32 {
    !mask | mark
}
