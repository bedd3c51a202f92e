//! Parser of a rule.

use super::Redirect;

/// Rule of iptables or nft.
#[derive(Debug)]
pub(super) struct Rule<'a> {
    /// Line as printed.
    pub line: &'a str,
    /// Chain of the rule.
    pub chain: String,
    /// Match of the rule, or the reason that a site cannot express it.
    pub matches: Result<Redirect, String>,
    /// Connection mark that it matches.
    pub mark: Option<u32>,
    /// Connection mark that it sets.
    pub sets_mark: Option<u32>,
    /// Maximum number of simultaneous connections that it matches.
    pub count: Option<u32>,
    /// Target of the rule.
    pub target: Target,
}

/// Treatment of packets that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Redirection to PEPsal.
    Redirect,
    /// Queue to PEPsal up to 1.8, which lets packets pass.
    Queue,
    /// Jump to another chain.
    Chain(String),
    /// Acceptance.
    Pass,
    /// Anything else.
    Other,
}

type Words<'a> = std::iter::Peekable<std::vec::IntoIter<String>>;

/// Parses a line of iptables, or of nft within a chain; `None` if it is no rule.
pub(super) fn rule<'a>(line: &'a str, chain: &str) -> Option<Rule<'a>> {
    if line.is_empty() || line.starts_with(['#', '*', ':', '}']) {
        return None;
    }
    // Lists of iptables have commas without blanks; quoted text may have both.
    let words = shlex::split(line)?;
    if words.first().is_some_and(|word| word == "-A") {
        return iptables(line, words);
    }
    (!chain.is_empty()).then(|| nft(line, chain, words))
}

fn iptables<'a>(line: &'a str, words: Vec<String>) -> Option<Rule<'a>> {
    let chain = words.get(1)?.clone();
    let at = words.iter().position(|word| word == "-j" || word == "-g")?;
    // The options of the target follow.
    let target = match words.get(at + 1)?.as_str() {
        "TPROXY" => Target::Redirect,
        "NFQUEUE" => Target::Queue,
        "ACCEPT" | "RETURN" => Target::Pass,
        "DROP" | "REJECT" | "MARK" | "CONNMARK" | "LOG" | "NFLOG" | "CT" | "TCPMSS" | "DSCP"
        | "TOS" | "TTL" => Target::Other,
        chain => Target::Chain(chain.to_owned()),
    };
    let mut words = words.into_iter().take(at).skip(2).peekable_words();
    let mut matches = Ok(Redirect::default());
    while let (Ok(known), Some(word)) = (&matches, words.next()) {
        matches = iptables_match(&word, &mut words, known.clone());
    }
    Some(Rule {
        line,
        chain,
        matches,
        mark: None,
        sets_mark: None,
        count: None,
        target,
    })
}

fn iptables_match(
    word: &str,
    words: &mut Words<'_>,
    mut known: Redirect,
) -> Result<Redirect, String> {
    let value = words.next().unwrap_or_default();
    if word == "!" || value == "!" {
        return Err(negation());
    }
    match word {
        "-i" | "--in-interface" => known.lan = Some(interface(&value)?),
        "-s" | "--source" | "--src" => known.src = prefixes(&value),
        "-d" | "--destination" | "--dst" => known.dst = prefixes(&value),
        "--dport" | "--dports" | "--destination-port" | "--destination-ports" => {
            known.dport = ports(&value);
        }
        "-p" | "--protocol" if matches!(value.as_str(), "tcp" | "6") => {}
        "-m" | "--match" if matches!(value.as_str(), "tcp" | "multiport" | "comment") => {}
        "--comment" => {}
        _ => return Err(unknown(&format!("{word} {value}"))),
    }
    Ok(known)
}

fn nft<'a>(line: &'a str, chain: &str, words: Vec<String>) -> Rule<'a> {
    // Each element of `{ 80, 443 }` becomes a word.
    let words = words.into_iter();
    let words = words.flat_map(|word| {
        let parts = word
            .split_inclusive(',')
            .map(|part| part.trim_end_matches(',').to_owned());
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>()
    });
    let mut words = words.peekable_words();
    let mut rule = Rule {
        line,
        chain: chain.to_owned(),
        matches: Ok(Redirect::default()),
        mark: None,
        sets_mark: None,
        count: None,
        target: Target::Other,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "tproxy" => rule.target = Target::Redirect,
            "queue" => rule.target = Target::Queue,
            "jump" | "goto" => {
                rule.target = words.next().map_or(Target::Other, Target::Chain);
            }
            "accept" | "return" if rule.target == Target::Other => rule.target = Target::Pass,
            "drop" | "reject" | "type" | "policy" => rule.target = Target::Other,
            "ct" => {
                if let Err(why) = conntrack(&mut words, &mut rule) {
                    rule.matches = rule.matches.and(Err(why));
                }
            }
            _ => {
                if let Ok(known) = &rule.matches {
                    rule.matches = nft_match(&word, &mut words, known.clone(), &rule.target);
                }
            }
        }
    }
    rule
}

/// Parses the conntrack matches of PEPsal's own rule set: `ct mark 200`, `ct mark set 200`, `ct
/// count 2000`.
fn conntrack(words: &mut Words<'_>, rule: &mut Rule<'_>) -> Result<(), String> {
    let field = words.next().unwrap_or_default();
    let is_set = words.next_if(|word| word == "set").is_some();
    let value = set(words)?;
    let number = match value.as_slice() {
        [one] => number(one),
        _ => None,
    };
    match (field.as_str(), is_set, number) {
        ("mark", true, mark) => rule.sets_mark = mark,
        ("mark", false, Some(mark)) if rule.mark.is_none() => {
            rule.mark = Some(mark);
            // Unless another rule sets that mark, the matched packets are unknown.
            return Err(unknown(&format!("ct mark {}", value.join(", "))));
        }
        ("count", false, Some(count)) => rule.count = Some(count),
        _ => return Err(unknown(&format!("ct {field} {}", value.join(", ")))),
    }
    Ok(())
}

/// Parses a number as nft prints it: `200`, `0x000000c8`.
fn number(text: &str) -> Option<u32> {
    text.strip_prefix("0x")
        .map_or_else(|| text.parse(), |digits| u32::from_str_radix(digits, 16))
        .ok()
}

fn nft_match(
    word: &str,
    words: &mut Words<'_>,
    mut known: Redirect,
    target: &Target,
) -> Result<Redirect, String> {
    match word {
        // Operands of `tproxy`, and other statements.
        "to" | "ip" | "ip6" | "accept" | "return" if *target == Target::Redirect => {
            if word == "to" {
                words.next();
            }
        }
        "iifname" | "iif" => known.lan = Some(interface(&one(words)?)?),
        "ip" | "ip6" => match (words.next().as_deref(), set(words)?) {
            (Some("saddr"), values) => known.src = prefixes(&values.join(",")),
            (Some("daddr"), values) => known.dst = prefixes(&values.join(",")),
            (Some("protocol" | "nexthdr"), values) if values == ["tcp"] => {}
            (field, values) => {
                let field = field.unwrap_or_default();
                return Err(unknown(&format!("{word} {field} {}", values.join(", "))));
            }
        },
        "tcp" => match (words.next().as_deref(), set(words)?) {
            (Some("dport"), values) => known.dport = ports(&values.join(",")),
            (field, _) => return Err(unknown(&format!("tcp {}", field.unwrap_or_default()))),
        },
        "meta" => meta(words)?,
        "counter" => while words.next_if(|word| is_count(word)).is_some() {},
        "comment" => drop(words.next()),
        _ => return Err(unknown(word)),
    }
    Ok(known)
}

/// Parses `meta l4proto tcp` and statements that set something.
fn meta(words: &mut Words<'_>) -> Result<(), String> {
    let field = words.next().unwrap_or_default();
    if words.next_if(|word| word == "set").is_some() {
        words.next();
        // `meta mark set ct mark`
        words.next_if(|word| word == "mark");
        return Ok(());
    }
    let values = set(words)?;
    let is_tcp = matches!(field.as_str(), "l4proto" | "protocol" | "nfproto");
    let understood =
        |value: &String| matches!(value.as_str(), "tcp" | "6" | "ip" | "ip6" | "ipv4" | "ipv6");
    if is_tcp && values.iter().all(understood) {
        return Ok(());
    }
    Err(unknown(&format!("meta {field} {}", values.join(", "))))
}

fn is_count(word: &str) -> bool {
    matches!(word, "packets" | "bytes") || word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a value, or the values of a set in braces.
fn set(words: &mut Words<'_>) -> Result<Vec<String>, String> {
    let first = words.next().unwrap_or_default();
    if first == "!=" || first == "!" {
        return Err(negation());
    }
    if first != "{" {
        return Ok(vec![first]);
    }
    let mut values = Vec::new();
    loop {
        match words.next() {
            Some(word) if word == "}" => return Ok(values),
            Some(word) => values.push(word),
            None => return Err("a set spans several lines".to_owned()),
        }
    }
}

fn one(words: &mut Words<'_>) -> Result<String, String> {
    match set(words)?.as_slice() {
        [one] => Ok(one.clone()),
        several => Err(format!(
            "it matches several interfaces ({})",
            several.join(", ")
        )),
    }
}

/// Parses an interface. A name with a wildcard at its end is an error.
fn interface(name: &str) -> Result<String, String> {
    if name.ends_with(['+', '*']) {
        return Err(format!("`{name}` matches several interfaces"));
    }
    Ok(name.to_owned())
}

/// Parses prefixes; returns none if they include all addresses.
fn prefixes(text: &str) -> Vec<String> {
    let all = text.split(',');
    if all
        .clone()
        .any(|prefix| matches!(prefix, "0.0.0.0/0" | "::/0"))
    {
        return Vec::new();
    }
    all.map(str::to_owned).collect()
}

/// Parses ports: `80,443,8000:8100` of iptables; `80`, `8000-8100` of nft.
fn ports(text: &str) -> Vec<String> {
    text.split(',').map(|port| port.replace(':', "-")).collect()
}

fn negation() -> String {
    "the match of a site supports no negation".to_owned()
}

fn unknown(words: &str) -> String {
    format!("a site cannot match `{}`", words.trim())
}

trait PeekableWords: Iterator<Item = String> + Sized {
    fn peekable_words(self) -> Words<'static> {
        self.collect::<Vec<_>>().into_iter().peekable()
    }
}

impl<I: Iterator<Item = String>> PeekableWords for I {}
