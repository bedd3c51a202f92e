//! Translation of the model into rules of one family.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use pep_core::{hosts::Host, site::PortRange};
use pepd_sys::{gate::Gate, marks::MarkSet};

use super::{ACTIONS, HOSTS, Jump, Line, Lines, NEAR, SIGNALS, Table, is_of};
use crate::{
    iptables::signals::{ALIVE, OPEN, signal_mark},
    nft::Names,
    rules::{self, Chain, CopyTo, Counter, Family, Hook, Prefixes, Rule, Ruleset, Term},
};

/// Place of rules, which decides the actions that they have there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// All of `raw`.
    Raw,
    /// Chains of sites in `mangle`: they redirect SYNs that `raw` has chosen.
    Sites,
    /// Other chains of `mangle`.
    Mangle,
}

/// Writer of the rules of one family.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// First part of the names of chains and lists.
    pub prefix: &'a str,
    /// pepd's marks.
    pub marks: MarkSet,
    /// UDP port of pepd's signals.
    pub port: u16,
    /// The family.
    pub family: Family,
    /// True if the kernel can check sources (xt_rpfilter).
    pub rpfilter: bool,
}

impl Writer<'_> {
    /// Returns pepd's part of `raw` and of `mangle`.
    pub fn tables(&self, ruleset: &Ruleset) -> [Table; 2] {
        [self.raw(ruleset), self.mangle(ruleset)]
    }

    /// Returns the table `raw`: every decision. Where nft redirects, it marks the packet and
    /// exempts it from conntrack.
    fn raw(&self, ruleset: &Ruleset) -> Table {
        let chains: Vec<_> = ruleset
            .chains
            .iter()
            .filter(|chain| !of_mangle(chain))
            .collect();
        let lines = chains
            .iter()
            .map(|chain| self.decision(&chain.name, &chain.rules));
        let more = [
            self.hosts(&BTreeSet::new()),
            self.networks(&BTreeSet::new()),
            self.signals(),
        ];
        let actions = self.action_chains(Part::Raw, &chains);
        self.table(
            "raw",
            lines.chain(more).chain(actions).collect(),
            &chains,
            ruleset,
        )
    }

    /// Returns the table `mangle`: SYNs to the listeners of their sites, and answers of servers to
    /// pepd.
    fn mangle(&self, ruleset: &Ruleset) -> Table {
        let sites = ruleset.chains.iter().filter(|chain| is_site(chain));
        let sites = sites.map(|chain| self.chain_of(Part::Sites, chain));
        let chains: Vec<_> = ruleset
            .chains
            .iter()
            .filter(|chain| of_mangle(chain))
            .collect();
        let others = chains
            .iter()
            .map(|chain| self.chain_of(Part::Mangle, chain));
        let actions = self.action_chains(Part::Mangle, &chains);
        let all = sites.chain(others).chain(actions).collect();
        let mut table = self.table("mangle", all, &chains, ruleset);
        let chosen = self.mark(self.marks.local());
        let redirects = Jump {
            base: "PREROUTING",
            conditions: format!(
                " -p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m mark --mark {chosen}"
            ),
            to: self.chain("sites"),
            is_last: false,
        };
        table.jumps.insert(0, redirects);
        table
    }

    fn table(
        &self,
        name: &'static str,
        chains: Vec<Lines>,
        hooked: &[&Chain],
        ruleset: &Ruleset,
    ) -> Table {
        let jumps = hooked.iter().flat_map(|chain| self.jumps(chain, ruleset));
        Table {
            family: self.family,
            name,
            jumps: jumps.collect(),
            chains,
        }
    }

    /// Returns a chain of `raw` with these rules.
    pub fn decision(&self, name: &str, rules: &[Rule]) -> Lines {
        let line = |conditions: String, action: String, comment: &str| Line {
            conditions,
            action,
            comment: comment.to_owned(),
            counters: Vec::new(),
        };
        let lines = match name {
            // Only signals of the running pepd open the gate.
            "gate" => {
                let opens = line(
                    self.listed(OPEN, RECENTLY),
                    " -j RETURN".to_owned(),
                    "pepd runs and takes new flows",
                );
                let closed = self.lines(Part::Raw, &rules::gate(Gate::Closed));
                [vec![opens], closed].concat()
            }
            "to_hosts" => {
                let (address, port) = (self.family.listen_address(), self.port);
                let signal = line(
                    format!(" -o lo -p udp -d {address} -m udp --dport {port}"),
                    format!(" -j {}", self.chain(SIGNALS)),
                    "perhaps a signal of pepd",
                );
                [vec![signal], self.lines(Part::Raw, rules)].concat()
            }
            _ => self.lines(Part::Raw, rules),
        };
        Lines {
            name: self.chain(name),
            lines,
        }
    }

    /// Returns the chain that lets new flows of these hosts pass.
    pub fn hosts(&self, hosts: &BTreeSet<Host>) -> Lines {
        let length = match self.family {
            Family::V4 => 32,
            Family::V6 => 64,
        };
        let addresses = hosts.iter().map(|host| host.address());
        let addresses = addresses.filter(|address| is_of(self.family, *address));
        let lines = addresses.map(|address| Line {
            conditions: format!(" -s {address}/{length}"),
            action: format!(" -j {}", self.chain("host_at_cap")),
            comment: "host at its flow limit".to_owned(),
            counters: Vec::new(),
        });
        Lines {
            name: self.chain(HOSTS),
            lines: lines.collect(),
        }
    }

    /// Returns the chain that lets packets to these networks pass.
    pub fn networks(&self, networks: &BTreeSet<IpNet>) -> Lines {
        let networks = networks.iter();
        let networks = networks.filter(|net| is_of(self.family, net.addr()));
        let lines = networks.map(|net| Line {
            conditions: format!(" -d {net}"),
            action: " -j ACCEPT".to_owned(),
            comment: "to a network of this machine".to_owned(),
            counters: Vec::new(),
        });
        Lines {
            name: self.chain(NEAR),
            lines: lines.collect(),
        }
    }

    /// Returns true for a chain of `raw` whose rules depend on pepd's state alone.
    pub fn depends_on_state(&self, chain: &str) -> bool {
        let name = chain.strip_prefix(self.prefix).unwrap_or(chain);
        let name = name.trim_start_matches('_');
        [HOSTS, NEAR].contains(&name) || rules::follows_state(name)
    }

    /// Returns the rules that a chain of `raw` may have instead, while a peer or the link is down,
    /// its site off, or IPv6 without answers.
    pub fn instead(&self, chain: &str) -> Vec<Lines> {
        let name = chain.strip_prefix(self.prefix).unwrap_or(chain);
        let name = name.trim_start_matches('_');
        let instead = rules::instead(name).into_iter();
        instead.map(|rules| self.decision(name, &rules)).collect()
    }

    /// Returns the chain that enters pepd's signals into the lists, and drops them.
    fn signals(&self) -> Lines {
        let line = |mark: u32, list, operation: &str, action: &str| Line {
            conditions: format!(
                " -m mark --mark {}{}",
                self.mark(mark),
                self.listed(list, operation)
            ),
            action: action.to_owned(),
            comment: "a signal of pepd".to_owned(),
            counters: Vec::new(),
        };
        let [open, closed] = [Gate::Open, Gate::Closed].map(|gate| signal_mark(self.marks, gate));
        Lines {
            name: self.chain(SIGNALS),
            lines: vec![
                line(open, OPEN, "--set", ""),
                line(closed, OPEN, "--remove", ""),
                line(open, ALIVE, "--set", " -j DROP"),
                line(closed, ALIVE, "--set", " -j DROP"),
            ],
        }
    }

    /// Returns an operation on the only entry of a list of xt_recent: all addresses, masked.
    fn listed(&self, list: &str, operation: &str) -> String {
        let (prefix, mask) = match self.family {
            Family::V4 => (self.prefix, "0.0.0.0"),
            Family::V6 => (self.prefix, "::"),
        };
        format!(" -m recent --name {prefix}_{list} --mask {mask} {operation}")
    }

    fn chain_of(&self, part: Part, chain: &Chain) -> Lines {
        Lines {
            name: self.chain(&chain.name),
            lines: self.lines(part, &chain.rules),
        }
    }

    /// Returns the lines of rules: one for each combination of alternatives.
    fn lines(&self, part: Part, rules: &[Rule]) -> Vec<Line> {
        let lines = rules.iter().flat_map(|rule| {
            let conditions = self.conditions(&rule.terms).unwrap_or_default();
            let (action, counters) = (self.target(part, &rule.terms), counters(part, &rule.terms));
            let has_effect = !action.is_empty() || !counters.is_empty();
            let conditions = conditions.into_iter().filter(move |_| has_effect);
            conditions.map(move |conditions| Line {
                conditions,
                action: action.clone(),
                comment: rule.comment.clone(),
                counters: counters.clone(),
            })
        });
        lines.collect()
    }

    /// Returns the target of a rule with its option; a chain of its own for several actions, so
    /// that the conditions are evaluated once.
    fn target(&self, part: Part, terms: &[Term]) -> String {
        let instead = terms.iter().find_map(|term| match term {
            Term::AtCap(_) => Some(HOSTS),
            Term::ToNear(_) => Some(NEAR),
            _ => None,
        });
        if let Some(chain) = instead.filter(|_| part == Part::Raw) {
            return format!(" -j {}", self.chain(chain));
        }
        let actions: Vec<_> = terms
            .iter()
            .filter_map(|term| self.action(part, term))
            .collect();
        match actions.as_slice() {
            [] => String::new(),
            [only] => format!(" {only}"),
            _ => format!(" -g {}", self.action_chain(terms)),
        }
    }

    fn action_chain(&self, terms: &[Term]) -> String {
        let word = |term: &Term| match term {
            Term::SetMark(mark) => format!("{:x}", self.marks.number(*mark)),
            Term::Notrack => "n".to_owned(),
            Term::Accept => "a".to_owned(),
            Term::Copy(to) => to.prefix.clone(),
            _ => String::new(),
        };
        let words: String = terms.iter().map(word).collect();
        self.chain(&format!("{ACTIONS}{words}"))
    }

    /// Returns the chains of actions that rules of these chains refer to.
    fn action_chains(&self, part: Part, chains: &[&Chain]) -> Vec<Lines> {
        let rules = chains.iter().flat_map(|chain| &chain.rules);
        let mut all = BTreeMap::new();
        for rule in rules.filter(|rule| self.conditions(&rule.terms).is_some()) {
            let actions = rule.terms.iter().filter_map(|term| self.action(part, term));
            let actions: Vec<_> = actions.collect();
            if actions.len() > 1 && self.target(part, &rule.terms).starts_with(" -g") {
                all.insert(self.action_chain(&rule.terms), actions);
            }
        }
        let lines = |(name, actions): (String, Vec<String>)| Lines {
            name,
            lines: actions
                .into_iter()
                .map(|action| Line {
                    conditions: String::new(),
                    action: format!(" {action}"),
                    comment: "each action of a rule".to_owned(),
                    counters: Vec::new(),
                })
                .collect(),
        };
        all.into_iter().map(lines).collect()
    }

    fn jumps(&self, chain: &Chain, ruleset: &Ruleset) -> Vec<Jump> {
        let jump = |base, conditions: String| Jump {
            base,
            conditions,
            to: self.chain(&chain.name),
            is_last: base == "POSTROUTING",
        };
        match chain.hook {
            Some(Hook::PreroutingRaw) => {
                let mut interfaces = host_interfaces(ruleset);
                // Interfaces of the TUNs out of which packets of a peer come.
                for name in named(chain) {
                    if !interfaces.contains(name) {
                        interfaces.push(name.clone());
                    }
                }
                let interfaces = interfaces.iter();
                interfaces
                    .map(|name| jump("PREROUTING", format!(" -i {name}")))
                    .collect()
            }
            Some(Hook::PreroutingDnat) => vec![jump("PREROUTING", String::new())],
            Some(Hook::OutputRaw) => vec![jump("OUTPUT", String::new())],
            Some(Hook::ForwardMangle) => vec![jump("FORWARD", String::new())],
            Some(Hook::PostroutingSnat) => vec![jump("POSTROUTING", String::new())],
            // iptables has no equivalent.
            Some(
                Hook::ForwardLast
                | Hook::InputLast
                | Hook::OutputRoute
                | Hook::OutputLast
                | Hook::PreroutingRawNext
                | Hook::PreroutingLast
                | Hook::PreroutingVeryLast,
            )
            | None => Vec::new(),
        }
    }

    /// Returns the iptables name of a chain. It has 28 characters at maximum: 12 of the table's
    /// name, and `from_servers` is the longest rest.
    fn chain(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// Returns the conditions of a rule, once for each combination of alternatives, since iptables
    /// has no lists; `None` for a rule that cannot match here or that iptables cannot express.
    fn conditions(&self, terms: &[Term]) -> Option<Vec<String>> {
        let mut all = vec![String::new()];
        let has_socket =
            |term: &Term| matches!(term, Term::SocketMark(_) | Term::SocketTransparent);
        // Without a look-up for each packet of UDP.
        let protocols = [Term::TcpOrIcmp];
        let protocols = protocols
            .iter()
            .filter(|_| terms.iter().any(has_socket) && !terms.iter().any(is_protocol));
        let ends = terms.contains(&Term::Accept);
        let is_marked = terms.iter().any(|term| matches!(term, Term::SocketMark(_)));
        let terms = terms.iter();
        let terms = terms.filter(|term| !is_marked || **term != Term::SocketTransparent);
        for term in protocols.chain(terms) {
            let alternatives = match term {
                Term::NotFrom(names) if names.len() == 1 => vec![format!(" ! -i {}", names[0])],
                // Several cannot be excluded; jumps to the chain select them, or it only counts.
                Term::NotFrom(_) if !ends => vec![String::new()],
                term => self.condition(term)?,
            };
            let join = |so_far: &String| -> Vec<String> {
                let next = |next: &String| and(so_far, next);
                alternatives.iter().map(next).collect()
            };
            all = all.iter().flat_map(join).collect();
        }
        Some(all)
    }

    fn condition(&self, term: &Term) -> Option<Vec<String>> {
        let one = |text: &str| Some(vec![text.to_owned()]);
        match term {
            Term::From(names) => Some(each(names, |name| format!(" -i {name}"))),
            // No equivalent.
            Term::NotFrom(_)
            | Term::RoutedToAny(_)
            | Term::IpOptions
            | Term::NoRoute
            | Term::RoutedByOther(_)
            | Term::NotTo(_)
            | Term::OffLink(_)
            | Term::OnLink(_)
            | Term::NotTcpOrIcmp
            | Term::IsRecent(_)
            | Term::Remember(_)
            | Term::Forget(_)
            | Term::IsFiltered(..)
            | Term::Filtered(..)
            | Term::IsUnheard(_)
            | Term::Unheard(_)
            | Term::Heard(_)
            | Term::Ended(..)
            | Term::IsEnded(..)
            | Term::Begins(..)
            | Term::Fresh(_)
            | Term::NotFresh(_)
            // `socket` of iptables takes no listener for any address.
            | Term::WildcardSocket
            | Term::Ask(_)
            | Term::IsAsked(_)
            | Term::Unask(_)
            | Term::Longer(_)
            | Term::Seen
            | Term::Tag(_)
            | Term::Tagged(_)
            | Term::NoOtherMark
            | Term::FromNear(_)
            | Term::NotMarked(_)
            | Term::ToDevice(_)
            | Term::FromDevices(_)
            | Term::LaterFragment(_)
            | Term::KeepMark(_)
            | Term::ForgetMark(_)
            | Term::IcmpError(_)
            | Term::IcmpNotCarried(_)
            | Term::RememberPeer(..)
            | Term::HasSpoken(..)
            | Term::QuotedProtocol(..)
            | Term::QuotedSource(..)
            | Term::QuotedDestination(..) => None,
            Term::NotBehind => self
                .rpfilter
                .then(|| vec![" -m rpfilter --invert".to_owned()]),
            // As the TUN, the signals end with pepd.
            Term::RoutedTo(_) => Some(vec![self.listed(ALIVE, RECENTLY)]),
            Term::AtCap(family) | Term::ToNear(family) => {
                (*family == self.family).then(|| vec![String::new()])
            }
            Term::FasterPerHost(_, family, rate) => {
                (*family == self.family).then(|| vec![self.faster_per_host(*rate)])
            }
            Term::Faster(rate) => Some(vec![self.faster("rate", *rate)]),
            Term::IcmpRedirect(family) => (*family == self.family).then(|| match family {
                Family::V4 => vec![" -p icmp --icmp-type redirect".to_owned()],
                Family::V6 => vec![" -p ipv6-icmp --icmpv6-type redirect".to_owned()],
            }),
            Term::Of(family) => (*family == self.family).then(|| vec![String::new()]),
            Term::To(names) => Some(each(names, |name| format!(" -o {name}"))),
            Term::Protocol(all) => Some(each(all, |protocol| format!(" -p {}", protocol.0))),
            Term::TransportSource(ranges) => Some(each(ranges, |range| {
                format!(" -m multiport --sports {}", of_multiport(*range))
            })),
            Term::TransportDestination(ranges) => Some(each(ranges, |range| {
                format!(" -m multiport --dports {}", of_multiport(*range))
            })),
            Term::Opens => one(" -p tcp --tcp-flags SYN,RST SYN"),
            Term::TcpOrIcmp => Some(match self.family {
                Family::V4 => vec![" -p tcp".to_owned(), " -p icmp".to_owned()],
                Family::V6 => vec![" -p tcp".to_owned(), " -p ipv6-icmp".to_owned()],
            }),
            Term::Syn => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK SYN"),
            Term::TcpOption(kind) => Some(vec![format!(" -p tcp -m tcp --tcp-option {kind}")]),
            Term::HopsAbove(family, hops) => (*family == self.family).then(|| match family {
                Family::V4 => vec![format!(" -m ttl --ttl-gt {hops}")],
                Family::V6 => vec![format!(" -m hl --hl-gt {hops}")],
            }),
            Term::Ack => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK ACK"),
            Term::Rst => one(" -p tcp --tcp-flags SYN,RST RST"),
            Term::Urgent => one(" -p tcp --tcp-flags URG URG"),
            Term::Midway => one(" -p tcp --tcp-flags SYN,RST NONE"),
            Term::NewTracked => one(" -m conntrack --ctstate NEW"),
            Term::FirstAnswer => one(" -m conntrack --ctdir REPLY ! --ctstatus ASSURED"),
            Term::Within(rate) => Some(vec![format!(
                " -m limit --limit {rate}/sec --limit-burst {rate}"
            )]),
            Term::SynAck => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK SYN,ACK"),
            Term::Fin => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK FIN,ACK"),
            Term::Source(nets) => self.prefixes("-s", nets),
            Term::Destination(nets) => self.prefixes("-d", nets),
            Term::SourcePort(ranges) => Some(each(ranges, |range| {
                format!(" -p tcp -m tcp --sport {}:{}", range.first(), range.last())
            })),
            Term::DestinationPort(ranges) => Some(each(ranges, |range| {
                format!(" -p tcp -m tcp --dport {}:{}", range.first(), range.last())
            })),
            Term::Dscp(family, values) => (*family == self.family)
                .then(|| each(values, |value| format!(" -m dscp --dscp {value}"))),
            Term::ForThisMachine => one(match self.family {
                Family::V4 => " -m addrtype --dst-type LOCAL,BROADCAST,ANYCAST,MULTICAST",
                Family::V6 => " -m addrtype --dst-type LOCAL,ANYCAST,MULTICAST",
            }),
            Term::AsThisMachine => one(match self.family {
                Family::V4 => " -m addrtype --src-type LOCAL,BROADCAST,ANYCAST,MULTICAST",
                Family::V6 => " -m addrtype --src-type LOCAL,ANYCAST,MULTICAST",
            }),
            Term::SocketMark(mark) => Some(vec![format!(
                " -m socket --transparent --restore-skmark -m mark --mark {}",
                self.mark(*mark)
            )]),
            Term::SocketTransparent => one(" -m socket --transparent"),
            Term::Mark(mark) => Some(vec![format!(" -m mark --mark {}", self.mark(*mark))]),
            Term::Tproxy(family, _) => (*family == self.family).then(|| vec![" -p tcp".to_owned()]),
            // Actions.
            Term::SetMark(_)
            | Term::Notrack
            | Term::ClampMss
            | Term::Reject
            | Term::Reset
            | Term::Drop
            | Term::Copy(_)
            | Term::Count(_)
            | Term::Accept
            | Term::Return
            | Term::Jump(_)
            | Term::Goto(_) => one(""),
        }
    }

    fn faster(&self, name: &str, rate: u32) -> String {
        let (prefix, number) = (self.prefix, self.family.number());
        format!(
            " -m hashlimit --hashlimit-name {prefix}_{name}{number} --hashlimit-above {rate}/sec \
             --hashlimit-burst {rate} --hashlimit-htable-max {RATES} --hashlimit-htable-expire {RATES_MS}"
        )
    }

    fn faster_per_host(&self, rate: u32) -> String {
        let host = match self.family {
            Family::V4 => " --hashlimit-mode srcip",
            Family::V6 => " --hashlimit-mode srcip --hashlimit-srcmask 64",
        };
        self.faster("host", rate) + host
    }

    fn prefixes(&self, option: &str, nets: &Prefixes) -> Option<Vec<String>> {
        match (nets, self.family) {
            (Prefixes::V4(nets), Family::V4) => Some(each(nets, |net| format!(" {option} {net}"))),
            (Prefixes::V6(nets), Family::V6) => Some(each(nets, |net| format!(" {option} {net}"))),
            _ => None,
        }
    }

    fn mark(&self, mark: u32) -> String {
        format!("{mark:#010x}/{:#010x}", self.marks.mask())
    }

    fn action(&self, part: Part, term: &Term) -> Option<String> {
        let to = |chain: &String| self.chain(chain);
        match (part, term) {
            (Part::Sites, Term::Tproxy(_, port)) => Some(format!(
                "-j TPROXY --on-ip {} --on-port {port} --tproxy-mark {}",
                self.family.listen_address(),
                self.mark(self.marks.local())
            )),
            (Part::Sites, Term::Goto(chain)) if chain.starts_with("site") => {
                Some(format!("-g {}", to(chain)))
            }
            (Part::Sites, _) => None,
            (_, Term::SetMark(mark)) => Some(format!("-j MARK --set-xmark {}", self.mark(*mark))),
            (_, Term::Accept) => Some("-j ACCEPT".to_owned()),
            (Part::Raw, Term::Notrack) => Some("-j CT --notrack".to_owned()),
            // `raw` cannot reject.
            (Part::Raw, Term::Drop | Term::Reject | Term::Reset) => Some("-j DROP".to_owned()),
            (Part::Raw, Term::Return) => Some("-j RETURN".to_owned()),
            (Part::Raw, Term::Jump(chain)) => Some(format!("-j {}", to(chain))),
            (Part::Raw, Term::Goto(chain)) => Some(format!("-g {}", to(chain))),
            (
                Part::Mangle,
                Term::Copy(CopyTo {
                    group,
                    bytes,
                    prefix,
                }),
            ) => Some(format!(
                "-j NFLOG --nflog-prefix {prefix} --nflog-group {group} --nflog-size {bytes} \
                 --nflog-threshold 1"
            )),
            (Part::Mangle, Term::Return) => Some("-j RETURN".to_owned()),
            (Part::Mangle, Term::ClampMss) => Some("-j TCPMSS --clamp-mss-to-pmtu".to_owned()),
            _ => None,
        }
    }
}

/// Entries of the tables of rates, and the time in milliseconds after which an unused one is freed.
const RATES: u32 = 65_536;
const RATES_MS: u32 = 10_000;

/// Condition that an entry of a list is recent.
const RECENTLY: &str = "--rcheck --seconds 5";

/// Returns the counters of a rule. `raw` has those of SYNs that `mangle` redirects. Packets that a
/// chain in place of a set lets pass are not counted.
fn counters(part: Part, terms: &[Term]) -> Vec<Counter> {
    let is_of_set = |term: &Term| matches!(term, Term::ToNear(_));
    if part == Part::Sites || terms.iter().any(is_of_set) {
        return Vec::new();
    }
    let counters = terms.iter().filter_map(|term| match term {
        Term::Count(counter) => Some(*counter),
        _ => None,
    });
    counters.collect()
}

/// Returns true for a term that selects a protocol.
fn is_protocol(term: &Term) -> bool {
    matches!(
        term,
        Term::TcpOrIcmp
            | Term::Syn
            | Term::Ack
            | Term::Fin
            | Term::Rst
            | Term::Urgent
            | Term::SynAck
            | Term::Opens
            | Term::Midway
    )
}

/// Returns the interfaces of hosts, which the first rule selects.
fn host_interfaces(ruleset: &Ruleset) -> Vec<String> {
    let hooked = ruleset.chains.iter();
    let hooked = hooked.filter(|chain| chain.hook == Some(Hook::PreroutingRaw));
    let rules = hooked.flat_map(|chain| &chain.rules);
    let names = rules
        .flat_map(|rule| &rule.terms)
        .find_map(|term| match term {
            Term::NotFrom(names) => Some(names.clone()),
            _ => None,
        });
    names.unwrap_or_default()
}

fn is_site(chain: &Chain) -> bool {
    chain.name.starts_with("site")
}

/// Returns the interfaces that the rules of a chain match.
fn named(chain: &Chain) -> impl Iterator<Item = &String> {
    let terms = chain.rules.iter().flat_map(|rule| &rule.terms);
    let names = terms.filter_map(|term| match term {
        Term::From(names) => Some(names),
        _ => None,
    });
    names.flatten()
}

/// Returns true for a chain that only `mangle` can hold.
fn of_mangle(chain: &Chain) -> bool {
    matches!(
        chain.hook,
        Some(Hook::PreroutingDnat | Hook::ForwardMangle | Hook::PostroutingSnat)
    )
}

/// Formats a range for `multiport`, which takes no range of one port.
fn of_multiport(range: PortRange) -> String {
    match (range.first(), range.last()) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}:{last}"),
    }
}

/// Joins two conditions; iptables accepts the protocol only once.
fn and(so_far: &str, next: &str) -> String {
    let rest = next
        .strip_prefix(" -p tcp")
        .filter(|_| so_far.contains(" -p tcp"));
    format!("{so_far}{}", rest.unwrap_or(next))
}

fn each<T>(values: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
    values.iter().map(text).collect()
}
