//! `[[site]]`: from the file to checked policies.

use super::{Custody, Intercept, Link, Timeouts, congestion, packet};
use crate::reading::{Findings, Section};
use crate::site::{Close, Given, Mode, Site, SiteTable, SynHandling, WhileDown};

/// The name of the built-in last site.
const FALLBACK: &str = "default";

/// Parts of the configuration that sites refer to.
pub(super) struct Context<'a> {
    pub(super) custody: &'a Custody,
    pub(super) intercept: &'a Intercept,
    pub(super) link: Option<&'a Link>,
    pub(super) timeouts: &'a Timeouts,
    pub(super) peers: &'a [String],
    pub(super) findings: &'a Findings,
}

impl Context<'_> {
    /// Reads all sites, checks them against each other, and adds the built-in one.
    pub(super) fn read_sites(&self, sections: Vec<Section<'_>>) -> SiteTable {
        let mut sites = Vec::new();
        if self.check_count(sections.len()) {
            sites.extend(sections.into_iter().map(|section| self.read_site(section)));
        }
        self.check_ports(&sites);
        self.check_packet_sites(&sites);
        self.check_names(&sites);
        self.check_order(&sites);
        SiteTable::new(sites, Site::built_in(FALLBACK, &self.given()))
    }

    /// Rejects too many sites before any is read: each is compared with all before it, which takes
    /// time.
    fn check_count(&self, sites: usize) -> bool {
        let most = SiteTable::SITES_MAX - 1;
        if sites > most {
            let message = format!("{sites} sites; accepted: 0 to {most}");
            self.findings.error("site", message);
        }
        sites <= most
    }

    fn given(&self) -> Given<'_> {
        Given {
            link: self.link,
            lan: &self.intercept.lan,
            syn: self.intercept.syn,
            timeouts: self.timeouts,
            peers: self.peers,
            hold: self.custody.hold,
        }
    }

    fn read_site(&self, mut section: Section<'_>) -> Site {
        let s = &mut section;
        let stated = s.read("mode", Mode::WORDS);
        // An unreadable `mode` is already reported, and other checks depend on it. Bypassed flows
        // need no checks.
        let is_unknown = s.has("mode") && stated.is_none();
        let mode = match is_unknown {
            true => Mode::Bypass,
            false => stated.unwrap_or(Mode::Split),
        };
        let mut site = Site::read_keys(s, mode, &self.given());
        if !is_unknown {
            check_tunnel(s, &mut site);
            self.check_class(s, &site);
            self.check_custody(s, &site);
            check_while_down(s, &site);
        }
        if site.mode.takes_flows() {
            congestion::check(s, &site, self.link);
        }
        site.packet = packet::read(s, &site);
        section.finish();
        site
    }

    /// Warns about classes that order nothing.
    fn check_class(&self, section: &Section<'_>, site: &Site) {
        if !section.has("class") {
            return;
        }
        let message = match site.mode {
            Mode::Tunnel | Mode::Packet | Mode::Boost => return,
            Mode::Split if site.shares(self.link) => return,
            Mode::Split if self.link.is_none_or(|link| link.rate.is_none()) => {
                "has no effect: mode \"split\" orders flows only where `link.rate` is stated; state it"
            }
            Mode::Split => {
                "has no effect: mode \"split\" orders only flows that share the link; accepted without a warning: \
                 `share = \"fair\"` and `pacing = \"auto\"`"
            }
            Mode::Bypass | Mode::Block => {
                "has no effect: modes \"bypass\" and \"block\" have no classes"
            }
        };
        section.warning("class", message);
    }

    fn check_custody(&self, section: &Section<'_>, site: &Site) {
        if site.close == Close::Early && site.mode != Mode::Tunnel {
            let message = "\"early\" needs mode \"tunnel\": split flows are not in custody long enough; accepted here: \"confirmed\"";
            section.error("close", message);
        }
        for key in ["custody", "hold", "disk"] {
            if site.mode != Mode::Tunnel && section.has(key) {
                let message =
                    "has no effect: only mode \"tunnel\" holds bytes while the link is down";
                section.warning(key, message);
            } else if key == "disk" && section.has(key) && self.custody.directory.is_none() {
                let message =
                    "has no effect: `custody.directory` is missing, so nothing goes to disk";
                section.warning(key, message);
            }
        }
    }

    fn check_ports(&self, sites: &[Site]) {
        let first = self.intercept.listen_port;
        let highest = usize::from(u16::MAX) - sites.len();
        if usize::from(first) > highest {
            let own = match sites.len() {
                1 => "a site and the built-in one".to_owned(),
                n => format!("{n} sites and the built-in one"),
            };
            self.findings.error(
                "intercept.listen_port",
                format!(
                    "{first} leaves no port for each of {own}; accepted: 1 to {highest}, since \
                     each has a port, counted from this one"
                ),
            );
        }
    }

    fn check_names(&self, sites: &[Site]) {
        for (index, site) in sites
            .iter()
            .enumerate()
            .filter(|(_, site)| !site.name.is_empty())
        {
            let key = format!("site[{}].name", index + 1);
            if site.name == FALLBACK {
                let message = "\"default\" is the built-in last site; accepted: any other name";
                self.findings.error(&key, message);
            }
            if let Some(first) = sites[..index]
                .iter()
                .position(|other| other.name == site.name)
            {
                let line = self.findings.line_of(&format!("site[{}].name", first + 1));
                self.findings.error(
                    &key,
                    format!(
                        "\"{}\" is already the name of the site in line {line}; accepted: a unique name",
                        site.name
                    ),
                );
            }
        }
    }

    /// Warns about sites that can never match, as the first match wins.
    fn check_order(&self, sites: &[Site]) {
        for (index, site) in sites.iter().enumerate() {
            let key = format!("site[{}]", index + 1);
            if site.matcher.is_impossible() {
                let message =
                    "never matches: `src`, `dst` and `protocol` have no address family in common";
                self.findings.warning(&key, message);
            }
            let earlier = &sites[..index];
            if let Some(wider) = earlier
                .iter()
                .find(|other| other.matcher.covers(&site.matcher))
            {
                self.findings.warning(
                    &key,
                    format!(
                        "never matches: the earlier site \"{}\" takes all of its flows",
                        wider.name
                    ),
                );
            }
        }
    }
}

/// Checks requirements of tunnels, and keys that only tunnels have.
fn check_tunnel(section: &Section<'_>, site: &mut Site) {
    if site.mode != Mode::Tunnel {
        if site.compress {
            let message = "has no effect: only mode \"tunnel\" compresses";
            section.warning("compress", message);
        }
        return;
    }
    if !section.has("peer") {
        section.error(
            "peer",
            "missing: mode \"tunnel\" needs the name of a [peer.NAME] section",
        );
    }
    if site.syn == SynHandling::Defer {
        let message = format!(
            "\"defer\" has no effect on site \"{}\": mode \"tunnel\" answers SYNs at once, and hosts \
             see a refusing server as a reset after the connect; accepted without a warning: `syn = \"spoof\"` for this site",
            site.name
        );
        section.warning("syn", message);
    }
    // Also applies to flows that are split while the peer is down.
    site.syn = SynHandling::Spoof;
}

/// Warns about keys without effect in the site's mode.
fn check_while_down(section: &Section<'_>, site: &Site) {
    for key in ["while_down", "on_interception_loss"] {
        if site.mode == Mode::Bypass && section.has(key) {
            section.warning(key, "has no effect: mode \"bypass\" takes no flows");
        }
    }
    if site.while_down == WhileDown::Refuse && site.syn == SynHandling::Defer {
        section.error(
            "while_down",
            "\"refuse\" needs `syn = \"spoof\"`: with \"defer\" no flow is accepted that could be \
             refused; accepted with it: custody, bypass",
        );
    }
}
