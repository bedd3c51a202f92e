//! Rules that redirected connections to PEPsal, as printed by `iptables-save` and `nft list
//! ruleset`.
//!
//! A rule is converted if every word of it is supported and a site can express it. Otherwise it is
//! left out, with a remark that shows it: a guess could accelerate other connections.

mod parse;

use std::collections::{HashMap, HashSet};

use super::Draft;
use parse::{Rule, Target};

/// Connections that a rule redirects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redirect {
    /// Interface on which connections arrive.
    pub lan: Option<String>,
    /// Clients' prefixes.
    pub src: Vec<String>,
    /// Servers' prefixes.
    pub dst: Vec<String>,
    /// Servers' ports, in the notation of pepd.
    pub dport: Vec<String>,
}

/// Maximum depth of jumps between chains.
const DEPTH: usize = 8;

impl Redirect {
    /// Returns true if it matches all connections of its interface.
    pub fn is_all(&self) -> bool {
        self.src.is_empty() && self.dst.is_empty() && self.dport.is_empty()
    }

    /// Returns the intersection. `None` if a site cannot express it.
    fn and(&self, other: &Self) -> Option<Self> {
        fn one<T: Clone + Default + PartialEq>(a: &T, b: &T) -> Option<T> {
            let none = T::default();
            match (*a == none, *b == none) {
                (_, true) => Some(a.clone()),
                (true, _) => Some(b.clone()),
                (false, false) => (a == b).then(|| a.clone()),
            }
        }
        Some(Self {
            lan: one(&self.lan, &other.lan)?,
            src: one(&self.src, &other.src)?,
            dst: one(&self.dst, &other.dst)?,
            dport: one(&self.dport, &other.dport)?,
        })
    }
}

/// Converts the rules that redirect; ignores others.
pub fn rules(text: &str, draft: &mut Draft) {
    let mut all = Vec::new();
    let mut chain = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(['{', ' ']);
        } else {
            all.extend(parse::rule(line, chain));
        }
    }
    draft.binds_clients |= all.iter().any(|rule| rule.target == Target::Queue);
    // A rule that matches a mark only repeats the decision of the rule that sets it.
    let marks: HashSet<u32> = all.iter().filter_map(|rule| rule.sets_mark).collect();
    all.retain(|rule| !rule.mark.is_some_and(|mark| marks.contains(&mark)));
    let mut chains: HashMap<String, Vec<Rule<'_>>> = HashMap::new();
    for rule in all {
        chains.entry(rule.chain.clone()).or_default().push(rule);
    }
    let before = (draft.redirects.len(), draft.left_out);
    let mut names: Vec<_> = chains.keys().collect();
    names.sort_unstable();
    let jumped_to = |name: &str| {
        let mut all = chains.values().flatten();
        all.any(|rule| matches!(&rule.target, Target::Chain(to) if to == name))
    };
    for name in names.into_iter().filter(|name| !jumped_to(name)) {
        follow(&chains, name, &Ok(Redirect::default()), DEPTH, draft);
    }
    if before == (draft.redirects.len(), draft.left_out) {
        draft.remark("no rule redirects connections from an interface (TPROXY)");
    }
}

/// Converts all redirections that a chain reaches, given the match of packets that enter it, or the
/// reason that a site cannot express that match.
fn follow(
    chains: &HashMap<String, Vec<Rule<'_>>>,
    name: &str,
    comes: &Result<Redirect, String>,
    depth: usize,
    draft: &mut Draft,
) {
    let rules = chains.get(name).map_or(&[][..], Vec::as_slice);
    if depth == 0 || !rules.iter().any(|rule| rule.leads(chains, depth)) {
        return;
    }
    // After the last redirecting rule, accepting a packet changes nothing.
    let last = rules.iter().rposition(|rule| rule.leads(chains, depth));
    for (at, rule) in rules.iter().enumerate() {
        if let Some(count) = rule.count.filter(|_| rule.leads(chains, depth)) {
            limit(count, rule.line, draft);
        }
        let both = match (comes, &rule.matches) {
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
            (Ok(comes), Ok(matches)) => comes
                .and(matches)
                .ok_or_else(|| "it narrows the match of the rule before it".to_owned()),
        };
        match &rule.target {
            Target::Redirect => take(both, rule.line, draft),
            Target::Chain(to) => follow(chains, to, &both, depth - 1, draft),
            Target::Pass if depth == DEPTH && Some(at) > last => {}
            Target::Pass => draft.remark(format!(
                "connections that this rule let pass are now accelerated, unless a site with `mode = \"bypass\"` precedes: {}",
                rule.line
            )),
            Target::Queue | Target::Other => {}
        }
    }
}

/// Converts a limit on redirected connections, unless an option has set one.
fn limit(count: u32, line: &str, draft: &mut Draft) {
    draft.flows.get_or_insert(count);
    draft.remark(format!(
        "at most {count} connections were redirected at a time; `limits.flows` limits all of pepd: {line}"
    ));
}

fn take(redirect: Result<Redirect, String>, line: &str, draft: &mut Draft) {
    let why = match redirect {
        Ok(redirect) if redirect.lan.is_some() => match draft.add(redirect) {
            Ok(()) => return,
            Err(why) => why,
        },
        Ok(_) => "it names no interface: pass it as `--lan`".to_owned(),
        Err(why) => why,
    };
    draft.left_out = true;
    draft.remark(format!(
        "LEFT OUT: {why}; write a site for it, after sites with `mode = \"bypass\"` for exceptions: {line}"
    ));
}

impl Rule<'_> {
    /// Returns true if the rule redirects connections, or jumps to a chain that does.
    fn leads(&self, chains: &HashMap<String, Vec<Rule<'_>>>, depth: usize) -> bool {
        match &self.target {
            Target::Redirect => true,
            Target::Chain(to) if depth > 0 => chains
                .get(to)
                .is_some_and(|rules| rules.iter().any(|rule| rule.leads(chains, depth - 1))),
            Target::Chain(_) | Target::Pass | Target::Queue | Target::Other => false,
        }
    }
}
