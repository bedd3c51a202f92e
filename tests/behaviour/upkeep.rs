//! Changes that other programs make to the machine while pepd runs.

use std::{net::SocketAddr, path::Path, time::Duration};

use pepd_tests::{
    bed::{Bed, Family, LAN, Path as Way, Place},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::{matrix_pepd_only, shared},
    pep::Pep,
    raw::{Segment, send_damaged},
    wait::{PATIENCE, wait_until},
};

use serde_json::Value;

use crate::support::{PORT, connect, echo_once, findings};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
/// Output of commands about a failing redirection.
const DROPPED: &str = "redirected packets are dropped";

/// Returns the name of the family in commands.
fn family(bed: &Bed) -> &'static str {
    match bed.family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Removes something of pepd's, and waits until pepd has restored it.
fn removed_and_put_back(bed: &Bed, pep: &Pep, remove: impl Fn(&Host)) {
    let position = pep.log().position();
    remove(&bed.gateway);
    let logged = pep.log().find(position, PATIENCE, |event| {
        event.level() == "WARN" && event.message().contains("reinstalled")
    });
    assert!(logged.is_some(), "pepd has not restored it");
}

/// Runs each command with `ip -4` and `ip -6`.
fn ip(bed: &Bed, words: &str) {
    let version = match bed.family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    bed.gateway.ip(&format!("{version} {words}"));
}

#[test]
fn what_others_remove_is_put_back() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let removals: [&dyn Fn(&Host); 4] = [
            &|host| host.nft("flush ruleset"),
            &|_| ip(bed, "rule del priority 100 table 5000"),
            &|_| ip(bed, "route flush table 5000"),
            &|host| {
                host.nft("flush ruleset");
                ip(bed, "rule del priority 100 table 5000");
            },
        ];
        for remove in removals {
            removed_and_put_back(bed, &pep, remove);
            // pepd may look between two removals, and find the second one a second later.
            wait_until("connections to be accelerated", || {
                let before = pep.counter("flows_accepted");
                echo_once(&mut connect(bed), b"accelerated");
                pep.counter("flows_accepted") == before + 1
            });
        }
        pep.wait_idle();
        pep.stop();
    });
}

/// Network managers flush addresses that they do not know; scripts set `conf.*.rp_filter`.
#[test]
fn interfaces_of_pepd_that_others_change_are_restored() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        // Has a TUN with `spoof` as well.
        let config = bed.config("").expect("not direct");
        let begin = match bed.path {
            Way::Spoof => "[intercept]\nforward = \"obey\"\n",
            _ => "[intercept]\n",
        };
        let pep = Pep::start(&bed.gateway, &config.replace("[intercept]\n", begin));
        let changes: [&dyn Fn(&Host); 3] = [
            &|host| drop(host.ip("address flush dev pepd0")),
            &|host| host.sysctl("net.ipv4.conf.pepd0.rp_filter", "1"),
            &|host| drop(host.ip("link set pepd0 down")),
        ];
        for change in changes {
            let position = pep.log().position();
            change(&bed.gateway);
            let restored = pep.log().find(position, PATIENCE, |event| {
                event.level() == "WARN" && event.message().contains("restored it")
            });
            assert!(restored.is_some(), "pepd has not restored it");
            echo_once(&mut connect(bed), b"accelerated");
        }
        pep.wait_counter("flows_accepted", |flows| flows == 3);
        pep.wait_idle();
        pep.stop();
    });
}

/// Rules that assign helpers or zones: conntrack would take both legs for one connection.
#[test]
fn rules_that_prepare_conntrack_and_come_later_change_nothing() {
    matrix_pepd_only(|bed| {
        let server = bed.server.listen(bed.at(Place::Server, PORT));
        bed.gateway.nft(
            "table inet source { chain out { type nat hook postrouting priority 100; oifname \"wan0\" masquerade; }; }",
        );
        let mut pep = bed.start().expect("not direct");
        for program in ["iptables", "ip6tables"] {
            let rule = "-t raw -A PREROUTING -p tcp -j CT --ctevents new";
            bed.gateway
                .run(program, &rule.split(' ').collect::<Vec<_>>());
        }
        let client = connect(bed);
        let (_leg, from) = server.accept().expect("a connection");
        assert_ne!(from.ip(), client.local_addr().expect("connected").ip());
        pep.wait_counter("flows_accepted", |flows| flows == 1);
        pep.terminate_at_once();
    });
}

#[test]
fn a_closed_gate_is_put_back_closed() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let limits = "[limits]\nflows = 1";
        let pep = bed.start_with(limits).expect("not direct");
        let mut only = connect(bed);
        echo_once(&mut only, b"accelerated");
        // The counter grows before the rules change.
        pep.log().expect("the gate is closed");
        removed_and_put_back(bed, &pep, |host| host.nft("flush ruleset"));
        echo_once(&mut connect(bed), b"not accelerated");
        echo_once(&mut only, b"still accelerated");
        assert_eq!(pep.counter("flows_accepted"), 1);
        drop(only);
        pep.wait_idle();
        pep.stop();
    });
}

/// A routing table for policy rules of other programs.
const OTHER_TABLE: u32 = 77;

#[test]
fn policy_rules_that_come_later_do_not_take_what_is_redirected() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let mut open = connect(bed);
        echo_once(&mut open, b"before");
        let server = bed.at(Place::Server, PORT).ip();
        ip(
            bed,
            &format!("route add {server} dev wan0 table {OTHER_TABLE}"),
        );
        // Without a priority each rule precedes all existing ones; the third is that of a full
        // tunnel of wg-quick.
        let rules = [
            format!("iif lan0 table {OTHER_TABLE}"),
            format!("to {server} table {OTHER_TABLE}"),
            format!("not fwmark 51820 table {OTHER_TABLE}"),
        ];
        for (number, rule) in rules.iter().enumerate() {
            let position = pep.log().position();
            ip(bed, &format!("rule add {rule}"));
            let logged = pep.log().find(position, PATIENCE, |event| {
                event.message().contains("moved pepd's ahead of it")
            });
            assert!(logged.is_some(), "pepd's rules stay behind: {rule}");
            echo_once(&mut connect(bed), b"new");
            echo_once(&mut open, b"open");
            assert_eq!(pep.counter("flows_accepted"), number as u64 + 2);
        }
        for rule in &rules {
            ip(bed, &format!("rule del {rule}"));
        }
        ip(bed, &format!("route flush table {OTHER_TABLE}"));
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

/// Returns the lowest numbers of pepd's policy rules and of others, but for the local table's.
fn first_rules(bed: &Bed) -> (u32, u32) {
    let version = match bed.family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    let listed = bed.gateway.ip(&format!("{version} rule"));
    let rules = listed.lines().filter_map(|line| {
        let (number, rule) = line.split_once(':')?;
        Some((number.parse().ok()?, rule.contains("proto 80")))
    });
    let rules: Vec<(u32, bool)> = rules.filter(|(number, _)| *number > 0).collect();
    let first = |ours| rules.iter().find(|rule| rule.1 == ours);
    let of = |ours| first(ours).map_or(0, |(number, _)| *number);
    (of(true), of(false))
}

/// The rules of wg-quick for a full tunnel, in the order of their addition.
const VPN: [&str; 2] = [
    "not fwmark 51820 table 77",
    "table main suppress_prefixlength 0",
];

#[test]
fn after_each_reconnection_of_a_vpn_the_policy_rules_return_to_their_place() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let mut open = connect(bed);
        echo_once(&mut open, b"before");
        let place = first_rules(bed).0;
        for _ in 0..30 {
            for rule in VPN {
                ip(bed, &format!("rule add {rule}"));
            }
            wait_until("pepd's rules to be ahead", || {
                let (ours, others) = first_rules(bed);
                ours < others
            });
            for rule in VPN {
                ip(bed, &format!("rule del {rule}"));
            }
            wait_until("pepd's rules to be back", || first_rules(bed).0 == place);
        }
        echo_once(&mut open, b"open");
        echo_once(&mut connect(bed), b"new");
        assert_eq!(pep.counter("flows_accepted"), 2);
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_program_that_insists_on_being_first_gets_there_and_pepd_returns_after_it() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let place = first_rules(bed).0;
        // All packets, so that a look-up for any address shows what the rule does.
        let server = bed.at(Place::Server, PORT).ip();
        let route = format!("route add default via {server} dev wan0 table {OTHER_TABLE}");
        ip(bed, &route);
        let rule = format!("iif lan0 table {OTHER_TABLE}");
        // Near the last number already.
        ip(bed, &format!("rule add {rule} priority 26"));
        wait_until("pepd to have no place left", || {
            let (ours, others) = first_rules(bed);
            if ours < others {
                ip(bed, &format!("rule add {rule}"));
                ip(bed, &format!("rule del {rule} priority {others}"));
            }
            pep.log().text().contains("no number is left")
        });
        // The gateway's own rules still have room, and hosts their connections.
        assert!(first_rules(bed).1 > 0, "{:?}", first_rules(bed));
        // The first SYNs are redirected, and dropped.
        wait_until("hosts to get on", || {
            bed.client.connect(bed.at(Place::Server, PORT)).is_ok()
        });
        let before = pep.counter("flows_accepted");
        ip(bed, &format!("rule del {rule}"));
        wait_until("pepd's rules to be back", || first_rules(bed).0 == place);
        wait_until("new connections to be accelerated", || {
            echo_once(&mut connect(bed), b"accelerated");
            pep.counter("flows_accepted") > before
        });
        ip(bed, &format!("route flush table {OTHER_TABLE}"));
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn marks_that_others_set_keep_nothing_from_pepd() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let at = |from: &str, priority: i32| {
            format!(
                "table inet others {{\nchain marks {{\ntype filter hook prerouting priority {priority}\n\
                 iifname \"{from}\" meta mark set 1\n}}\n}}"
            )
        };
        // Before, between and after pepd's own chains, on packets of hosts and on answers of
        // servers.
        let rules = [-310, -200, -100, 0, 500]
            .map(|priority| ["lan0", "wan0"].map(|from| at(from, priority)));
        for (number, rules) in rules.iter().flatten().enumerate() {
            bed.gateway.nft(rules);
            echo_once(&mut connect(bed), b"accelerated");
            bed.gateway.nft("delete table inet others");
            assert_eq!(pep.counter("flows_accepted"), number as u64 + 1, "{rules}");
        }
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn reverse_path_filters_that_look_at_marks_drop_nothing() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        bed.gateway.sysctl("net/ipv4/conf/all/src_valid_mark", "1");
        let pep = bed.start().expect("not direct");
        let filter = |priority: i32| {
            format!(
                "table inet others {{\nchain filter {{\ntype filter hook prerouting priority {priority}\n\
                 icmpv6 type {{ nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }} accept\n\
                 fib saddr . mark . iif oif missing drop\n}}\n}}"
            )
        };
        // Priorities of firewalld (10) and NixOS (-140).
        for (number, priority) in [-140, 10].into_iter().enumerate() {
            bed.gateway.nft(&filter(priority));
            echo_once(&mut connect(bed), b"accelerated");
            bed.gateway.nft("delete table inet others");
            assert_eq!(
                pep.counter("flows_accepted"),
                number as u64 + 1,
                "{priority}"
            );
        }
        pep.wait_idle();
        pep.stop();
    });
}

/// A firewall that drops all input.
const CLOSED: &str = "table inet others {
chain input {
type filter hook input priority 0
iifname \"lan0\" tcp flags & (syn|ack) == syn drop
iifname \"pepd0\" tcp flags & (syn|ack) == syn drop
}
}";

/// Longer than pepd waits for a redirected SYN to arrive, and than the host's next SYN after that
/// takes.
const LOST: Duration = Duration::from_secs(40);

#[test]
fn hosts_get_on_where_a_firewall_drops_what_is_redirected() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start_with(ADMIN).expect("not direct");
        bed.gateway.nft(CLOSED);
        // The default of hosts.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let server = bed.at(Place::Server, PORT);
        let mut passed = bed
            .client
            .dial(&Dial::to(server).limit(LOST))
            .expect("the kernel forwards it");
        echo_once(&mut passed, b"not accelerated");
        // It passed with a repeated SYN. Only several connections raise a suspicion.
        for port in [PORT + 1, PORT + 2, PORT + 3] {
            let server = bed.at(Place::Server, port);
            let _echo = EchoServer::start(bed.server.listen(server));
            let passed = bed.client.dial(&Dial::to(server).limit(LOST));
            passed.expect("the kernel forwards it");
        }
        let logged = pep.log().expect("redirected SYNs do not arrive");
        assert_eq!(logged.level(), "ERROR");
        assert!(
            logged.message().contains("pass unaccelerated"),
            "{}",
            logged.message()
        );
        let named = pep.log().expect("rule of another program");
        assert!(
            named.message().contains("inet others, chain input"),
            "{}",
            named.message()
        );
        echo_once(&mut connect(bed), b"not accelerated");
        assert_eq!(pep.counter("flows_accepted"), 0);
        pep.wait_counter("syns_passed_lost", |syns| syns > 0);
        assert_eq!(pep.counter("interception_losses"), 1);
        let flows = pep.ask(&["flows"]);
        let line = format!(
            "not accelerated: default ({}: {DROPPED} on this machine)",
            family(bed)
        );
        assert!(flows.contains(&line), "{line}: {flows}");
        let status = pep.ask(&["status"]);
        let line = format!(
            "  {}: new flows are not accelerated ({DROPPED}",
            family(bed)
        );
        assert!(status.contains(&line), "{line}: {status}");
        wait_until("the status to count the SYNs", || {
            let status = pep.ask(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).expect("JSON");
            assert_eq!(status["sites"][0]["bypassed"], "interception");
            status["counters"]["syns_passed_lost"].as_u64() > Some(0)
        });

        bed.gateway.nft("delete table inet others");
        // Any repair triggers another attempt at once.
        removed_and_put_back(bed, &pep, |_| ip(bed, "rule del table 5000"));
        pep.log().expect("redirecting connections again");
        echo_once(&mut connect(bed), b"accelerated");
        pep.log().expect("redirected connections arrive again");
        assert_eq!(pep.counter("flows_accepted"), 1);
        drop(passed);
        pep.wait_idle();
        pep.stop();
    });
}

/// Longer than pepd waits for a sign that SYNs arrive; a host retransmits its SYN three times by
/// then.
const HALF_OPEN: Duration = Duration::from_secs(13);

#[test]
fn a_host_that_leaves_handshakes_open_makes_no_loss() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        bed.client.nft(
            "table inet deaf {\nchain input {\ntype filter hook input priority 0\n\
             tcp flags & (syn|ack) == (syn|ack) drop\n}\n}",
        );
        let server = Dial::to(bed.at(Place::Server, PORT)).limit(HALF_OPEN);
        bed.client.dial(&server).expect_err("no answer is heard");
        assert!(pep.counter("syns_passed_lost") == 0 && pep.counter("interception_losses") == 0);
        bed.client.nft("delete table inet deaf");
        echo_once(&mut connect(bed), b"accelerated");
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_host_whose_syns_the_kernel_drops_makes_no_loss() {
    matrix_pepd_only(|bed| {
        if bed.path != Way::Spoof {
            // pepd itself reads held SYNs.
            return;
        }
        let _echo = echo_server(bed);
        let site = "[[site]]\nname = \"all\"\non_interception_loss = \"block\"\n";
        let pep = bed.start_past_forward(site).expect("not direct");
        let (gateway, client) = (bed.family.address(1, 1), bed.family.address(1, 2));
        let to = bed.at(Place::Server, PORT);
        for port in 20_000..20_005 {
            let from = SocketAddr::new(client, port);
            send_damaged(&bed.client, gateway, &Segment::opening(from, to));
        }
        pep.log().expect("redirected SYNs were not answered");
        assert_eq!(pep.counter("interception_losses"), 0);
        echo_once(&mut connect(bed), b"accelerated");
        assert_eq!(pep.counter("flows_accepted"), 1);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_site_may_block_what_would_go_unprotected() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let site = "[[site]]\nname = \"all\"\non_interception_loss = \"block\"\n";
        let pep = bed.start_with(&format!("{site}{ADMIN}"));
        let pep = pep.expect("not direct");
        bed.gateway.nft(CLOSED);
        // The default of hosts.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let server = bed.at(Place::Server, PORT);
        let blocked = bed
            .client
            .dial(&Dial::to(server).limit(Duration::from_secs(20)));
        assert!(blocked.is_err(), "it went out of this machine unprotected");
        let logged = pep.log().expect("redirected SYNs do not arrive");
        assert!(
            logged.message().contains("are blocked"),
            "{}",
            logged.message()
        );
        pep.wait_counter("syns_blocked_lost", |syns| syns > 0);
        assert_eq!(pep.counter("syns_passed_lost"), 0);
        let flows = pep.ask(&["flows"]);
        let line = format!("; blocked: all ({}: {DROPPED} on this", family(bed));
        assert!(flows.contains(&line), "{line}: {flows}");
        assert!(flows.contains("not accelerated: none now"), "{flows}");
        bed.gateway.nft("delete table inet others");
        pep.stop();
    });
}

#[test]
fn switching_ipv6_off_leaves_ipv4_alone() {
    matrix_pepd_only(|bed| {
        if bed.family == Family::V6 {
            return;
        }
        let _echo = echo_server(bed);
        let pep = bed.start().expect("not direct");
        let mut open = connect(bed);
        echo_once(&mut open, b"before");
        bed.gateway.sysctl("net/ipv6/conf/lo/disable_ipv6", "1");
        pep.log().expect("IPv6 is switched off");
        echo_once(&mut open, b"open");
        echo_once(&mut connect(bed), b"new");
        bed.gateway.sysctl("net/ipv6/conf/lo/disable_ipv6", "0");
        pep.log().expect("IPv6 is switched on again");
        echo_once(&mut open, b"open");
        echo_once(&mut connect(bed), b"new");
        assert_eq!(pep.counter("flows_accepted"), 3);
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn a_bridge_that_is_filtered_too_early_is_named_and_hosts_get_on() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let gateway = &bed.gateway;
        let (address, key) = match bed.family {
            Family::V4 => ("10.1.0.1/24", "net.bridge.bridge-nf-call-iptables"),
            Family::V6 => ("fd01::1/64", "net.bridge.bridge-nf-call-ip6tables"),
        };
        if !gateway.enter(|| Path::new("/proc/sys/net/bridge").exists()) {
            eprintln!("not tried: this kernel has no br_netfilter");
            return;
        }
        gateway.ip("link add br0 type bridge");
        gateway.ip(&format!("address del {address} dev {LAN}"));
        gateway.ip(&format!("link set {LAN} master br0"));
        gateway.ip(&format!("address add {address} dev br0 nodad"));
        gateway.ip("link set br0 up");
        wait_until("the bridge to have its own address", || {
            let routes = gateway.ip("-6 route show table local");
            routes.contains("anycast fe80:: dev br0 ")
        });
        gateway.sysctl(key, "1");
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let config = bed.config("").expect("not direct").replace(LAN, "br0");
        let pep = Pep::start(gateway, &config);
        let server = bed.at(Place::Server, PORT);
        let mut stream = bed
            .client
            .dial(&Dial::to(server).limit(LOST))
            .expect("hosts get on");
        echo_once(&mut stream, b"hello");
        if bed.path == pepd_tests::bed::Path::Spoof {
            pep.log()
                .expect(&format!("br0 is a bridge, and with {key}"));
            assert_eq!(pep.counter("flows_accepted"), 0);
        } else {
            assert_eq!(pep.counter("flows_accepted"), 1);
        }
        drop(stream);
        pep.wait_idle();
        pep.stop();
    });
}

/// Connections continue as without pepd, and the log gives the reason.
#[test]
fn a_deleted_tun_is_named() {
    matrix_pepd_only(|bed| {
        if bed.path != Way::Defer {
            return;
        }
        let _echo = echo_server(bed);
        let mut pep = bed.start_with(ADMIN).expect("not direct");
        echo_once(&mut connect(bed), b"accelerated");
        bed.gateway.ip("link delete pepd0");
        echo_once(&mut connect(bed), b"passes");
        let found = findings(bed, &pep, "TUN devices", "fail");
        assert!(found.contains("has lost pepd0"), "{found}");
        pep.terminate_at_once();
    });
}

/// An operator saves all rules with pepd's among them, and restores them after a change of pepd's
/// configuration; or removes some of pepd's.
#[test]
fn rules_of_a_saved_rule_set_are_replaced_by_those_of_the_configuration() {
    shared(|| {
        let bed = Bed::new(Way::Spoof, Family::V4);
        let _echo = echo_server(&bed);
        let pep = bed.start_with("").expect("not direct");
        let list = |arguments: &[&str]| bed.gateway.run("nft", arguments);
        let saved = list(&["-s", "list", "ruleset"]);
        pep.stop();
        let bypass = format!(
            "[[site]]\nname = \"one\"\nmode = \"bypass\"\nmatch = {{ dport = [{PORT}] }}\n"
        );
        let pep = bed.start_with(&bypass).expect("not direct");
        // Without references to objects that change, such as counters and handles.
        let table = || list(&["-s", "list", "table", "inet", "pepd"]);
        let sites = || list(&["-s", "list", "chain", "inet", "pepd", "sites"]);
        let (whole, own) = (table().lines().count(), sites());
        let restored = |script: &str| {
            let begin = pep.log().position();
            bed.gateway.nft(script);
            let logged = pep.log().find(begin, PATIENCE, |event| {
                event
                    .message()
                    .contains("another program has changed rules")
            });
            assert_eq!(logged.expect("a line").level(), "WARN");
            wait_until("the rules are those of the configuration", || {
                sites() == own && table().lines().count() == whole
            });
        };
        restored(&format!("flush ruleset\n{saved}"));
        restored(&saved);
        restored("flush chain inet pepd to_hosts");
        restored("insert rule inet pepd sites tcp dport 99 accept");
        echo_once(&mut connect(&bed), b"bypassed");
        assert_eq!(pep.counter("flows_accepted"), 0);
        pep.stop();
    });
}
