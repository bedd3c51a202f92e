//! The kernel's rules, as iptables-save lists them.

use super::text::{Jump, Lines, Table, is_own};

/// pepd's part of a listed table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Names of pepd's chains.
    pub chains: Vec<String>,
    /// Rules of the kernel's own chains.
    bases: Vec<Rule>,
    /// Rules of pepd's chains.
    rules: Vec<Rule>,
    prefix: String,
}

/// A listed rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    packets: u64,
    chain: String,
    /// Words behind `-A`.
    words: String,
}

/// Difference between the listed and the expected rules, as `chain: comment`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Rules that are missing, or not in their place.
    pub missing: Vec<String>,
    /// Rules in pepd's chains that are not its own.
    pub more: Vec<String>,
}

impl Differences {
    /// Returns true without differences.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.more.is_empty()
    }
}

impl Listing {
    /// Parses the output of `iptables-save -c` for one table. `prefix` begins the names of pepd's
    /// chains.
    pub fn parse(saved: &str, prefix: &str) -> Self {
        let mut listing = Self {
            prefix: format!("{prefix}_"),
            ..Self::default()
        };
        for line in saved.lines() {
            if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if listing.is_own(name) {
                    listing.chains.push(name.to_owned());
                }
            }
            let Some(rule) = rule(line) else { continue };
            match listing.is_own(&rule.chain) {
                true => listing.rules.push(rule),
                false => listing.bases.push(rule),
            }
        }
        listing
    }

    fn is_own(&self, chain: &str) -> bool {
        chain.strip_prefix(&self.prefix).is_some_and(is_own)
    }

    /// Returns true for a chain of another pepd, which also wants the first place.
    fn is_of_another_pepd(&self, chain: &str) -> bool {
        let mut underscores = chain.match_indices('_');
        !self.is_own(chain) && underscores.any(|(at, _)| is_own(&chain[at + 1..]))
    }

    /// Returns rules of other chains that lead to pepd's.
    pub fn jumps(&self) -> Vec<String> {
        let jumps = self.bases.iter();
        let jumps = jumps.filter(|rule| target(&rule.words).is_some_and(|to| self.is_own(to)));
        jumps.map(|rule| rule.words.clone()).collect()
    }

    /// Compares the rules with those of a table.
    pub fn differences(&self, table: &Table) -> Differences {
        let mut differences = Differences::default();
        for chain in &table.chains {
            let is_there = self.chains.contains(&chain.name);
            let expected: Vec<_> = chain
                .lines
                .iter()
                .map(|line| line.comment.as_str())
                .collect();
            let listed = self.rules.iter().filter(|rule| rule.chain == chain.name);
            let mut listed: Vec<_> = listed.map(|rule| comment(&rule.words)).collect();
            for comment in &expected {
                match listed.iter().position(|other| other == comment) {
                    Some(place) => drop(listed.remove(place)),
                    None => differences
                        .missing
                        .push(format!("{}: {comment}", chain.name)),
                }
            }
            if !is_there && expected.is_empty() {
                differences
                    .missing
                    .push(format!("{}: the chain", chain.name));
            }
            let more = listed
                .iter()
                .map(|comment| format!("{}: {comment}", chain.name));
            differences.more.extend(more);
        }
        for base in ["PREROUTING", "OUTPUT", "FORWARD", "POSTROUTING"] {
            let expected = table.jumps.iter().filter(|jump| jump.base == base);
            let (last, first): (Vec<_>, Vec<_>) = expected.partition(|jump| jump.is_last);
            let listed = self.bases.iter().filter(|rule| rule.chain == base);
            let listed: Vec<_> = listed
                .map(|rule| target(&rule.words).unwrap_or_default())
                .filter(|to| !self.is_of_another_pepd(to))
                .collect();
            for (place, jump) in first.iter().enumerate() {
                if listed.get(place) != Some(&jump.to.as_str()) {
                    let name = format!("{base}: the jump to {}, before other rules", jump.to);
                    differences.missing.push(name);
                }
            }
            let is_missing = |jump: &&&Jump| !listed.contains(&jump.to.as_str());
            let missing = last.iter().filter(is_missing);
            differences
                .missing
                .extend(missing.map(|jump| format!("{base}: the jump to {}", jump.to)));
        }
        differences
    }

    /// Returns true if a chain has these rules and no others.
    pub fn has(&self, chain: &Lines) -> bool {
        let listed = self.rules.iter().filter(|rule| rule.chain == chain.name);
        let listed = listed.map(|rule| comment(&rule.words));
        listed.eq(chain.lines.iter().map(|line| line.comment.as_str()))
    }

    /// Returns the packets of each rule of a chain, in their order.
    pub fn packets<'a>(&'a self, chain: &'a str) -> impl Iterator<Item = u64> + 'a {
        let rules = self.rules.iter().filter(move |rule| rule.chain == chain);
        rules.map(|rule| rule.packets)
    }

    /// Returns the number of pepd's rules.
    pub fn rules(&self) -> usize {
        self.rules.len() + self.jumps().len()
    }
}

/// Parses `[packets:bytes] -A chain ...`.
fn rule(line: &str) -> Option<Rule> {
    let (counts, words) = line.strip_prefix('[')?.split_once("] -A ")?;
    let (packets, _) = counts.split_once(':')?;
    Some(Rule {
        packets: packets.parse().ok()?,
        chain: words.split(' ').next()?.to_owned(),
        words: words.to_owned(),
    })
}

fn target(words: &str) -> Option<&str> {
    let (_, rest) = words
        .split_once(" -j ")
        .or_else(|| words.split_once(" -g "))?;
    rest.split(' ').next()
}

/// Returns the comment of a rule. In quotes, a backslash precedes some characters.
fn comment(words: &str) -> String {
    let Some((_, rest)) = words.split_once(" --comment ") else {
        return String::new();
    };
    let Some(quoted) = rest.strip_prefix('"') else {
        return rest.split(' ').next().unwrap_or_default().to_owned();
    };
    let mut comment = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next() {
            None | Some('"') => return comment,
            Some('\\') => comment.extend(characters.next()),
            Some(character) => comment.push(character),
        }
    }
}
