//! What PEPsal was told, as a configuration of ours.
//!
//! - [`options`], its command line and its settings files
//! - [`rules`], the redirections that were made for it by hand
//! - [`draft`], what comes of them, as TOML with remarks
//!
//! Nothing here is read or written but text: the command line says what is where.

pub mod draft;
pub mod options;
pub mod rules;

pub use draft::Draft;

/// Why nothing can be made of it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MigrateError {
    /// Nobody says where hosts are.
    #[error(
        "on which interfaces do hosts' connections arrive? Give them as `--lan eth0`, or the rules that redirect to PEPsal: \
         `iptables-save -t mangle | pepd migrate --rules -`"
    )]
    NoLan,
    /// It is no command line.
    #[error("{0}: not a command line: a quote is missing")]
    Quotes(String),
    /// What comes of it is not valid: a value that we do not accept.
    #[error("what comes of it is not a valid configuration:\n{0}")]
    Invalid(String),
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

    #[test]
    fn what_is_not_understood_is_said() {
        let mut draft = Draft::default();
        options::command_line("pepsal --fast -x -c many extra", &mut draft).unwrap();
        options::variables("colour=blue\nnonsense", &mut draft);
        assert_eq!(draft.to_toml(), Err(MigrateError::NoLan));
        draft.lan.insert("eth0".to_owned());
        let text = draft.to_toml().unwrap();
        for said in [
            "`--fast`",
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
        assert!(matches!(draft.to_toml(), Err(MigrateError::Invalid(_))));
    }
}
