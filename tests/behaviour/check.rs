//! `pepd check` and `pepd rules`: errors in a file, and planned actions.

use std::{fs, process::Output};

use pepd_tests::{
    bed::{Bed, Family, Path},
    footprint::Footprint,
    matrix::shared,
    pep_binary::pepd,
};

/// The smallest valid configuration.
const SMALLEST: &str = "[intercept]\nlan = [\"lan0\"]\n";

/// Runs a subcommand on a configuration, on the gateway of a bed.
fn run(bed: &Bed, arguments: &[&str], config: &str) -> Output {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let path = directory.path().join("pepd.toml");
    fs::write(&path, config).expect("a temporary file can be written");
    let path = path.to_str().expect("a path that can be printed");
    let mut all = arguments.to_vec();
    all.extend(["--config", path]);
    let program = pepd().to_str().expect("a path that can be printed");
    bed.gateway.output(program, &all)
}

fn bed() -> Bed {
    Bed::new(Path::Direct, Family::V4)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn good_files_pass() {
    let complete = "
        [intercept]
        lan = [\"lan0\"]
        [link]
        interface = \"wan0\"
        rate = \"10Mbit/s\"
        rtt = \"600ms\"
        [limits]
        flows = 1000
        [timeouts]
        connect = \"30s\"
        [log]
        level = \"debug\"
        [[site]]
        name = \"all\"
        match = { src = [\"10.0.0.0/8\"], dport = [80, 443, \"8000-8100\"] }
        mode = \"split\"
        congestion = [\"hybla\", \"cubic\"]";
    shared(|| {
        for config in [SMALLEST, complete] {
            let output = run(&bed(), &["check"], config);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
        }
    });
}

/// A wrong line in a file, and words of the message about it.
struct Mistake {
    line: &'static str,
    words: &'static [&'static str],
}

const MISTAKES: [Mistake; 11] = [
    Mistake {
        line: "limits.flows = 0",
        words: &["limits.flows", "1", "1000000"],
    },
    Mistake {
        line: "limits.flow = 8",
        words: &["limits.flow", "did you mean", "flows"],
    },
    Mistake {
        line: "limits.ring_max = \"100kB\"",
        words: &["limits.ring_max", "power of two", "16"],
    },
    Mistake {
        line: "timeouts.connect = \"0.5s\"",
        words: &["timeouts.connect", "1s", "1h"],
    },
    Mistake {
        line: "timeouts.idle = \"soon\"",
        words: &["timeouts.idle", "soon"],
    },
    Mistake {
        line: "link = { interface = \"wan0\", rate = \"fast\" }",
        words: &["link.rate", "fast", "Mbit/s"],
    },
    Mistake {
        line: "site = [{ name = \"a\", match = { dport = [\"90-80\"] } }]",
        words: &["site[1].match.dport", "90-80"],
    },
    Mistake {
        line: "site = [{ name = \"a\", match = { dscp = [64] } }]",
        words: &["site[1].match.dscp", "63"],
    },
    Mistake {
        line: "site = [{ name = \"a\", mode = \"packet\" }]",
        words: &["site[1].peer", "missing", "packet", "[peer.NAME]"],
    },
    Mistake {
        line: "site = [{ name = \"a\", mode = \"tunnel\" }]",
        words: &["site[1].peer", "missing", "tunnel", "[peer.NAME]"],
    },
    Mistake {
        line: "site = [{ name = \"a\", congestion = [\"no_such_one\"] }]",
        words: &["site[1].congestion", "no_such_one", "cubic"],
    },
];

#[test]
fn bad_files_fail_with_file_line_key_and_what_is_accepted() {
    shared(|| {
        let bed = bed();
        for Mistake { line, words } in MISTAKES {
            // Dotted keys of the root must come first: the mistake is on line 2.
            let config = format!("# a comment\n{line}\n{SMALLEST}");
            let output = run(&bed, &["check"], &config);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{line}: {errors}");
            let found = errors.lines().find(|line| line.contains("pepd.toml:2: "));
            let found = found.unwrap_or_else(|| panic!("{line}: no line number in {errors}"));
            let plain = found.replace([',', '_'], "");
            for word in words {
                let word = word.replace('_', "");
                assert!(plain.contains(&word), "{line}: no `{word}` in {found}");
            }
        }
    });
}

#[test]
fn every_error_of_a_file_is_reported() {
    shared(|| {
        let config = "[intercept]\nlan = []\n[limits]\nflows = 0\nheld = -1\n[[site]]\nmode = 7\n";
        let output = run(&bed(), &["check"], config);
        assert_eq!(output.status.code(), Some(3));
        let errors = text(&output.stderr);
        for place in [":2: ", ":4: ", ":5: ", ":7: "] {
            assert!(
                errors.contains(place),
                "no error for line {place}in {errors}"
            );
        }
    });
}

#[test]
fn a_missing_file_is_an_error_that_names_it() {
    shared(|| {
        let program = pepd().to_str().expect("a path that can be printed");
        let arguments = ["check", "--config", "/nonexistent/pepd.toml"];
        let output = bed().gateway.output(program, &arguments);
        assert_eq!(output.status.code(), Some(3));
        assert!(text(&output.stderr).contains("/nonexistent/pepd.toml"));
    });
}

#[test]
fn checking_changes_nothing() {
    shared(|| {
        let bed = bed();
        let before = Footprint::measure(&bed.gateway);
        for subcommand in [
            &["check"][..],
            &["rules"],
            &["rules", "--format", "iptables"],
        ] {
            let output = run(&bed, subcommand, SMALLEST);
            assert_eq!(output.status.code(), Some(0), "{subcommand:?} {output:?}");
        }
        let changes = Footprint::measure(&bed.gateway).difference(&before);
        assert!(changes.is_empty(), "{changes:#?}");
    });
}

/// Returns nft's list of the rules without random seeds, which differ per table. Printed rules must
/// match installed ones.
fn without_seeds(rules: &str) -> String {
    let mut parts = rules.split(" seed 0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| c.is_ascii_hexdigit())
    })
}

#[test]
fn the_printed_rules_are_those_installed() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let config = bed.config("").expect("not direct");
        let table = ["list", "table", "inet", "pepd"];
        let pep = bed.start().expect("not direct");
        let installed = without_seeds(&bed.gateway.run("nft", &table));
        pep.stop();
        let output = run(&bed, &["rules"], &config);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        bed.gateway.nft(&text(&output.stdout));
        let printed = without_seeds(&bed.gateway.run("nft", &table));
        assert_eq!(printed, installed);
        bed.gateway.run("nft", &["delete", "table", "inet", "pepd"]);
    });
}
