//! Construction of the chains from the configuration.

use std::net::IpAddr;

use ipnet::IpNet;
use pep_core::{
    config::{Config, OtherRoutes},
    site::{Mode, PortRange, Site, SiteId},
};
use pepd_sys::{gate::Gate, marks::MarkSet};

use super::{
    Chain, Counter, DUMMY_ADDRESS, Family, Features, Hook, Lan, NO_ROUTE, NoRoute, OTHER_ROUTE,
    Prefixes, Rule, Ruleset, Term, Way, chain,
    conditions::ports,
    copies::ask_chain,
    gate, lans, lost_chain, no_route, off_chain,
    packets::{PacketLane, lanes, takes_tcp},
    rule,
    state::{host_at_cap, known, other_route},
    unforwarded_chain,
};

impl Ruleset {
    /// Returns the table for this configuration on a kernel with these features.
    pub fn new(config: &Config, features: Features) -> Self {
        let builder = Builder::new(config, features);
        Self {
            table: config.intercept.table.to_string(),
            mask: config.intercept.marks.mask(),
            recent: builder.recent().to_vec(),
            hosts: features.families().to_vec(),
            filtered: builder.filtered().to_vec(),
            asked: builder.asked().to_vec(),
            rates: builder.limited(),
            near: builder.near().to_vec(),
            off_link: builder.off_link().to_vec(),
            judged_link: builder.judged_link().map(str::to_owned),
            marked: !builder.marked().is_empty(),
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
    /// True if rules of other programs in the forward hook apply, as far as the kernel can do that.
    obeys: bool,
}

impl<'a> Builder<'a> {
    pub(super) fn new(config: &'a Config, features: Features) -> Self {
        let obeys = config.obeys_forward() && features.can_obey();
        let mut lans = lans(config);
        if !obeys && !config.defers() {
            for lan in &mut lans {
                lan.tun = None;
            }
        }
        Self {
            config,
            features,
            marks: MarkSet::new(config.intercept.marks),
            lans,
            lanes: lanes(config),
            obeys,
        }
    }
}

impl Builder<'_> {
    fn recent(&self) -> &'static [Family] {
        if self.features.recent {
            self.features.families()
        } else {
            &[]
        }
    }

    /// Returns the families whose SYN rates are measured.
    pub(super) fn rates(&self) -> &'static [Family] {
        if self.features.rate && self.takes_any() {
            self.features.families()
        } else {
            &[]
        }
    }

    /// Returns whether SYNs pass rules of other programs in the forward hook first.
    pub(super) const fn obeys(&self) -> bool {
        self.obeys
    }

    /// Returns whether SYNs go through pepd before the kernel answers them.
    fn takes_any(&self) -> bool {
        self.obeys || self.config.defers()
    }

    /// Returns whether SYNs that meet rules of other programs must not pass in the clear.
    pub(super) fn asks_for_tunnels(&self) -> bool {
        let mut sites = self.flow_sites();
        sites.any(|(_, site)| self.asks(site) && site.mode == Mode::Tunnel)
    }

    /// Returns the families of such SYNs.
    pub(super) fn asked(&self) -> &'static [Family] {
        if self.obeys() {
            self.features.families()
        } else {
            &[]
        }
    }

    /// Returns the families whose recent SYNs can be deleted.
    pub(super) fn forgotten(&self) -> &'static [Family] {
        if self.features.forget {
            self.recent()
        } else {
            &[]
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let redirection = self.redirection_counters();
        let asked: &[_] = match self.obeys() {
            false => &[],
            true => &[Counter::Asked, Counter::Permitted],
        };
        let dropped: &[_] = match self.has_sites(Mode::Tunnel) {
            false => &[],
            true => &[Counter::DroppedRate],
        };
        [
            &Counter::ALL[..],
            asked,
            dropped,
            &redirection,
            &self.packet_counters(),
        ]
        .concat()
    }

    /// Returns the counters that reveal the loss of redirected SYNs.
    fn redirection_counters(&self) -> Vec<Counter> {
        let families = self.features.families().iter().copied();
        let of_family = |family| {
            let sites = self
                .flow_sites()
                .map(move |(id, _)| Counter::Redirected(family, id));
            let held = self.takes_any().then_some(Counter::Held(family));
            let accounted = [
                Counter::Aborted(family),
                Counter::Handshakes(family),
                Counter::NoSource(family),
            ];
            sites.chain(held).chain(accounted)
        };
        families
            .flat_map(of_family)
            .chain([Counter::Unkept])
            .chain(self.has_v6().then_some(Counter::AnsweredV6))
            .collect()
    }

    fn has_v6(&self) -> bool {
        self.features.families().contains(&Family::V6)
    }

    /// Iterates over the sites that take flows.
    pub(super) fn flow_sites(&self) -> impl Iterator<Item = (SiteId, &Site)> {
        let sites = self.config.sites.iter();
        sites.filter(|(_, site)| site.mode.takes_flows())
    }

    fn chains(&self) -> Vec<Chain> {
        let mut chains = vec![
            chain("gate", None, gate(Gate::Open)),
            chain("host_at_cap", None, host_at_cap()),
        ];
        if self.features.fib {
            chains.push(chain(NO_ROUTE, None, no_route(NoRoute::Asked)));
        }
        let other_routes = self.link_alone().map(other_route);
        chains.extend(other_routes.map(|rules| chain(OTHER_ROUTE, None, rules)));
        let lost = self.flow_sites().map(|(id, _)| lost_chain(id));
        let taken = self.flow_sites();
        let taken = taken.filter(|(_, site)| self.takes_syns(site));
        let off = taken.map(|(id, _)| off_chain(id));
        let asked = self.flow_sites().filter(|(_, site)| self.asks(site));
        let unforwarded = asked.map(|(id, _)| unforwarded_chain(id));
        let empty = lost.chain(off).chain(unforwarded);
        chains.extend(empty.map(|name| chain(&name, None, Vec::new())));
        chains.extend(self.filtered_chains());
        chains.extend(self.rate_chains());
        chains.extend(self.hold_chains());
        chains.extend(self.ask_chains());
        chains.extend(self.site_chains());
        chains.push(chain("sites", None, self.sites()));
        chains.extend(self.packet_chains());
        if self.features.seen {
            chains.push(chain(NOT_FROM_LAN, None, not_from_lan()));
        }
        chains.extend(self.handshake_chain());
        let from_hosts = self.host_rules();
        chains.push(chain("from_hosts", Some(Hook::PreroutingRaw), from_hosts));
        chains.extend(self.passed_chain());
        chains.extend(self.answer_chain());
        let from_servers = self.server_rules();
        chains.push(chain(
            "from_servers",
            Some(Hook::PreroutingDnat),
            from_servers,
        ));
        chains.extend(self.kept_marks());
        chains.extend(self.marks_chain());
        chains.push(chain(
            "to_hosts",
            Some(Hook::OutputRaw),
            self.output_rules(),
        ));
        let leaving = self.leaving().map(|(_, chain)| chain);
        chains.extend(leaving);
        chains.push(self.handshakes());
        chains.extend(self.arrived_chain());
        chains.extend(self.error_chain());
        chains.extend(self.clamp_chain());
        chains.extend(self.midway_chains());
        chains.extend(self.permitted_chain());
        for chain in &mut chains {
            chain.rules = known(&chain.rules, self.features.wildcard);
        }
        chains
    }

    /// Returns the link's interface, if flows with a route by another interface do not cross the
    /// link.
    pub(super) fn link_alone(&self) -> Option<&str> {
        let link = self.config.link.as_ref()?;
        // One-armed, packets routed to the LAN cross the link.
        let may_be = !self.may_be_one_armed();
        let passes = link.other_routes == OtherRoutes::Pass && self.features.fib && may_be;
        passes.then_some(link.interface.as_str())
    }

    /// Returns true if the link is behind a LAN interface, or may be since the configuration does
    /// not name it.
    pub(super) fn may_be_one_armed(&self) -> bool {
        self.config.link.as_ref().is_none_or(|link| {
            let name = link.interface.as_str();
            self.lans.iter().any(|lan| lan.interface == name)
        })
    }

    /// Returns the families for which traffic to networks of this machine is exempt from tunnels.
    pub(super) fn near(&self) -> &'static [Family] {
        let mut sites = self.config.sites.iter();
        let tunnels = sites.any(|(_, site)| site.mode == Mode::Tunnel || site.mode.boosts());
        let link = self.config.link.as_ref();
        match tunnels && link.is_none_or(|link| link.other_routes == OtherRoutes::Pass) {
            true => self.features.families(),
            false => &[],
        }
    }

    /// Returns the interfaces with other hosts of this end behind them; the others may lead to the
    /// link.
    ///
    /// One-armed, the path to the link leads by a LAN interface; if the link is unknown, any
    /// interface might.
    pub(super) fn hosts_only(&self) -> Vec<String> {
        let link = self.config.link.as_ref();
        let link = link.map(|link| link.interface.as_str());
        let mut names = self.lan_names();
        names.retain(|name| link.is_some_and(|link| link != name));
        names
    }

    /// Returns rules that end packets of these conditions with `end` if they stay at this end, in
    /// all modes. `from_lan` states that only packets from LAN interfaces meet them.
    pub(super) fn near_rules(
        &self,
        from_lan: bool,
        conditions: &[Term],
        end: &[Term],
    ) -> Vec<Rule> {
        // If all packets are from LANs, comparing all LANs' names is in vain, and the kernel
        // compares names slowly.
        let from = |names: &[String]| match from_lan && names == self.lan_names() {
            true => Vec::new(),
            false => vec![Term::From(names.to_vec())],
        };
        let hosts = self.hosts_only();
        let mut rules = Vec::new();
        if self.features.fib && !hosts.is_empty() {
            let destination = [Term::RoutedToAny(hosts.clone())];
            let between = [&from(&hosts), conditions, &destination, end].concat();
            rules.push(rule("between hosts of this side", between));
        }
        // Without a configured link, all LAN interfaces lead to hosts.
        let near = match self.config.link {
            Some(_) => hosts,
            None => self.lan_names(),
        };
        if !near.is_empty() {
            rules.extend(self.near().iter().map(|&family| {
                let destination = [Term::ToNear(family)];
                let near = [&from(&near), conditions, &destination, end].concat();
                rule("to a network of this machine", near)
            }));
        }
        rules
    }

    pub(super) fn lan_names(&self) -> Vec<String> {
        self.lans.iter().map(|lan| lan.interface.clone()).collect()
    }

    /// Returns the LAN interfaces and their TUNs.
    pub(super) fn host_names(&self) -> Vec<String> {
        let tuns = self.lans.iter().filter_map(|lan| lan.tun.clone());
        self.lan_names().into_iter().chain(tuns).collect()
    }

    /// Returns terms that make the kernel deliver a packet to pepd.
    fn to_local(&self) -> Vec<Term> {
        let mark = Term::SetMark(self.marks.local());
        [mark]
            .into_iter()
            .chain(self.tag(self.marks.local()))
            .collect()
    }

    fn deliver(&self) -> Vec<Term> {
        [&self.to_local()[..], &[Term::Notrack, Term::Accept]].concat()
    }

    fn host_rules(&self) -> Vec<Rule> {
        use Term::{
            Accept, Ack, AtCap, Count, Fin, Forget, From, Goto, IsRecent, Jump, NotFrom,
            NotTcpOrIcmp, Of, Seen, SocketMark, SocketTransparent, Syn,
        };
        let lan = || From(self.lan_names());
        let goto = |chain: &str| Goto(chain.to_owned());
        let jump = |chain: &str| Jump(chain.to_owned());
        let deliver = |conditions: &[Term]| [conditions, &self.deliver()].concat();
        let full = [SocketTransparent, SocketMark(self.marks.client_leg())];
        let other_routes = match self.features.seen {
            true => goto(NOT_FROM_LAN),
            false => Accept,
        };
        // First, as each datagram of a site of mode `packet` meets this rule.
        let of_no_flow = self.to_packets("of no flow", &[lan(), NotTcpOrIcmp], true);
        let dummy = Prefixes::for_family(Family::V4, &[IpNet::from(IpAddr::V4(DUMMY_ADDRESS))]);
        let has_tuns = self.lans.iter().any(|lan| lan.tun.is_some());
        let no_door = has_tuns.then(|| {
            rule(
                "the TUN's address is no door to this machine",
                [lan(), Term::Destination(dummy), Term::Drop],
            )
        });
        let mut rules: Vec<_> = no_door.into_iter().chain(of_no_flow).collect();
        rules.extend(self.out_of_lanes());
        rules.extend(self.released());
        rules.push(rule(
            "not from hosts",
            [NotFrom(self.host_names()), other_routes],
        ));
        rules.extend([
            rule("cannot belong to a flow of pepd", [NotTcpOrIcmp, Accept]),
            rule(
                "one-armed: a server's packet, see from_servers",
                [SocketMark(self.marks.server_leg()), Accept],
            ),
        ]);
        rules.extend(self.forgotten().iter().map(|&family| {
            let conditions = [&[lan(), Fin], &full[..], &[Forget(family)]].concat();
            rule(
                "end of a flow: packets repeated later must not open another",
                conditions,
            )
        }));
        let urgent = [&[Term::Urgent], &full[..], &[Count(Counter::Urgent)]].concat();
        rules.push(rule("urgent data, delivered in the stream", urgent));
        rules.push(rule("a flow of pepd", deliver(&full)));
        if self.features.seen {
            // A rule of its own: a full set ends the rule.
            rules.push(rule(ARRIVES, [lan(), Syn, Seen]));
        }
        rules.extend(self.begins());
        rules.extend(self.to_packets("a new flow, or packets to pepd", &[lan(), Syn], false));
        rules.push(rule(
            "a new flow, if the set has room",
            [lan(), Syn, Count(Counter::Syns), jump("gate")],
        ));
        rules.extend(self.features.families().iter().map(|&family| {
            rule(
                "host at its flow limit",
                [lan(), Syn, AtCap(family), jump("host_at_cap")],
            )
        }));
        if self.features.fib {
            rules.extend(self.features.families().iter().map(|&family| {
                let no_source = [
                    lan(),
                    Syn,
                    Of(family),
                    Term::NotBehind,
                    Count(Counter::NoSource(family)),
                ];
                rule(
                    "source is not behind the interface: the kernel may drop it",
                    no_source,
                )
            }));
        }
        rules.push(rule(
            "a new flow; before the next rule, since it may meet a TIME_WAIT",
            [Syn, jump("sites")],
        ));
        rules.extend(self.to_handshake());
        rules.extend(self.recent().iter().map(|&family| {
            rule(
                "answer to a SYN cookie, which has no socket yet",
                [lan(), Ack, IsRecent(family), goto("sites")],
            )
        }));
        rules.extend(self.drops_late(Way::ToServer));
        rules.extend(self.to_packets("not of a flow of pepd", &[lan()], true));
        rules
    }

    /// Returns rules for packets of hosts that a transparent socket takes, but no flow: a handshake
    /// that has begun, or a TIME_WAIT.
    fn to_handshake(&self) -> Vec<Rule> {
        if self.features.wildcard {
            let jump = [Term::SocketTransparent, Term::Jump(HANDSHAKE.to_owned())];
            return vec![rule("a handshake that has begun, or a TIME_WAIT", jump)];
        }
        let mut rules = self.handshake();
        for rule in &mut rules {
            rule.terms.insert(0, Term::SocketTransparent);
        }
        rules
    }

    fn handshake_chain(&self) -> Option<Chain> {
        let listener = rule(OTHERS_LISTENER, [Term::WildcardSocket, Term::Return]);
        let rules = [listener].into_iter().chain(self.handshake());
        let wildcard = self.features.wildcard;
        wildcard.then(|| chain(HANDSHAKE, None, rules.collect()))
    }

    fn handshake(&self) -> Vec<Rule> {
        let aborts = self.features.families().iter().map(|&family| {
            let aborts = [
                Term::From(self.lan_names()),
                Term::Rst,
                Term::Of(family),
                Term::Count(Counter::Aborted(family)),
            ];
            rule("a host aborts a handshake", aborts)
        });
        let to_socket = rule("a handshake that has begun, or a TIME_WAIT", self.deliver());
        aborts
            .chain(self.unheard_of_hosts())
            .chain([to_socket])
            .collect()
    }

    /// Returns rules for held SYNs that come out of their TUN again.
    fn released(&self) -> impl Iterator<Item = Rule> {
        let tuns = self.lans.iter().enumerate();
        let tuns = tuns.filter_map(|(number, lan)| Some((number, lan.tun.clone()?)));
        let tuns = tuns.filter(|_| self.features.tags);
        tuns.map(|(number, tun)| {
            let terms = [&[Term::From(vec![tun])], &self.behind_tun(number)[..]].concat();
            rule("held before: past checks for spoofed sources", terms)
        })
    }

    /// Returns a chain that counts SYN-ACKs of listeners: each shows that its SYN has arrived.
    fn handshakes(&self) -> Chain {
        let rules = self.features.families().iter().map(|&family| {
            let answers = [
                Term::Mark(self.marks.client_leg()),
                Term::SynAck,
                Term::Of(family),
                Term::Count(Counter::Handshakes(family)),
            ];
            rule("a listener answers a host", answers)
        });
        let hook = Some(Hook::PostroutingSnat);
        let leaving = self.leaving().map(|(rule, _)| rule);
        let rules = rules.chain(self.sent()).chain(leaving).collect();
        chain("handshakes", hook, rules)
    }

    fn server_rules(&self) -> Vec<Rule> {
        let local = self.marks.local();
        let known = match self.features.tags {
            true => Term::Tagged(self.marks.number(local)),
            false => Term::Mark(local),
        };
        let mut known = vec![known];
        if self.features.tags {
            let lanes = (0..self.lanes.len()).map(|lane| self.marks.packet(self.lans.len(), lane));
            known.extend(lanes.map(|mark| Term::Tagged(self.marks.number(mark))));
        }
        let handled = |known| rule("from hosts, and handled already", [known, Term::Accept]);
        let mut rules: Vec<_> = known.into_iter().map(handled).collect();
        if self.has_v6() {
            // Hosts may also be servers, of this machine and of others.
            let from_link = (!self.may_be_one_armed()).then(|| match &self.config.link {
                Some(link) => Term::From(vec![link.interface.to_string()]),
                None => Term::NotFrom(self.lan_names()),
            });
            let counted = [Term::Of(Family::V6), Term::Count(Counter::AnsweredV6)];
            let answers = [Term::SynAck].into_iter().chain(from_link).chain(counted);
            let answers: Vec<_> = answers.collect();
            rules.push(rule("a server answers over IPv6", answers));
        }
        rules.extend([
            self.counts_answer(),
            rule(
                "urgent data, delivered in the stream",
                [
                    Term::Urgent,
                    Term::SocketMark(self.marks.server_leg()),
                    Term::Count(Counter::Urgent),
                ],
            ),
        ]);
        let answers = |end: &[Term]| {
            let conditions = [Term::TcpOrIcmp, Term::SocketTransparent];
            rule(
                "an answer to a server leg of pepd, or an ICMP error about it",
                [&conditions[..], end].concat(),
            )
        };
        rules.push(match self.features.wildcard {
            true => answers(&[Term::Jump(ANSWER.to_owned())]),
            false => answers(&self.answer()),
        });
        rules.extend(self.is_called());
        rules.extend(self.drops_late(Way::ToHost));
        rules.extend(self.link_packets());
        rules
    }

    /// Returns terms for packets that a server leg takes.
    fn answer(&self) -> Vec<Term> {
        [&self.to_local()[..], &[Term::Accept]].concat()
    }

    /// Returns the chain for packets from elsewhere that a transparent socket takes.
    fn answer_chain(&self) -> Option<Chain> {
        let listener = rule(OTHERS_LISTENER, [Term::WildcardSocket, Term::Return]);
        let rules = vec![listener, rule("to its leg", self.answer())];
        let wildcard = self.features.wildcard;
        wildcard.then(|| chain(ANSWER, None, rules))
    }

    fn output_rules(&self) -> Vec<Rule> {
        let mut rules = vec![
            rule(
                "both legs have the same four addresses: only the server leg is tracked",
                [Term::Mark(self.marks.client_leg()), Term::Notrack],
            ),
            self.counts_connecting(),
        ];
        rules.extend(self.calls());
        rules.extend(self.remembers_ended());
        rules.extend(self.features.families().iter().map(|&family| {
            let to = Term::To(self.lan_names());
            let redirect = [to, Term::IcmpRedirect(family), Term::Drop];
            rule(
                "drop ICMP redirects, which would lead hosts past pepd",
                redirect,
            )
        }));
        rules
    }

    fn site_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let split = self.flow_sites();
        split.map(|(id, site)| chain(&site_chain(id), None, self.listener(id, site)))
    }

    /// Returns rules for every SYN, and every answer to a SYN cookie, that the site takes.
    fn listener(&self, id: SiteId, site: &Site) -> Vec<Rule> {
        let port = self.config.listen_port(id);
        let comment = format!("site {}", site.name);
        let remember = |family: &Family| [Term::Syn, Term::Remember(*family)];
        // The listener comes first: without one the packet must stay tracked and unmarked.
        let deliver = match self.tag(self.marks.local()) {
            // The mark of its TUN stays until rules of other programs have seen it.
            Some(tag) if self.takes_syns(site) => vec![tag, Term::Notrack, Term::Accept],
            _ => self.deliver(),
        };
        let tproxy = |family: &Family, conditions: &[Term]| {
            let to = [
                Term::Tproxy(*family, port),
                Term::Count(Counter::Intercepted),
                Term::Count(Counter::Redirected(*family, id)),
            ];
            rule(&comment, [conditions, &to, &deliver].concat())
        };
        let asks_for_route = self.features.fib && site.answers_first() && !self.asks(site);
        let may_pass = [Term::Syn, Term::Jump(NO_ROUTE.to_owned())];
        let may_pass = asks_for_route.then(|| rule("skip destinations without a route", may_pass));
        let may_pass = self.skips_filtered(site).into_iter().chain(may_pass);
        let before = may_pass.chain(self.notices(site));
        let (recent, families) = (self.recent().iter(), self.features.families().iter());
        if site.is_deferred() || !self.features.recent {
            // SYNs that were held must arrive, remembered or not.
            let recent = recent.map(|family| rule(&comment, remember(family)));
            return before
                .chain(recent)
                .chain(families.map(|family| tproxy(family, &[])))
                .chain(self.taken_back(site))
                .collect();
        }
        // A SYN that a full set does not take passes: the answer to its cookie would not match.
        let syns = recent.map(|family| tproxy(family, &remember(family)));
        let cookies = families.map(|family| tproxy(family, &[Term::Ack]));
        before
            .chain(syns)
            .chain(cookies)
            .chain(self.taken_back(site))
            .chain(self.beyond_recent(id, site))
            .collect()
    }

    /// Returns whether SYNs of a site go through pepd before the kernel answers them.
    pub(super) fn takes_syns(&self, site: &Site) -> bool {
        site.is_deferred() || self.asks(site)
    }

    /// Returns whether SYNs of a site pass rules of other programs in the forward hook first.
    pub(super) fn asks(&self, site: &Site) -> bool {
        self.obeys() && self.config.asks_forward(site)
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
        let passes = [Term::Count(Counter::PassedOtherRoute), Term::Accept];
        rules.extend(self.near_rules(false, &[Term::Syn], &passes));
        for (id, site) in self.config.sites.iter() {
            rules.extend(self.site(id, site));
        }
        rules
    }

    /// Returns rules that let SYNs pass whose connections would not survive a split: their ends
    /// verify that segments come from the other end.
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
        // Other packets that a site takes go through the chain `packet_sites`.
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
        let syn = [&anywhere[..], &[Term::Syn]].concat();
        let mut rules = vec![on(&syn, Term::Jump(lost_chain(id)))];
        let lans = self.interfaces(&site.matcher);
        let lans = lans.map(|(_, lan)| lan.interface.clone()).collect();
        let from_lans = [Term::From(lans), Term::Syn];
        // In a tunnel they are protected, whatever their route.
        if site.mode == Mode::Split && self.link_alone().is_some() {
            // Not for packets out of a TUN: they were checked before they entered it, and have the
            // TUN's mark.
            rules.push(on(&from_lans, Term::Jump(OTHER_ROUTE.to_owned())));
        }
        if self.takes_syns(site) {
            rules.push(on(&from_lans, Term::Jump(off_chain(id))));
            if let Some([_, passes]) = self.passes_filtered(site) {
                rules.push(on(&from_lans, passes));
            }
            if self.asks(site) && site.answers_first() {
                rules.push(on(&from_lans, Term::Jump(NO_ROUTE.to_owned())));
            }
            if self.asks(site) {
                rules.push(on(&from_lans, Term::Jump(unforwarded_chain(id))));
            }
            let to_tuns = self.interfaces(&site.matcher).flat_map(|(index, lan)| {
                let syn = [Term::From(vec![lan.interface.clone()]), Term::Syn];
                let hold = Term::Goto(format!("hold_{index}"));
                if !self.asks(site) {
                    return vec![on(&syn, hold)];
                }
                // Where it cannot be forwarded it meets the rules on its way into the TUN.
                let no_route = [&syn[..], &[Term::NoRoute]].concat();
                let ask = Term::Jump(ask_chain(index, site.mode));
                vec![on(&no_route, hold), on(&syn, ask)]
            });
            rules.extend(to_tuns);
            if self.asks(site) {
                let from_lans =
                    |end: &[Term]| rule(&site.name, [&from_lans[..], conditions, end].concat());
                rules.extend(self.unasked(id, from_lans));
            }
        }
        rules.push(on(&anywhere, Term::Goto(site_chain(id))));
        rules
    }
}

/// Comment of the rule that records where connections arrive, for `pepd check`.
const ARRIVES: &str = "connections arrive by this interface";

/// The TCP options by which segments are signed: MD5 (RFC 2385) and AO (RFC 5925).
const TCP_SIGNATURES: [u8; 2] = [19, 29];

/// Ports of protocols whose ends may check the TTL (RFC 5082): BGP, MSDP and LDP. A TTL of 255
/// alone does not identify them, since many small devices send everything with it.
const GTSM_PORTS: [u16; 3] = [179, 639, 646];

/// Threshold of the TTL: a guarded connection sends 255 and has crossed few hops. Hosts start with
/// 64 or 128.
const GTSM_HOPS_ABOVE: u8 = 128;

/// Name of the chain of packets of hosts that a transparent socket takes.
const HANDSHAKE: &str = "handshake";

/// Name of the chain of other packets that a transparent socket takes.
const ANSWER: &str = "answer";

/// Comment of the rule for packets that a listener for any address would take.
const OTHERS_LISTENER: &str = "no socket of pepd: a listener of another program, for any address";

/// Name of the chain of packets that arrive by other interfaces.
const NOT_FROM_LAN: &str = "not_from_lan";

/// Returns rules that let packets pass that are not from hosts.
fn not_from_lan() -> Vec<Rule> {
    vec![
        rule(ARRIVES, [Term::Syn, Term::Seen]),
        rule("forwarded", [Term::Accept]),
    ]
}

pub(crate) fn site_chain(id: SiteId) -> String {
    format!("site_{id}")
}
