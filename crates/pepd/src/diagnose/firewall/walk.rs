//! Chains of others, and the way that a packet of pepd's takes through them, as far as it can be
//! told.

use std::collections::BTreeMap;

use super::{iptables, nft};

/// Jumps that are followed at most; the kernel refuses more than 16.
const DEPTH: usize = 16;

/// The place in the kernel where chains are hooked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hook {
    /// Before routing.
    Prerouting,
    /// For this machine.
    Input,
    /// Through this machine.
    Forward,
    /// From this machine.
    Output,
}

impl Hook {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "prerouting" => Some(Self::Prerouting),
            "input" => Some(Self::Input),
            "forward" => Some(Self::Forward),
            "output" => Some(Self::Output),
            _ => None,
        }
    }
}

/// The interface of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PacketInterface {
    /// Not set in this hook.
    None,
    /// This one.
    By(String),
    /// One of those that are not known, but not the loopback.
    Unknown,
}

impl PacketInterface {
    /// Whether it is one that a rule names; a `*` at the end stands for anything.
    pub(super) fn is(&self, pattern: &str) -> Option<bool> {
        match self {
            Self::None => Some(false),
            Self::Unknown => (pattern == "lo").then_some(false),
            Self::By(name) => Some(match pattern.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == pattern,
            }),
        }
    }
}

/// A packet of pepd's: TCP, and its addresses are not this machine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    /// In words.
    pub what: String,
    pub hook: Hook,
    pub is_v6: bool,
    pub input: PacketInterface,
    pub output: PacketInterface,
    pub mark: u32,
    /// As connection tracking has it.
    pub state: &'static str,
    pub flags: &'static [&'static str],
}

/// Verdict on packets that match a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// Effect of a rule on one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Whether the packet matches; `None` where that cannot be told.
    pub matches: Option<bool>,
    /// True where it asks for the reverse path by the mark, which may lead ours to this machine.
    pub by_mark: bool,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    Nft(Vec<serde_json::Value>),
    Iptables(Vec<String>),
}

impl Rule {
    fn steps(&self, packet: &Packet) -> Vec<Step> {
        match self {
            Self::Nft(statements) => nft::steps(statements, packet),
            Self::Iptables(words) => iptables::step(words, packet).into_iter().collect(),
        }
    }

    /// The MSS to which it sets that of a SYN, where it is sure to.
    pub(super) fn clamp(&self, packet: &Packet) -> Option<Clamp> {
        match self {
            Self::Nft(statements) => nft::clamp(statements, packet),
            Self::Iptables(words) => iptables::clamp(words, packet),
        }
    }
}

/// Value to which a rule sets the MSS of SYNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clamp {
    /// As much as the route's MTU holds.
    Route,
    /// So many bytes.
    Bytes(u16),
}

impl Clamp {
    pub(super) fn bytes(self) -> Option<u16> {
        match self {
            Self::Route => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// Where a chain is hooked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Base {
    pub hook: Hook,
    pub priority: i64,
    pub drops: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Chain {
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
}

/// A table of somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// As `nft list table` or `iptables -t` would have it.
    pub name: String,
    pub is_iptables: bool,
    /// The family of its packets; `None` for both.
    pub is_v6: Option<bool>,
    pub chains: BTreeMap<String, Chain>,
}

/// Fate of a packet in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Accepted,
    /// By what, and whether a rule that cannot be judged may accept it before.
    Dropped {
        by: String,
        is_sure: bool,
    },
}

/// The end of a walk through a chain.
enum End {
    /// Back to the chain that led here, or to the policy.
    Through,
    Accepted,
    Dropped(String),
}

struct Walk<'a> {
    table: &'a Table,
    packet: &'a Packet,
    /// Something that cannot be judged may have ended the way before.
    doubt: bool,
    /// A rule that may drop ours, and only ours.
    may_drop: Option<String>,
    /// Clamps met on the way, each with its chain.
    clamps: Vec<(String, Clamp)>,
}

impl Table {
    /// Whether it sees packets of this family.
    pub(super) fn sees(&self, packet: &Packet) -> bool {
        self.is_v6.is_none_or(|is_v6| is_v6 == packet.is_v6)
    }

    /// Fate of a packet in a chain that is hooked in.
    pub(super) fn fate(&self, chain: &str, base: Base, packet: &Packet) -> Fate {
        let mut walk = Walk::new(self, packet);
        let end = walk.chain(chain, 0);
        let by = match end {
            End::Dropped(by) => Some(by),
            End::Through if base.drops => Some("its policy".to_owned()),
            End::Through | End::Accepted => None,
        };
        let is_sure = by.is_some() && !walk.doubt;
        match by.or(walk.may_drop) {
            Some(by) => Fate::Dropped { by, is_sure },
            None => Fate::Accepted,
        }
    }

    /// Clamps that a packet is sure to meet in the chains of its hook, each with its chain.
    pub(super) fn clamps(&self, packet: &Packet) -> Vec<(String, Clamp)> {
        let is_hooked = |chain: &Chain| chain.base.is_some_and(|base| base.hook == packet.hook);
        let bases = self.chains.iter().filter(|(_, chain)| is_hooked(chain));
        let clamps = bases.flat_map(|(name, _)| {
            let mut walk = Walk::new(self, packet);
            walk.chain(name, 0);
            walk.clamps
        });
        clamps.collect()
    }
}

impl<'a> Walk<'a> {
    fn new(table: &'a Table, packet: &'a Packet) -> Self {
        Self {
            table,
            packet,
            doubt: false,
            may_drop: None,
            clamps: Vec::new(),
        }
    }

    fn chain(&mut self, name: &str, depth: usize) -> End {
        let Some(chain) = self.table.chains.get(name).filter(|_| depth < DEPTH) else {
            return End::Through;
        };
        for rule in &chain.rules {
            let clamp = rule
                .clamp(self.packet)
                .map(|clamp| (name.to_owned(), clamp));
            self.clamps.extend(clamp);
            for step in rule.steps(self.packet) {
                match step.matches {
                    Some(false) => {}
                    Some(true) => {
                        if let Some(end) = self.certain(name, &step.verdict, depth) {
                            return end;
                        }
                    }
                    None => self.doubtful(name, &step, depth),
                }
            }
        }
        End::Through
    }

    /// `None` where the way goes on with the next rule.
    fn certain(&mut self, chain: &str, verdict: &Verdict, depth: usize) -> Option<End> {
        match verdict {
            Verdict::Accept => Some(End::Accepted),
            Verdict::Drop => Some(End::Dropped(format!("a rule of chain {chain}"))),
            Verdict::Return => Some(End::Through),
            Verdict::Goto(target) => Some(self.chain(target, depth + 1)),
            Verdict::Jump(target) => match self.chain(target, depth + 1) {
                End::Through => None,
                end => Some(end),
            },
        }
    }

    /// A rule that cannot be judged. One that drops is there for some packets, most likely not for
    /// ours: such as those of a list of addresses.
    fn doubtful(&mut self, chain: &str, step: &Step, depth: usize) {
        match &step.verdict {
            Verdict::Accept | Verdict::Return => self.doubt = true,
            Verdict::Drop if step.by_mark => {
                self.may_drop = Some(format!("the reverse path check of chain {chain}"));
            }
            Verdict::Drop => {}
            Verdict::Jump(target) | Verdict::Goto(target) => {
                let may_end = matches!(step.verdict, Verdict::Goto(_));
                let sure = self.clamps.len();
                let end = self.chain(target, depth + 1);
                self.clamps.truncate(sure);
                self.doubt |= may_end || matches!(end, End::Accepted);
            }
        }
    }
}
