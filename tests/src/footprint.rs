//! The state of a machine that a daemon changes, and must restore.

use std::{collections::BTreeSet, fs, path::PathBuf};

use crate::host::Host;

/// Rules, routes, interfaces and settings of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    lines: BTreeSet<String>,
}

impl Footprint {
    /// Records the present state.
    ///
    /// # Panics
    /// When a program to list it is missing.
    pub fn measure(host: &Host) -> Self {
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
        add("setting", &host.enter(settings));
        Self { lines }
    }

    /// Returns the lines that differ, `+` for this one and `-` for the other.
    pub fn difference(&self, other: &Self) -> Vec<String> {
        let more = self.lines.difference(&other.lines);
        let less = other.lines.difference(&self.lines);
        more.map(|line| format!("+ {line}"))
            .chain(less.map(|line| format!("- {line}")))
            .collect()
    }
}

/// Settings of an interface that interception might change.
const SETTINGS: [&str; 5] = [
    "accept_local",
    "forwarding",
    "route_localnet",
    "rp_filter",
    "src_valid_mark",
];

/// Returns the settings of all interfaces in the calling thread's namespace, and of TCP.
fn settings() -> String {
    let mut paths = vec!["/proc/sys/net/ipv4/ip_forward".into()];
    for family in ["ipv4", "ipv6"] {
        for interface in entries(&format!("/proc/sys/net/{family}/conf")) {
            paths.extend(SETTINGS.map(|name| interface.join(name)));
        }
    }
    // The registered congestion controls are the same in all namespaces, and pepds of other tests
    // register some.
    let of_tcp = |path: &PathBuf| {
        let path = path.to_string_lossy();
        path.contains("/tcp_") && !path.ends_with("/tcp_available_congestion_control")
    };
    paths.extend(entries("/proc/sys/net/ipv4").into_iter().filter(of_tcp));
    let lines = paths.iter().filter_map(|path| {
        // Not every interface has every setting.
        let value = fs::read_to_string(path).ok()?;
        Some(format!("{} = {}", path.display(), value.trim()))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn entries(directory: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(directory).expect("the kernel shows its settings");
    listed.flatten().map(|entry| entry.path()).collect()
}

/// Returns interface names only: states and counters change by themselves.
fn interfaces(host: &Host) -> String {
    let listed = host.ip("-brief link");
    let names = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    names.collect::<Vec<_>>().join("\n")
}
