//! The table as iptables and ip6tables commands, for those who keep their rules there.
//!
//! iptables redirects (TPROXY) only in its table `mangle`, after conntrack, and keeps packets out
//! of conntrack only in `raw`. So the model is written twice: into `raw` with all its decisions,
//! and the way from a site to its listener once more into `mangle`. What iptables cannot say
//! is in [`CAVEATS`].

use std::fmt::Write as _;

use super::rules::{Chain, Family, Hook, Prefixes, Ruleset, Term};

/// What is lost against our own nft table.
pub const CAVEATS: &str = "\
# pepd installs its own nft table; these commands are the nearest that iptables can do:
# - when pepd ends, TPROXY drops what the rules redirect: remove them then (nft lets it pass)
# - no gate: when limits.flows is reached, new flows wait instead of passing
# - connections opened while SYN cookies are in use fail (keep the backlog large)
";

/// The table as a shell script of iptables and ip6tables commands.
pub fn ruleset(ruleset: &Ruleset, families: &[Family]) -> String {
    let mut script = String::new();
    for &family in families {
        let writer = Writer {
            ruleset,
            family,
            prefix: &ruleset.table[..ruleset.table.len().min(12)],
        };
        script += &writer.raw();
        script += &writer.mangle();
    }
    script
}

struct Writer<'a> {
    ruleset: &'a Ruleset,
    family: Family,
    prefix: &'a str,
}

/// What of a rule's actions goes into a table.
type Actions<'a> = &'a dyn Fn(&Term) -> Option<String>;

impl Writer<'_> {
    fn command(&self) -> &'static str {
        match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        }
    }

    /// Every decision; where nft redirects, the packet is only marked and kept from conntrack.
    fn raw(&self) -> String {
        let actions = |term: &Term| self.raw_action(term);
        let chains = self.ruleset.chains.iter();
        let chains: Vec<&Chain> = chains
            .filter(|chain| chain.hook != Some(Hook::PreroutingDnat))
            .collect();
        let mut script = self.declare("raw", &chains);
        for chain in &chains {
            script += &self.rules("raw", chain, &actions);
        }
        for chain in chains {
            script += &self.hook("raw", chain);
        }
        script
    }

    /// From a site to its listener, and from servers to us.
    fn mangle(&self) -> String {
        let actions = |term: &Term| self.mangle_action(term);
        let is_site = |chain: &Chain| chain.name.starts_with("site");
        let all = self.ruleset.chains.iter();
        let chains: Vec<&Chain> = all
            .filter(|chain| is_site(chain) || chain.hook == Some(Hook::PreroutingDnat))
            .collect();
        let mut script = self.declare("mangle", &chains);
        for chain in &chains {
            script += &self.rules("mangle", chain, &actions);
        }
        for chain in chains.iter().filter(|chain| chain.hook.is_some()) {
            script += &self.hook("mangle", chain);
        }
        for interface in self.host_interfaces() {
            let sites = self.chain("sites");
            let new = format!("-i {interface} -p tcp --tcp-flags FIN,SYN,RST,ACK SYN");
            self.line(
                &mut script,
                "mangle",
                &format!("-A PREROUTING {new} -j {sites}"),
            );
        }
        script
    }

    fn declare(&self, table: &str, chains: &[&Chain]) -> String {
        let mut script = String::new();
        for chain in chains {
            self.line(
                &mut script,
                table,
                &format!("-N {}", self.chain(&chain.name)),
            );
        }
        script
    }

    fn rules(&self, table: &str, chain: &Chain, action: Actions<'_>) -> String {
        let mut script = String::new();
        for rule in &chain.rules {
            let Some(conditions) = self.conditions(&rule.terms) else {
                continue;
            };
            let mut actions: Vec<String> = rule.terms.iter().filter_map(action).collect();
            // It ends the rule, mark and all.
            if let Some(tproxy) = actions.iter().position(|action| action.contains("TPROXY")) {
                actions = vec![actions.swap_remove(tproxy)];
            }
            for conditions in conditions {
                for action in &actions {
                    let (chain, comment) = (self.chain(&chain.name), &rule.comment);
                    let rule = format!(
                        "-A {chain}{conditions} -m comment --comment \"{comment}\" {action}"
                    );
                    self.line(&mut script, table, &rule);
                }
            }
        }
        script
    }

    fn hook(&self, table: &str, chain: &Chain) -> String {
        let mut script = String::new();
        let name = self.chain(&chain.name);
        match chain.hook {
            Some(Hook::PreroutingRaw) => {
                for interface in self.host_interfaces() {
                    let jump = format!("-A PREROUTING -i {interface} -j {name}");
                    self.line(&mut script, table, &jump);
                }
            }
            Some(Hook::PreroutingDnat) => {
                self.line(&mut script, table, &format!("-A PREROUTING -j {name}"));
            }
            Some(Hook::OutputRaw) => {
                self.line(&mut script, table, &format!("-A OUTPUT -j {name}"));
            }
            None => {}
        }
        script
    }

    fn line(&self, script: &mut String, table: &str, rule: &str) {
        let _ = writeln!(script, "{} -t {table} {rule}", self.command());
    }

    /// At most 28 characters: 12 of the table's name, and `from_servers` is the longest rest.
    fn chain(&self, name: &str) -> String {
        format!("{}_{name}", self.prefix)
    }

    /// The interfaces of the rule that sorts out all others.
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

    /// The conditions of a rule, once for each combination of alternatives, since iptables has no
    /// lists; `None` for a rule that cannot hold here, or cannot be said.
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
            // Sorted out where the chain is hooked in; cannot be said; the gate is open.
            Term::NotFrom(_)
            | Term::NotTcpOrIcmp
            | Term::IsRecent(_)
            | Term::Remember(_)
            | Term::CountPassed => None,
            Term::TcpOrIcmp => Some(match self.family {
                Family::V4 => vec![" -p tcp".to_owned(), " -p icmp".to_owned()],
                Family::V6 => vec![" -p tcp".to_owned(), " -p ipv6-icmp".to_owned()],
            }),
            Term::Syn => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK SYN"),
            Term::Ack => one(" -p tcp --tcp-flags FIN,SYN,RST,ACK ACK"),
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
            Term::SocketMark(mark) => Some(vec![format!(
                " -m socket --transparent --restore-skmark -m mark --mark {}",
                self.mark(*mark)
            )]),
            Term::SocketTransparent => one(" -m socket --transparent"),
            Term::Mark(mark) => Some(vec![format!(" -m mark --mark {}", self.mark(*mark))]),
            Term::Tproxy(family, _) => (*family == self.family).then(|| vec![" -p tcp".to_owned()]),
            // Actions; and which TUN a mark leads to, nobody can ask.
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
            // Held: on its way into the TUN.
            Term::Goto(chain) if chain.starts_with("hold") => Some("-j ACCEPT".to_owned()),
            Term::Goto(chain) => Some(format!("-g {}", self.chain(chain))),
            // From servers only: what raw has marked as it should be stays so.
            Term::SetMark(mark) => Some(format!("-j MARK --set-xmark {}", self.mark(*mark))),
            Term::Accept => Some("-j ACCEPT".to_owned()),
            _ => None,
        }
    }

    /// The mark that every redirected packet gets.
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

/// Both conditions; the protocol may be named once only.
fn and(so_far: &str, next: &str) -> String {
    let rest = next
        .strip_prefix(" -p tcp")
        .filter(|_| so_far.contains(" -p tcp"));
    format!("{so_far}{}", rest.unwrap_or(next))
}

fn each<T>(values: &[T], text: impl Fn(&T) -> String) -> Vec<String> {
    values.iter().map(text).collect()
}
