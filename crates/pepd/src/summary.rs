//! Output of `pepd check` for a valid configuration: its effective values.

mod custody;
mod packets;

use std::{
    fmt::{self, Display, Write as _},
    path::Path,
    time::Duration,
};

use pep_core::{
    config::{Config, CongestionName, OnPeerLoss, Peer, RulesBy, Timeouts},
    site::{
        Buffers, Class, Clear, DscpPolicy, LinkLeg, Mode, ReceiveBuffer, Site, SiteId, Source,
        SynHandling,
    },
};
use pepd_api::text;
use pepd_sys::{congestion::Catalogue, keys};
use units::duration;

/// Effective values of a configuration, as text of several lines.
pub struct Summary<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Congestion controls of this machine, if known.
    pub catalogue: Option<&'a Catalogue>,
    /// True if the kernel limits retransmission timeouts ([`pepd_sys::socket::has_rto_max`]).
    pub rto_max: bool,
    /// True if another process could take over flows on this machine
    /// ([`pepd_relay::survive::keeper::are_useful`]); `None` if untested.
    pub survives: Option<bool>,
    /// State of the custody directory, if inspected ([`pepd_tunnel::custody::inspect`]).
    pub directory: Option<String>,
}

impl Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.intercept(f)?;
        self.link(f)?;
        self.limits(f)?;
        line(f, "timeouts", &timeouts(&self.config.timeouts))?;
        line(
            f,
            "",
            &format!("drain {}", duration::format(self.config.drain)),
        )?;
        if !self.rto_max {
            line(
                f,
                "",
                &"rto_max has no effect on this kernel: it needs Linux 6.15",
            )?;
        }
        self.custody(f)?;
        self.admin(f)?;
        self.peers(f)?;
        writeln!(f, "\nsites, first match wins:")?;
        self.config
            .sites
            .iter()
            .try_for_each(|(id, site)| self.site(f, id, site))
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, value: &dyn Display) -> fmt::Result {
    writeln!(f, "{name:<11} {value}")
}

fn detail(f: &mut fmt::Formatter<'_>, name: &str, value: &dyn Display) -> fmt::Result {
    writeln!(f, "     {name:<11} {value}")
}

impl Summary<'_> {
    fn intercept(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let intercept = &self.config.intercept;
        let (lan, table) = (list(&intercept.lan), &intercept.table);
        let rules = match intercept.rules {
            RulesBy::Auto => format!("nft table `{table}`, or iptables"),
            RulesBy::Nft => format!("nft table `{table}`"),
            RulesBy::Iptables => "chains of iptables".to_owned(),
            RulesBy::Manual => "rules of the operator".to_owned(),
        };
        let (first, last) = self.config.listen_ports().into_inner();
        let ports = if first == last {
            format!("port {first}")
        } else {
            format!("ports {first} to {last}, one per site")
        };
        line(
            f,
            "intercept",
            &format!("connections arriving on {lan}; {rules}"),
        )?;
        line(f, "", &format!("redirected to 127.0.0.1 and ::1, {ports}"))
    }

    fn link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(link) = &self.config.link else {
            return line(
                f,
                "link",
                &"not configured: buffers autotuned by the kernel, no pacing",
            );
        };
        let rate = link
            .rate
            .map_or("unknown rate".to_owned(), |rate| rate.to_string());
        let rtt = link.rtt.map_or("unknown".to_owned(), duration::format);
        let rate = match link.rate_down {
            Some(down) => format!("sends {rate}, receives {down}"),
            None => rate,
        };
        let bdp = link.bandwidth_delay_product();
        let bdp = bdp.map_or("bandwidth-delay product unknown".to_owned(), |bytes| {
            format!("bandwidth-delay product {}", text::bytes(bytes))
        });
        line(
            f,
            "link",
            &format!("{}, {rate}, round trip {rtt}, {bdp}", link.interface),
        )?;
        self.link_watch(f)
    }

    fn limits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let l = &self.config.limits;
        let per_host = match l.flows_per_host(l.flows) {
            Some(most) => format!(", {most} per host"),
            None => String::new(),
        };
        let rings = format!(
            "{} flows{per_host}; ring buffers of {} to {} per direction, {} in total",
            l.flows, l.ring_initial, l.ring_max, l.memory
        );
        let held = format!(
            "{} held SYNs, {} per source, {} per destination; {} new ones a second, {} per source; up to {} descriptors",
            l.held,
            l.held_per_source,
            l.held_per_destination,
            l.held_rate,
            l.held_rate_per_source,
            self.config.descriptors_needed()
        );
        line(f, "limits", &rings)?;
        line(f, "", &held)
    }

    fn site(&self, f: &mut fmt::Formatter<'_>, id: SiteId, site: &Site) -> fmt::Result {
        writeln!(f, "{:>3}. {}", id.index() + 1, site.name)?;
        detail(f, "match", &matcher(site))?;
        if !site.mode.takes_flows() {
            return detail(f, "mode", &packets::mode(site));
        }
        detail(f, "mode", &self.mode(id, site))?;
        let leg = self.link_leg(site);
        let leg = match site.mode {
            Mode::Tunnel => format!("of flows that are split: {leg}"),
            _ => leg,
        };
        detail(f, "link leg", &leg)?;
        detail(f, "host leg", &self.host_leg(site))?;
        self.while_down_text(f, site)?;
        if site.clear == Clear::Never {
            detail(
                f,
                "clear",
                &"never: packets outside of the tunnel are dropped",
            )?;
        }
        if site.timeouts != self.config.timeouts {
            detail(f, "timeouts", &timeouts(&site.timeouts))?;
        }
        match site.dscp {
            DscpPolicy::Keep => Ok(()),
            DscpPolicy::Set(dscp) => detail(f, "dscp", &dscp),
        }
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(identity) = &self.config.identity else {
            return Ok(());
        };
        line(f, "identity", &own_key(&identity.key_file))?;
        let by = peers_come_by(self.config);
        let listen = match identity.listen {
            Some(address) => format!("peers connect by {by} at {address}"),
            None => format!("tunnels by {by}: this end calls its peers and needs no open port"),
        };
        line(f, "", &listen)?;
        let threads = self.config.tunnel_threads();
        if threads > 1 {
            line(f, "", &format!("{threads} threads share the peers"))?;
        }
        for (index, peer) in self.config.peers.iter().enumerate() {
            line(f, if index == 0 { "peers" } else { "" }, &described(peer))?;
            if let Some(reach) = reach(peer) {
                line(f, "", &format!("  {reach}"))?;
            }
        }
        Ok(())
    }

    fn mode(&self, id: SiteId, site: &Site) -> String {
        let port = self.config.listen_port(id);
        let (syn, source) = (syn(site.syn), source(site.source));
        let Some(peer) = self.config.peer_of(id).map(|peer| &self.config.peers[peer]) else {
            let class = match site.class {
                class if class == Class::Normal || !site.shares(self.config.link.as_ref()) => {
                    String::new()
                }
                class => format!(", class {class}"),
            };
            return format!("split{class}, port {port}, {syn}, {source}");
        };
        let else_ = match peer.on_peer_loss {
            OnPeerLoss::Split => "split",
            OnPeerLoss::Hold => "held",
            OnPeerLoss::Bypass => "forwarded by the kernel",
        };
        let (name, class) = (&peer.name, site.class);
        let compressed = if site.compress { ", compressed" } else { "" };
        format!(
            "tunnel to {name}, class {class}{compressed}; {else_} while the peer is down; port {port}, {source}"
        )
    }

    fn link_leg(&self, site: &Site) -> String {
        let link = self.config.link.as_ref();
        let side = match site.link_leg {
            LinkLeg::Server => "to the server",
            LinkLeg::Client => "to the client",
        };
        let mut text = format!("{side}; congestion {}", self.congestion(&site.congestion));
        text += &buffers(site.link_buffers(link));
        if let Some(rate) = site.pacing_rate(link) {
            let shared = if site.shares(link) {
                " shared by all flows"
            } else {
                ""
            };
            write!(text, "; paced at {rate}{shared}").expect("writing to a string");
        }
        if let Some(bytes) = site.unsent_max(link) {
            write!(text, "; at most {bytes} unsent in the kernel").expect("writing to a string");
        }
        if let Some(mss) = site.mss {
            write!(text, "; MSS {mss}").expect("writing to a string");
        }
        text + nagle(site.nodelay_link)
    }

    fn host_leg(&self, site: &Site) -> String {
        let congestion = self.congestion(&site.congestion_lan);
        format!(
            "congestion {congestion}{}{}",
            buffers(site.lan_buffers()),
            nagle(site.nodelay_lan)
        )
    }

    /// Describes the configured congestion controls, and the one that will be used.
    fn congestion(&self, wanted: &[CongestionName]) -> String {
        let Some(catalogue) = self.catalogue else {
            return match wanted {
                [] => "the kernel's default".to_owned(),
                [only] => only.to_string(),
                wanted => format!("first available of {}", list(wanted)),
            };
        };
        match (wanted, catalogue.choose(wanted).chosen) {
            ([], _) => format!("{} (this kernel's default)", catalogue.default()),
            ([_], Some((chosen, means))) => format!("{chosen} ({means})"),
            (_, Some((chosen, means))) => {
                format!("{chosen} ({means}; first available of: {})", list(wanted))
            }
            // Reported as an error before.
            (_, None) => format!("none of {}", list(wanted)),
        }
    }
}

fn buffers(buffers: Buffers) -> String {
    let send = match buffers.send {
        Some(bytes) => text::bytes(bytes),
        None => "autotuned".to_owned(),
    };
    let receive = match buffers.receive {
        ReceiveBuffer::System => "autotuned".to_owned(),
        ReceiveBuffer::Fixed(bytes) => text::bytes(bytes),
        ReceiveBuffer::Grown(bytes) => format!("autotuned up to {}", text::bytes(bytes)),
    };
    format!("; send buffer {send}, receive buffer {receive}")
}

fn nagle(nodelay: bool) -> &'static str {
    if nodelay { "" } else { "; Nagle's algorithm" }
}

fn syn(syn: SynHandling) -> &'static str {
    match syn {
        SynHandling::Spoof => "SYNs answered at once",
        SynHandling::Defer => "SYNs answered after the server's answer",
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Client => "the server sees the client's address",
        Source::Self_ => "the server sees this machine's address",
    }
}

/// Describes the file with the local private key, and the public key for peers if the file is
/// readable.
fn own_key(path: &Path) -> String {
    let public = keys::read(path).map(|key| keys::public_key(&key));
    let public = public.map(|public| format!(", public key {public}"));
    format!("{}{}", path.display(), public.unwrap_or_default())
}

/// Returns the transports by which peers can connect. Without a configured address pepd does not
/// listen for TCP.
fn peers_come_by(config: &Config) -> &'static str {
    match config.peers_port() {
        Some(_) => "UDP and TCP",
        None => "UDP",
    }
}

fn described(peer: &Peer) -> String {
    let called = match &peer.endpoint {
        Some(endpoint) => format!("at {endpoint}"),
        None => "initiates connections".to_owned(),
    };
    let rate = peer
        .rate
        .map_or("measured rate".to_owned(), |rate| rate.to_string());
    let rtt = peer.rtt.map_or("unknown".to_owned(), duration::format);
    let psk = if peer.psk_file.is_some() {
        ", with a preshared key"
    } else {
        ""
    };
    let dedicated = if peer.dedicated {
        ", dedicated link"
    } else {
        ""
    };
    let lost = duration::format(peer.lost_after);
    let name = &peer.name;
    format!(
        "{name}: {called}{psk}, {rate}{dedicated}, round trip {rtt}, down after {lost} of silence"
    )
}

/// Describes the configured limits of what a peer may do here, if there are some.
fn reach(peer: &Peer) -> Option<String> {
    let none = |text: String| match text.is_empty() {
        true => "nothing".to_owned(),
        false => text,
    };
    let from = peer.from.as_deref().map(list).map(none);
    let to = peer.to.as_deref().map(list).map(none);
    let parts = [
        from.map(|from| format!("speaks for {from}")),
        to.map(|to| format!("reaches {to}")),
        (peer.flows == Some(0)).then(|| "opens no flows".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn list<T: Display>(items: &[T]) -> String {
    items
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

fn matcher(site: &Site) -> String {
    let matcher = &site.matcher;
    // Sites that take flows match TCP only.
    let protocols = match site.mode.takes_flows() {
        true => String::new(),
        false => list(&matcher.protocol),
    };
    let parts = [
        ("protocol", protocols),
        ("src", list(&matcher.src)),
        ("dst", list(&matcher.dst)),
        ("sport", list(&matcher.sport)),
        ("dport", list(&matcher.dport)),
        ("dscp", list(&matcher.dscp)),
        ("interface", list(&matcher.interface)),
    ];
    let stated = parts.iter().filter(|(_, values)| !values.is_empty());
    let stated: Vec<_> = stated
        .map(|(name, values)| format!("{name} {values}"))
        .collect();
    if stated.is_empty() {
        "everything".to_owned()
    } else {
        stated.join("; ")
    }
}

fn timeouts(t: &Timeouts) -> String {
    let or_off = |span: Option<Duration>| span.map_or("off".to_owned(), duration::format);
    let keepalive = match t.keepalive.own {
        None if t.keepalive.passes => "passed".to_owned(),
        None => "off".to_owned(),
        Some(keepalive) => {
            let (idle, interval) = (keepalive.idle, keepalive.interval);
            let [idle, interval] = [idle, interval].map(duration::format);
            format!("after {idle} every {interval}, {} times", keepalive.count)
        }
    };
    format!(
        "connect {}, idle {}, user_timeout {}, rto_max {}, rto_min {}, orphan {}, keepalive {keepalive}",
        duration::format(t.connect),
        or_off(t.idle),
        or_off(t.user_timeout),
        or_off(t.rto_max),
        or_off(t.rto_min),
        duration::format(t.orphan),
    )
}
