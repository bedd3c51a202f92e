//! `[intercept]`: where connections come in and how they are caught.

use std::time::Duration;

use super::{IfName, TableName};
use crate::site::SynHandling;

/// Packet and socket marks: the values that fit into a mask, from a first one upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// The lowest value in use; has no bit outside [`mask`](Self::mask) and is not zero.
    pub first: u32,
    /// The bits of a mark that are ours, all adjacent; the others are left as they are.
    pub mask: u32,
}

impl Marks {
    /// Values used beside one per LAN interface: client leg, server leg, passed SYN, local.
    pub const FIXED: u32 = 4;

    /// The `index`-th mark, or `None` when the mask has no room for it.
    pub const fn get(self, index: u32) -> Option<u32> {
        if index >= self.room() {
            return None;
        }
        Some(self.first + (index << self.mask.trailing_zeros()))
    }

    /// How many marks there are.
    pub const fn room(self) -> u32 {
        if self.mask == 0 {
            return 0;
        }
        let room = ((self.mask - self.first) >> self.mask.trailing_zeros()) as u64 + 1;
        if room > u32::MAX as u64 {
            u32::MAX
        } else {
            room as u32
        }
    }
}

/// `[intercept]`: where connections come in and how they are caught.
#[derive(Debug, Clone, PartialEq)]
pub struct Intercept {
    /// Interfaces on which hosts' connections arrive, 1 to 64. Required: nothing else tells
    /// the hosts' side from the link's.
    pub lan: Vec<IfName>,
    /// First of the TCP ports on 127.0.0.1 and ::1 to which connections are redirected, one
    /// per site, 1 to 65,535. Default 5000, as other PEPs have it. Other machines cannot
    /// reach these ports, and hosts may use the same numbers.
    pub listen_port: u16,
    /// Name of our nft table, for IPv4 and IPv6 together. Default `pepd`. Two pepds on one
    /// machine need two names.
    pub table: TableName,
    /// Marks of packets and sockets. Default 0x50000000 in 0xff000000: the usual users of
    /// marks (Kubernetes, Tailscale, WireGuard, mwan3) keep to the lower 24 bits.
    pub marks: Marks,
    /// First of the routing tables we fill: one for local delivery and one per LAN
    /// interface, 1 to 2^31. Default 5000, beyond what distributions and VPNs number by hand.
    pub route_table: u32,
    /// Priority of our policy rules, 1 to 32,765. Default 100: before those of VPNs (which
    /// begin near 5000) and the main table, after the local table. Only marked packets match.
    pub rule_priority: u32,
    /// How sites that do not say otherwise answer SYNs. Default [`SynHandling::Spoof`]: it
    /// saves the round trip over the link on which a PEP's users wait most.
    pub syn: SynHandling,
    /// How long a held SYN (`syn = "defer"`) is kept after the client last sent it, 1 s to
    /// 5 min. Default 35 s: hosts repeat a SYN after 1, 2, 4, ... 32 s, so a host that
    /// has been silent for longer has given up.
    pub syn_lease: Duration,
}

impl Intercept {
    /// The most interfaces in [`lan`](Self::lan): each takes a mark, a routing table and a TUN.
    pub const LAN_MAX: usize = 64;

    /// Every default, for these interfaces.
    pub fn with_defaults(lan: Vec<IfName>) -> Self {
        Self {
            lan,
            listen_port: 5000,
            table: "pepd".parse().expect("a valid table name"),
            marks: Marks {
                first: 0x5000_0000,
                mask: 0xff00_0000,
            },
            route_table: 5000,
            rule_priority: 100,
            syn: SynHandling::default(),
            syn_lease: Duration::from_secs(35),
        }
    }
}
