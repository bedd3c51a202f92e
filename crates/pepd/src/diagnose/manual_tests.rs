use serde_json::json;

use super::{super::State, *};

fn config() -> Config {
    pep_core::config::parse("[intercept]\nlan = [\"lan0\"]\nrules = \"manual\"\n").unwrap()
}

/// The local mark of the default configuration.
const LOCAL: u32 = 0x5300_0000;

fn saved(mark: &str) -> String {
    format!(
        "[0:0] -A pepd_site_0 -p tcp -m comment --comment \"site default\" -j TPROXY --on-port 5000 \
         --on-ip 127.0.0.1 --tproxy-mark {mark}/0xff000000\n\
         [0:0] -A pepd_from_servers -p tcp -m socket --transparent -g pepd_do_53a\n"
    )
}

#[test]
fn rules_of_iptables_are_found_by_port_and_mark_for_each_family() {
    let mut rules = Rules::default();
    rules.take_iptables(Family::V4, &saved("0x53000000"), LOCAL);
    let found = rules.finding(&config());
    assert_eq!(found.state, State::Fail);
    assert!(found.seen.contains("IPv6: TPROXY to port 5000"), "{found}");
    assert!(!found.seen.contains("IPv4"), "{found}");
    let wanted = found.remedy.unwrap();
    assert!(
        wanted.contains("ip6tables -w -t mangle -A pepd_site_0"),
        "{wanted}"
    );
    rules.take_iptables(Family::V6, &saved("0x53000000"), LOCAL);
    assert_eq!(rules.finding(&config()).state, State::Ok);
    let mut other = Rules::default();
    for family in Family::ALL {
        other.take_iptables(family, &saved("0x1"), LOCAL);
    }
    assert_eq!(other.finding(&config()).state, State::Fail);
}

#[test]
fn rules_of_nft_are_found_wherever_their_table_sets_the_mark() {
    let rule = |expr: Value| json!({"rule": {"family": "inet", "table": "mine", "expr": expr}});
    let redirect =
        |family: &str| rule(json!([{"tproxy": {"family": family, "addr": "::1", "port": 5000}}]));
    let socket = rule(json!([
        {"match": {"op": "==", "left": {"socket": {"key": "transparent"}}, "right": 1}},
        {"mangle": {"key": {"meta": {"key": "mark"}}, "value": {"|": [{"&": [1, 2]}, LOCAL]}}},
    ]));
    let found = |list: Vec<Value>| {
        let mut rules = Rules {
            has_nft: true,
            ..Rules::default()
        };
        rules.take_nft(&json!({"nftables": list}), LOCAL.into());
        rules.finding(&config())
    };
    let all = found(vec![redirect("ip"), redirect("ip6"), socket.clone()]);
    assert_eq!(all.state, State::Ok, "{all}");
    let one = found(vec![redirect("ip6"), socket]);
    assert!(one.remedy.unwrap().contains("tproxy ip to 127.0.0.1:5000"));
    // Without the mark, packets are not delivered.
    let unmarked = found(vec![redirect("ip"), redirect("ip6")]);
    assert_eq!(unmarked.state, State::Fail, "{unmarked}");
}
