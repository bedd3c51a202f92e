//! Rules in the format of `iptables-save`, of either backend.

use std::collections::BTreeMap;

use super::walk::{Base, Chain, Clamp, Hook, Packet, PacketInterface, Rule, Step, Table, Verdict};

/// Tables whose rules may drop packets.
const TABLES: [(&str, i64); 4] = [
    ("raw", -300),
    ("mangle", -150),
    ("filter", 0),
    ("security", 50),
];

/// Parses the tables in a dump.
pub(super) fn tables(dump: &str, is_v6: bool, program: &str) -> Vec<Table> {
    let mut tables: Vec<(i64, Table)> = Vec::new();
    let mut is_known = false;
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix('*') {
            let known = TABLES.iter().find(|(table, _)| *table == name);
            is_known = known.is_some();
            tables.extend(known.map(|(_, priority)| {
                let table = Table {
                    name: format!("{program} {name}"),
                    is_iptables: true,
                    is_v6: Some(is_v6),
                    chains: BTreeMap::new(),
                };
                (*priority, table)
            }));
        }
        let Some((priority, table)) = tables.last_mut().filter(|_| is_known) else {
            continue;
        };
        if let Some(chain) = line.strip_prefix(':') {
            let mut words = chain.split_whitespace();
            let (Some(name), Some(policy)) = (words.next(), words.next()) else {
                continue;
            };
            let base = Hook::named(name)
                .filter(|_| policy != "-")
                .map(|hook| Base {
                    hook,
                    priority: *priority,
                    drops: policy == "DROP",
                });
            let rules = Vec::new();
            table.chains.insert(name.to_owned(), Chain { base, rules });
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let words = split(rule);
            if let Some(chain) = words.first().and_then(|name| table.chains.get_mut(name)) {
                chain.rules.push(Rule::Iptables(words[1..].to_vec()));
            }
        }
    }
    tables.into_iter().map(|(_, table)| table).collect()
}

/// Splits a line into words; quoted words may contain blanks.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quoted, mut escaped, mut begun) = (false, false, false);
    for character in line.chars() {
        match character {
            _ if escaped => {
                word.push(character);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => {
                quoted = !quoted;
                begun = true;
            }
            ' ' if !quoted => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            _ => {
                word.push(character);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

fn after<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(String::as_str)
}

/// Returns the chain or target of a rule.
pub(super) fn target(words: &[String]) -> Option<&str> {
    after(words, "-j").or_else(|| after(words, "-g"))
}

/// Returns the clamp of a rule with the target TCPMSS.
pub(super) fn clamp(words: &[String], packet: &Packet) -> Option<Clamp> {
    let matches = step(words, packet)?.matches;
    if target(words)? != "TCPMSS" || matches != Some(true) {
        return None;
    }
    let bytes = after(words, "--set-mss").and_then(|bytes| bytes.parse().ok());
    Some(bytes.map_or(Clamp::Route, Clamp::Bytes))
}

/// Returns the effect of a rule on a packet; `None` if it has none.
pub(super) fn step(words: &[String], packet: &Packet) -> Option<Step> {
    let verdict = match target(words)? {
        // A program decides, with unknown result.
        "ACCEPT" => Verdict::Accept,
        "DROP" | "REJECT" => Verdict::Drop,
        "RETURN" => Verdict::Return,
        "NFQUEUE" | "QUEUE" => {
            return Some(Step {
                matches: None,
                by_mark: false,
                verdict: Verdict::Accept,
            });
        }
        chain if words.iter().any(|word| word == "-g") => Verdict::Goto(chain.to_owned()),
        // A target of the kernel (LOG, MARK) is no chain of the table: the packet continues after
        // it.
        chain => Verdict::Jump(chain.to_owned()),
    };
    let mut matches = Some(true);
    let mut rest = words.iter().map(String::as_str).peekable();
    let mut by_mark = false;
    while let Some(word) = rest.next() {
        let (is_inverted, option) = match word {
            "!" => (true, rest.next()?),
            _ => (false, word),
        };
        if matches!(option, "-j" | "-g") {
            break;
        }
        let mut values = Vec::new();
        while let Some(value) =
            rest.next_if(|word| *word != "!" && !word.starts_with("--") && !is_option(word))
        {
            values.push(value);
        }
        by_mark |= option == "--validmark";
        let is = fits(option, &values, packet);
        let is = is.map(|is| is != is_inverted);
        matches = match (matches, is) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
    }
    Some(Step {
        matches,
        by_mark,
        verdict,
    })
}

fn is_option(word: &str) -> bool {
    ["-i", "-o", "-p", "-s", "-d", "-m", "-j", "-g", "-f"].contains(&word)
}

fn fits(option: &str, values: &[&str], packet: &Packet) -> Option<bool> {
    let value = values.first().copied().unwrap_or_default();
    match option {
        "-i" => interface(&packet.input, value),
        "-o" => interface(&packet.output, value),
        "-p" => Some(matches!(value, "tcp" | "6" | "all")),
        // The condition of a match without options is unknown.
        "-m" => (value != "rpfilter" && value != "socket").then_some(true),
        "--ctstate" | "--state" => {
            let mut states = value.split(',');
            Some(states.any(|state| state.eq_ignore_ascii_case(packet.state)))
        }
        "--mark" => mark(value, packet.known_mark()?),
        "--dst-type" => Some(value == "UNICAST"),
        "--tcp-flags" => {
            let [mask, wanted] = values else {
                return None;
            };
            let mask: Vec<_> = mask.split(',').map(str::to_ascii_lowercase).collect();
            let mut set = packet
                .flags
                .iter()
                .filter(|flag| mask.iter().any(|one| one == *flag))
                .copied()
                .collect::<Vec<_>>();
            let mut wanted: Vec<_> = wanted.split(',').map(str::to_ascii_lowercase).collect();
            set.sort_unstable();
            wanted.sort_unstable();
            Some(set == wanted)
        }
        "--dport" | "--sport" | "--dports" | "--sports" | "--ports" => packet.has_port(),
        // Rates stay below the limit, except in a flood.
        "--hashlimit-above" | "--connlimit-above" => Some(false),
        option if option.starts_with("--hashlimit") || option.starts_with("--connlimit") => {
            Some(true)
        }
        // The SYN's original MSS varies.
        "--mss" => Some(true),
        "--limit" | "--limit-burst" | "--comment" => Some(true),
        _ => None,
    }
}

fn interface(device: &PacketInterface, name: &str) -> Option<bool> {
    match name.strip_suffix('+') {
        Some(start) => device.is(&format!("{start}*")),
        None => device.is(name),
    }
}

fn mark(text: &str, mark: u32) -> Option<bool> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let (value, mask) = text.split_once('/').unwrap_or((text, "0xffffffff"));
    Some(mark & number(mask)? == number(value)?)
}
