//! From the configuration to chains.

use pep_core::{
    config::{Config, IfName},
    site::{Matcher, Mode, PortRange, Site, SiteId},
};

use super::{
    Chain, Counter, Family, Features, Hook, Lan, NO_ROUTE, Prefixes, Rule, Ruleset, Term, chain,
    gate, host_at_cap, lans, no_route,
    packets::{PacketLane, lanes, takes_tcp},
    rule,
};
use crate::{gate::Gate, marks::MarkSet};

impl Ruleset {
    /// The table for this configuration on a kernel that can do so much.
    pub fn new(config: &Config, features: Features) -> Self {
        let builder = Builder {
            config,
            features,
            marks: MarkSet::new(config.intercept.marks),
            lans: lans(config),
            lanes: lanes(config),
        };
        Self {
            table: config.intercept.table.to_string(),
            mask: config.intercept.marks.mask(),
            recent: builder.recent().to_vec(),
            hosts: features.families().to_vec(),
            rates: builder.rates().to_vec(),
            seen: features.seen,
            spoken: builder.spoken(),
            counters: builder.counters(),
            chains: builder.chains(),
        }
    }
}

pub(super) struct Builder<'a> {
    pub(super) config: &'a Config,
    pub(super) features: Features,
    pub(super) marks: MarkSet,
    pub(super) lans: Vec<Lan>,
    pub(super) lanes: Vec<PacketLane>,
}

impl Builder<'_> {
    fn recent(&self) -> &'static [Family] {
        if self.features.recent {
            self.features.families()
        } else {
            &[]
        }
    }

    /// The families whose hosts' SYNs are counted by the second.
    fn rates(&self) -> &'static [Family] {
        if self.features.rate && self.config.defers() {
            self.features.families()
        } else {
            &[]
        }
    }

    /// The families whose recent SYNs can be forgotten again.
    fn forgotten(&self) -> &'static [Family] {
        if self.features.forget {
            self.recent()
        } else {
            &[]
        }
    }

    fn counters(&self) -> Vec<Counter> {
        [&Counter::ALL[..], &self.packet_counters()].concat()
    }

    fn chains(&self) -> Vec<Chain> {
        let mut chains = vec![
            chain("gate", None, gate(Gate::Open)),
            chain("host_at_cap", None, host_at_cap()),
        ];
        if self.features.fib {
            chains.push(chain(NO_ROUTE, None, no_route(false)));
        }
        chains.extend(self.rate_chain());
        chains.extend(self.hold_chains());
        chains.extend(self.site_chains());
        chains.push(chain("sites", None, self.sites()));
        chains.extend(self.packet_chains());
        if self.features.seen {
            chains.push(chain("elsewhere", None, elsewhere()));
        }
        let from_hosts = self.host_rules();
        chains.push(chain("from_hosts", Some(Hook::PreroutingRaw), from_hosts));
        let from_servers = self.server_rules();
        chains.push(chain(
            "from_servers",
            Some(Hook::PreroutingDnat),
            from_servers,
        ));
        chains.push(chain(
            "to_hosts",
            Some(Hook::OutputRaw),
            self.output_rules(),
        ));
        chains.extend(self.error_chain());
        chains.extend(self.clamp_chain());
        chains
    }

    pub(super) fn lan_names(&self) -> Vec<String> {
        self.lans.iter().map(|lan| lan.interface.clone()).collect()
    }

    /// LAN interfaces and their TUNs.
    fn host_names(&self) -> Vec<String> {
        let tuns = self.lans.iter().filter_map(|lan| lan.tun.clone());
        self.lan_names().into_iter().chain(tuns).collect()
    }

    fn deliver(&self) -> [Term; 3] {
        let mark = Term::SetMark(self.marks.local());
        [mark, Term::Notrack, Term::Accept]
    }

    fn host_rules(&self) -> Vec<Rule> {
        use Term::{
            Accept, Ack, AtCap, Count, Fin, Forget, From, Goto, IsRecent, Jump, NotFrom,
            NotTcpOrIcmp, Seen, SocketMark, SocketTransparent, Syn,
        };
        let lan = || From(self.lan_names());
        let goto = |chain: &str| Goto(chain.to_owned());
        let jump = |chain: &str| Jump(chain.to_owned());
        let deliver = |conditions: &[Term]| [conditions, &self.deliver()].concat();
        let full = [SocketTransparent, SocketMark(self.marks.client_leg())];
        let elsewhere = match self.features.seen {
            true => goto("elsewhere"),
            false => Accept,
        };
        let mut rules = self.out_of_lanes();
        rules.push(rule(
            "not from hosts",
            [NotFrom(self.host_names()), elsewhere],
        ));
        rules.extend(self.to_packets("of no flow", &[lan(), NotTcpOrIcmp], true));
        rules.extend([
            rule("nothing we could know", [NotTcpOrIcmp, Accept]),
            rule(
                "one-armed: a server's packet, see from_servers",
                [SocketMark(self.marks.server_leg()), Accept],
            ),
        ]);
        rules.extend(self.forgotten().iter().map(|&family| {
            let conditions = [&[lan(), Fin], &full[..], &[Forget(family)]].concat();
            rule(
                "the end of a flow: what is repeated of it later must not open another",
                conditions,
            )
        }));
        let urgent = [&[Term::Urgent], &full[..], &[Count(Counter::Urgent)]].concat();
        rules.push(rule("urgent data, which arrives in the stream", urgent));
        rules.push(rule("a flow we have", deliver(&full)));
        if self.features.seen {
            // Of its own: where the set is full, a rule ends there.
            rules.push(rule(ARRIVES, [lan(), Syn, Seen]));
        }
        rules.extend(self.to_packets("a new flow, or packets to us", &[lan(), Syn], false));
        rules.push(rule(
            "a new flow, if there is room",
            [lan(), Syn, Count(Counter::Syns), jump("gate")],
        ));
        rules.extend(self.features.families().iter().map(|&family| {
            rule(
                "of a host that has as many as one may have",
                [lan(), Syn, AtCap(family), jump("host_at_cap")],
            )
        }));
        rules.extend([
            rule(
                "a new flow; before the next rule, since it may meet a TIME_WAIT",
                [Syn, jump("sites")],
            ),
            rule(
                "a handshake that has begun, or a TIME_WAIT",
                deliver(&[SocketTransparent]),
            ),
        ]);
        rules.extend(self.recent().iter().map(|&family| {
            rule(
                "answer to a SYN cookie: there is no socket to know it by",
                [lan(), Ack, IsRecent(family), goto("sites")],
            )
        }));
        rules.extend(self.to_packets("of no flow that we have", &[lan()], true));
        rules
    }

    fn server_rules(&self) -> Vec<Rule> {
        vec![
            rule(
                "a server answers, and the answer comes back to us",
                [
                    Term::SynAck,
                    Term::SocketMark(self.marks.server_leg()),
                    Term::Count(Counter::Answered),
                ],
            ),
            rule(
                "urgent data, which arrives in the stream",
                [
                    Term::Urgent,
                    Term::SocketMark(self.marks.server_leg()),
                    Term::Count(Counter::Urgent),
                ],
            ),
            rule(
                "an answer to one of our server legs, or an ICMP error about it",
                [
                    Term::TcpOrIcmp,
                    Term::SocketTransparent,
                    Term::SetMark(self.marks.local()),
                    Term::Accept,
                ],
            ),
        ]
    }

    fn output_rules(&self) -> Vec<Rule> {
        vec![
            rule(
                "both legs have the same four addresses: only the server leg is tracked",
                [Term::Mark(self.marks.client_leg()), Term::Notrack],
            ),
            rule(
                "a server is called",
                [
                    Term::Mark(self.marks.server_leg()),
                    Term::Syn,
                    Term::Count(Counter::Called),
                ],
            ),
        ]
    }

    /// The TUNs' queues, and the one task that empties them, are for all hosts: what is too much goes by before.
    fn rate_chain(&self) -> Option<Chain> {
        let limits = &self.config.limits;
        let beyond = |comment: &str, faster: Term| {
            let passes = [faster, Term::Count(Counter::PassedRate), Term::Accept];
            rule(comment, passes)
        };
        let per_host = self.rates().iter().map(|&family| {
            let faster = Term::FasterPerHost(family, limits.held_rate_per_source);
            beyond("of a host that opens too many at a time: it passes", faster)
        });
        let mut rules: Vec<Rule> = per_host.collect();
        if rules.is_empty() {
            return None;
        }
        rules.push(beyond(
            "too many of all hosts at a time: it passes",
            Term::Faster(limits.held_rate),
        ));
        Some(chain(RATE, None, rules))
    }

    fn hold_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let tuns = self.lans.iter().enumerate();
        let tuns = tuns.filter_map(|(index, lan)| Some((index, lan.tun.clone()?)));
        tuns.map(|(index, tun)| {
            let rules = self.hold_rules(self.marks.hold(index), tun);
            chain(&format!("hold_{index}"), None, rules)
        })
    }

    fn hold_rules(&self, mark: u32, tun: String) -> Vec<Rule> {
        use Term::{Accept, Jump, Notrack, RoutedTo, SetMark};
        let mut rules = Vec::new();
        if !self.rates().is_empty() {
            rules.push(rule("not too many at a time", [Jump(RATE.to_owned())]));
        }
        if !self.features.fib {
            rules.push(rule("into the TUN", [SetMark(mark), Notrack, Accept]));
            return rules;
        }
        rules.extend([
            rule(
                "into the TUN, which is there as long as pepd is",
                [SetMark(mark), RoutedTo(tun), Notrack, Accept],
            ),
            rule(
                "pepd is gone: forward, tracked as ever",
                [SetMark(0), Accept],
            ),
        ]);
        rules
    }

    fn site_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let split = self
            .config
            .sites
            .iter()
            .filter(|(_, site)| site.mode.takes_flows());
        split.map(|(id, site)| chain(&site_chain(id), None, self.listener(id, site)))
    }

    /// Every SYN, and every answer to a SYN cookie, that the site takes.
    fn listener(&self, id: SiteId, site: &Site) -> Vec<Rule> {
        let port = self.config.listen_port(id);
        let comment = format!("site {}", site.name);
        let remember = |family: &Family| [Term::Syn, Term::Remember(*family)];
        // The listener first: without one the packet must stay tracked and unmarked.
        let tproxy = |family: &Family, conditions: &[Term]| {
            let to = [
                Term::Tproxy(*family, port),
                Term::Count(Counter::Intercepted),
            ];
            rule(&comment, [conditions, &to, &self.deliver()].concat())
        };
        let is_answered_at_once = site.mode == Mode::Split && !site.is_deferred();
        let asks_for_route = self.features.fib && is_answered_at_once;
        let may_pass = [Term::Syn, Term::Jump(NO_ROUTE.to_owned())];
        let may_pass = asks_for_route.then(|| rule("if there is a route", may_pass));
        let may_pass = may_pass.into_iter();
        let (recent, families) = (self.recent().iter(), self.features.families().iter());
        if site.is_deferred() || !self.features.recent {
            // Those that have been held are to come in, remembered or not.
            let recent = recent.map(|family| rule(&comment, remember(family)));
            return may_pass
                .chain(recent)
                .chain(families.map(|family| tproxy(family, &[])))
                .collect();
        }
        // One that a full set does not take passes: what answers its cookie would find nobody.
        let syns = recent.map(|family| tproxy(family, &remember(family)));
        let cookies = families.map(|family| tproxy(family, &[Term::Ack]));
        let passes = rule(
            "too many of late to know it by its cookie: it passes",
            [Term::Syn, Term::Count(Counter::PassedRecent), Term::Accept],
        );
        may_pass
            .chain(syns)
            .chain(cookies)
            .chain([passes])
            .collect()
    }

    fn sites(&self) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.features.fib {
            rules.push(rule(
                "for this machine itself",
                [Term::ForThisMachine, Term::Accept],
            ));
        }
        rules.extend(self.end_to_end());
        for (id, site) in self.config.sites.iter() {
            rules.extend(self.site(id, site));
        }
        rules
    }

    /// Rules that let SYNs pass whose connections would not survive being split: their ends check what
    /// only the other end can have sent.
    fn end_to_end(&self) -> Vec<Rule> {
        let passes = |comment: &str, conditions: &[Term]| {
            let pass = [Term::Count(Counter::PassedEndToEnd), Term::Accept];
            rule(comment, [&[Term::Syn], conditions, &pass].concat())
        };
        let signed = |kind| passes("signed (TCP-MD5, TCP-AO)", &[Term::TcpOption(kind)]);
        let ports = GTSM_PORTS.map(PortRange::single).to_vec();
        let from_nearby = self.features.families().iter().map(|&family| {
            let hops = Term::HopsAbove(family, GTSM_HOPS_ABOVE);
            let ports = Term::DestinationPort(ports.clone());
            passes("guarded by its TTL (GTSM)", &[ports, hops])
        });
        TCP_SIGNATURES
            .map(signed)
            .into_iter()
            .chain(from_nearby)
            .collect()
    }

    fn site(&self, id: SiteId, site: &Site) -> Vec<Rule> {
        // What else a site takes comes by the chain `packet_sites`.
        if !takes_tcp(&site.matcher) {
            return Vec::new();
        }
        let variants = self.conditions(&site.matcher, &ports(&site.matcher));
        variants
            .iter()
            .flat_map(|conditions| self.site_variant(id, site, conditions))
            .collect()
    }

    fn site_variant(&self, id: SiteId, site: &Site, conditions: &[Term]) -> Vec<Rule> {
        let on = |interface: &[Term], end: Term| {
            rule(&site.name, [interface, conditions, &[end]].concat())
        };
        let anywhere = self.interface_condition(&site.matcher);
        if !site.mode.takes_flows() {
            return vec![on(&anywhere, Term::Accept)];
        }
        let mut rules = Vec::new();
        if site.is_deferred() {
            rules.extend(self.interfaces(&site.matcher).map(|(index, lan)| {
                let syn = [Term::From(vec![lan.interface.clone()]), Term::Syn];
                on(&syn, Term::Goto(format!("hold_{index}")))
            }));
        }
        rules.push(on(&anywhere, Term::Goto(site_chain(id))));
        rules
    }

    /// The LAN interfaces whose flows a site may take.
    pub(super) fn interfaces<'a>(
        &'a self,
        matcher: &'a Matcher,
    ) -> impl Iterator<Item = (usize, &'a Lan)> {
        self.lans.iter().enumerate().filter(|(_, lan)| {
            let named = |name: &IfName| name.as_str() == lan.interface;
            matcher.interface.is_empty() || matcher.interface.iter().any(named)
        })
    }

    fn interface_condition(&self, matcher: &Matcher) -> Vec<Term> {
        if matcher.interface.is_empty() {
            return Vec::new();
        }
        let names = self
            .interfaces(matcher)
            .flat_map(|(_, lan)| [Some(lan.interface.clone()), lan.tun.clone()]);
        vec![Term::From(names.flatten().collect())]
    }

    /// What a site matches except for the interface: one list of terms for both families or
    /// one for each that can match at all.
    pub(super) fn conditions(&self, matcher: &Matcher, ports: &[Term]) -> Vec<Vec<Term>> {
        let any_family =
            matcher.src.is_empty() && matcher.dst.is_empty() && matcher.dscp.is_empty();
        if any_family {
            return vec![ports.to_vec()];
        }
        let families = self.features.families().iter();
        families
            .filter_map(|&family| {
                Some([family_conditions(family, matcher)?.as_slice(), ports].concat())
            })
            .collect()
    }
}

/// Where connections arrive, for `pepd check`.
const ARRIVES: &str = "connections arrive by this interface";

/// The TCP options by which segments are signed: MD5 (RFC 2385) and AO (RFC 5925).
const TCP_SIGNATURES: [u8; 2] = [19, 29];

/// The ports of protocols whose ends may check the TTL (RFC 5082): BGP, MSDP and LDP. Others are not
/// taken for guarded, as whole operating systems for small devices send everything with 255.
const GTSM_PORTS: [u16; 3] = [179, 639, 646];

/// Who guards a connection sends 255, of which few hops have been taken. Hosts begin with 64 or 128.
const GTSM_HOPS_ABOVE: u8 = 128;

/// The chain that held SYNs go through first.
const RATE: &str = "held_rate";

/// What is not from hosts passes.
fn elsewhere() -> Vec<Rule> {
    vec![
        rule(ARRIVES, [Term::Syn, Term::Seen]),
        rule("forwarded", [Term::Accept]),
    ]
}

pub(in crate::intercept) fn site_chain(id: SiteId) -> String {
    format!("site_{id}")
}

fn family_conditions(family: Family, matcher: &Matcher) -> Option<Vec<Term>> {
    let mut terms = Vec::new();
    for (nets, term) in [
        (&matcher.src, Term::Source as fn(Prefixes) -> Term),
        (&matcher.dst, Term::Destination),
    ] {
        if nets.is_empty() {
            continue;
        }
        let prefixes = Prefixes::of(family, nets);
        if prefixes.is_empty() {
            return None;
        }
        terms.push(term(prefixes));
    }
    if !matcher.dscp.is_empty() {
        let mut values = matcher.dscp.clone();
        values.sort_unstable();
        values.dedup();
        terms.push(Term::Dscp(family, values));
    }
    Some(terms)
}

fn ports(matcher: &Matcher) -> Vec<Term> {
    let mut terms = Vec::new();
    if !matcher.sport.is_empty() {
        terms.push(Term::SourcePort(joined(&matcher.sport)));
    }
    if !matcher.dport.is_empty() {
        terms.push(Term::DestinationPort(joined(&matcher.dport)));
    }
    terms
}

/// The ranges in order, joined where they touch or overlap.
pub(super) fn joined(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<PortRange> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.first() <= last.last().saturating_add(1) => {
                let end = last.last().max(range.last());
                *last = PortRange::new(last.first(), end).expect("ends after it begins");
            }
            _ => joined.push(range),
        }
    }
    joined
}
