//! Chains of other programs, and the path of pepd's packets through them, as far as known.

use std::collections::BTreeMap;

use super::{iptables, nft};

/// Maximum depth of jumps; the kernel refuses more than 16.
const DEPTH: usize = 16;

/// Hook of base chains.
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
    /// A known interface.
    By(String),
    /// An unknown interface other than loopback.
    Unknown,
}

impl PacketInterface {
    /// Returns true if it matches a name in a rule; a final `*` matches any suffix.
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

/// A packet of pepd's: TCP, with addresses of other machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Packet {
    /// Description.
    pub what: String,
    pub hook: Hook,
    pub is_v6: bool,
    pub input: PacketInterface,
    pub output: PacketInterface,
    pub mark: u32,
    /// State in connection tracking.
    pub state: &'static str,
    pub flags: &'static [&'static str],
    /// True for one packet of a host, whose ports and marks are unknown. Other packets stand for
    /// those to all ports, of which a rule for one matches only some.
    pub is_of_host: bool,
}

impl Packet {
    /// Returns the result of a comparison with its ports; `None` if unknown.
    pub(super) fn has_port(&self) -> Option<bool> {
        (!self.is_of_host).then_some(false)
    }

    /// Returns its mark, if known.
    pub(super) fn known_mark(&self) -> Option<u32> {
        (!self.is_of_host).then_some(self.mark)
    }
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
    /// True if the packet matches; `None` if unknown.
    pub matches: Option<bool>,
    /// True for a reverse path check with the mark, which may lead pepd's packets to this machine.
    pub by_mark: bool,
    pub verdict: Verdict,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    Nft(Vec<serde_json::Value>),
    Iptables(Vec<String>),
}

impl Rule {
    pub(super) fn steps(&self, packet: &Packet) -> Vec<Step> {
        match self {
            Self::Nft(statements) => nft::steps(statements, packet),
            Self::Iptables(words) => iptables::step(words, packet).into_iter().collect(),
        }
    }

    /// Returns the clamp of a rule that certainly applies to the SYN.
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
    /// MTU of the route, less headers.
    Route,
    /// Fixed number of bytes.
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

/// Hook and priority of a chain.
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

/// A table of another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    /// Name as in `nft list table` or `iptables -t`.
    pub name: String,
    pub is_iptables: bool,
    /// Family of its packets; `None` for both.
    pub is_v6: Option<bool>,
    pub chains: BTreeMap<String, Chain>,
}

/// Fate of a packet in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Accepted,
    /// Dropped by this rule or policy; a rule of unknown effect may accept it before.
    Dropped {
        by: String,
        is_sure: bool,
    },
}

/// The end of a walk through a chain.
enum End {
    /// Returns to the calling chain, or reaches the policy.
    Through,
    Accepted,
    Dropped(String),
}

struct Walk<'a> {
    table: &'a Table,
    packet: &'a Packet,
    /// True if a rule of unknown effect may have ended the path before.
    doubt: bool,
    /// Rule that may drop packets of pepd, and only those.
    may_drop: Option<String>,
    /// True if a rule of unknown effect drops some packets.
    drops_some: bool,
    /// Clamps on the path, each with its chain.
    clamps: Vec<(String, Clamp)>,
}

impl Table {
    /// Returns true if the table handles packets of this family.
    pub(super) fn sees(&self, packet: &Packet) -> bool {
        self.is_v6.is_none_or(|is_v6| is_v6 == packet.is_v6)
    }

    /// Returns the fate of a packet in a base chain.
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

    /// Returns true if a rule of unknown effect drops packets of this kind: some, or all.
    pub(super) fn drops_some(&self, chain: &str, packet: &Packet) -> bool {
        let mut walk = Walk::new(self, packet);
        walk.chain(chain, 0);
        walk.drops_some
    }

    /// Returns clamps that certainly apply to a packet in the chains of its hook, each with its
    /// chain.
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
            drops_some: false,
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

    /// Returns the end of the walk; `None` if it continues with the next rule.
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

    /// Handles a rule of unknown effect. A rule that drops is specific to some packets, such as
    /// those from a list of addresses, and most likely not pepd's.
    fn doubtful(&mut self, chain: &str, step: &Step, depth: usize) {
        self.drops_some |= step.verdict == Verdict::Drop;
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
                self.drops_some |= matches!(end, End::Dropped(_));
                self.doubt |= may_end || matches!(end, End::Accepted);
            }
        }
    }
}
