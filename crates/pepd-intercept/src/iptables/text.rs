//! Rules in the language of iptables: installed by pepd, and printed as a script.
//!
//! iptables redirects (TPROXY) only in its table `mangle`, after conntrack, and exempts packets
//! from conntrack only in `raw`. So `raw` decides, and marks the packets for pepd; `mangle`
//! redirects the SYNs among them, and marks answers of servers.

mod writer;

use std::net::IpAddr;

use crate::rules::{self, Counter, Family};
pub use writer::Writer;

/// Usage of the script.
const USAGE: &str = "\
#!/bin/sh
# Rules of pepd for iptables. `pepd run` installs the same with `intercept.rules = \"iptables\"`. With
# \"manual\" this script, or another one like it, has to install them.
#
#   sh FILE             installs the rules, and replaces those of an earlier run
#   sh FILE remove      removes the rules
#
# Run it as root. It needs ip, iptables and ip6tables, with xt_TPROXY, xt_socket, xt_CT, xt_MARK,
# xt_mark, xt_comment, xt_recent, xt_addrtype, xt_conntrack, xt_limit, xt_NFLOG and, depending on
# the sites, xt_hl, xt_dscp, xt_multiport, xt_hashlimit, xt_rpfilter and xt_TCPMSS. While no pepd
# runs, all connections pass.
# Limitations compared with the nft table:
";

/// Checks that run before the script changes anything; later failures are undone.
const CHECKS: &str = "\
fail() { echo \"$0: $*\" >&2; exit 1; }
[ \"$(id -u)\" = 0 ] || fail 'run this as root'
for command in ip iptables; do
    command -v $command >/dev/null || fail \"command $command not found\"
done
if [ ! -e /proc/net/if_inet6 ] || ! command -v ip6tables >/dev/null; then
    echo \"$0: without IPv6 or ip6tables: rules and routes of IPv4 only\" >&2
    ip6tables() { :; }
    ip() { case \"$1 $2 $3\" in '-6 rule del') return 1 ;; '-6 '*) ;; *) command ip \"$@\" ;; esac; }
fi
for command in iptables ip6tables; do
    for table in raw mangle; do
        $command -w -t $table -S >/dev/null || fail \"$command lacks the table $table\"
    done
done
";

/// Function that removes pepd's chains from a table, and the rules that lead to them. They may be
/// those of another configuration.
const CLEAR: &str = "\
clear_table() {
    \"$@\" -S 2>/dev/null | sed -nE \"s/^-A ([A-Z]+ .*-j $own)\\$/-D \\1/p\" |
        while read -r rule; do \"$@\" $rule || :; done
    chains=$(\"$@\" -S 2>/dev/null | sed -nE \"s/^-N ($own)\\$/\\1/p\")
    for chain in $chains; do \"$@\" -F \"$chain\" || :; done
    for chain in $chains; do \"$@\" -X \"$chain\" || :; done
}
";

/// Returns a shell script that installs the tables, whose chains' names begin with `prefix`, runs
/// the `ip` commands given, and removes all of it on request.
pub fn script(prefix: &str, tables: &[Table], limits: &[&str], routing: &Commands) -> String {
    let limits: String = limits
        .iter()
        .map(|limit| format!("# - {limit}\n"))
        .collect();
    let install: String = tables.iter().map(Table::commands).collect();
    let remove: String = tables
        .iter()
        .map(|table| format!("    clear_table {}\n", table.command()))
        .collect();
    let own = own_pattern(prefix);
    let quiet = |commands: &[String]| -> String {
        let quiet = commands
            .iter()
            .map(|command| format!("    {command} 2>/dev/null || :\n"));
        quiet.collect()
    };
    format!(
        "{USAGE}{limits}set -eu\n{CHECKS}{}\nown='{own}'\n{CLEAR}\nremove() {{\n{}{remove}}}\n\n\
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

/// A rule in a chain of pepd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    conditions: String,
    /// Target with its option; empty for a rule that only counts.
    action: String,
    /// Comment of the rule in the model.
    pub comment: String,
    /// Counters to which its packets belong.
    pub counters: Vec<Counter>,
}

impl Line {
    fn rule(&self, chain: &str) -> String {
        let Self {
            conditions,
            action,
            comment,
            ..
        } = self;
        format!("{chain}{conditions} -m comment --comment \"{comment}\"{action}")
    }
}

/// A rule in a chain of the kernel, which leads to one of pepd's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// Chain of the kernel.
    pub base: &'static str,
    conditions: String,
    /// Chain of pepd.
    pub to: String,
    /// True for a chain behind the rules of other programs; others come first.
    pub is_last: bool,
}

impl Jump {
    fn rule(&self) -> String {
        format!("{}{} -j {}", self.base, self.conditions, self.to)
    }

    /// Returns the rule with the operation that adds it as the `place`-th of those to come first.
    fn adding(&self, place: usize) -> String {
        let Self {
            base,
            conditions,
            to,
            is_last,
        } = self;
        match is_last {
            true => format!("-A {}", self.rule()),
            false => format!("-I {base} {place}{conditions} -j {to}"),
        }
    }
}

/// One of pepd's chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lines {
    /// Name in iptables.
    pub name: String,
    /// Rules in their order.
    pub lines: Vec<Line>,
}

/// pepd's part of one table of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Family of its packets.
    pub family: Family,
    /// `raw` or `mangle`.
    pub name: &'static str,
    /// pepd's chains.
    pub chains: Vec<Lines>,
    /// Rules that lead to them.
    pub jumps: Vec<Jump>,
}

impl Table {
    /// Returns input for iptables-restore that installs the table, and removes these chains and
    /// rules of an earlier one.
    pub fn restoring(&self, old_chains: &[String], old_jumps: &[String]) -> String {
        let obsolete = |name: &&String| self.chains.iter().all(|chain| chain.name != **name);
        let obsolete: Vec<_> = old_chains.iter().filter(obsolete).collect();
        let names = self.chains.iter().map(|chain| &chain.name);
        // This line creates a chain, or flushes an existing one.
        let declared = names.chain(obsolete.iter().copied());
        let declared = declared.map(|name| format!(":{name} - [0:0]\n"));
        let deleted = old_jumps.iter().map(|rule| format!("-D {rule}\n"));
        let rules = self.chains.iter().flat_map(Lines::adding);
        let added = rules.chain(self.adding_jumps());
        let added = added.map(|words| format!("{words}\n"));
        let removed = obsolete.iter().map(|name| format!("-X {name}\n"));
        let lines: String = declared
            .chain(deleted)
            .chain(added)
            .chain(removed)
            .collect();
        format!("*{}\n{lines}COMMIT\n", self.name)
    }

    /// Returns the rules that lead to its chains.
    pub fn jump_rules(&self) -> Vec<String> {
        self.jumps.iter().map(Jump::rule).collect()
    }

    fn adding_jumps(&self) -> impl Iterator<Item = String> {
        self.jumps.iter().enumerate().map(|(number, jump)| {
            let before = self.jumps[..number].iter();
            let before = before.filter(|other| other.base == jump.base && !other.is_last);
            jump.adding(before.count() + 1)
        })
    }

    /// Returns `iptables -t raw`.
    fn command(&self) -> String {
        let command = match self.family {
            Family::V4 => "iptables",
            Family::V6 => "ip6tables",
        };
        // Other programs may hold the lock of xtables.
        format!("{command} -w -t {}", self.name)
    }

    fn commands(&self) -> String {
        let command = self.command();
        let names = self.chains.iter().map(|chain| format!("-N {}", chain.name));
        let rules = self.chains.iter().flat_map(Lines::adding);
        let all = names.chain(rules).chain(self.adding_jumps());
        all.map(|words| format!("{command} {words}\n")).collect()
    }
}

impl Lines {
    fn adding(&self) -> impl Iterator<Item = String> {
        let rules = self.lines.iter();
        rules.map(|line| format!("-A {}", line.rule(&self.name)))
    }

    /// Returns input for iptables-restore that replaces the rules of this chain of `raw`.
    pub fn restoring(&self) -> String {
        let rules: String = self.adding().map(|words| format!("{words}\n")).collect();
        format!("*raw\n:{} - [0:0]\n{rules}COMMIT\n", self.name)
    }
}

/// Returns input for iptables-restore that removes these chains of a table, and these rules that
/// lead to them.
pub fn removing(table: &str, chains: &[String], jumps: &[String]) -> String {
    let flushed = chains.iter().map(|name| format!(":{name} - [0:0]\n"));
    let deleted = jumps.iter().map(|rule| format!("-D {rule}\n"));
    let removed = chains.iter().map(|name| format!("-X {name}\n"));
    let lines: String = flushed.chain(deleted).chain(removed).collect();
    format!("*{table}\n{lines}COMMIT\n")
}

/// Chains in place of sets of the nft table: hosts at their flow limit, networks of this machine.
const HOSTS: &str = "hosts";
const NEAR: &str = "near";
/// Chain of the signals of the running pepd.
const SIGNALS: &str = "signals";
/// First word of the chains that hold the actions of rules with several.
const ACTIONS: &str = "do_";

/// Returns the first part of the names of chains and lists.
pub fn prefix(table: &str) -> &str {
    &table[..table.len().min(12)]
}

/// Names of pepd's chains without the prefix: whole ones, and those that a number follows.
const WHOLE: [&str; 17] = [
    "gate",
    "host_at_cap",
    "no_route",
    "elsewhere",
    "held_rate",
    "sites",
    "packet_sites",
    rules::BOOSTED,
    "from_hosts",
    "from_servers",
    "to_hosts",
    "handshakes",
    "into_tunnels",
    "midway",
    HOSTS,
    NEAR,
    SIGNALS,
];
const NUMBERED: [&str; 6] = ["lost", "off", "hold", "site", "packet", "block"];

/// Returns an extended regular expression of the names for which [`is_own`] is true.
fn own_pattern(prefix: &str) -> String {
    let (whole, numbered) = (WHOLE.join("|"), NUMBERED.join("|"));
    format!("{prefix}_({whole}|{ACTIONS}[a-z0-9_]+|({numbered})_[0-9]+)")
}

/// Returns true for the name of a chain that pepd installs, without the prefix.
pub fn is_own(name: &str) -> bool {
    let is_numbered = |(word, number): (&str, &str)| {
        NUMBERED.contains(&word) && number.bytes().all(|digit| digit.is_ascii_digit())
    };
    WHOLE.contains(&name)
        || name.starts_with(ACTIONS)
        || name.rsplit_once('_').is_some_and(is_numbered)
}

/// Returns the name of a chain for checks.
pub fn probe_chain(prefix: &str) -> String {
    format!("{prefix}_{ACTIONS}probe")
}

/// Returns input for iptables-restore that creates a chain in each table, with a rule that only a
/// kernel with all modules accepts.
pub fn probe(prefix: &str) -> String {
    let chain = probe_chain(prefix);
    let list = format!("-m recent --name {chain} --mask 0.0.0.0 --rcheck --seconds 1");
    format!(
        "*mangle\n:{chain} - [0:0]\n\
         -A {chain} -p tcp -m socket --transparent -j TPROXY --on-port 1 --tproxy-mark 0x1/0x1\nCOMMIT\n\
         *raw\n:{chain} - [0:0]\n\
         -A {chain} {list} -m comment --comment probe -j CT --notrack\nCOMMIT\n"
    )
}

/// Returns true for an address of the family.
fn is_of(family: Family, address: IpAddr) -> bool {
    address.is_ipv4() == (family == Family::V4)
}
