//! Readable form of the rules, for `pepd rules`.

use std::fmt::Write as _;

use pep_core::config::{Config, RulesBy};

use super::{
    iptables, nft,
    route::Routing,
    rules::{self, Features, Ruleset},
};

/// Format of the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A file for `nft -f`, with the `ip` commands as comments.
    Nft,
    /// A shell script of iptables, ip6tables and ip commands.
    Iptables,
}

/// Returns the rules of this configuration, for a kernel with all features.
pub fn render(config: &Config, format: Format) -> String {
    match format {
        Format::Nft => nft_file(config, &Ruleset::new(config, Features::FULL)),
        Format::Iptables => script(config),
    }
}

fn nft_file(config: &Config, ruleset: &Ruleset) -> String {
    let mut text = String::from(
        "#!/usr/sbin/nft -f\n\
         # Rules that `pepd run` installs, and removes when it ends. Routes and policy rules:\n",
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
    for lane in rules::lanes(config) {
        let (tun, name) = (lane.tun, &config.sites[lane.site].name);
        let _ = writeln!(
            text,
            "# {tun} is a TUN device of pepd: packets of site {name} go through it."
        );
    }
    if let Some(tun) = rules::passing_tun(config) {
        let _ = writeln!(
            text,
            "# {tun} is a TUN device of pepd: packets of hosts return to the kernel by it, behind boosters or while their peer is down."
        );
    }
    text.push('\n');
    text.push_str(&nft::install_transaction(ruleset));
    if let Some(hold) = Ruleset::clear(config, Features::FULL) {
        text.push_str(
            "\n# Of `clear = \"never\"`: stays when pepd ends. `pepd run` also installs policy rules, writes networks of LAN\n\
             # interfaces into the chain `inside`, and replaces names of input interfaces with indices.\n",
        );
        text.push_str(&nft::install_transaction(&hold));
    }
    text
}

fn script(config: &Config) -> String {
    let commands = match config.intercept.rules {
        // pepd itself installs them.
        RulesBy::Manual => iptables::Commands::default(),
        _ => commands(config),
    };
    let tables = iptables::tables(config, Features::FULL.families());
    let prefix = iptables::prefix(config.intercept.table.as_ref());
    iptables::script(prefix, &tables, &iptables::limits(config), &commands)
}

fn commands(config: &Config) -> iptables::Commands {
    let routing = routing(config);
    let tuns: Vec<_> = tuns(config).into_iter().map(|(_, tun)| tun).collect();
    let mut commands = iptables::Commands {
        install: tuns.iter().map(|tun| make_tun(tun)).collect(),
        remove: routing.removing_commands(),
        checks: String::new(),
    };
    commands.install.extend(ip_commands(config));
    if !tuns.is_empty() {
        commands.checks = TUN_CHECK.to_owned();
    }
    // A TUN that a process has open belongs to that process and stays: EBUSY.
    let unmake = tuns
        .iter()
        .map(|tun| format!("ip tuntap del dev {tun} mode tun"));
    commands.remove.extend(unmake);
    commands
}

const TUN_CHECK: &str = "\
[ -c /dev/net/tun ] || fail 'there is no /dev/net/tun: modprobe tun'
# Held SYNs and packets of sites go into TUN devices, which pepd makes and which end with it. Those that are missing are
# made here, so that routes can lead to them; remove them before `pepd run`, which needs the names.
";

fn make_tun(name: &str) -> String {
    let is_there = format!("ip link show dev {name} >/dev/null 2>&1");
    format!("{is_there} || ip tuntap add dev {name} mode tun\nip link set {name} up")
}

fn routing(config: &Config) -> Routing {
    Routing::new(config, Features::FULL.families())
}

/// Returns the TUNs: number as counted by [`Routing`], and name.
fn tuns(config: &Config) -> Vec<(usize, String)> {
    let lans = rules::lans(config).into_iter().map(|lan| lan.tun);
    let lanes = rules::lanes(config).into_iter().map(|lane| Some(lane.tun));
    let all = lans.chain(lanes).enumerate();
    all.filter_map(|(number, tun)| Some((number, tun?)))
        .collect()
}

fn ip_commands(config: &Config) -> Vec<String> {
    routing(config).commands(&tuns(config))
}
