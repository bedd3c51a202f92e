use super::*;

use serde_json::{Value, json};

const MARK: u64 = 0x5300_0000;
const MASK: u64 = 0xff00_0000;

fn config(more: &str) -> Config {
    let text = format!("[intercept]\nlan = [\"lan0\"]\n{more}");
    pep_core::config::parse(&text).expect("valid")
}

/// Returns a listing of a base chain, its rules, and another chain that they may jump to.
fn listing(hook: &str, policy: &str, rules: &[Value], more: &[Value]) -> Value {
    let chain = |name: &str| json!({"family": "inet", "table": "mine", "name": name});
    let mut base = chain("base");
    base["type"] = json!("filter");
    base["hook"] = json!(hook);
    base["prio"] = json!(0);
    base["policy"] = json!(policy);
    let mut objects = vec![json!({"chain": base}), json!({"chain": chain("other")})];
    for (chain, rules) in [("base", rules), ("other", more)] {
        objects.extend(rules.iter().map(|expr| {
            json!({"rule": {"family": "inet", "table": "mine", "chain": chain, "expr": expr}})
        }));
    }
    json!({"nftables": objects})
}

fn found(listing: &Value, accepted: u64) -> Vec<(State, String)> {
    let evidence = Evidence {
        accepted,
        flows: [false; 2],
    };
    let findings = drops(
        &config(""),
        &nft::tables(listing, "pepd"),
        &[false],
        evidence,
    );
    findings
        .into_iter()
        .map(|finding| (finding.state, finding.to_string()))
        .collect()
}

fn state(hook: &str, policy: &str, rules: &[Value]) -> State {
    found(&listing(hook, policy, rules, &[]), 0)[0].0
}

fn equal(left: &Value, right: &Value) -> Value {
    json!({"match": {"op": "==", "left": left, "right": right}})
}

fn accepts_mark(mark: u64) -> Value {
    let masked = json!({"&": [{"meta": {"key": "mark"}}, MASK]});
    json!([equal(&masked, &json!(mark)), {"accept": null}])
}

#[test]
fn a_policy_of_drop_is_named_with_the_rule_that_helps() {
    let found = &found(&listing("input", "drop", &[], &[]), 0)[0];
    assert_eq!(found.0, State::Fail);
    for words in [
        "inet mine, chain base: its policy drops hosts' SYNs",
        "mark 0x53000000/0xff000000",
        "nft insert rule inet mine base meta mark and 0xff000000 == 0x53000000 accept",
        "\"nftables\"",
    ] {
        assert!(found.1.contains(words), "{words}: {}", found.1);
    }
    assert_eq!(state("input", "accept", &[]), State::Ok);
    assert_eq!(state("output", "drop", &[]), State::Fail);
    // Only held SYNs are forwarded.
    let forward = |syn: &str| {
        let tables = nft::tables(&listing("forward", "drop", &[], &[]), "pepd");
        let config = config(&format!("syn = \"{syn}\"\n"));
        drops(&config, &tables, &[false], Evidence::default()).remove(0)
    };
    assert_eq!(forward("spoof").state, State::Ok);
    let held = forward("defer").to_string();
    assert!(
        held.contains("inet mine base oifname pepd0 accept"),
        "{held}"
    );
}

#[test]
fn a_rule_for_the_mark_lets_them_pass() {
    assert_eq!(state("input", "drop", &[accepts_mark(MARK)]), State::Ok);
    assert_eq!(
        state("input", "drop", &[accepts_mark(0x5400_0000)]),
        State::Fail
    );
    // Format of rules made by iptables.
    let prefix = json!({"prefix": {"addr": MARK, "len": 8}});
    let prefix = json!([equal(&json!({"meta": {"key": "mark"}}), &prefix), {"accept": null}]);
    assert_eq!(state("input", "drop", &[prefix]), State::Ok);
    // After the rule that drops it is too late.
    let rules = [json!([{"reject": null}]), accepts_mark(MARK)];
    assert_eq!(state("input", "accept", &rules), State::Fail);
}

#[test]
fn rules_for_other_packets_do_not_count() {
    let key = |kind: &str, key: &str| json!({kind: {"key": key}});
    let flags = json!({"&": [{"payload": {"protocol": "tcp", "field": "flags"}}, ["fin", "syn", "rst", "ack"]]});
    let local = json!({"fib": {"result": "type", "flags": ["daddr"]}});
    let udp = json!({"payload": {"protocol": "udp", "field": "dport"}});
    for others in [
        equal(
            &key("ct", "state"),
            &json!({"set": ["established", "related"]}),
        ),
        equal(&key("meta", "iif"), &json!("lo")),
        equal(&key("meta", "iifname"), &json!({"set": ["wan0", "wan1"]})),
        equal(&key("meta", "oifname"), &json!("lan0")),
        equal(&key("meta", "l4proto"), &json!({"set": ["icmp", "udp"]})),
        equal(&key("meta", "nfproto"), &json!("ipv6")),
        equal(&local, &json!({"set": ["local", "broadcast"]})),
        equal(&udp, &json!(53)),
        json!({"limit": {"rate": 10, "per": "second", "inv": true}}),
    ] {
        let accepts = [json!([others, {"accept": null}])];
        assert_eq!(state("input", "drop", &accepts), State::Fail, "{others}");
        let drops = [json!([others, {"drop": null}])];
        assert_eq!(state("input", "accept", &drops), State::Ok, "{others}");
    }
    for ours in [
        equal(&key("ct", "state"), &json!({"set": ["new", "untracked"]})),
        equal(&key("meta", "iifname"), &json!({"set": ["lan*", "pepd0"]})),
        equal(&key("meta", "l4proto"), &json!("tcp")),
        json!({"limit": {"rate": 10, "per": "second"}}),
    ] {
        let accepts = [json!([ours, {"accept": null}])];
        assert_eq!(state("input", "drop", &accepts), State::Ok, "{ours}");
    }
    // Only the first packet of each connection.
    let accepts = [json!([equal(&flags, &json!("syn")), {"accept": null}])];
    let found = &found(&listing("input", "drop", &accepts, &[]), 0)[0];
    assert!(found.1.contains("drops hosts' packets"), "{}", found.1);
}

#[test]
fn chains_are_followed() {
    let jump = json!([{"jump": {"target": "other"}}]);
    let goto = json!([{"goto": {"target": "other"}}]);
    let of = |policy, input: &Value, more: &[Value]| {
        found(
            &listing("input", policy, std::slice::from_ref(input), more),
            0,
        )[0]
        .clone()
    };
    assert_eq!(of("drop", &jump, &[accepts_mark(MARK)]).0, State::Ok);
    assert_eq!(
        of("drop", &jump, &[json!([{"return": null}])]).0,
        State::Fail
    );
    let dropped = of("accept", &goto, &[json!([{"drop": null}])]);
    assert_eq!(dropped.0, State::Fail);
    assert!(
        dropped.1.contains("a rule of chain other drops"),
        "{}",
        dropped.1
    );
    let by_interface = json!([{"vmap": {
        "key": {"meta": {"key": "iifname"}},
        "data": {"set": [["wan0", {"drop": null}], ["pepd0", {"accept": null}], ["lan0", {"jump": {"target": "other"}}]]},
    }}]);
    assert_eq!(
        of("drop", &by_interface, &[accepts_mark(MARK)]).0,
        State::Ok
    );
    assert_eq!(of("drop", &by_interface, &[]).0, State::Fail);
}

/// Doubt is reported as such, and not at all when connections are accepted.
#[test]
fn doubt_is_no_failure() {
    let by_address = equal(
        &json!({"payload": {"protocol": "ip", "field": "saddr"}}),
        &json!("@friends"),
    );
    let rules = [json!([by_address, {"accept": null}])];
    let unknown = listing("input", "drop", &rules, &[]);
    let before = &found(&unknown, 0)[0];
    assert_eq!(before.0, State::Warn);
    assert!(before.1.contains("its policy may drop"), "{}", before.1);
    assert_eq!(found(&unknown, 3)[0].0, State::Ok);
    // A list of blocked addresses is no firewall against pepd.
    assert_eq!(
        state("input", "accept", &[json!([by_address, {"drop": null}])]),
        State::Ok
    );
    // A reverse path check with pepd's mark is one.
    let check = equal(
        &json!({"fib": {"result": "oif", "flags": ["saddr", "mark", "iif"]}}),
        &json!(false),
    );
    let check = [json!([check, {"drop": null}])];
    assert_eq!(state("prerouting", "accept", &check), State::Warn);
}

#[test]
fn flows_are_evidence_for_their_family() {
    let tables = nft::tables(&listing("input", "drop", &[], &[]), "pepd");
    let state = |accepted, flows| {
        let evidence = Evidence { accepted, flows };
        drops(&config(""), &tables, &[false], evidence)[0].state
    };
    assert_eq!(state(0, [false; 2]), State::Fail);
    assert_eq!(state(1, [false, true]), State::Warn);
    assert_eq!(state(1, [true, false]), State::Info);
}

const SAVED: &str = "*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-input - [0:0]
:ufw-not-local - [0:0]
-A INPUT -j ufw-before-input
-A FORWARD -o pepd+ -m comment --comment \"held -j DROP\" -j ACCEPT
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input ! -p tcp -m hashlimit --hashlimit-upto 5/sec --hashlimit-name x -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix \"[UFW BLOCK] \"
-A ufw-not-local -j DROP
COMMIT
";

#[test]
fn what_iptables_saves_is_read() {
    let found = |saved: &str| {
        let tables = iptables::tables(saved, false, "iptables");
        drops(&config(""), &tables, &[false, true], Evidence::default())
    };
    let finding = &found(SAVED)[0];
    assert_eq!(finding.state, State::Fail);
    let text = finding.to_string();
    for words in [
        "iptables filter, chain INPUT: a rule of chain ufw-not-local drops",
        "iptables -t filter -I INPUT -m mark --mark 0x53000000/0xff000000 -j ACCEPT",
        "\"ufw\"",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let first = "-A ufw-before-input -m mark --mark 0x53000000/0xff000000 -j ACCEPT\n-A ufw-before-input -i lo";
    let helped = SAVED.replace("-A ufw-before-input -i lo", first);
    assert_eq!(found(&helped)[0].state, State::Ok, "{:?}", found(&helped));
    let inverted = helped.replace("-m mark --mark", "-m mark ! --mark");
    assert_eq!(found(&inverted)[0].state, State::Fail);
    // The other family's dump comes from its own program.
    let v6 = iptables::tables(SAVED, true, "ip6tables");
    assert_eq!(
        drops(&config(""), &v6, &[false], Evidence::default())[0].state,
        State::Ok
    );
}

#[test]
fn a_clamp_of_hosts_syns_is_found_and_named() {
    let clamp = |value: Value| {
        let set = json!({"mangle": {"key": {"tcp option": {"name": "maxseg", "field": "size"}}, "value": value}});
        let jump = [json!([{"jump": {"target": "other"}}])];
        nft::tables(
            &listing("forward", "accept", &jump, &[json!([set])]),
            "pepd",
        )
    };
    let wan0 = PacketInterface::By("wan0".to_owned());
    let find = |tables: &[Table]| Clamped::find(&config(""), &wan0, tables, &[false]);
    let found = find(&clamp(json!(1360)));
    assert_eq!(found.minimum, [Some(1360), None]);
    let named = found.finding().unwrap().to_string();
    assert!(named.contains("chain other, sets"), "{named}");
    assert_eq!(
        find(&clamp(json!({"rt": {"key": "mtu"}}))),
        Clamped::default()
    );
    let saved = "*mangle\n:FORWARD ACCEPT [0:0]\n\
        -A FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss 1360\nCOMMIT\n";
    let saved_by = |saved: &str| find(&iptables::tables(saved, false, "iptables")).minimum[0];
    assert_eq!(saved_by(saved), Some(1360));
    // Rules that may not match all SYNs over the link are ignored.
    let after = |statements: Value| {
        let set = json!({"mangle": {"key": {"tcp option": {"name": "maxseg", "field": "size"}}, "value": 1200}});
        let rules = statements.as_array().expect("a list").clone();
        nft::tables(
            &listing("forward", "accept", &rules, &[json!([set])]),
            "pepd",
        )
    };
    let jump = json!({"jump": {"target": "other"}});
    let by = |name: &str| json!({"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": name}});
    let to = json!({"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}},
        "right": {"prefix": {"addr": "10.99.0.0", "len": 16}}}});
    for (rules, minimum) in [
        (json!([[by("wan0"), jump]]), Some(1200)),
        (json!([[by("@uplinks"), jump]]), None),
        (json!([[by("wg0"), jump]]), None),
        (json!([[to, jump]]), None),
        (json!([[by("wan0"), {"accept": null}], [jump]]), None),
        (json!([[by("wg0"), {"accept": null}], [jump]]), Some(1200)),
    ] {
        assert_eq!(find(&after(rules.clone())).minimum[0], minimum, "{rules}");
    }
    for bytes in [0, 10, 40_000] {
        assert_eq!(find(&clamp(json!(bytes))).minimum[0], None, "{bytes}");
    }
    // Clamps in hooks that pepd's own packets traverse need no help.
    assert_eq!(saved_by(&saved.replace("FORWARD", "POSTROUTING")), None);
    // A clamp for another uplink does not affect the link.
    assert_eq!(saved_by(&saved.replace("-p tcp", "-o wan9 -p tcp")), None);
    assert_eq!(
        saved_by(&saved.replace("-p tcp", "-o wan0 -p tcp")),
        Some(1360)
    );
}

/// Returns the passage of SYNs that are answered at once, over IPv4.
fn passes(lans: &str, hook: &str, policy: &str, rules: &[Value]) -> Verdict {
    let tables = nft::tables(&listing(hook, policy, rules, &[]), "pepd");
    let text = format!("[intercept]\nlan = {lans}\n");
    let config = pep_core::config::parse(&text).expect("valid");
    Arrival::of(&config, &tables, true).at_once[0]
}

#[test]
fn only_chains_that_certainly_drop_all_syns_prove_a_loss() {
    let one = |hook, policy, rules: &[Value]| passes("[\"lan0\"]", hook, policy, rules);
    assert_eq!(one("input", "accept", &[]), Verdict::Sound);
    assert_eq!(one("input", "drop", &[]), Verdict::Broken);
    let accepts = accepts_mark(MARK);
    assert_eq!(one("input", "drop", &[accepts]), Verdict::Sound);
    assert_eq!(one("output", "drop", &[]), Verdict::Sound, "not of SYNs");
    // From some hosts, perhaps.
    let source = json!({"payload": {"protocol": "ip", "field": "saddr"}});
    let banned = json!([equal(&source, &json!("@banned")), {"drop": null}]);
    assert_eq!(one("input", "accept", &[banned]), Verdict::Unclear);
    let trusted = json!([equal(&source, &json!("@trusted")), {"accept": null}]);
    assert_eq!(one("input", "drop", &[trusted]), Verdict::Unclear);
    // By one of two interfaces.
    let interface = json!({"meta": {"key": "iifname"}});
    let guests = json!([equal(&interface, &json!("lan1")), {"drop": null}]);
    let two = "[\"lan0\", \"lan1\"]";
    let found = passes(two, "input", "accept", std::slice::from_ref(&guests));
    assert_eq!(found, Verdict::Unclear);
    assert_eq!(one("input", "accept", &[guests]), Verdict::Sound);
    assert_eq!(passes(two, "input", "drop", &[]), Verdict::Broken);
    let unread = Arrival::of(&config(""), &[], false);
    assert_eq!(unread.at_once, [Verdict::Unclear; 2]);
}

#[test]
fn held_syns_pass_other_chains_than_those_answered_at_once() {
    let tables = nft::tables(&listing("forward", "drop", &[], &[]), "pepd");
    let arrival = Arrival::of(&config("syn = \"defer\"\n"), &tables, true);
    assert_eq!(arrival.held[0], Verdict::Broken);
    assert_eq!(arrival.released[0], Verdict::Sound);
    let tables = nft::tables(&listing("input", "drop", &[], &[]), "pepd");
    let arrival = Arrival::of(&config("syn = \"defer\"\n"), &tables, true);
    assert_eq!(arrival.held[0], Verdict::Sound);
    assert_eq!(arrival.released[0], Verdict::Broken);
}

/// Returns findings about rules in the forward hook, with a link and a default route.
fn forward(config: &str, listing: &Value, is_routed: bool) -> Vec<(State, String)> {
    let config = self::config(config);
    let uplink = Uplink {
        interface: PacketInterface::By("wan0".to_owned()),
        is_routed,
    };
    let tables = nft::tables(listing, "pepd");
    let obstacles = forward::obstacles(&config, &tables);
    let evidence = Evidence::default();
    let found = forward::findings(&config, &uplink, &tables, &[false], evidence, &obstacles);
    let states = found.iter().map(|one| (one.state, one.to_string()));
    states.collect()
}

fn by(key: &str, name: &str) -> Value {
    equal(&json!({"meta": {"key": key}}), &json!(name))
}

fn accept(conditions: &[Value]) -> Value {
    let verdict = json!({"accept": null});
    conditions.iter().chain([&verdict]).cloned().collect()
}

#[test]
fn rules_in_forward_that_do_not_hold_are_named() {
    let web = accept(&[
        json!({"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 443}}),
    ]);
    let closes = listing("forward", "drop", &[web], &[]);
    let of = |more: &str, listing: &Value| forward(more, listing, true);
    assert_eq!(of("", &closes), []);
    // Some hosts may have another mark.
    let marked = json!({"match": {"op": "!=", "left": {"meta": {"key": "mark"}}, "right": 7}});
    let strangers = json!([marked, {"drop": null}]);
    assert_eq!(of("", &listing("forward", "accept", &[strangers], &[])), []);
    const IGNORE: &str = "forward = \"ignore\"\n";
    let ignored = of(IGNORE, &closes);
    assert_eq!(ignored[0].0, State::Info);
    assert!(
        ignored[0]
            .1
            .contains("inet mine, chain base, drops connections"),
        "{ignored:?}"
    );
    assert_eq!(of("rules = \"iptables\"\n", &closes)[0].0, State::Warn);
    let open = listing("forward", "accept", &[], &[]);
    assert_eq!(of(IGNORE, &open), []);
    assert_eq!(of("syn = \"defer\"\n", &closes), []);
}

#[test]
fn an_input_chain_that_trusts_an_interface_is_in_the_way_of_rules_in_forward() {
    let trusts = accept(&[by("iifname", "lan0")]);
    let input = listing("input", "drop", std::slice::from_ref(&trusts), &[]);
    // Nothing is closed.
    assert_eq!(forward("forward = \"auto\"\n", &input, true), []);
    let mut both = input.clone();
    let closed = listing("forward", "drop", &[], &[]);
    let closed = closed["nftables"].as_array().expect("a list").iter();
    let renamed = closed.map(|one| {
        let text = one.to_string().replace("\"mine\"", "\"other\"");
        serde_json::from_str(&text).expect("JSON")
    });
    both["nftables"]
        .as_array_mut()
        .expect("a list")
        .extend(renamed.collect::<Vec<Value>>());
    let mut found = forward("forward = \"auto\"\n", &both, true);
    found.rotate_left(1);
    assert_eq!(found[0].0, State::Warn);
    for words in [
        "its policy drops SYNs that come from pepd0",
        "== 0x53000000 accept",
    ] {
        assert!(found[0].1.contains(words), "{found:?}");
    }
    assert!(
        forward::obstacles(
            &config("forward = \"auto\"\n"),
            &nft::tables(&input, "pepd")
        )[0]
        .is_some()
    );
    for other in ["forward = \"obey\"\n", ""] {
        assert_eq!(forward(other, &input, true), [], "{other}");
    }
    let marked = listing("input", "drop", &[trusts, accepts_mark(MARK)], &[]);
    assert_eq!(forward("forward = \"auto\"\n", &marked, true), []);
    // What drops both is no reason to prefer one.
    assert_eq!(
        forward(
            "forward = \"auto\"\n",
            &listing("input", "drop", &[], &[]),
            true
        ),
        []
    );
}

#[test]
fn a_firewall_that_closes_all_is_named() {
    let closed = listing("forward", "drop", &[], &[]);
    let found = forward("forward = \"auto\"\n", &closed, true);
    assert_eq!(found[0].0, State::Fail);
    assert!(
        found[0].1.contains("drops hosts' SYNs to servers"),
        "{found:?}"
    );
    let to_link = accept(&[by("oifname", "wan0")]);
    let open = listing("forward", "drop", &[to_link], &[]);
    let found = forward("forward = \"auto\"\n", &open, true);
    assert_eq!(found[0].0, State::Info, "{found:?}");
    assert!(found[0].1.contains("while the link is down"), "{found:?}");
}
