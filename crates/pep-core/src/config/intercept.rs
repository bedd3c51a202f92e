//! `[intercept]`: interfaces from which connections come, and the rules that redirect them.

use std::time::Duration;

use super::{IfName, TableName};
use crate::reading::{
    Section, section,
    values::{Integer, Span, short, text},
    words,
};
use crate::site::SynHandling;

/// Packet and socket marks: the values that fit into a mask, from a first one upwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    first: u32,
    mask: u32,
}

impl Marks {
    /// Marks used in addition to one per LAN interface: client leg, server leg, passed SYN, local.
    pub const FIXED: u32 = 4;

    /// Marks from `first` upwards in `mask`; `None` unless the bits of `mask` are adjacent and
    /// `first` is one or more of them.
    pub const fn new(first: u32, mask: u32) -> Option<Self> {
        if mask == 0 || first == 0 || first & !mask != 0 {
            return None;
        }
        let adjacent = (mask >> mask.trailing_zeros()) as u64 + 1;
        if adjacent.is_power_of_two() {
            Some(Self { first, mask })
        } else {
            None
        }
    }

    /// The lowest mark, not zero.
    pub const fn first(self) -> u32 {
        self.first
    }

    /// The adjacent bits of a mark that pepd uses; other bits stay unchanged.
    pub const fn mask(self) -> u32 {
        self.mask
    }

    /// The `index`-th mark, or `None` when the mask has no room for it.
    pub const fn get(self, index: u32) -> Option<u32> {
        if (index as u64) < self.room() {
            Some(self.first + (index << self.mask.trailing_zeros()))
        } else {
            None
        }
    }

    /// Number of marks, 1 or more.
    pub const fn room(self) -> u64 {
        ((self.mask - self.first) >> self.mask.trailing_zeros()) as u64 + 1
    }
}

words! {
    /// Program that installs the rules of the packet filter.
    pub enum RulesBy {
        /// nft where it can redirect connections, else iptables.
        Auto = "auto",
        /// nft.
        Nft = "nft",
        /// iptables-restore and ip6tables-restore.
        Iptables = "iptables",
        /// None: the operator installs the rules that `pepd rules` prints.
        Manual = "manual",
    }
}

words! {
    /// Effect of rules that other programs have in the forward hook on accelerated connections.
    pub enum Forward {
        /// Obeyed where pepd can do so on this machine, and ignored elsewhere.
        Auto = "auto",
        /// Obeyed: each SYN passes them first.
        Obey = "obey",
        /// Ignored.
        Ignore = "ignore",
    }
}

words! {
    /// Treatment of connections whose beginning this machine has not seen.
    pub enum Midway {
        /// Reset, if a pepd has split them; others pass.
        Reset = "reset",
        /// Left alone.
        Pass = "pass",
    }
}

section! {
    /// `[intercept]`: interfaces from which connections come, and the rules that redirect them.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Intercept(s) {
        /// Interfaces on which hosts' connections arrive, 1 to [`LAN_MAX`](Self::LAN_MAX).
        lan: Vec<IfName> = read_lan(s);
        /// First of the TCP ports on 127.0.0.1 and ::1 to which connections are redirected, one
        /// per site ([`Config::listen_port`](super::Config::listen_port)).
        listen_port: u16 = short(1..=u16::MAX), 5000;
        /// Program that installs the rules.
        rules: RulesBy = RulesBy::WORDS, RulesBy::Auto;
        /// Name of pepd's nft table, for IPv4 and IPv6 together; its first 12 characters begin the
        /// names of chains of iptables.
        table: TableName =
            text("the name of an nft table"), "pepd".parse().expect("a valid table name");
        /// Marks of packets and sockets.
        marks: Marks = read_marks(s);
        /// First of the routing tables that pepd fills: one for local delivery and one per LAN
        /// interface.
        route_table: u32 = Integer(256..=2_000_000_000), 5000;
        /// Priority of pepd's policy rules.
        rule_priority: u32 = Integer(1..=32_765), 100;
        /// Effect of rules in the forward hook on accelerated connections.
        forward: Forward = Forward::WORDS, Forward::Auto;
        /// Treatment of connections whose beginning this machine has not seen.
        midway: Midway = Midway::WORDS, Midway::Reset;
        /// Default SYN handling of sites.
        syn: SynHandling = SynHandling::WORDS, SynHandling::Spoof;
        /// Lifetime of a held SYN (`syn = "defer"`) after the client last sent it.
        syn_lease: Duration =
            Span(Duration::from_secs(1)..=Duration::from_secs(300)), Duration::from_secs(35);
    }
}

impl Intercept {
    /// Maximum number of interfaces in [`lan`](Self::lan): each takes a mark, a routing table and a
    /// TUN.
    pub const LAN_MAX: usize = 64;

    /// Reports whether SYNs may pass rules in the forward hook first. With rules of iptables, or of
    /// the operator, they do so only on demand.
    pub(super) fn may_obey(&self) -> bool {
        match self.forward {
            Forward::Auto => matches!(self.rules, RulesBy::Auto | RulesBy::Nft),
            Forward::Obey => true,
            Forward::Ignore => false,
        }
    }

    /// Reads the section. Without `lan`, reports the error and leaves the list empty.
    pub(super) fn read(mut section: Section<'_>) -> Self {
        let intercept = Self::read_keys(&mut section);
        intercept.check_marks(&section);
        section.finish();
        intercept
    }

    fn check_marks(&self, section: &Section<'_>) {
        let needed = u64::from(Marks::FIXED) + self.lan.len() as u64;
        if self.marks.room() < needed {
            section.error(
                "mark_mask",
                format!(
                    "has room for {} marks from {:#x} upwards; {needed} are needed ({} and one per interface of `lan`)",
                    self.marks.room(),
                    self.marks.first(),
                    Marks::FIXED
                ),
            );
        }
    }
}

const LAN_EXPECTED: &str =
    "a list of interfaces on which hosts' connections arrive, such as [\"eth0\"]";

fn read_lan(section: &mut Section<'_>) -> Vec<IfName> {
    let lan = section.require_list(
        "lan",
        text::<IfName>("the name of an interface"),
        LAN_EXPECTED,
    );
    let Some((lan, complete)) = lan else {
        return Vec::new();
    };
    if lan.is_empty() && complete {
        section.error("lan", format!("empty; expected {LAN_EXPECTED}"));
    }
    if lan.len() > Intercept::LAN_MAX {
        let found = lan.len();
        section.error(
            "lan",
            format!("{found} interfaces; accepted: 1 to {}", Intercept::LAN_MAX),
        );
    }
    for (index, name) in lan.iter().enumerate() {
        if lan[..index].contains(name) {
            section.error("lan", format!("`{name}` is listed twice"));
        }
    }
    lan
}

/// Kubernetes, Tailscale, WireGuard and mwan3 use marks in the lower 24 bits.
const MARKS: Marks = Marks {
    first: 0x5000_0000,
    mask: 0xff00_0000,
};

fn read_marks(section: &mut Section<'_>) -> Marks {
    let first = section.or("mark", Integer(1..=u32::MAX), MARKS.first);
    let mask = section.or("mark_mask", Integer(1..=u32::MAX), MARKS.mask);
    let key = if section.has("mark_mask") {
        "mark_mask"
    } else {
        "mark"
    };
    Marks::new(first, mask).unwrap_or_else(|| {
        section.error(
            key,
            format!(
                "{mask:#x} has to be one run of adjacent bits with `mark` ({first:#x}) inside it"
            ),
        );
        MARKS
    })
}
