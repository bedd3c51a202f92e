use super::*;
use crate::{Format, render, rules::Counter};

/// A configuration with sites of all modes.
const ALL: &str = r#"
[intercept]
lan = ["lan0", "lan1"]
[[site]]
name = "ssh"
mode = "bypass"
match = { dport = [22] }
[[site]]
name = "careful"
syn = "defer"
match = { src = ["10.1.0.0/16", "fd01::/16"], dport = [80, "8000-8100"] }
[[site]]
name = "quic"
mode = "block"
match = { protocol = "udp", dport = 443 }
[[site]]
name = "voice"
mode = "packet"
peer = "hub"
match = { protocol = "udp" }
[identity]
key_file = "k"
[peer.hub]
endpoint = "192.0.2.1:1"
public_key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
"#;

fn config() -> Config {
    pep_core::config::parse(ALL).expect("valid")
}

fn of_v4() -> Vec<Table> {
    tables(&config(), &[Family::V4])
}

/// Returns the output of iptables-save for an installed table, one packet for each rule. It escapes
/// apostrophes.
fn saved(table: &Table) -> String {
    let input = table.restoring(&[], &[]);
    let mut lines = Vec::new();
    let mut jumps = Vec::new();
    for line in input.lines() {
        if let Some(words) = line.strip_prefix("-I ") {
            let (base, rest) = words.split_once(' ').expect("a chain");
            let (_, rule) = rest.split_once(' ').expect("a place");
            jumps.push(format!("[1:60] -A {base} {rule}"));
        } else if line.starts_with("-A ") {
            lines.push(format!("[1:60] {line}"));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.extend(jumps);
    lines.join("\n").replace('\'', "\\'")
}

#[test]
fn an_installed_table_differs_in_nothing_and_a_missing_rule_is_found() {
    for table in of_v4() {
        let whole = saved(&table);
        let listing = Listing::parse(&whole, "pepd");
        assert_eq!(listing.differences(&table), Differences::default());
        let rules: Vec<_> = whole
            .lines()
            .filter(|line| line.contains("] -A "))
            .collect();
        for rule in rules {
            let mut removed = false;
            let rest = whole.lines().filter(|line| {
                let first = !removed && *line == rule;
                removed |= first;
                !first
            });
            let rest: Vec<_> = rest.collect();
            let found = Listing::parse(&rest.join("\n"), "pepd").differences(&table);
            assert!(!found.missing.is_empty(), "{rule}");
        }
    }
}

#[test]
fn rules_of_others_may_come_after_pepds_jumps_but_not_before() {
    let [raw, mangle] = &of_v4()[..] else {
        panic!("two tables");
    };
    let other = "[0:0] -A PREROUTING -j ACCEPT";
    for (table, is_first) in [(raw, true), (raw, false), (mangle, true)] {
        let whole = saved(table);
        let with = match is_first {
            true => format!("{other}\n{whole}"),
            false => format!("{whole}\n{other}"),
        };
        let found = Listing::parse(&with, "pepd").differences(table);
        assert_eq!(found.is_empty(), !is_first, "{found:?}");
    }
    // Another pepd would put its own first again.
    let with = format!(
        "[0:0] -A PREROUTING -i lan9 -j roof_2_from_hosts\n{}",
        saved(raw)
    );
    let found = Listing::parse(&with, "pepd").differences(raw);
    assert!(found.is_empty(), "{found:?}");
    // The jump from POSTROUTING stays behind others.
    let whole = format!(
        "[0:0] -A POSTROUTING -j MARK --set-mark 0x1\n{}",
        saved(mangle)
    );
    let found = Listing::parse(&whole, "pepd").differences(mangle);
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn another_pepd_has_chains_of_its_own() {
    let listing = Listing::parse(
        ":pepd_sites - [0:0]\n:pepd_2_sites - [0:0]\n:pepd_site_12 - [0:0]\n:pepd_other - [0:0]\n",
        "pepd",
    );
    assert_eq!(listing.chains, ["pepd_sites", "pepd_site_12"]);
    for table in tables(&config(), &Family::ALL) {
        for chain in table.chains {
            let name = chain.name.strip_prefix("pepd_").expect("the prefix");
            assert!(text::is_own(name), "{name}");
            assert!(chain.name.len() <= 28, "{name}");
        }
    }
}

#[test]
fn packets_are_counted_by_the_rules_of_the_model() {
    let mut counters = BTreeMap::new();
    for table in of_v4() {
        count(
            &table,
            &Listing::parse(&saved(&table), "pepd"),
            &mut counters,
        );
    }
    let of = |counter: Counter| counters.get(counter.name().as_ref()).copied();
    // One rule for each LAN interface, and one in all.
    assert_eq!(of(Counter::Syns), Some(2));
    assert_eq!(of(Counter::Passed), Some(1));
    assert_eq!(of(Counter::Answered), Some(1));
    assert_eq!(of(Counter::Handshakes(Family::V4)), Some(1));
    assert_eq!(of(Counter::Handshakes(Family::V6)), None);
}

#[test]
fn the_script_has_the_rules_that_pepd_installs() {
    let script = render(&config(), Format::Iptables);
    for (family, program) in [(Family::V4, "iptables"), (Family::V6, "ip6tables")] {
        for table in tables(&config(), &[family]) {
            let input = table.restoring(&[], &[]);
            for rule in input.lines().filter(|line| line.starts_with('-')) {
                let command = format!("{program} -w -t {} {rule}\n", table.name);
                assert!(script.contains(&command), "{command}");
            }
        }
    }
    for limit in limits(&config()) {
        assert!(script.contains(limit), "{limit}");
    }
    assert!(script.contains("\nown='pepd_(gate|"), "{script}");
}

#[test]
fn a_chain_that_left_the_configuration_is_removed_with_the_jump_to_it() {
    let [raw, _] = &of_v4()[..] else {
        panic!("two tables");
    };
    let old = ["pepd_sites", "pepd_site_9"].map(str::to_owned);
    let input = raw.restoring(&old, &["PREROUTING -i lan9 -j pepd_from_hosts".to_owned()]);
    assert!(
        input.contains("-D PREROUTING -i lan9 -j pepd_from_hosts\n"),
        "{input}"
    );
    assert!(
        input.contains("-X pepd_site_9\n") && !input.contains("-X pepd_sites"),
        "{input}"
    );
}

#[test]
fn the_gate_opens_by_signals_only() {
    let [raw, mangle] = &of_v4()[..] else {
        panic!("two tables");
    };
    let input = raw.restoring(&[], &[]);
    let gate = "-A pepd_gate -m recent --name pepd_open --mask 0.0.0.0 --rcheck --seconds 5 ";
    assert!(input.contains(gate), "{input}");
    assert!(
        input.contains(
            "--mark 0x50000000/0xff000000 -m recent --name pepd_open --mask 0.0.0.0 --set"
        )
    );
    assert!(input.contains(
        "--mark 0x52000000/0xff000000 -m recent --name pepd_open --mask 0.0.0.0 --remove"
    ));
    // SYNs that `raw` let pass are not redirected.
    let sites: Vec<_> = mangle
        .jumps
        .iter()
        .filter(|jump| jump.to == "pepd_sites")
        .collect();
    assert_eq!(sites.len(), 1);
    assert!(
        mangle
            .restoring(&[], &[])
            .contains("--mark 0x53000000/0xff000000 -j pepd_sites\n")
    );
}
