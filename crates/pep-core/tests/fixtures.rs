//! Fixtures in `config/`: each file has its stated result.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use pep_core::config::{self, Config, Link};
use units::Rate;

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../config")
        .join(name)
}

fn files(name: &str) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory(name)).expect("the directory exists");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let files: Vec<_> = paths
        .map(|path| (path.clone(), fs::read_to_string(path).expect("readable")))
        .collect();
    assert!(!files.is_empty(), "no files in {name}");
    files
}

fn valid(text: &str) -> Config {
    config::parse(text).unwrap_or_else(|errors| panic!("{errors:#?}"))
}

#[test]
fn valid_files_load_without_a_warning() {
    for (path, text) in files("valid").into_iter().chain(files("examples")) {
        let config = config::parse(&text);
        let config = config.unwrap_or_else(|errors| panic!("{}: {errors:#?}", path.display()));
        assert!(
            config.warnings.is_empty(),
            "{}: {:?}",
            path.display(),
            config.warnings
        );
    }
}

/// Former names of keys load with a warning each, and `with_present_names` gives the file back.
#[test]
fn former_names_load_with_a_warning_that_names_the_new_one() {
    let renamed = [
        ("directory = ", "folder = ", "custody.folder", "`directory`"),
        (
            "other_routes = ",
            "elsewhere = ",
            "link.elsewhere",
            "`other_routes`",
        ),
    ];
    let mut met = [false; 2];
    for (path, text) in files("valid").into_iter().chain(files("examples")) {
        let mut former = text.clone();
        for (name, old, ..) in renamed {
            former = former.replace(&format!("\n{name}"), &format!("\n{old}"));
        }
        let config = valid(&former);
        for (index, (name, _, key, new)) in renamed.into_iter().enumerate() {
            if text.contains(&format!("\n{name}")) {
                let warnings = config.warnings.iter();
                let of_key =
                    warnings.filter(|found| found.key == key && found.message.contains(new));
                assert_eq!(
                    of_key.count(),
                    1,
                    "{}: {:?}",
                    path.display(),
                    config.warnings
                );
                met[index] = true;
            }
        }
        assert_eq!(
            config::with_present_names(&former).unwrap(),
            text,
            "{}",
            path.display()
        );
    }
    assert_eq!(met, [true; 2]);
    let both = "[intercept]\nlan = \"eth0\"\n[custody]\nfolder = \"a\"\ndirectory = \"b\"\n";
    let errors = config::parse(both).unwrap_err();
    assert_eq!(errors[0].key, "custody.folder");
    assert!(
        errors[0].message.contains("former name of `directory`"),
        "{errors:?}"
    );
}

/// Each file begins with one line `# expect: LINE KEY SUBSTRING` per error.
#[test]
fn invalid_files_fail_with_exactly_the_errors_they_announce() {
    for (path, text) in files("invalid") {
        let path = path.display();
        let expected: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# expect: "))
            .collect();
        let errors = config::parse(&text).expect_err(&format!("{path} loads"));
        assert_eq!(errors.len(), expected.len(), "{path}: {errors:#?}");
        for (expected, error) in expected.iter().zip(&errors) {
            let place = format!("{} {} ", error.line, error.key);
            let substring = expected.strip_prefix(&place);
            let substring = substring.unwrap_or_else(|| panic!("{path}: {expected}, not {error}"));
            assert!(
                error.message.contains(substring),
                "{path}: {expected}, not {error}"
            );
        }
    }
}

/// Warns whether the site or the default sets `defer`.
#[test]
fn a_tunnel_that_cannot_defer_is_warned_of_where_it_stands() {
    let with = |all: &str, own: &str| {
        valid(&format!(
            "[intercept]\nlan = [\"eth0\"]\n{all}\n[identity]\nkey_file = \"k\"\n\
             [peer.hub]\nendpoint = \"192.0.2.1:1\"\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"far\"\nmode = \"tunnel\"\npeer = \"hub\"\n{own}\n"
        ))
        .warnings
    };
    let defer = "syn = \"defer\"";
    for (warnings, line) in [(with("", defer), 13), (with(defer, ""), 9)] {
        let [warning] = warnings.as_slice() else {
            panic!("one warning, not {warnings:?}")
        };
        let about = (warning.line, warning.key.as_str());
        assert_eq!(about, (line, "site[1].syn"), "{warning}");
        assert!(warning.message.contains("site \"far\""), "{warning}");
    }
    assert!(with(defer, "syn = \"spoof\"").is_empty());
}

/// `fec` and `congestion` judge their own conditions themselves.
#[test]
fn a_booster_that_waits_for_nothing_is_warned_of() {
    let warnings = |boost: &str| {
        valid(&format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"k\"\n\
             [peer.hub]\nendpoint = \"192.0.2.1:1\"\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"voice\"\nmode = \"packet\"\npeer = \"hub\"\n\
             match = {{ protocol = \"udp\", dport = 5060 }}\nboost = {{ {boost} }}\n"
        ))
        .warnings
    };
    for (booster, own, other) in [
        ("fec", "loss_above = 0.01", "queue_above = \"9ms\""),
        ("congestion", "queue_above = \"9ms\"", "loss_above = 0.01"),
    ] {
        for stated in ["after = \"5s\"", &format!("{own}, after = \"5s\"")] {
            let found = warnings(&format!("{booster} = {{ {stated} }}"));
            let [warning] = found.as_slice() else {
                panic!("one warning, not {found:?}")
            };
            assert_eq!(warning.key, format!("site[1].boost.{booster}.after"));
        }
        for stated in ["after = \"2s\"", &format!("{other}, after = \"5s\"")] {
            let found = warnings(&format!("{booster} = {{ {stated} }}"));
            assert!(found.is_empty(), "{found:?}");
        }
    }
    // Boosters without a condition of their own.
    for booster in ["arq", "snoop", "jitter"] {
        let found = warnings(&format!("{booster} = {{ after = \"5s\" }}"));
        let [warning] = found.as_slice() else {
            panic!("one warning, not {found:?}")
        };
        assert_eq!(warning.key, format!("site[1].boost.{booster}.after"));
        let with = format!("{booster} = {{ after = \"5s\", loss_above = 0.01 }}");
        assert!(warnings(&with).is_empty());
    }
}

/// Each site is compared with those before it; a refused file must not cost a minute.
#[test]
fn of_too_many_sites_none_is_read() {
    let sites = "[[site]]\nmode = 7\n".repeat(1024);
    let errors = config::parse(&format!("[intercept]\nlan = [\"eth0\"]\n{sites}"));
    let errors = errors.expect_err("too many");
    let [error] = errors.as_slice() else {
        panic!("one error, not {}", errors.len())
    };
    assert_eq!(error.message, "1024 sites; accepted: 0 to 1023");
}

#[test]
fn retransmissions_wait_for_the_packets_of_a_slow_link() {
    let over = |rate: &str| {
        let link = format!("[link]\ninterface = \"hf0\"\nrtt = \"1s\"\nrate = \"{rate}\"\n");
        let config = valid(&format!("[intercept]\nlan = [\"eth0\"]\n{link}"));
        config.timeouts.rto_max.map(|rto_max| rto_max.as_secs())
    };
    assert_eq!(over("10Mbit/s"), Some(3));
    // 12,000 bytes take 10 s, and more than the kernel allows.
    assert_eq!(over("9600bit/s"), Some(13));
    assert_eq!(over("300bit/s"), Some(120));
}

/// No retransmission cap of the kernel is above such a round-trip time.
#[test]
fn a_link_of_minutes_is_accepted_without_rto_max() {
    let over = |rtt: &str| {
        let link = format!("[link]\ninterface = \"dtn0\"\nrtt = \"{rtt}\"\n");
        valid(&format!("[intercept]\nlan = [\"eth0\"]\n{link}"))
    };
    let (near, far) = (over("119s"), over("10min"));
    assert_eq!(near.timeouts.rto_max, Some(Duration::from_secs(120)));
    assert!(near.warnings.is_empty(), "{:?}", near.warnings);
    assert_eq!(far.timeouts.rto_max, None);
    let [warning] = far.warnings.as_slice() else {
        panic!("one warning, not {:?}", far.warnings)
    };
    assert_eq!((warning.line, warning.key.as_str()), (5, "link.rtt"));
}

/// The example's commented keys are the defaults: with them in force nothing changes.
#[test]
fn the_example_shows_the_defaults() {
    let text = fs::read_to_string(directory("pepd.example.toml")).expect("readable");
    let is_key = |line: &str| {
        let bare = line.strip_prefix('#');
        bare.is_some_and(|bare| bare.starts_with(|c: char| c.is_ascii_lowercase()))
    };
    let in_force: Vec<_> = text
        .lines()
        .map(|line| if is_key(line) { &line[1..] } else { line })
        .collect();
    let config = valid(&text);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(
        text.lines().filter(|line| is_key(line)).count() > 30,
        "hardly any keys shown"
    );
    assert_eq!(valid(&in_force.join("\n")), config);
}

#[test]
fn the_example_of_a_link_sizes_buffers_and_pacing() {
    let text = fs::read_to_string(directory("valid/typical.toml")).expect("readable");
    let config = valid(&text);
    let (_, site) = config.sites.iter().next().expect("a site");
    let link = config.link.as_ref();
    assert_eq!(link.and_then(Link::bandwidth_delay_product), Some(750_000));
    assert_eq!(site.link_buffers(link).send, Some(3_000_000));
    assert_eq!(
        site.pacing_rate(link).map(Rate::bits_per_second),
        Some(10_000_000)
    );
    assert_eq!(site.link_buffers(None).send, None);
    assert_eq!(site.pacing_rate(None), None);
}

#[test]
fn a_site_behind_a_wider_one_is_pointed_out() {
    let text = "[intercept]\nlan = [\"eth0\"]\n\
        [[site]]\nname = \"wide\"\nmatch = { dport = [\"1-1000\", \"1001-2000\"] }\n\
        [[site]]\nname = \"dead\"\nmatch = { src = \"10.0.0.0/8\", dport = \"900-1100\" }\n\
        [[site]]\nname = \"alive\"\nmatch = { dport = \"900-2001\" }\n\
        [[site]]\nname = \"mixed\"\nmatch = { src = \"10.0.0.0/8\", dst = \"2001:db8::/32\" }\n";
    let warnings = valid(text).warnings;
    let found: Vec<_> = warnings
        .iter()
        .map(|warning| (warning.line, warning.key.as_str()))
        .collect();
    assert_eq!(found, [(6, "site[2]"), (12, "site[4]")]);
    assert!(warnings[0].message.contains("\"wide\""), "{}", warnings[0]);
}

#[test]
fn an_unused_rtt0_is_pointed_out() {
    let with = |congestion: &str| {
        let site = format!("[[site]]\nname = \"a\"\ncongestion = {congestion}\nrtt0 = \"10ms\"\n");
        valid(&format!("[intercept]\nlan = [\"eth0\"]\n{site}")).warnings
    };
    assert!(with("[\"bbr\", \"hybla\"]").is_empty());
    let warnings = with("[\"bbr\"]");
    let [warning] = warnings.as_slice() else {
        panic!("one warning, not {warnings:?}")
    };
    assert_eq!((warning.line, warning.key.as_str()), (6, "site[1].rtt0"));
}

#[test]
fn hybla_sat_without_a_rate_is_pointed_out() {
    let with = |link: &str, site: &str| {
        let site = format!("[[site]]\nname = \"a\"\ncongestion = [\"hybla_sat\"]\n{site}");
        valid(&format!("[intercept]\nlan = [\"eth0\"]\n{link}{site}")).warnings
    };
    let link = "[link]\ninterface = \"sat0\"\n";
    let rate = format!("{link}rate = \"10Mbit/s\"\n");
    assert!(with(&rate, "").is_empty());
    assert!(with(link, "pacing = \"1Mbit/s\"\n").is_empty());
    let off = "pacing = \"off\"\n";
    for (link, site) in [("", ""), (link, ""), (&rate, off)] {
        let warnings = with(link, site);
        let [warning] = warnings.as_slice() else {
            panic!("one warning, not {warnings:?}")
        };
        assert_eq!(warning.key, "site[1].congestion");
    }
}

#[test]
fn a_slow_round_trip_raises_the_cap_on_retransmissions() {
    let text = "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"hf0\"\nrtt = \"4s\"\n";
    let config = valid(text);
    assert_eq!(config.timeouts.rto_max, Some(Duration::from_secs(12)));
    let (_, site) = config.sites.iter().next().expect("the built-in site");
    assert_eq!(site.timeouts, config.timeouts);
}

#[test]
fn the_cap_on_retransmissions_goes_with_the_user_timeout() {
    let text = "[intercept]\nlan = [\"eth0\"]\n[timeouts]\nuser_timeout = \"off\"\n";
    assert_eq!(valid(text).timeouts.rto_max, None);
    let short = text.replace("off", "1s");
    assert_eq!(valid(&short).timeouts.rto_max, Some(Duration::from_secs(1)));
}

#[test]
fn what_the_drawings_of_deployments_say_is_accepted() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/deployment.md");
    let page = fs::read_to_string(path).unwrap();
    let blocks: Vec<_> = page.split("```toml\n").skip(1).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let (text, _) = block.split_once("```").unwrap();
        assert!(valid(text).warnings.is_empty(), "{text}");
    }
}

#[test]
fn a_one_armed_site_of_packets_in_both_directions_is_pointed_out() {
    let with = |lan: &str, matches: &str| {
        let text = format!(
            "[intercept]\nlan = [\"{lan}\"]\n[link]\ninterface = \"eth0\"\n[identity]\nkey_file = \"k\"\n\
             [peer.hub]\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\nendpoint = \"192.0.2.1:1\"\n\
             [[site]]\nname = \"a\"\nmode = \"packet\"\npeer = \"hub\"\nmatch = {{ {matches} }}\n"
        );
        let warnings = valid(&text).warnings.into_iter();
        warnings.map(|warning| warning.key).collect::<Vec<_>>()
    };
    assert_eq!(with("eth0", "protocol = \"icmp\""), ["site[1].match"]);
    let none: [&str; 0] = [];
    assert_eq!(with("eth0", "src = \"10.0.0.0/8\""), none);
    assert_eq!(with("eth1", "protocol = \"icmp\""), none);
}

/// Warnings for a site of packets toward a peer that is half a second away.
fn doubts(site: &str) -> Vec<(String, String)> {
    let text = format!(
        "[intercept]\nlan = [\"eth1\"]\n[link]\ninterface = \"eth0\"\nrtt = \"500ms\"\n[identity]\nkey_file = \"k\"\n\
         [peer.hub]\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\nendpoint = \"192.0.2.1:1\"\n\
         [[site]]\nname = \"a\"\nmode = \"packet\"\npeer = \"hub\"\n{site}\n"
    );
    let warnings = valid(&text).warnings.into_iter();
    warnings
        .map(|warning| (warning.key, warning.message))
        .collect()
}

#[test]
fn boosters_that_can_do_nothing_are_pointed_out() {
    let one = |boost: &str| {
        let mut all = doubts(&format!("match = {{ dport = 1 }}\nboost = {{ {boost} }}"));
        assert!(all.len() <= 1, "{all:?}");
        all.pop().map(|(key, _)| key)
    };
    let key = |key: &str| Some(format!("site[1].boost.{key}"));
    assert_eq!(one("fec = { overhead_max = 0 }"), key("fec.overhead_max"));
    assert_eq!(
        one("compress = { headers = false, payload = false, level = 9 }"),
        key("compress.payload")
    );
    assert_eq!(one("arq = { wait = \"499ms\" }"), key("arq"));
    for fine in [
        "fec = { overhead_max = 0.01 }",
        "compress = { headers = false }",
        "compress = { payload = false }",
        "arq = { wait = \"500ms\" }",
        "arq = true",
    ] {
        assert_eq!(one(fine), None, "{fine}");
    }
    let by_class = doubts("match = { dport = 1 }\nclass = \"interactive\"\nboost = { arq = true }");
    assert_eq!(by_class.len(), 1);
    assert!(by_class[0].1.contains("250ms"), "{by_class:?}");
}

#[test]
fn a_class_that_orders_nothing_is_pointed_out() {
    let warnings = |link: &str, site: &str| {
        let text = format!(
            "[intercept]\nlan = [\"eth1\"]\n[link]\ninterface = \"eth0\"\n{link}\n\
             [[site]]\nname = \"a\"\nmatch = {{ dport = 1 }}\nclass = \"interactive\"\n{site}\n"
        );
        let warnings = valid(&text).warnings.into_iter();
        let warnings = warnings.map(|warning| (warning.key, warning.message));
        warnings.collect::<Vec<_>>()
    };
    let stated = "rate = \"10Mbit/s\"";
    assert_eq!(warnings(stated, ""), []);
    for (link, site, wanted) in [
        ("", "", "`link.rate` is stated"),
        (stated, "share = \"off\"", "`share = \"fair\"`"),
        (stated, "pacing = \"1Mbit/s\"", "`pacing = \"auto\"`"),
        (stated, "mode = \"bypass\"", "have no classes"),
    ] {
        let [(key, message)] = &warnings(link, site)[..] else {
            panic!("one warning: {link} {site}")
        };
        assert_eq!(key, "site[1].class");
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn other_traffic_counts_on_an_interface_without_hosts() {
    let counted = |lan: &str| {
        let text = format!(
            "[intercept]\nlan = [{lan}]\n[link]\ninterface = \"eth0\"\nrate = \"10Mbit/s\"\n"
        );
        let config = valid(&text);
        assert!(config.shares_link());
        config.counted_interface().map(str::to_owned)
    };
    assert_eq!(counted("\"eth1\"").as_deref(), Some("eth0"));
    assert_eq!(counted("\"eth0\""), None);
    assert_eq!(counted("\"eth1\", \"eth0\""), None);
    let without_rate = valid("[intercept]\nlan = [\"eth1\"]\n[link]\ninterface = \"eth0\"\n");
    assert!(!without_rate.shares_link());
}

#[test]
fn a_site_of_all_packets_is_pointed_out() {
    let [(key, message)] = &doubts("")[..] else {
        panic!("one warning")
    };
    assert_eq!(key, "site[1].mode");
    assert!(message.contains("every packet"), "{message}");
    for narrower in [
        "protocol = 47",
        "src = \"10.0.0.0/8\"",
        "dport = 1",
        "dscp = 46",
    ] {
        assert_eq!(
            doubts(&format!("match = {{ {narrower} }}")),
            [],
            "{narrower}"
        );
    }
}

/// Warnings for a site of mode `boost`, by key.
fn doubts_of_boost(link: &str, site: &str) -> Vec<String> {
    let text = format!(
        "[intercept]\nlan = [\"eth1\"]\n[link]\ninterface = \"eth0\"\n{link}\n\
         [[site]]\nname = \"a\"\nmode = \"boost\"\n{site}\n"
    );
    let warnings = valid(&text).warnings.into_iter();
    warnings.map(|warning| warning.key).collect()
}

#[test]
fn boosters_that_can_do_nothing_without_a_peer_are_pointed_out() {
    let none: [&str; 0] = [];
    let rates = "rate = \"1Mbit/s\"\nrate_down = \"20Mbit/s\"";
    for (boost, unstated) in [
        ("snoop = true", None),
        ("checksum = true, data_filter = true, divacks = true", None),
        ("ack_filter = true", Some("ack_filter")),
        ("congestion = true", Some("congestion")),
        ("snoop = { queue_above = \"1s\" }", Some("snoop")),
        ("snoop = { asymmetry_above = 3 }", Some("snoop")),
    ] {
        let site = format!("boost = {{ {boost} }}");
        assert_eq!(doubts_of_boost(rates, &site), none, "{boost}");
        let unstated: Vec<_> = unstated
            .map(|key| format!("site[1].boost.{key}"))
            .into_iter()
            .collect();
        assert_eq!(doubts_of_boost("", &site), unstated, "{boost}");
    }
    let of_loss = "boost = { snoop = { loss_above = \"1%\" } }";
    assert_eq!(doubts_of_boost(rates, of_loss), ["site[1].boost.snoop"]);
    assert_eq!(doubts_of_boost(rates, ""), ["site[1].boost"]);
}

#[test]
fn keys_of_peers_have_no_effect_without_one() {
    let site = "class = \"bulk\"\nboost = { snoop = true }\n\
                packet = { deadline = \"1s\", queue = \"1MiB\", join = false, mss_clamp = false, on_peer_loss = \"drop\" }\n\
                congestion = \"reno\"";
    let mut found = doubts_of_boost("rate = \"1Mbit/s\"", site);
    found.sort_unstable();
    let keys = [
        "congestion",
        "packet.join",
        "packet.mss_clamp",
        "packet.on_peer_loss",
    ];
    assert_eq!(found, keys.map(|key| format!("site[1].{key}")));
}
