//! Conversion of settings of PEPsal into a configuration of pepd.
//!
//! - [`options`]: its command line and settings files
//! - [`rules`]: the redirections that an operator set up for it
//! - [`draft`]: the resulting TOML, with remarks
//!
//! This module only converts text; the command line selects its sources.

pub mod draft;
pub mod options;
pub mod rules;

pub use draft::Draft;

/// Error of a conversion.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MigrateError {
    /// The interface of the hosts is unknown; with the remarks so far.
    #[error(
        "on which interfaces do hosts' connections arrive? Pass them as `--lan eth0`, or pass the \
         rules that redirect to PEPsal: `iptables-save -t mangle | pepd migrate --rules -`{0}"
    )]
    NoLan(String),
    /// The command line is malformed.
    #[error("{0}: not a command line: a quote is missing")]
    Quotes(String),
    /// The result is invalid: the errors, and the text of the result.
    #[error("the result is not a valid configuration:\n{0}\nResult:\n{1}")]
    Invalid(String, String),
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &str = r#"
# Port to which PEPsal listens
port="5000"
max_conns="512"
gc_interval="54000"
debug=true
fastopen="false"
mss=
congestion_control=hybla
log_file="/var/log/pepsal/connections.log"
"#;

    const IPTABLES: &str = "\
*mangle
:PREROUTING ACCEPT [0:0]
-A PREROUTING -p tcp -m socket -j DIVERT
-A PREROUTING -s 10.1.0.0/16 -i eth1 -p tcp -m multiport --dports 80,443,8000:8100 -j TPROXY --on-port 5000 --on-ip 0.0.0.0 --tproxy-mark 0x1/0xffffffff
-A PREROUTING -i eth2 -p tcp -m tcp --dport 25 -j TPROXY --on-port 5000 --on-ip 0.0.0.0 --tproxy-mark 0x1/0xffffffff
-A DIVERT -j MARK --set-xmark 0x1/0xffffffff
COMMIT
";

    const NFT: &str = r#"
table inet mangle {
	chain INTERCEPT {
		meta protocol ip meta l4proto tcp tproxy ip to 127.0.0.1:5000 meta mark set ct mark accept
	}
	chain PREROUTING {
		type filter hook prerouting priority mangle; policy accept;
		ct mark 201 accept
		iifname "lan0" meta l4proto tcp ct mark set 200 jump INTERCEPT
		iifname "lan1" tcp dport { 80, 443 } jump INTERCEPT
		iifname "dmz" counter accept
	}
}
"#;

    /// Rules of 2.0.
    const PEPSAL_NFT: &str = r#"flush ruleset

table inet mangle {
	chain INTERCEPT {
		meta protocol ip meta l4proto tcp tproxy ip to 127.0.0.1:5000 meta mark set ct mark accept
		meta protocol ip6 meta l4proto tcp tproxy ip6 to [::1]:5000 meta mark set ct mark accept
	}

	chain PREROUTING {
		type filter hook prerouting priority mangle; policy accept;
		ct mark 0x000000c9 accept
		ct mark 0x000000c8 jump INTERCEPT
		iifname "eth0" meta l4proto tcp ct count 2000 ct mark set 0x000000c8 jump INTERCEPT
		ct mark set 0x000000c9 accept
	}
}
"#;

    fn config(draft: &Draft) -> pep_core::config::Config {
        let text = draft.to_toml().unwrap();
        pep_core::config::parse(&text).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
    }

    #[test]
    fn a_command_line_becomes_a_configuration() {
        let mut draft = Draft::default();
        draft.lan.insert("eth0".to_owned());
        options::command_line(
            "/usr/bin/pepsal -dv -p5001 -c 512 -C hybla -m 1200 -g 54000 -s eth0",
            &mut draft,
        )
        .unwrap();
        let config = config(&draft);
        let (_, site) = config.sites.iter().next().unwrap();
        assert_eq!(site.name, "pepsal");
        let text = draft.to_toml().unwrap();
        for line in [
            "lan = [\"eth0\"]",
            "listen_port = 5001",
            "flows = 512",
            "congestion = [\"hybla\", \"cubic\"]",
            "mss = 1200",
            "source = \"self\"",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        for remark in ["# - `-v`", "# - `-g 54000`", "# - `-s eth0`"] {
            assert!(text.contains(remark), "{remark}\n{text}");
        }
    }

    fn text_of_command(command: &str) -> String {
        let mut draft = Draft::default();
        draft.lan.insert("eth0".to_owned());
        options::command_line(command, &mut draft).unwrap();
        config(&draft);
        draft.to_toml().unwrap()
    }

    #[test]
    fn long_options_are_those_with_one_letter() {
        let long = "pepsal --daemon --verbose --port 5001 --conns=512 --congestion-algo hybla --max-segment-size 1200 \
                    --gc-interval 54000 --plifetime=18000 --quickack --nodelay --cork --threads 4 --sniff-interface eth0";
        let short =
            "pepsal -d -v -p 5001 -c 512 -C hybla -m 1200 -g 54000 -t 18000 -q -n -k -T 4 -s eth0";
        assert_eq!(text_of_command(long), text_of_command(short));
        // Other spellings: those of early 2.0, and abbreviations.
        let text = text_of_command("pepsal --max_segment_size=1200 --cong hybla --co 9 --port");
        assert!(
            text.contains("mss = 1200") && text.contains("[\"hybla\", \"cubic\"]"),
            "{text}"
        );
        // `--co` abbreviates three options.
        assert!(
            text.contains("`--co`: not an option") && text.contains("`--port`: its value"),
            "{text}"
        );
    }

    #[test]
    fn source_addresses_follow_the_version_of_pepsal() {
        let source = |draft: &Draft| {
            let (_, site) = config(draft)
                .sites
                .iter()
                .next()
                .map(|(id, site)| (id, site.clone()))
                .unwrap();
            site.source
        };
        use pep_core::site::Source;
        let mut draft = Draft::default();
        draft.lan.insert("eth0".to_owned());
        assert_eq!(source(&draft), Source::Self_);
        assert!(draft.to_toml().unwrap().contains("pepsal -V"));
        // An option of 1.8, which queued SYNs.
        options::command_line("pepsal -d -q 3", &mut draft).unwrap();
        assert_eq!(source(&draft), Source::Client);
        let mut draft = Draft::default();
        draft.lan.insert("eth0".to_owned());
        rules::rules(
            "-A PREROUTING -i eth0 -p tcp -j NFQUEUE --queue-num 0",
            &mut draft,
        );
        assert_eq!(source(&draft), Source::Client);
    }

    #[test]
    fn connections_from_the_link_get_link_leg_client() {
        let both = "-A PREROUTING -i lan0 -p tcp -j TPROXY --on-port 5000\n\
                    -A PREROUTING -i sat0 -p tcp -j TPROXY --on-port 5000";
        let narrow = "-A PREROUTING -i lan0 -p tcp --dport 80 -j TPROXY --on-port 5000\n\
                      -A PREROUTING -i sat0 -p tcp --dport 443 -j TPROXY --on-port 5000";
        let only = "-A PREROUTING -i sat0 -p tcp -j TPROXY --on-port 5000";
        for (rules, clients) in [
            (both, vec![true, false]),
            (narrow, vec![false, true, false]),
            (only, vec![true]),
        ] {
            let mut draft = Draft {
                link: Some("sat0".to_owned()),
                ..Draft::default()
            };
            rules::rules(rules, &mut draft);
            let text = draft.to_toml().unwrap();
            let sites = text.split("[[site]]").skip(1);
            let found: Vec<_> = sites
                .map(|site| site.contains("link_leg = \"client\""))
                .collect();
            assert_eq!(found, clients, "{text}");
            config(&draft);
        }
        // Without --link the interface of the link is unknown.
        let mut draft = Draft::default();
        rules::rules(both, &mut draft);
        let text = draft.to_toml().unwrap();
        assert!(
            text.contains("with --link") && !text.contains("\nlink_leg"),
            "{text}"
        );
    }

    #[test]
    fn a_unit_has_settings_among_other_things() {
        let mut draft = Draft::default();
        draft.lan.insert("eth0".to_owned());
        options::variables(
            "# Drop-in\n[Unit]\nAfter=connmonitor.service\nWants=nftables.service\n\n[Service]\n\
             Environment=\"port=5001\" \"max_conns=512\"\nEnvironment=\"nodelay=false\"\n# Environment=\"mss=400\"\n\
             ExecStart=/usr/bin/pepsal -d -m 1200\n[Install]\nWantedBy=multi-user.target\n",
            &mut draft,
        );
        assert_eq!(
            (draft.listen_port, draft.flows, draft.mss),
            (Some(5001), Some(512), Some(1200))
        );
        assert_eq!(draft.remarks, [""; 0]);
        // Variables of the init script of 1.8.
        options::variables("DAEMON_OPTS=\"-c 300 -C bbr\"\nDAEMON_ARGS=", &mut draft);
        assert_eq!(
            (draft.flows, draft.congestion.as_deref()),
            (Some(300), Some("bbr"))
        );
        assert_eq!(draft.remarks, [""; 0]);
    }

    #[test]
    fn the_nft_file_of_2_0_is_understood_whole() {
        let mut draft = Draft::default();
        rules::rules(PEPSAL_NFT, &mut draft);
        let text = draft.to_toml().unwrap();
        assert!(
            text.contains("lan = [\"eth0\"]") && text.contains("flows = 2000"),
            "{text}"
        );
        assert!(
            !text.contains("LEFT OUT") && !text.contains("let pass"),
            "{text}"
        );
        let config = config(&draft);
        let sites: Vec<_> = config
            .sites
            .iter()
            .map(|(_, site)| site.name.as_str())
            .collect();
        assert_eq!(sites, ["pepsal", "default"]);
        // `ct count over`, and marks that no rule sets, are not supported.
        for rule in ["ct count over 2000", "ct mark 7"] {
            let rules =
                format!("chain x {{\niifname \"eth0\" {rule} meta l4proto tcp tproxy to :5000");
            let (matches, remarks) = migrated(&rules);
            assert!(
                matches.is_empty() && remarks.contains("LEFT OUT"),
                "{remarks}"
            );
        }
    }

    #[test]
    fn settings_and_rules_become_sites() {
        let mut draft = Draft::default();
        options::variables(SETTINGS, &mut draft);
        rules::rules(IPTABLES, &mut draft);
        assert_eq!(draft.flows, Some(512));
        let config = config(&draft);
        let names: Vec<_> = config
            .sites
            .iter()
            .map(|(_, site)| site.name.as_str())
            .collect();
        assert_eq!(names, ["pepsal-1", "pepsal-2", "others", "default"]);
        let text = draft.to_toml().unwrap();
        let matched = "match = { interface = [\"eth1\"], src = [\"10.1.0.0/16\"], dport = [80, 443, \"8000-8100\"] }";
        assert!(
            text.contains(matched) && text.contains("lan = [\"eth1\", \"eth2\"]"),
            "{text}"
        );
    }

    #[test]
    fn rules_of_nft_may_jump() {
        let mut draft = Draft::default();
        rules::rules(NFT, &mut draft);
        assert_eq!(draft.lan.iter().collect::<Vec<_>>(), ["lan0", "lan1"]);
        assert!(
            draft
                .redirects
                .iter()
                .any(|redirect| redirect.dport == ["80", "443"]),
            "{draft:?}"
        );
        config(&draft);
    }

    /// Returns the matches of the sites made from rules, and the remarks.
    fn migrated(rules: &str) -> (Vec<String>, String) {
        let mut draft = Draft::default();
        rules::rules(rules, &mut draft);
        draft.lan.insert("eth1".to_owned());
        let text = draft.to_toml().unwrap();
        let matches = text.lines().filter(|line| line.starts_with("match"));
        let matches = matches.map(ToOwned::to_owned).collect();
        assert!(config(&draft).sites.iter().count() > 0);
        (matches, draft.remarks.join("\n"))
    }

    #[test]
    fn rules_with_negations_are_left_out() {
        for rule in [
            "-A PREROUTING ! -i eth0 -p tcp -j TPROXY --on-port 5000",
            "-A PREROUTING -i ! eth0 -p tcp -j TPROXY --on-port 5000",
            "-A PREROUTING -i eth1 -p tcp -m tcp ! --dport 22 -j TPROXY --on-port 5000",
            "-A PREROUTING ! -d 10.0.0.0/8 -i eth1 -p tcp -j TPROXY --on-port 5000",
            "-A PREROUTING -i eth1 -p tcp -m addrtype ! --dst-type LOCAL -j TPROXY --on-port 5000",
            "-A PREROUTING -i eth1 -m conntrack --ctstate NEW -j TPROXY --on-port 5000",
            "-A PREROUTING -i eth+ -p tcp -j TPROXY --on-port 5000",
            "-A PREROUTING -i eth1 -d nowhere -p tcp -j TPROXY --on-port 5000",
            "chain x {\niifname != \"eth0\" meta l4proto tcp tproxy to :5000",
            "chain x {\niifname \"eth1\" tcp dport != 22 tproxy ip to 127.0.0.1:5000",
            "chain x {\niifname \"eth1\" ip daddr @local meta l4proto tcp tproxy to :5000",
            "chain x {\niifname { \"eth1\", \"eth2\" } meta l4proto tcp tproxy to :5000",
        ] {
            let (matches, remarks) = migrated(rule);
            assert_eq!(matches, [""; 0], "{rule}");
            let line = rule.lines().last().unwrap();
            assert!(
                remarks.contains("LEFT OUT") && remarks.contains(line),
                "{remarks}"
            );
            let mut draft = Draft::default();
            rules::rules(rule, &mut draft);
            draft.lan.insert("eth1".to_owned());
            // The result accelerates nothing that the rule did not.
            let config = config(&draft);
            assert!(config.sites.iter().all(|(_, site)| {
                site.name == "default" || site.mode == pep_core::site::Mode::Bypass
            }));
        }
    }

    #[test]
    fn matches_of_jumps_restrict_their_chains() {
        let (matches, _) = migrated(
            "-A PREROUTING -i eth1 -j PEP\n-A PEP -p tcp -m tcp --dport 443 -j TPROXY --on-port 5000",
        );
        assert_eq!(matches, ["match = { dport = [443] }"]);
        let (matches, remarks) = migrated(
            "chain PEP {\nip daddr { 10.0.0.0/8, 192.0.2.1 } return\ntcp dport { 80, 8000-8100 } tproxy ip to 127.0.0.1:5000 accept\n}\n\
             chain PREROUTING {\niifname \"eth1\" ip saddr 10.1.0.0/16 counter packets 1 bytes 60 jump PEP\n}",
        );
        assert_eq!(
            matches,
            ["match = { src = [\"10.1.0.0/16\"], dport = [80, \"8000-8100\"] }"]
        );
        assert!(remarks.contains("let pass"), "{remarks}");
        let (matches, remarks) = migrated(
            "-A PREROUTING -i eth1 -p tcp --dport 443 -j PEP\n-A PEP -p tcp --dport 80 -j TPROXY",
        );
        assert_eq!((matches.len(), remarks.contains("narrows")), (0, true));
        // Chains that jump in a loop.
        migrated("-A A -j B\n-A B -j A\n-A C -i eth1 -j A\n-A A -p tcp -j TPROXY");
    }

    #[test]
    fn there_may_be_thousands_of_rules() {
        let rules = (0..3000).map(|port| {
            format!(
                "-A PREROUTING -i eth1 -p tcp --dport {} -j TPROXY\n",
                port + 1
            )
        });
        let (matches, remarks) = migrated(&rules.collect::<String>());
        assert_eq!(matches.len(), 1000);
        assert!(remarks.contains("more than 1000"));
    }

    proptest::proptest! {
        #[test]
        fn any_rules_give_a_valid_configuration(
            lines in proptest::collection::vec(line(), 0..20)
        ) {
            let mut draft = Draft::default();
            rules::rules(&lines.join("\n"), &mut draft);
            draft.lan.insert("eth1".to_owned());
            config(&draft);
        }
    }

    /// Generates words of rules in any order.
    fn line() -> impl proptest::strategy::Strategy<Value = String> {
        use proptest::prelude::*;
        let word = prop::sample::select(
            "-A PREROUTING A B -i eth0 eth1 eth+ ! != -s -d 10.0.0.0/8 0.0.0.0/0 ::/0 x/99 --dport --dports 80 80,443 80:90 90:80 0 \
             99999 -p tcp -j TPROXY A ACCEPT -m comment --comment \"a 'b\\ chain { } , tcp dport ip daddr saddr iifname \"eth1\" tproxy to \
             :5000 jump meta l4proto mark set 1 counter packets 7 accept \u{1b} é"
                .split(' ')
                .collect::<Vec<_>>(),
        );
        prop_oneof![
            prop::collection::vec(word, 0..16).prop_map(|words| words.join(" ")),
            "\\PC{0,40}",
        ]
    }

    #[test]
    fn unknown_settings_get_remarks() {
        let mut draft = Draft::default();
        options::command_line("pepsal --fats -x -c many extra", &mut draft).unwrap();
        options::variables("colour=blue\nnonsense", &mut draft);
        assert!(matches!(draft.to_toml(), Err(MigrateError::NoLan(_))));
        draft.lan.insert("eth0".to_owned());
        let text = draft.to_toml().unwrap();
        for said in [
            "`--fats`",
            "`-x`",
            "`-c many`",
            "`extra`",
            "`colour`",
            "`nonsense`",
        ] {
            assert!(text.contains(said), "{said}\n{text}");
        }
        assert!(options::command_line("pepsal -l 'x", &mut draft).is_err());
        draft.mss = Some(1);
        assert!(matches!(draft.to_toml(), Err(MigrateError::Invalid(..))));
    }
}
