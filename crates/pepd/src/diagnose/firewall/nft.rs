//! Rules in the format of `nft -j list ruleset`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::walk::{Base, Chain, Clamp, Hook, Packet, PacketInterface, Rule, Step, Table, Verdict};

/// Protocols that no packet of pepd has.
const OTHER_PROTOCOLS: [&str; 10] = [
    "udp", "udplite", "icmp", "icmpv6", "igmp", "sctp", "dccp", "esp", "ah", "comp",
];

/// Parses all tables of IP packets except pepd's.
pub(super) fn tables(listing: &Value, own: &str) -> Vec<Table> {
    let mut tables = BTreeMap::<(String, String), Table>::new();
    let objects = listing["nftables"].as_array().into_iter().flatten();
    for object in objects {
        let Some((kind, content)) = object.as_object().and_then(|object| object.iter().next())
        else {
            continue;
        };
        let text = |key: &str| content[key].as_str().unwrap_or_default().to_owned();
        let (family, table) = (text("family"), text("table"));
        let is_v6 = match family.as_str() {
            "inet" => None,
            "ip" => Some(false),
            "ip6" => Some(true),
            _ => continue,
        };
        if !matches!(kind.as_str(), "chain" | "rule") || (is_v6.is_none() && table == own) {
            continue;
        }
        let name = format!("{family} {table}");
        let table = tables.entry((family, table)).or_insert_with(|| Table {
            name,
            is_iptables: false,
            is_v6,
            chains: BTreeMap::new(),
        });
        if kind == "chain" {
            table.chains.entry(text("name")).or_default().base = base(content);
        } else {
            let statements = content["expr"].as_array().cloned().unwrap_or_default();
            let chain: &mut Chain = table.chains.entry(text("chain")).or_default();
            chain.rules.push(Rule::Nft(statements));
        }
    }
    tables.into_values().collect()
}

fn base(chain: &Value) -> Option<Base> {
    // Chains for address translation see no untracked packets, and drop none.
    if chain["type"] == "nat" {
        return None;
    }
    Some(Base {
        hook: Hook::named(chain["hook"].as_str()?)?,
        priority: chain["prio"].as_i64()?,
        drops: chain["policy"] == "drop",
    })
}

/// Returns true if the table has a rule of iptables that nft cannot fully read.
pub(super) fn is_partly_readable(table: &Table) -> bool {
    let mut rules = table.chains.values().flat_map(|chain| &chain.rules);
    rules.any(|rule| match rule {
        Rule::Nft(statements) => statements.iter().any(|one| one.get("xt").is_some()),
        Rule::Iptables(_) => false,
    })
}

/// Returns the effects of a rule on a packet: a step for each verdict.
pub(super) fn steps(statements: &[Value], packet: &Packet) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut matches = Some(true);
    let mut by_mark = false;
    for statement in statements {
        let Some((kind, content)) = statement.as_object().and_then(|one| one.iter().next()) else {
            continue;
        };
        let step = |verdict| Step {
            matches,
            by_mark,
            verdict,
        };
        match kind.as_str() {
            "match" => {
                matches = both(matches, fits(content, packet));
                by_mark |= asks_by_mark(&content["left"]);
            }
            // Rates stay below the limit, except in a flood.
            "limit" | "ct count" if content["inv"] == true => matches = Some(false),
            "xt" => match xt(content) {
                Some(verdict) => steps.push(step(verdict)),
                None if content["type"] == "match" => matches = both(matches, None),
                None => {}
            },
            "vmap" => steps.extend(
                mapped(content, packet)
                    .into_iter()
                    .map(|(is, verdict)| Step {
                        matches: both(matches, is),
                        by_mark,
                        verdict,
                    }),
            ),
            "accept" => steps.push(step(Verdict::Accept)),
            "drop" | "reject" => steps.push(step(Verdict::Drop)),
            "return" => steps.push(step(Verdict::Return)),
            "jump" => steps.extend(chain_of(content).map(Verdict::Jump).map(step)),
            "goto" => steps.extend(chain_of(content).map(Verdict::Goto).map(step)),
            // A program decides, with unknown result.
            "queue" => matches = both(matches, None),
            _ => {}
        }
        if matches == Some(false) {
            return steps;
        }
    }
    steps
}

/// Returns the verdict of a target of iptables, of which nft lists only the name.
fn xt(content: &Value) -> Option<Verdict> {
    (content["name"] == "REJECT").then_some(Verdict::Drop)
}

fn chain_of(content: &Value) -> Option<String> {
    content["target"].as_str().map(str::to_owned)
}

/// Returns the clamp of `tcp option maxseg size set`.
pub(super) fn clamp(statements: &[Value], packet: &Packet) -> Option<Clamp> {
    let mut mangles = statements.iter().filter_map(|one| one.get("mangle"));
    let sets = mangles.find(|one| one["key"]["tcp option"]["name"] == "maxseg")?;
    let mut matches = statements.iter().filter_map(|one| one.get("match"));
    // The SYN's original MSS varies; a named set of interfaces contains those of uplinks.
    let may_be = |content: &Value| {
        let left = &content["left"];
        let key = left["meta"]["key"].as_str().unwrap_or_default();
        left.get("tcp option").is_some() || key.starts_with("iif") || key.starts_with("oif")
    };
    let is_ours = |content| match fits(content, packet) {
        Some(fits) => fits,
        None => may_be(content),
    };
    if !matches.all(is_ours) {
        return None;
    }
    let bytes = sets["value"].as_u64();
    let bytes = bytes.and_then(|bytes| u16::try_from(bytes).ok());
    Some(bytes.map_or(Clamp::Route, Clamp::Bytes))
}

fn both(a: Option<bool>, b: Option<bool>) -> Option<bool> {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// Returns true for a reverse route look-up with the packet's mark.
fn asks_by_mark(left: &Value) -> bool {
    let flags = left["fib"]["flags"].as_array();
    flags.is_some_and(|flags| {
        ["saddr", "mark"]
            .iter()
            .all(|flag| flags.iter().any(|one| one == flag))
    })
}

fn fits(content: &Value, packet: &Packet) -> Option<bool> {
    let is = compare(&content["left"], &content["right"], packet);
    match content["op"].as_str() {
        Some("==" | "in") => is,
        Some("!=") => is.map(|is| !is),
        _ => None,
    }
}

/// Returns true if the value on the left equals, or is among, those on the right; `None` if
/// unknown.
fn compare(left: &Value, right: &Value, packet: &Packet) -> Option<bool> {
    if let Some(key) = left["meta"]["key"].as_str() {
        return match key {
            "mark" => any(right, |right| mark(packet.known_mark()?, right)),
            "iif" | "iifname" => any(right, |name| interface(&packet.input, name)),
            "oif" | "oifname" => any(right, |name| interface(&packet.output, name)),
            "l4proto" => any(right, is_tcp),
            "nfproto" => any(right, |right| {
                Some(right == if packet.is_v6 { "ipv6" } else { "ipv4" })
            }),
            "protocol" => any(right, |right| {
                Some(right == if packet.is_v6 { "ip6" } else { "ip" })
            }),
            _ => None,
        };
    }
    if let Some(operands) = left["&"].as_array() {
        let [value, mask] = operands.as_slice() else {
            return None;
        };
        if value["meta"]["key"] == "mark" {
            let masked = packet.known_mark()? & u32::try_from(mask.as_u64()?).ok()?;
            return any(right, |right| mark(masked, right));
        }
        return (value["payload"]["protocol"] == "tcp" && value["payload"]["field"] == "flags")
            .then(|| {
                let mask = words(mask);
                let set = packet
                    .flags
                    .iter()
                    .filter(|flag| mask.contains(flag))
                    .count();
                let wanted = words(right);
                set == wanted.len() && wanted.iter().all(|flag| packet.flags.contains(flag))
            });
    }
    if left["ct"]["key"] == "state" {
        return Some(words(right).contains(&packet.state));
    }
    if left["ct"]["key"] == "status" {
        // Neither translated nor a reply: the packet is new, or untracked.
        return Some(false);
    }
    if let Some(protocol) = left["payload"]["protocol"].as_str() {
        let field = left["payload"]["field"].as_str();
        return match (protocol, field) {
            ("ip", _) if packet.is_v6 => Some(false),
            ("ip6", _) if !packet.is_v6 => Some(false),
            ("ip", Some("protocol")) | ("ip6", Some("nexthdr")) => any(right, is_tcp),
            ("tcp", Some("flags")) => {
                Some(words(right).iter().any(|flag| packet.flags.contains(flag)))
            }
            ("tcp" | "th", Some("sport" | "dport")) => packet.has_port(),
            (other, _) if OTHER_PROTOCOLS.contains(&other) => Some(false),
            _ => None,
        };
    }
    let fib = &left["fib"];
    let by_destination = fib["flags"]
        .as_array()
        .is_some_and(|flags| flags == &["daddr"]);
    if fib["result"] == "type" && by_destination {
        return any(right, |right| Some(right == "unicast"));
    }
    None
}

/// Returns true if a value matches one of a set, or the single value.
fn any(right: &Value, is: impl Fn(&Value) -> Option<bool>) -> Option<bool> {
    let items = right["set"].as_array().or(right.as_array());
    let Some(items) = items else {
        return is(right);
    };
    let all: Vec<_> = items.iter().map(is).collect();
    if all.contains(&Some(true)) {
        return Some(true);
    }
    if all.contains(&None) {
        None
    } else {
        Some(false)
    }
}

fn is_tcp(right: &Value) -> Option<bool> {
    Some(right == "tcp" || right == 6)
}

fn interface(device: &PacketInterface, name: &Value) -> Option<bool> {
    // The name of a set starts with `@`; its elements are not read.
    device.is(name.as_str().filter(|name| !name.starts_with('@'))?)
}

fn mark(mark: u32, right: &Value) -> Option<bool> {
    let number = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
    if let Some(length) = right["prefix"]["len"].as_u64() {
        let mask = u32::MAX
            .checked_shl(32 - u32::try_from(length).ok()?)
            .unwrap_or(0);
        return Some(mark & mask == number(&right["prefix"]["addr"])? & mask);
    }
    Some(mark == number(right)?)
}

/// Returns the names in a value, alternatives or joined.
fn words(value: &Value) -> Vec<&str> {
    match value {
        Value::String(word) => vec![word],
        Value::Array(items) => items.iter().flat_map(words).collect(),
        Value::Object(fields) => fields.values().flat_map(words).collect(),
        _ => Vec::new(),
    }
}

/// Returns the verdicts of a map, each with its match on the packet.
fn mapped(content: &Value, packet: &Packet) -> Vec<(Option<bool>, Verdict)> {
    let entries = content["data"]["set"].as_array().into_iter().flatten();
    let entry = |entry: &Value| {
        let [key, verdict] = entry.as_array()?.as_slice() else {
            return None;
        };
        let verdict = match verdict.as_object()?.iter().next()? {
            (kind, _) if kind == "accept" => Verdict::Accept,
            (kind, _) if kind == "drop" => Verdict::Drop,
            (kind, _) if kind == "return" => Verdict::Return,
            (kind, to) if kind == "jump" => Verdict::Jump(chain_of(to)?),
            (kind, to) if kind == "goto" => Verdict::Goto(chain_of(to)?),
            _ => return None,
        };
        Some((compare(&content["key"], key, packet), verdict))
    };
    entries.filter_map(entry).collect()
}
