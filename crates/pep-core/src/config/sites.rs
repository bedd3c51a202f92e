//! `[[site]]`: from the file to checked policies.

use std::time::Duration;

use toml::de::DeValue;
use units::ByteSize;

use super::{
    CongestionName, Custody, IfName, Intercept, Link, Timeouts, congestion, intercept::SYN_WORDS,
    packet,
};
use crate::reading::{
    Findings, Section,
    values::{BitRate, Map, NonEmpty, OneOf, Reading, Size, Span, Switch, WordOr, short, text},
};
use crate::site::{
    Buffer, Class, Close, DscpPolicy, InterceptionLoss, KeepWhen, LinkLeg, Lowat, Matcher, Mode,
    Pacing, Sharing, Site, SiteTable, Source, SynHandling, WhileDown,
    custody::{disk, hold},
    headers::{Dscp, Ports, Prefix},
};

/// The name of the built-in last site.
const FALLBACK: &str = "default";

/// What sites take from the rest of the file.
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
        SiteTable::new(sites, self.defaults(FALLBACK))
    }

    /// Of too many sites none is read: each is compared with all before it, which takes its time.
    fn check_count(&self, sites: usize) -> bool {
        let most = SiteTable::SITES_MAX - 1;
        if sites > most {
            let message = format!("{sites} sites; accepted: 0 to {most}");
            self.findings.error("site", message);
        }
        sites <= most
    }

    fn defaults(&self, name: &str) -> Site {
        Site {
            dedicated: self.link.is_some_and(|link| link.dedicated),
            hold: self.custody.hold,
            ..Site::with_defaults(name, self.intercept.syn, self.timeouts.clone())
        }
    }

    fn read_site(&self, mut section: Section<'_>) -> Site {
        let s = &mut section;
        let d = self.defaults("");
        let stated = s.read("mode", MODES);
        // What is wrong with it is said already; what else is to be said depends on it. Nothing is
        // asked of what is left alone.
        let is_unknown = s.has("mode") && stated.is_none();
        let mode = match is_unknown {
            true => Mode::Bypass,
            false => stated.unwrap_or(d.mode),
        };
        let mut site = Site {
            name: s.require("name", SiteName).unwrap_or_default(),
            matcher: self.read_matcher(s.section("match"), mode),
            mode,
            congestion: s.list("congestion", name()).unwrap_or_default(),
            congestion_lan: s.list("congestion_lan", name()).unwrap_or(d.congestion_lan),
            dedicated: s.read("dedicated", Switch).unwrap_or(d.dedicated),
            rtt0: s.read("rtt0", rtt0()).unwrap_or(d.rtt0),
            link_leg: s.read("link_leg", LINK_LEGS).unwrap_or(d.link_leg),
            source: s.read("source", SOURCES).unwrap_or(d.source),
            syn: s.read("syn", SYN_WORDS).unwrap_or(d.syn),
            dscp: s
                .read(
                    "dscp",
                    WordOr("keep", DscpPolicy::Keep, Map(Dscp, DscpPolicy::Set)),
                )
                .unwrap_or(d.dscp),
            nodelay_lan: s.read("nodelay_lan", Switch).unwrap_or(d.nodelay_lan),
            nodelay_link: s.read("nodelay_link", Switch).unwrap_or(d.nodelay_link),
            mss: s.read("mss", short(88..=32_767)),
            timeouts: self.read_timeouts(s),
            notsent_lowat: s.read("notsent_lowat", lowat()).unwrap_or(d.notsent_lowat),
            pacing: s.read("pacing", pacing()).unwrap_or(d.pacing),
            share: s.read("share", SHARINGS).unwrap_or(d.share),
            link_buffer: s.read("link_buffer", buffer()).unwrap_or(d.link_buffer),
            lan_buffer: s.read("lan_buffer", buffer()).unwrap_or(d.lan_buffer),
            peer: self.read_peer(s),
            class: s.read("class", CLASSES).unwrap_or(d.class),
            compress: s.read("compress", Switch).unwrap_or(d.compress),
            custody: d.custody,
            hold: s.read("hold", hold()).unwrap_or(d.hold),
            disk: s.read("disk", disk()),
            close: s.read("close", CLOSES).unwrap_or(d.close),
            while_down: s.read("while_down", WHILE_DOWN).unwrap_or(d.while_down),
            on_interception_loss: s
                .read("on_interception_loss", INTERCEPTION_LOSS)
                .unwrap_or(d.on_interception_loss),
            packet: None,
        };
        let by_class = match site.class {
            Class::DelayTolerant => KeepWhen::Always,
            _ => d.custody,
        };
        site.custody = s.read("custody", KEEP_WHEN).unwrap_or(by_class);
        if !is_unknown {
            check_tunnel(s, &mut site);
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

    fn check_custody(&self, section: &Section<'_>, site: &Site) {
        if site.close == Close::Early && site.mode != Mode::Tunnel {
            let message = "\"early\" needs mode \"tunnel\": flows that are split are not in custody long enough for it; accepted here: \"confirmed\"";
            section.error("close", message);
        }
        for key in ["custody", "hold", "disk"] {
            if site.mode != Mode::Tunnel && section.has(key) {
                let message =
                    "has no effect: only mode \"tunnel\" keeps bytes while the link is away";
                section.warning(key, message);
            } else if key == "disk" && section.has(key) && self.custody.folder.is_none() {
                let message = "has no effect: `custody.folder` is missing, so nothing goes to disk";
                section.warning(key, message);
            }
        }
    }

    fn read_timeouts(&self, site: &mut Section<'_>) -> Timeouts {
        let mut section = site.section("timeouts");
        if !section.is_present() {
            return self.timeouts.clone();
        }
        let timeouts = Timeouts::read(&mut section, self.timeouts, self.link);
        section.finish();
        timeouts
    }

    /// A peer matters to tunnels only, but a name that is wrong now will be wrong then.
    fn read_peer(&self, section: &mut Section<'_>) -> Option<String> {
        let peer = section.read("peer", NonEmpty("the name of a [peer.NAME] section"))?;
        if !self.peers.contains(&peer) {
            let known = if self.peers.is_empty() {
                "none".to_owned()
            } else {
                self.peers.join(", ")
            };
            section.error(
                "peer",
                format!("there is no [peer.{peer}]; peers in this file: {known}"),
            );
        }
        Some(peer)
    }

    fn read_matcher(&self, mut section: Section<'_>, mode: Mode) -> Matcher {
        let s = &mut section;
        let mut matcher = Matcher {
            protocol: Vec::new(),
            src: s.list("src", Prefix).unwrap_or_default(),
            dst: s.list("dst", Prefix).unwrap_or_default(),
            sport: s.list("sport", Ports).unwrap_or_default(),
            dport: s.list("dport", Ports).unwrap_or_default(),
            dscp: s.list("dscp", Dscp).unwrap_or_default(),
            interface: s
                .list("interface", text::<IfName>("the name of an interface"))
                .unwrap_or_default(),
        };
        packet::read_protocols(s, mode, &mut matcher);
        self.check_interfaces(&section, &matcher.interface);
        section.finish();
        matcher
    }

    fn check_interfaces(&self, section: &Section<'_>, names: &[IfName]) {
        let lan = &self.intercept.lan;
        if lan.is_empty() {
            return; // already an error, and everything would follow from it
        }
        for name in names.iter().filter(|name| !lan.contains(name)) {
            let known: Vec<_> = lan.iter().map(IfName::as_str).collect();
            section.error(
                "interface",
                format!(
                    "`{name}` is not in `intercept.lan`; accepted: {}",
                    known.join(", ")
                ),
            );
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
                        "\"{}\" is already the site of line {line}; accepted: a name of its own",
                        site.name
                    ),
                );
            }
        }
    }

    /// First match wins, so a site behind a wider one is dead text.
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
                        "never matches: \"{}\" stands before it and takes all of it",
                        wider.name
                    ),
                );
            }
        }
    }
}

/// What a tunnel needs, and what only a tunnel has.
fn check_tunnel(section: &Section<'_>, site: &mut Site) {
    if site.mode != Mode::Tunnel {
        if section.has("class") && site.mode != Mode::Packet {
            let message = "has no effect: only modes \"tunnel\" and \"packet\" have classes";
            section.warning("class", message);
        }
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
            "\"defer\" has no effect on site \"{}\": flows in a tunnel begin without a round trip, so mode \"tunnel\" \
             answers SYNs at once, and hosts see a server that refuses as a reset after the connect; accepted \
             without a warning: `syn = \"spoof\"` for this site",
            site.name
        );
        section.warning("syn", message);
    }
    // Also what is split while the peer is gone.
    site.syn = SynHandling::Spoof;
}

/// What is only of use to some.
fn check_while_down(section: &Section<'_>, site: &Site) {
    for key in ["while_down", "on_interception_loss"] {
        if site.mode == Mode::Bypass && section.has(key) {
            section.warning(key, "has no effect: mode \"bypass\" takes no flows");
        }
    }
    if site.while_down == WhileDown::Refuse && site.syn == SynHandling::Defer {
        section.error(
            "while_down",
            "\"refuse\" needs `syn = \"spoof\"`: with \"defer\" a SYN is not answered before the server has, so that there \
             is nobody to refuse; accepted with it: custody, bypass",
        );
    }
}

const WHILE_DOWN: OneOf<WhileDown> = OneOf(&[
    ("custody", WhileDown::Custody),
    ("refuse", WhileDown::Refuse),
    ("bypass", WhileDown::Bypass),
]);
const INTERCEPTION_LOSS: OneOf<InterceptionLoss> = OneOf(&[
    ("pass", InterceptionLoss::Pass),
    ("block", InterceptionLoss::Block),
]);
const CLASSES: OneOf<Class> = OneOf(&[
    ("interactive", Class::Interactive),
    ("normal", Class::Normal),
    ("bulk", Class::Bulk),
    ("delay_tolerant", Class::DelayTolerant),
]);
const CLOSES: OneOf<Close> = OneOf(&[("confirmed", Close::Confirmed), ("early", Close::Early)]);
const KEEP_WHEN: OneOf<KeepWhen> = OneOf(&[
    ("never", KeepWhen::Never),
    ("outage", KeepWhen::Outage),
    ("always", KeepWhen::Always),
]);
const LINK_LEGS: OneOf<LinkLeg> =
    OneOf(&[("server", LinkLeg::Server), ("client", LinkLeg::Client)]);
const SHARINGS: OneOf<Sharing> = OneOf(&[("fair", Sharing::Fair), ("off", Sharing::Off)]);
const SOURCES: OneOf<Source> = OneOf(&[("client", Source::Client), ("self", Source::Self_)]);

fn name() -> impl Reading<Value = CongestionName> {
    text("the name of a congestion control")
}

fn rtt0() -> impl Reading<Value = Duration> {
    Span(Duration::from_millis(1)..=Duration::from_secs(1))
}

fn lowat() -> impl Reading<Value = Lowat> {
    let bytes = Size(ByteSize::kib(4)..=ByteSize::mib(64));
    let bytes = WordOr("off", Lowat::Off, Map(bytes, Lowat::Bytes));
    WordOr("auto", Lowat::Auto, bytes)
}

fn buffer() -> impl Reading<Value = Buffer> {
    let size = Size(ByteSize::kib(4)..=ByteSize::mib(1024));
    WordOr("auto", Buffer::Auto, Map(size, Buffer::Bytes))
}

fn pacing() -> impl Reading<Value = Pacing> {
    let rate = WordOr("off", Pacing::Off, Map(BitRate, Pacing::Rate));
    WordOr("auto", Pacing::Auto, rate)
}

const MODES: OneOf<Mode> = OneOf(&[
    ("split", Mode::Split),
    ("tunnel", Mode::Tunnel),
    ("packet", Mode::Packet),
    ("bypass", Mode::Bypass),
    ("block", Mode::Block),
]);

/// The name of a site: it stands in logs and counters, so it has no blanks.
struct SiteName;

impl Reading for SiteName {
    type Value = String;

    fn expected(&self) -> String {
        "a name of 1 to 64 letters, digits, `-`, `_` or `.`".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<String, String> {
        let name = self.text_of(value)?;
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(valid) {
            return Err(format!("`{name}` is not {}", self.expected()));
        }
        Ok(name.to_owned())
    }
}
