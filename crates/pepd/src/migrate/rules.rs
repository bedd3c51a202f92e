//! The rules that led connections to PEPsal: as `iptables-save` and `nft list ruleset` print them.

use super::Draft;

/// What one rule redirects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Redirect {
    /// The interface on which connections arrive.
    pub lan: Option<String>,
    /// Clients' prefixes.
    pub src: Option<String>,
    /// Servers' prefixes.
    pub dst: Option<String>,
    /// Servers' ports, as we write them.
    pub dport: Vec<String>,
}

impl Redirect {
    /// Whether it is of all connections of its interface.
    pub fn is_all(&self) -> bool {
        self.src.is_none() && self.dst.is_none() && self.dport.is_empty()
    }
}

/// Takes over interfaces and matches. What redirects nothing is passed over.
pub fn rules(text: &str, draft: &mut Draft) {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let chains = redirecting_chains(&lines);
    for line in &lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let redirects = if words.first() == Some(&"-A") {
            after(&words, "-j").is_some_and(|target| target == "TPROXY")
        } else {
            let jumps = after(&words, "jump").or(after(&words, "goto"));
            words.contains(&"tproxy") || jumps.is_some_and(|chain| chains.contains(&chain))
        };
        if redirects {
            let redirect = rule(&words, line, draft);
            draft.lan.extend(redirect.lan.clone());
            draft.redirects.push(redirect);
        }
    }
    // Those of chains that others jump to are of no interface.
    draft.redirects.retain(|redirect| redirect.lan.is_some());
    if draft.redirects.is_empty() {
        draft.remark("no rule was found that redirects connections from an interface (TPROXY)");
    }
}

/// Chains of nft in which connections are redirected, wherever they come from.
fn redirecting_chains<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut chains = Vec::new();
    let mut chain = "";
    for line in lines {
        if let Some(name) = line.strip_prefix("chain ") {
            chain = name.trim_end_matches(['{', ' ']);
        }
        if line.split_whitespace().any(|word| word == "tproxy") {
            chains.push(chain);
        }
    }
    chains
}

fn rule(words: &[&str], line: &str, draft: &mut Draft) -> Redirect {
    if line.contains(" ! ") || line.contains("!=") {
        draft.remark(format!(
            "a rule with a negation was not understood; write a site with `mode = \"bypass\"` for it: {line}"
        ));
    }
    let lan = after(words, "-i")
        .or(after(words, "iifname"))
        .or(after(words, "iif"));
    let value = |names: [&str; 2]| names.iter().find_map(|name| after(words, name));
    let src = after(words, "-s").or(value(["saddr", "--source"]));
    let dst = after(words, "-d").or(value(["daddr", "--destination"]));
    let ports = value(["--dport", "--dports"]).or(after(words, "dport"));
    let unquoted = |text: &str| text.trim_matches('"').to_owned();
    let whole = |prefix: &&str| !matches!(*prefix, "0.0.0.0/0" | "::/0");
    Redirect {
        lan: lan.map(unquoted),
        src: src.filter(whole).map(unquoted),
        dst: dst.filter(whole).map(unquoted),
        dport: ports.map(|list| port_list(list, words)).unwrap_or_default(),
    }
}

/// `80,443,8000:8100` of iptables; `80`, `8000-8100` and `{ 80, 443 }` of nft.
fn port_list(first: &str, words: &[&str]) -> Vec<String> {
    let text = if first == "{" {
        let set = words.iter().skip_while(|word| **word != "dport").skip(2);
        let set: Vec<&str> = set.take_while(|word| **word != "}").copied().collect();
        set.concat()
    } else {
        first.to_owned()
    };
    let ports = text.split(',').filter(|port| !port.is_empty());
    ports.map(|port| port.replace(':', "-")).collect()
}

fn after<'a>(words: &[&'a str], word: &str) -> Option<&'a str> {
    let at = words.iter().position(|known| *known == word)?;
    words.get(at + 1).copied()
}
