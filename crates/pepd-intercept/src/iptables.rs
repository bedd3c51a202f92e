//! The table as a script of iptables and ip6tables commands.
//!
//! iptables redirects (TPROXY) only in its table `mangle`, after conntrack, and exempts packets
//! from conntrack only in `raw`. So the model is written twice: into `raw` with all decisions, and
//! the path from a site to its listener again into `mangle`. The script's header lists the features
//! that iptables lacks.

use pep_core::site::PortRange;

use super::{
    nft::Names,
    rules::{BOOSTED, Chain, Counter, Family, Hook, Prefixes, Ruleset, Term, is_lost_chain},
};

/// Header of the script: its purpose, and the features lost compared with pepd's nft table.
const HEADER: &str = "\
#!/bin/sh
# The rules of pepd, as closely as iptables can express them: to read, to compare with a firewall of
# iptables, and for tests. `pepd run` does not use this script: it always installs its own nft table.
#
#   sh FILE             installs the rules, and replaces those of an earlier run
#   sh FILE remove      removes the rules
#
# Run it as root. It needs ip, iptables and ip6tables, with xt_TPROXY, xt_socket, xt_CT, xt_MARK,
# xt_comment, xt_hl and, depending on the sites, xt_dscp, xt_addrtype, xt_multiport and xt_TCPMSS.
# Limitations compared with the nft table:
# - when pepd ends, TPROXY drops redirected packets: remove the rules then (nft lets them pass)
# - no rate limits: a flood of SYNs keeps other SYNs from being held
# - connections to destinations without a route are accepted, and then reset
# - no gate: at limits.flows new flows wait instead of passing, and one host may use all of them
# - mode boost: packets from the link do not pass the boosters, as iptables marks no packet behind de-NAT for its route
- mode packet: packets between hosts of several LAN interfaces go into the tunnel, too
# - mode packet: ICMP errors about packets of a peer leave by the link instead of the tunnel
# - mode block: no effect, since iptables rejects only in `forward`, where the site is unknown
# - connections opened while SYN cookies are in use fail (keep the backlog large)
";

/// Checks that run before the script changes anything; later failures are undone.
const CHECKS: &str = "\
fail() { echo \"$0: $*\" >&2; exit 1; }
[ \"$(id -u)\" = 0 ] || fail 'run this as root'
for command in ip iptables ip6tables; do
    command -v $command >/dev/null || fail \"command $command not found\"
done
for command in iptables ip6tables; do
    for table in raw mangle; do
        $command -t $table -S >/dev/null || fail \"$command lacks the table $table\"
    done
done
";

/// Returns a shell script that installs the table, runs the `ip` commands given, and removes all of
/// it on request.
pub fn script(ruleset: &Ruleset, families: &[Family], routing: &Commands) -> String {
    let writers = families.iter().map(|&family| Writer {
        ruleset,
        family,
        prefix: &ruleset.table[..ruleset.table.len().min(12)],
    });
    let tables: Vec<_> = writers.flat_map(|writer| writer.tables()).collect();
    let each = |text: fn(&Table) -> String| tables.iter().map(text).collect::<String>();
    let (remove, install) = (each(Table::remove), each(Table::install));
    let quiet = |commands: &[String]| -> String {
        let quiet = commands
            .iter()
            .map(|command| format!("    {command} 2>/dev/null || :\n"));
        quiet.collect()
    };
    format!(
        "{HEADER}set -eu\n{CHECKS}{}\nremove() {{\n{}{remove}}}\n\n\
         case \"${{1-}}\" in\nremove) remove; exit ;;\n'') ;;\n*) fail 'usage: sh FILE [remove]' ;;\nesac\n\n\
         remove\ntrap 'status=$?; trap - EXIT; [ $status = 0 ] || remove; exit $status' EXIT\n\
         {}\n{install}",
        routing.checks,
        quiet(&routing.remove),
        routing.install.join("\n"),
    )
}

/// Further commands of the script, and those that undo them.
#[derive(Debug, Default)]
pub struct Commands {
    /// Shell commands that fail before anything is changed.
    pub checks: String,
    /// Commands in order.
    pub install: Vec<String>,
    /// Commands that may fail when nothing is installed.
    pub remove: Vec<String>,
}

/// One table of one family: its chains, rules and hooks.
struct Table {
    /// `iptables -t raw`.
    command: String,
    chains: Vec<String>,
    rules: Vec<String>,
    hooks: Vec<String>,
}

impl Table {
    fn install(&self) -> String {
        let Self { command, .. } = self;
        let chains = self
            .chains
            .iter()
            .map(|name| format!("{command} -N {name}\n"));
        let rules = self.rules.iter().chain(&self.hooks);
        let rules = rules.map(|rule| format!("{command} -A {rule}\n"));
        chains.chain(rules).collect()
    }

    /// Returns commands that remove the hooks, then the rules, which refer to chains, then the
    /// chains.
    fn remove(&self) -> String {
        let Self { command, .. } = self;
        let line = |words: String| format!("    {command} {words} 2>/dev/null || :\n");
        let hooks = self.hooks.iter().map(|rule| line(format!("-D {rule}")));
        let flush = self.chains.iter().map(|name| line(format!("-F {name}")));
        let delete = self.chains.iter().map(|name| line(format!("-X {name}")));
        hooks.chain(flush).chain(delete).collect()
    }
}

struct Writer<'a> {
    ruleset: &'a Ruleset,
    family: Family,
    prefix: &'a str,
}

/// Translation of an action of a rule into one table; `None` for an action of another table.
type Actions<'a> = &'a dyn Fn(&Term) -> Option<String>;

impl Writer<'_> {
    fn tables(&self) -> [Table; 2] {
        [self.raw(), self.mangle()]
    }

    fn command(&self, table: &str) -> String {
        let command = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        format!("{command} -t {table}")
    }

    /// Returns the table `raw`: every decision. Where nft redirects, it marks the packet and
    /// exempts it from conntrack.
    fn raw(&self) -> Table {
        let actions = |term: &Term| self.raw_action(term);
        let chains = self.ruleset.chains.iter();
        let is_of_raw = |chain: &&Chain| {
            let is_said = chain.hook != Some(Hook::OutputRoute) && !is_lost_chain(&chain.name);
            is_said && !of_mangle(chain)
        };
        let chains: Vec<&Chain> = chains.filter(is_of_raw).collect();
        self.table("raw", &chains, &actions)
    }

    /// Returns the table `mangle`: from a site to its listener, and from servers to pepd.
    fn mangle(&self) -> Table {
        let actions = |term: &Term| self.mangle_action(term);
        let is_site = |chain: &Chain| chain.name.starts_with("site");
        let all = self.ruleset.chains.iter();
        let chains: Vec<&Chain> = all
            .filter(|chain| is_site(chain) || of_mangle(chain))
            .collect();
        let mut table = self.table("mangle", &chains, &actions);
        for interface in self.host_interfaces() {
            let sites = self.chain("sites");
            let new = format!("-i {interface} -p tcp --tcp-flags FIN,SYN,RST,ACK SYN");
            table.hooks.push(format!("PREROUTING {new} -j {sites}"));
        }
        table
    }

    fn table(&self, name: &str, chains: &[&Chain], actions: Actions<'_>) -> Table {
        let names = chains.iter().map(|chain| self.chain(&chain.name));
        let rules = chains.iter().flat_map(|chain| self.rules(chain, actions));
        let hooks = chains.iter().flat_map(|chain| self.hooks(chain));
        Table {
            command: self.command(name),
            chains: names.collect(),
            rules: rules.collect(),
            hooks: hooks.collect(),
        }
    }

    fn rules(&self, chain: &Chain, action: Actions<'_>) -> Vec<String> {
        let mut lines = Vec::new();
        for rule in &chain.rules {
            let Some(conditions) = self.conditions(&rule.terms) else {
                continue;
            };
            let mut actions: Vec<String> = rule.terms.iter().filter_map(action).collect();
            // TPROXY ends the rule and sets the mark.
            if let Some(tproxy) = actions.iter().position(|action| action.contains("TPROXY")) {
                actions = vec![actions.swap_remove(tproxy)];
            }
            let (chain, comment) = (self.chain(&chain.name), &rule.comment);
            for conditions in conditions {
                lines.extend(actions.iter().map(|action| {
                    format!("{chain}{conditions} -m comment --comment \"{comment}\" {action}")
                }));
            }
        }
        lines
    }

    fn hooks(&self, chain: &Chain) -> Vec<String> {
        let name = self.chain(&chain.name);
        match chain.hook {
            Some(Hook::PreroutingRaw) => {
                let from = |interface: &String| format!("PREROUTING -i {interface} -j {name}");
                let mut interfaces = self.host_interfaces();
                // Interfaces of the TUNs out of which packets of a peer come.
                for name in named(chain) {
                    if !interfaces.contains(name) {
                        interfaces.push(name.clone());
                    }
                }
                interfaces.iter().map(from).collect()
            }
            Some(Hook::PreroutingDnat) => vec![format!("PREROUTING -j {name}")],
            Some(Hook::OutputRaw) => vec![format!("OUTPUT -j {name}")],
            Some(Hook::ForwardMangle) => vec![format!("FORWARD -j {name}")],
            // iptables has no equivalent.
            Some(Hook::OutputRoute | Hook::PreroutingLast | Hook::PostroutingLast) | None => {
                Vec::new()
            }
        }
    }

    /// Returns the iptables name of a chain. It has 28 characters at maximum: 12 of the table's
    /// name, and `from_servers` is the longest rest.
    fn chain(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// Returns the interfaces that the first rule selects.
    fn host_interfaces(&self) -> Vec<String> {
        let terms = self.ruleset.chains.iter().flat_map(|chain| &chain.rules);
        let names = terms
            .flat_map(|rule| &rule.terms)
            .find_map(|term| match term {
                Term::NotFrom(names) => Some(names.clone()),
                _ => None,
            });
        names.unwrap_or_default()
    }

    /// Returns the conditions of a rule, once for each combination of alternatives, since iptables
    /// has no lists; `None` for a rule that cannot match here or that iptables cannot express.
    fn conditions(&self, terms: &[Term]) -> Option<Vec<String>> {
        let mut all = vec![String::new()];
        for term in terms {
            let alternatives = self.condition(term)?;
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
            // Selected where the chain is hooked in; no equivalent; or the gate is open.
            Term::NotFrom(_)
            | Term::RoutedToAny(_)
            | Term::NoRoute
            | Term::RoutedByOther(_)
            | Term::NotTcpOrIcmp
            | Term::IsRecent(_)
            | Term::Forget(_)
            | Term::Seen
            | Term::ToNear(_)
            | Term::NotBehind
            | Term::NoOtherMark
            | Term::KeepMark(_)
            | Term::ForgetMark(_)
            | Term::AtCap(_)
            | Term::FasterPerHost(..)
            | Term::Faster(_)
            | Term::Reject
            | Term::IcmpError(_)
            | Term::IcmpNotCarried(_)
            | Term::RememberPeer(..)
            | Term::Count(
                Counter::Passed
                | Counter::PassedHosts
                | Counter::PassedRecent
                | Counter::PassedRate,
            ) => None,
            Term::IcmpRedirect(family) => (*family == self.family).then(|| match family {
                Family::V4 => vec![" -p icmp --icmp-type redirect".to_owned()],
                Family::V6 => vec![" -p ipv6-icmp --icmpv6-type redirect".to_owned()],
            }),
            // Behind de-NAT, and by routes.
            Term::Goto(chain) if chain == BOOSTED => None,
            // The chain is empty: no loss has been detected.
            Term::Jump(chain) if is_lost_chain(chain) => None,
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
            // Actions, and the TUN to which a mark leads: iptables has no equivalent.
            _ => one(""),
        }
    }

    fn prefixes(&self, option: &str, nets: &Prefixes) -> Option<Vec<String>> {
        match (nets, self.family) {
            (Prefixes::V4(nets), Family::V4) => Some(each(nets, |net| format!(" {option} {net}"))),
            (Prefixes::V6(nets), Family::V6) => Some(each(nets, |net| format!(" {option} {net}"))),
            _ => None,
        }
    }

    fn mark(&self, mark: u32) -> String {
        format!("{mark:#010x}/{:#010x}", self.ruleset.mask)
    }

    fn raw_action(&self, term: &Term) -> Option<String> {
        match term {
            Term::SetMark(mark) => Some(format!("-j MARK --set-xmark {}", self.mark(*mark))),
            Term::Notrack => Some("-j CT --notrack".to_owned()),
            Term::Accept => Some("-j ACCEPT".to_owned()),
            Term::Drop => Some("-j DROP".to_owned()),
            Term::Return => Some("-j RETURN".to_owned()),
            Term::Jump(chain) => Some(format!("-j {}", self.chain(chain))),
            Term::Goto(chain) => Some(format!("-g {}", self.chain(chain))),
            _ => None,
        }
    }

    fn mangle_action(&self, term: &Term) -> Option<String> {
        match term {
            Term::Tproxy(_, port) => Some(format!(
                "-j TPROXY --on-ip {} --on-port {port} --tproxy-mark {}",
                self.family.listen_address(),
                self.mark(self.local_mark()?)
            )),
            // A held SYN that goes into the TUN.
            Term::Goto(chain) if chain.starts_with("hold") => Some("-j ACCEPT".to_owned()),
            Term::Goto(chain) => Some(format!("-g {}", self.chain(chain))),
            // From servers only: `raw` has marked the other packets.
            Term::SetMark(mark) => Some(format!("-j MARK --set-xmark {}", self.mark(*mark))),
            Term::Accept => Some("-j ACCEPT".to_owned()),
            Term::ClampMss => Some("-j TCPMSS --clamp-mss-to-pmtu".to_owned()),
            _ => None,
        }
    }

    /// Returns the mark of redirected packets.
    fn local_mark(&self) -> Option<u32> {
        let rules = self.ruleset.chains.iter().flat_map(|chain| &chain.rules);
        let redirecting = rules.filter(|rule| {
            rule.terms
                .iter()
                .any(|term| matches!(term, Term::Tproxy(..)))
        });
        redirecting
            .flat_map(|rule| &rule.terms)
            .find_map(|term| match term {
                Term::SetMark(mark) => Some(*mark),
                _ => None,
            })
    }
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
    matches!(chain.hook, Some(Hook::PreroutingDnat | Hook::ForwardMangle))
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
