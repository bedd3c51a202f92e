//! Rules that the operator has to install (`intercept.rules = "manual"`), as the kernel has them.

use pep_core::config::Config;
use pepd_intercept::{
    Format,
    iptables::{self, Iptables},
    nft::Nft,
    render, setup,
};
use pepd_sys::{leg::Family, marks::MarkSet};
use serde_json::Value;

use super::{Finding, listing::Listing};

/// Name of the finding.
pub(super) const WHAT: &str = "rules (of the operator)";

/// A rule that redirects connections to a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Redirect {
    /// Families; both in a table of nft without a condition.
    families: Vec<Family>,
    port: u64,
}

/// Rules of the kernel that concern pepd.
#[derive(Debug, Default)]
struct Rules {
    redirects: Vec<Redirect>,
    /// Families with a rule for packets of pepd's sockets.
    sockets: Vec<Family>,
    /// True if nft answered.
    has_nft: bool,
}

/// Looks for the rules that redirect connections, and returns their counters, if they are those of
/// `pepd rules`.
pub(super) async fn check(config: &Config) -> (Finding, Option<Listing>) {
    let mark = MarkSet::new(config.intercept.marks).local();
    let mut rules = Rules::default();
    let mut listing = None;
    if let Ok(nft) = Nft::find().await
        && let Ok(ruleset) = nft.list(&["ruleset"]).await
    {
        rules.has_nft = true;
        rules.take_nft(&ruleset, mark.into());
        let name = config.intercept.table.as_str();
        let table = nft.list(&["table", "inet", name]).await;
        listing = table.ok().map(|table| Listing::from_table(&table, None));
    }
    let installed = Iptables::installed().await.unwrap_or_default();
    let installed = installed
        .iter()
        .filter(|program| program.may_have("mangle"));
    for program in installed {
        for family in Family::ALL {
            let saved = program.save(family, "mangle").await.unwrap_or_default();
            let raw = program.save(family, "raw").await.unwrap_or_default();
            rules.take_iptables(family, &(saved + &raw), mark);
        }
    }
    if listing.is_none()
        && let Ok(found) = iptables::inspect(config, None).await
        && found.differences.is_empty()
    {
        listing = Some(Listing::of_counters(found.counters));
    }
    (rules.finding(config), listing)
}

impl Rules {
    fn take_nft(&mut self, ruleset: &Value, mark: u64) {
        let objects = ruleset.get("nftables").and_then(Value::as_array);
        let rules: Vec<_> = objects
            .into_iter()
            .flatten()
            .filter_map(|object| object.get("rule"))
            .collect();
        for rule in &rules {
            let table = |of: &Value| [of.get("family").cloned(), of.get("table").cloned()];
            let same = rules.iter().filter(|other| table(other) == table(rule));
            let marks = same.flat_map(|rule| expressions(rule));
            let mut marks = marks.filter_map(|one| one.get("mangle"));
            if !marks.any(|mangle| contains(mangle, mark)) {
                continue;
            }
            let of_table = match rule.get("family").and_then(Value::as_str) {
                Some("ip") => vec![Family::V4],
                Some("ip6") => vec![Family::V6],
                _ => Family::ALL.to_vec(),
            };
            for expression in expressions(rule) {
                if let Some(tproxy) = expression.get("tproxy") {
                    let families = match tproxy.get("family").and_then(Value::as_str) {
                        Some("ip") => vec![Family::V4],
                        Some("ip6") => vec![Family::V6],
                        _ => of_table.clone(),
                    };
                    let port = tproxy.get("port").and_then(Value::as_u64);
                    let redirect = |port| Redirect { families, port };
                    self.redirects.extend(port.map(redirect));
                }
                let socket = expression.pointer("/match/left/socket/key");
                if socket.is_some_and(|key| key == "transparent") {
                    self.sockets.extend(of_table.iter().copied());
                }
            }
        }
    }

    fn take_iptables(&mut self, family: Family, saved: &str, mark: u32) {
        for line in saved.lines().filter(|line| line.contains("-A ")) {
            let words: Vec<_> = line.split(' ').collect();
            let value = |option: &str| {
                let place = words.iter().position(|word| *word == option)?;
                words.get(place + 1).copied()
            };
            if words.contains(&"--transparent") {
                self.sockets.push(family);
            }
            let sets = value("--tproxy-mark").and_then(|mark| mark.split('/').next());
            let sets =
                sets.and_then(|mark| u32::from_str_radix(mark.trim_start_matches("0x"), 16).ok());
            let port = value("--on-port").and_then(|port| port.parse().ok());
            if let Some(port) = port.filter(|_| sets == Some(mark)) {
                self.redirects.push(Redirect {
                    families: vec![family],
                    port,
                });
            }
        }
    }

    fn finding(&self, config: &Config) -> Finding {
        let families: Vec<_> = setup::families().collect();
        let ports = config.sites.iter();
        let ports = ports.filter(|(_, site)| site.mode.takes_flows());
        let ports: Vec<_> = ports
            .map(|(id, site)| (config.listen_port(id), &site.name))
            .collect();
        let mut missing = Vec::new();
        let mut wanted = Vec::new();
        for &family in &families {
            for (port, site) in &ports {
                let is_there = |redirect: &Redirect| {
                    redirect.port == u64::from(*port) && redirect.families.contains(&family)
                };
                if !self.redirects.iter().any(is_there) {
                    missing.push(format!("{family}: TPROXY to port {port} (site {site})"));
                    wanted.extend(self.wanted(config, family, &format!("{port}")));
                }
            }
            if !self.sockets.contains(&family) {
                missing.push(format!(
                    "{family}: packets of pepd's own connections (socket transparent)"
                ));
            }
        }
        if missing.is_empty() {
            let redirects = families.len() * ports.len();
            return Finding::ok(
                WHAT,
                format!("found TPROXY rules with pepd's mark for all {redirects} listeners"),
            );
        }
        let load = match self.has_nft {
            true => "all of them: `pepd rules | nft -f -`",
            false => "all of them: `pepd rules --format iptables | sh`",
        };
        wanted.push(load.to_owned());
        Finding::fail(
            WHAT,
            format!("missing: {}", missing.join("; ")),
            wanted.join("\n"),
        )
    }

    /// Returns the lines of `pepd rules` that redirect connections of the family to this port.
    fn wanted(&self, config: &Config, family: Family, port: &str) -> Vec<String> {
        let (format, begin, end) = match (self.has_nft, family) {
            (true, Family::V4) => (
                Format::Nft,
                String::new(),
                format!("tproxy ip to 127.0.0.1:{port} "),
            ),
            (true, Family::V6) => (
                Format::Nft,
                String::new(),
                format!("tproxy ip6 to [::1]:{port} "),
            ),
            (false, Family::V4) => (
                Format::Iptables,
                "iptables ".to_owned(),
                format!("--on-port {port} "),
            ),
            (false, Family::V6) => (
                Format::Iptables,
                "ip6tables ".to_owned(),
                format!("--on-port {port} "),
            ),
        };
        let rules = render(config, format);
        let lines = rules.lines().map(str::trim);
        let lines = lines.filter(|line| line.starts_with(&begin) && line.contains(&end));
        lines.map(str::to_owned).collect()
    }
}

fn expressions(rule: &Value) -> impl Iterator<Item = &Value> {
    let list = rule.get("expr").and_then(Value::as_array);
    list.into_iter().flatten()
}

/// Returns true if a number is part of a value.
fn contains(value: &Value, number: u64) -> bool {
    match value {
        Value::Number(found) => found.as_u64() == Some(number),
        Value::Array(list) => list.iter().any(|value| contains(value, number)),
        Value::Object(map) => map.values().any(|value| contains(value, number)),
        _ => false,
    }
}

#[cfg(test)]
#[path = "manual_tests.rs"]
mod tests;
