//! Listing of pepd's table by `nft`: rules and counters.

use std::collections::{BTreeMap, BTreeSet};

use pep_core::config::Config;
use pepd_intercept::{
    nft::SEEN_SECONDS,
    rules::{self, Features, Rule, Ruleset},
};
use serde_json::Value;

/// Chains that copy packets to pepd.
const COPYING: [&str; 2] = ["midway", "permitted"];

/// A rule's chain and comment.
type Place = (String, String);

/// pepd's table in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    counters: BTreeMap<String, u64>,
    sets: BTreeSet<String>,
    rules: Vec<Place>,
    /// Interfaces by which SYNs arrived, with the seconds since the last one.
    pub seen: BTreeMap<String, u64>,
}

impl Listing {
    /// Parses `nft -j list table` and, if present, `nft -j list set` of the interfaces.
    pub fn from_table(table: &Value, seen: Option<&Value>) -> Self {
        let mut listing = Self::default();
        for object in objects(table) {
            listing.take(object);
        }
        let sets = seen.into_iter().flat_map(objects);
        let sets = sets.filter_map(|object| object.get("set")?.get("elem")?.as_array());
        listing.seen = sets.flatten().filter_map(element).collect();
        listing
    }

    /// Returns counters without rules, of iptables.
    pub fn of_counters(counters: BTreeMap<String, u64>) -> Self {
        Self {
            counters,
            ..Self::default()
        }
    }

    fn take(&mut self, object: &Value) {
        let text = |value: &Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
        if let Some(counter) = object.get("counter") {
            let packets = counter.get("packets").and_then(Value::as_u64);
            let named = text(counter, "name").zip(packets);
            self.counters.extend(named);
        } else if let Some(set) = object.get("set").or_else(|| object.get("map")) {
            self.sets.extend(text(set, "name"));
        } else if let Some(rule) = object.get("rule") {
            let comment = text(rule, "comment").unwrap_or_default();
            self.rules
                .extend(text(rule, "chain").map(|chain| (chain, comment)));
        }
    }

    /// Returns the value of a counter; `None` if an older pepd's table lacks it.
    pub fn counter(&self, counter: rules::Counter) -> Option<u64> {
        self.counters.get(&*counter.name()).copied()
    }

    /// Returns the number of rules.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// Returns true if new flows pass unaccelerated.
    pub fn gate_is_closed(&self) -> bool {
        self.rules.iter().any(|(chain, _)| chain == "gate")
    }

    /// Returns rules of the configuration that are missing, as `chain: comment`, and surplus rules.
    pub fn differences(&self, config: &Config) -> [Vec<String>; 2] {
        let features = Features {
            // IPv6 may have been enabled or disabled since the installation.
            ipv6: self.sets.contains("hosts6"),
            tags: self.rules.iter().any(|(chain, _)| chain == "marks_again"),
            marks: self.sets.contains(pepd_intercept::nft::MARKS_MAP),
            recent: self.sets.iter().any(|set| set.starts_with("recent")),
            errors: self.sets.iter().any(|set| set.starts_with("peers")),
            seen: self.sets.contains(pepd_intercept::nft::SEEN_SET),
            copies: self
                .rules
                .iter()
                .any(|(chain, _)| COPYING.contains(&chain.as_str())),
            ..Features::FULL
        };
        let ruleset = Ruleset::new(config, features);
        let mut missing: Vec<Place> = Vec::new();
        let mut there = self.rules.clone();
        // Their rules depend on pepd's state, not on the configuration.
        there.retain(|(chain, _)| chain != "gate" && !rules::follows_state(chain));
        for chain in ruleset.chains.iter().filter(|chain| chain.name != "gate") {
            let count = there.iter().filter(|(name, _)| *name == chain.name).count();
            let is_there =
                |rule: &Rule| there.contains(&(chain.name.clone(), rule.comment.clone()));
            let instead = rules::instead(&chain.name);
            let instead = instead
                .iter()
                .find(|rules| count == rules.len() && rules.iter().all(is_there));
            let rules = instead.unwrap_or(&chain.rules);
            for rule in rules {
                let place = (chain.name.clone(), rule.comment.clone());
                match there.iter().position(|one| *one == place) {
                    Some(position) => drop(there.swap_remove(position)),
                    None => missing.push(place),
                }
            }
        }
        [missing, there].map(|places| {
            let name = |(chain, comment)| format!("{chain}: {comment}");
            places.into_iter().map(name).collect()
        })
    }
}

fn objects(value: &Value) -> impl Iterator<Item = &Value> {
    let list = value.get("nftables").and_then(Value::as_array);
    list.into_iter().flatten()
}

/// The remaining timeout of an element tells when it was last renewed.
fn element(element: &Value) -> Option<(String, u64)> {
    let element = element.get("elem")?;
    let left = element.get("expires")?.as_u64()?;
    let ago = u64::from(SEEN_SECONDS).saturating_sub(left);
    Some((element.get("val")?.as_str()?.to_owned(), ago))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use pepd_intercept::rules::Counter;

    fn config() -> Config {
        let text = "[intercept]\nlan = [\"lan0\"]\n[[site]]\nname = \"a\"\nmode = \"bypass\"\nmatch = { dport = [22] }\n";
        pep_core::config::parse(text).unwrap()
    }

    /// Returns nft's listing of the table for the configuration.
    fn table() -> Value {
        let ruleset = Ruleset::new(&config(), Features::FULL);
        let mut objects = vec![
            json!({"metainfo": {"version": "1.0.6"}}),
            json!({"set": {"name": "recent4"}}),
            json!({"set": {"name": "recent6"}}),
            json!({"set": {"name": "hosts6"}}),
            json!({"set": {"name": "seen"}}),
            json!({"map": {"name": "marks"}}),
            json!({"counter": {"name": "syns", "packets": 7, "bytes": 420}}),
        ];
        for chain in &ruleset.chains {
            objects.push(json!({"chain": {"name": chain.name}}));
            let rules = chain.rules.iter();
            objects.extend(rules.map(
                |rule| json!({"rule": {"chain": chain.name, "comment": rule.comment, "expr": []}}),
            ));
        }
        json!({ "nftables": objects })
    }

    #[test]
    fn counters_and_interfaces_are_read() {
        let seen = json!({"nftables": [{"set": {"name": "seen", "elem": [
            {"elem": {"val": "lan0", "expires": SEEN_SECONDS - 3}}, {"elem": {"val": "wan0", "expires": 1}},
        ]}}]});
        let listing = Listing::from_table(&table(), Some(&seen));
        assert_eq!(listing.counter(Counter::Syns), Some(7));
        assert_eq!(listing.counter(Counter::Connecting), None);
        assert_eq!(listing.seen["lan0"], 3);
        assert_eq!(listing.seen["wan0"], u64::from(SEEN_SECONDS) - 1);
    }

    #[test]
    fn what_was_installed_differs_in_nothing_whether_the_gate_is_open_or_closed() {
        let mut table = table();
        let none: [Vec<String>; 2] = Default::default();
        assert_eq!(
            Listing::from_table(&table, None).differences(&config()),
            none
        );
        assert!(!Listing::from_table(&table, None).gate_is_closed());
        let closed = json!({"rule": {"chain": "gate", "comment": "x", "expr": []}});
        table["nftables"].as_array_mut().unwrap().push(closed);
        let listing = Listing::from_table(&table, None);
        assert!(listing.gate_is_closed());
        assert_eq!(listing.differences(&config()), none);
    }

    #[test]
    fn each_rule_that_is_missing_is_named_and_so_is_one_too_many() {
        let whole = table();
        let all = whole["nftables"].as_array().unwrap();
        let rules = all
            .iter()
            .enumerate()
            .filter(|(_, one)| one.get("rule").is_some());
        for (position, rule) in rules {
            let mut table = whole.clone();
            table["nftables"].as_array_mut().unwrap().remove(position);
            let [missing, more] = Listing::from_table(&table, None).differences(&config());
            assert_eq!(missing.len(), 1, "{rule}");
            assert!(missing[0].ends_with(rule["rule"]["comment"].as_str().unwrap()));
            assert!(more.is_empty());
        }
        let mut table = whole.clone();
        let other = json!({"rule": {"chain": "sites", "expr": []}});
        table["nftables"].as_array_mut().unwrap().push(other);
        let [missing, more] = Listing::from_table(&table, None).differences(&config());
        assert_eq!(
            (missing.len(), more.as_slice()),
            (0, ["sites: ".to_owned()].as_slice())
        );
    }

    #[test]
    fn a_site_that_is_left_to_the_kernel_for_a_while_misses_nothing() {
        let ruleset = Ruleset::new(&config(), Features::FULL);
        let mut table = table();
        let site = ruleset
            .chains
            .iter()
            .find(|chain| chain.name.starts_with("site_"));
        let site = &site.unwrap().name;
        let objects = table["nftables"].as_array_mut().unwrap();
        objects.retain(|one| one["rule"]["chain"] != json!(site));
        let [missing, _] = Listing::from_table(&table, None).differences(&config());
        assert!(!missing.is_empty());
        let objects = table["nftables"].as_array_mut().unwrap();
        objects.extend(
            rules::left_alone(site)
                .unwrap()
                .into_iter()
                .map(|rule| json!({"rule": {"chain": site, "comment": rule.comment, "expr": []}})),
        );
        let none: [Vec<String>; 2] = Default::default();
        assert_eq!(
            Listing::from_table(&table, None).differences(&config()),
            none
        );
    }
}
