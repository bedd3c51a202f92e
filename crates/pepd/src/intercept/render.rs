//! What would be installed, for people to read (`pepd rules`).

use std::fmt::Write as _;

use pep_core::config::Config;

use super::{
    iptables, nft,
    route::Routing,
    rules::{self, Features, Ruleset},
};

/// How to write the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A file for `nft -f`, with the `ip` commands as comments.
    Nft,
    /// The transaction that `pepd run` gives to `nft -j -f -`.
    Json,
    /// A shell script of iptables, ip6tables and ip commands.
    Iptables,
}

/// The rules for this configuration on a kernel that can do everything.
pub fn render(config: &Config, format: Format) -> String {
    let ruleset = Ruleset::new(config, Features::FULL);
    match format {
        Format::Nft => nft_file(config, &ruleset),
        Format::Json => {
            let transaction = nft::install_transaction(&ruleset);
            format!("{transaction:#}\n")
        }
        Format::Iptables => script(config, &ruleset),
    }
}

fn nft_file(config: &Config, ruleset: &Ruleset) -> String {
    let mut text = String::from(
        "#!/usr/sbin/nft -f\n\
         # What `pepd run` installs, and removes when it ends. Routes and policy rules:\n",
    );
    for command in ip_commands(config) {
        let _ = writeln!(text, "#   {command}");
    }
    for lan in rules::lans(config) {
        if let Some(tun) = lan.tun {
            let name = lan.interface;
            let _ = writeln!(
                text,
                "# {tun} is a TUN device of pepd: SYNs from {name} wait there."
            );
        }
    }
    text + "\n" + &nft::text(ruleset)
}

fn script(config: &Config, ruleset: &Ruleset) -> String {
    let commands = ip_commands(config).join("\n");
    let families = Features::FULL.families();
    let tables = iptables::ruleset(ruleset, families);
    format!(
        "#!/bin/sh\n{}set -e\n{commands}\n{tables}",
        iptables::CAVEATS
    )
}

fn ip_commands(config: &Config) -> Vec<String> {
    let lans = rules::lans(config).into_iter().enumerate();
    let tuns: Vec<_> = lans
        .filter_map(|(number, lan)| Some((number, lan.tun?)))
        .collect();
    Routing::new(config, Features::FULL.families()).commands(&tuns)
}
