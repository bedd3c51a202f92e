//! What a daemon changes on a machine, to be the same again when it is gone.

use std::collections::BTreeSet;

use crate::host::Host;

/// Rules, routes, interfaces and settings of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    lines: BTreeSet<String>,
}

impl Footprint {
    /// As they are now.
    ///
    /// # Panics
    /// When a program to list them is missing.
    pub fn of(host: &Host) -> Self {
        let mut lines = BTreeSet::new();
        let mut add = |what: &str, text: &str| {
            for line in text.lines() {
                lines.insert(format!("{what}: {}", line.trim()));
            }
        };
        add("nft", &host.run("nft", &["list", "ruleset"]));
        for family in ["-4", "-6"] {
            add("rule", &host.ip(&format!("{family} rule")));
            let routes = host.ip(&format!("{family} route show table all"));
            add("route", &routes);
        }
        add("interface", &interfaces(host));
        add("setting", &host.run("sysctl", &["-a", "-r", SETTINGS]));
        Self { lines }
    }

    /// Lines that are in one of the two only, `+` for this one and `-` for the other.
    pub fn difference(&self, other: &Self) -> Vec<String> {
        let more = self.lines.difference(&other.lines);
        let less = other.lines.difference(&self.lines);
        more.map(|line| format!("+ {line}"))
            .chain(less.map(|line| format!("- {line}")))
            .collect()
    }
}

/// Those that interception may be tempted to touch.
const SETTINGS: &str = r"net\.ipv[46]\.(conf\.[^.]+\.(forwarding|rp_filter|accept_local|route_localnet|src_valid_mark)|ip_forward|tcp_.*)$";

/// Names only: states and counters change by themselves.
fn interfaces(host: &Host) -> String {
    let listed = host.ip("-brief link");
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.collect::<Vec<_>>().join("\n")
}
