//! The rules that led connections to PEPsal: as `iptables-save` and `nft list ruleset` print them.
//!
//! A rule is taken over if every word of it is understood, and can be said of a site; otherwise it is left out, with a
//! remark that shows it. To guess would be to accelerate what was not, or the opposite.

mod parse;

use std::collections::{HashMap, HashSet};

use super::Draft;
use parse::{Rule, Target};

/// What one rule redirects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redirect {
    /// The interface on which connections arrive.
    pub lan: Option<String>,
    /// Clients' prefixes.
    pub src: Vec<String>,
    /// Servers' prefixes.
    pub dst: Vec<String>,
    /// Servers' ports, as we write them.
    pub dport: Vec<String>,
}

/// Chains jump to chains so often at most.
const DEPTH: usize = 8;

impl Redirect {
    /// Whether it is of all connections of its interface.
    pub fn is_all(&self) -> bool {
        self.src.is_empty() && self.dst.is_empty() && self.dport.is_empty()
    }

    /// Of what both are of. `None` where that cannot be said so simply.
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

/// Takes over interfaces and matches. What redirects nothing is passed over.
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
    // A mark is on packets of a connection that another rule has decided about.
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
        draft.remark("no rule was found that redirects connections from an interface (TPROXY)");
    }
}

/// Everything that is redirected by a chain for what comes to it, or why that cannot be said.
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
    // Behind the last rule that redirects, what passes passes anyway.
    let last = rules.iter().rposition(|rule| rule.leads(chains, depth));
    for (at, rule) in rules.iter().enumerate() {
        if let Some(count) = rule.count.filter(|_| rule.leads(chains, depth)) {
            limit(count, rule.line, draft);
        }
        let both = match (comes, &rule.matches) {
            (Err(why), _) | (_, Err(why)) => Err(why.clone()),
            (Ok(comes), Ok(matches)) => comes
                .and(matches)
                .ok_or_else(|| "it narrows what the rule before it has matched".to_owned()),
        };
        match &rule.target {
            Target::Redirect => take(both, rule.line, draft),
            Target::Chain(to) => follow(chains, to, &both, depth - 1, draft),
            Target::Pass if depth == DEPTH && Some(at) > last => {}
            Target::Pass => draft.remark(format!(
                "connections that this rule let pass are accelerated now, unless a site with `mode = \"bypass\"` comes first: {}",
                rule.line
            )),
            Target::Queue | Target::Other => {}
        }
    }
}

/// Takes over a limit of redirected connections, unless an option has set one.
fn limit(count: u32, line: &str, draft: &mut Draft) {
    draft.flows.get_or_insert(count);
    draft.remark(format!(
        "at most {count} connections were redirected at one time; `limits.flows` is that for all of pepd: {line}"
    ));
}

fn take(redirect: Result<Redirect, String>, line: &str, draft: &mut Draft) {
    let why = match redirect {
        Ok(redirect) if redirect.lan.is_some() => match draft.add(redirect) {
            Ok(()) => return,
            Err(why) => why,
        },
        Ok(_) => "it is of no interface: give that as `--lan`".to_owned(),
        Err(why) => why,
    };
    draft.left_out = true;
    draft.remark(format!(
        "LEFT OUT, as {why}; write a site for it (what is excepted: one with `mode = \"bypass\"` before it): {line}"
    ));
}

impl Rule<'_> {
    /// Whether connections are redirected by it, or by a chain that it jumps to.
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
