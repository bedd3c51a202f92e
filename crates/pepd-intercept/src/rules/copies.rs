//! SYNs that go through pepd before the kernel answers them: held, or behind the rules of other
//! programs. Packets of connections that began elsewhere, which are copied to pepd in the same way.

use pep_core::{
    config::Midway,
    site::{Mode, SiteId},
};

use super::{
    Chain, CopyTo, Counter, FROM_HOSTS, Family, HEADERS, Hook, Limited, Rule, SYN_BYTES, TO_HOSTS,
    Term,
    build::{Builder, site_chain},
    chain, rule,
};

impl Builder<'_> {
    /// Returns the chains that limit the rate of held SYNs. All hosts share the TUNs' queues and
    /// the task that empties them; excess SYNs pass before, unless they are for a tunnel.
    pub(super) fn rate_chains(&self) -> impl Iterator<Item = Chain> {
        let limits = &self.config.limits;
        let of = |name: &str, counter: Counter, end: Term| {
            let beyond = |comment: &str, faster: Term| {
                let ends = [faster, Term::Count(counter), end.clone()];
                rule(comment, ends)
            };
            let per_host = self.rates().iter().map(|&family| {
                let faster =
                    Term::FasterPerHost(Limited::Held, family, limits.held_rate_per_source);
                beyond("host exceeds limits.held_rate_per_source", faster)
            });
            let faster = Term::Faster(limits.held_rate);
            let all = beyond("hosts exceed limits.held_rate", faster);
            let rules = per_host.chain([all]).collect();
            chain(name, None, rules)
        };
        let passes =
            (!self.rates().is_empty()).then(|| of(RATE, Counter::PassedRate, Term::Accept));
        let drops = (passes.is_some() && self.asks_for_tunnels())
            .then(|| of(TUNNEL_RATE, Counter::DroppedRate, Term::Drop));
        [passes, drops].into_iter().flatten()
    }

    pub(super) fn hold_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let tuns = self.lans.iter().enumerate();
        let tuns = tuns.filter_map(|(index, lan)| Some((index, lan.tun.clone()?)));
        tuns.map(|(index, tun)| {
            let rules = self.hold_rules(index, &tun);
            chain(&format!("hold_{index}"), None, rules)
        })
    }

    fn hold_rules(&self, number: usize, tun: &str) -> Vec<Rule> {
        use Term::{Accept, Count, Jump, Notrack, Of, SetMark};
        let mut rules = Vec::new();
        if !self.rates().is_empty() {
            rules.push(rule(
                "within the rate of held SYNs",
                [Jump(RATE.to_owned())],
            ));
        }
        rules.extend(self.features.families().iter().map(|&family| {
            let held = Count(Counter::Held(family));
            let comment = "into the TUN, which exists while pepd runs";
            let into = [
                &[Of(family)],
                &self.route_into_tun(number, tun)[..],
                &[held, Notrack, Accept],
            ];
            rule(comment, into.concat())
        }));
        if self.features.fib {
            rules.push(rule(
                "pepd has ended: forward and track",
                [SetMark(0), Accept],
            ));
        }
        rules
    }

    /// Returns the packets and families whose rates are measured per host.
    pub(super) fn limited(&self) -> Vec<(Limited, Family)> {
        let held = self.rates().iter().map(|&family| (Limited::Held, family));
        let copied = self.copied().iter();
        held.chain(copied.map(|&family| (Limited::Copied, family)))
            .collect()
    }

    fn copies_midway(&self) -> bool {
        self.config.intercept.midway == Midway::Reset && self.features.copies
    }

    /// Returns the families for which the copies of packets of a host are limited.
    fn copied(&self) -> &'static [Family] {
        let sets = self.features.rate && self.features.recent;
        match sets && self.copies_midway() {
            true => self.features.families(),
            false => &[],
        }
    }

    /// Returns the chains that copy packets of connections whose beginning this machine has not
    /// seen: the first one, and the first answer to it.
    pub(super) fn midway_chains(&self) -> Vec<Chain> {
        if !self.copies_midway() {
            return Vec::new();
        }
        let sides = [
            (FROM_HOSTS, Term::From(self.lan_names())),
            (TO_HOSTS, Term::To(self.lan_names())),
        ];
        let packets = [
            ("began elsewhere: a copy for pepd", Term::NewTracked),
            ("the answer to such a packet", Term::FirstAnswer),
        ];
        let copies = |prefix: &str| {
            let copy = Term::Copy(CopyTo {
                group: CopyTo::midway(self.config),
                bytes: HEADERS,
                prefix: prefix.to_owned(),
            });
            vec![Term::Within(COPIES_RATE), copy, Term::Return]
        };
        let name = |prefix: &str| format!("copy_{prefix}");
        let rules = sides.iter().flat_map(|(prefix, side)| {
            packets.clone().map(|(comment, packet)| {
                let end = match self.copied() {
                    [] => copies(prefix),
                    _ => vec![Term::Goto(name(prefix))],
                };
                let terms = [side.clone(), Term::Midway, packet];
                rule(comment, [&terms[..], &end].concat())
            })
        });
        let midway = chain("midway", Some(Hook::ForwardMangle), rules.collect());
        let sides = sides.iter().filter(|_| !self.copied().is_empty());
        let limited = sides.map(|(prefix, _)| {
            let of_host = self.copied().iter().map(|&family| {
                let faster = Term::FasterPerHost(Limited::Copied, family, COPIES_RATE_PER_SOURCE);
                rule("others are judged, too", [faster, Term::Return])
            });
            let copied = rule("a copy for pepd", copies(prefix));
            chain(&name(prefix), None, of_host.chain([copied]).collect())
        });
        limited.chain([midway]).collect()
    }

    /// Returns the chains for SYNs that are forwarded first, one for each LAN interface and mode.
    /// They return while no pepd writes SYNs into the TUN.
    pub(super) fn ask_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let modes = [Mode::Split, Mode::Tunnel].into_iter().filter(|mode| {
            let mut sites = self.flow_sites();
            sites.any(|(_, site)| self.asks(site) && site.mode == *mode)
        });
        modes.flat_map(|mode| self.ask_chains_of(mode))
    }

    fn ask_chains_of(&self, mode: Mode) -> impl Iterator<Item = Chain> + '_ {
        use Term::{Accept, Ask, Count, Drop, Jump, Longer, Of, RoutedTo, SetMark, Unask};
        let lans = self.lans.iter().enumerate();
        let tuns = lans.filter_map(|(index, lan)| Some((index, lan.tun.clone()?)));
        // What belongs into a tunnel does not leave in the clear.
        let (rate, too_long) = match mode {
            Mode::Tunnel => (TUNNEL_RATE, Drop),
            _ => (RATE, Accept),
        };
        tuns.map(move |(number, tun)| {
            let families = || self.features.families().iter();
            let mut rules = Vec::new();
            if !self.rates().is_empty() {
                let within = "within the rate of SYNs that pepd takes";
                rules.push(rule(within, [Jump(rate.to_owned())]));
            }
            rules.push(rule(
                "too long to copy",
                [Longer(SYN_BYTES), too_long.clone()],
            ));
            rules.extend(families().map(|&family| {
                let alive = [
                    Of(family),
                    // The route exists while pepd runs.
                    SetMark(self.marks.hold(number)),
                    RoutedTo(tun.clone()),
                    SetMark(0),
                    Ask(family),
                    Count(Counter::Asked),
                ];
                // The mark of another program is kept for the server leg.
                let tag = self.tag(self.no_mark()).into_iter().chain([Accept]);
                let terms = alive.into_iter().chain(tag).collect::<Vec<_>>();
                rule("forwarded, to meet the rules of all programs", terms)
            }));
            rules.push(rule("pepd has ended, or the set is full", [SetMark(0)]));
            if self.features.forget {
                rules.extend(families().map(|&family| {
                    let terms = [Of(family), Unask(family)];
                    rule("an earlier SYN from its port was forwarded", terms)
                }));
            }
            chain(&ask_chain(number, mode), None, rules)
        })
    }

    /// Returns rules for a SYN that could not be forwarded to meet other rules. The host waits for
    /// pepd; without listeners the kernel forwards it.
    pub(super) fn unasked(&self, id: SiteId, on: impl Fn(&[Term]) -> Rule) -> Vec<Rule> {
        // A TIME_WAIT, or a handshake: it would not be forwarded.
        let to_socket = [Term::SocketTransparent, Term::Goto(site_chain(id))];
        let port = self.config.listen_port(id);
        let families = self.features.families().iter();
        let waits = families.map(|&family| vec![Term::Tproxy(family, port), Term::Drop]);
        let ends: Vec<_> = waits.chain([vec![Term::Accept]]).collect();
        let to_listener = [Term::WildcardSocket];
        let to_listener = ends.iter().map(|end| [&to_listener[..], end].concat());
        let all = to_listener.chain([to_socket.to_vec()]).chain(ends.clone());
        all.map(|terms| on(&terms)).collect()
    }

    /// Returns the chain for SYNs that no rule of another program has dropped: pepd writes them
    /// into their TUN.
    pub(super) fn permitted_chain(&self) -> Option<Chain> {
        use Term::{Copy, Count, Drop, From, IsAsked, Of, Syn};
        let lans = self.lans.iter().enumerate();
        let rules = lans.flat_map(|(number, lan)| {
            self.asked().iter().map(move |&family| {
                let copy = CopyTo {
                    group: CopyTo::permitted(self.config),
                    bytes: SYN_BYTES,
                    prefix: number.to_string(),
                };
                let terms = [
                    From(vec![lan.interface.clone()]),
                    Syn,
                    Of(family),
                    IsAsked(family),
                    Count(Counter::Permitted),
                    Copy(copy),
                    Drop,
                ];
                rule("a host's SYN that no rule has dropped", terms)
            })
        });
        let rules: Vec<_> = rules.collect();
        (!rules.is_empty()).then(|| chain("permitted", Some(Hook::ForwardLast), rules))
    }
}

/// Maximum of copied packets of a side in a second, each some microseconds of pepd's time.
/// Connections beyond it are not judged.
const COPIES_RATE: u32 = 2000;

/// Maximum of those of one source.
const COPIES_RATE_PER_SOURCE: u32 = 250;

/// Returns the name of the chain for SYNs from a LAN interface, to sites of a mode, that are
/// forwarded first.
pub(super) fn ask_chain(lan: usize, mode: Mode) -> String {
    match mode {
        Mode::Tunnel => format!("ask_tunnel_{lan}"),
        _ => format!("ask_{lan}"),
    }
}

/// Name of the first chain of held SYNs.
const RATE: &str = "held_rate";
/// Name of the first chain of SYNs to tunnels that are forwarded first.
const TUNNEL_RATE: &str = "tunnel_rate";
