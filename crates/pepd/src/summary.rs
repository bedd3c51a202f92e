//! What `pepd check` prints of a valid configuration: the values that will be in effect.

mod custody;
mod packets;

use std::{
    fmt::{self, Display, Write as _},
    path::Path,
    time::Duration,
};

use pep_core::{
    config::{Config, CongestionName, OnPeerLoss, Peer, Timeouts},
    site::{Buffers, DscpPolicy, LinkLeg, ReceiveBuffer, Site, SiteId, Source, SynHandling},
};
use pepd_api::text;
use pepd_sys::{congestion::Catalogue, keys};
use units::duration;

/// The effective values of a configuration, as a text of several lines.
pub struct Summary<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The congestion controls of this machine, where they could be asked for.
    pub catalogue: Option<&'a Catalogue>,
    /// Whether the kernel caps retransmission times ([`pepd_sys::socket::has_rto_max`]).
    pub rto_max: bool,
    /// Whether another process could take flows over here ([`pepd_relay::survive::keeper::are_useful`]), where that was tried.
    pub survives: Option<bool>,
    /// How the folder for what is held is, where it was looked at ([`pepd_tunnel::custody::look`]).
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
        let (first, last) = self.config.listen_ports().into_inner();
        let ports = if first == last {
            format!("port {first}")
        } else {
            format!("ports {first} to {last}, one per site")
        };
        line(
            f,
            "intercept",
            &format!("connections arriving on {lan}; nft table `{table}`"),
        )?;
        line(f, "", &format!("redirected to 127.0.0.1 and ::1, {ports}"))
    }

    fn link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(link) = &self.config.link else {
            return line(
                f,
                "link",
                &"not described: buffers by the kernel's autotuning, no pacing",
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
            "{} flows{per_host}; rings of {} to {} each way, {} in all",
            l.flows, l.ring_initial, l.ring_max, l.memory
        );
        let held = format!(
            "{} held SYNs, {} per source, {} per destination; {} a second, {} per source; {} descriptors and more",
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
        detail(f, "link leg", &self.link_leg(site))?;
        detail(f, "host leg", &self.host_leg(site))?;
        self.while_down_text(f, site)?;
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
        let listen = identity
            .listen
            .map_or("a port that the kernel chooses".to_owned(), |address| {
                address.to_string()
            });
        let by = peers_come_by(self.config);
        line(f, "", &format!("peers reach us by {by} at {listen}"))?;
        for (index, peer) in self.config.peers.iter().enumerate() {
            line(f, if index == 0 { "peers" } else { "" }, &described(peer))?;
        }
        Ok(())
    }

    fn mode(&self, id: SiteId, site: &Site) -> String {
        let port = self.config.listen_port(id);
        let (syn, source) = (syn(site.syn), source(site.source));
        let Some(peer) = self.config.peer_of(id).map(|peer| &self.config.peers[peer]) else {
            return format!("split, port {port}, {syn}, {source}");
        };
        let else_ = match peer.on_peer_loss {
            OnPeerLoss::Split => "split",
            OnPeerLoss::Hold => "held",
            OnPeerLoss::Bypass => "forwarded by the kernel",
        };
        let (name, class) = (&peer.name, site.class);
        let compressed = if site.compress { ", compressed" } else { "" };
        format!(
            "tunnel to {name} as {class}{compressed}, while it is gone {else_}; port {port}, {source}"
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
            let shared = if site.shares(link) { ", shared" } else { "" };
            write!(text, "; paced at {rate}{shared}").expect("writing to a string");
        }
        if let Some(bytes) = site.unsent_max(link) {
            write!(text, "; {bytes} unsent").expect("writing to a string");
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

    /// What is asked for, and what it will be.
    fn congestion(&self, wanted: &[CongestionName]) -> String {
        let Some(catalogue) = self.catalogue else {
            return match wanted {
                [] => "the kernel's default".to_owned(),
                [only] => only.to_string(),
                wanted => format!("the first that can be had of {}", list(wanted)),
            };
        };
        match (wanted, catalogue.choose(wanted).chosen) {
            ([], _) => format!("{} (this kernel's default)", catalogue.default()),
            ([_], Some((chosen, means))) => format!("{chosen} ({means})"),
            (_, Some((chosen, means))) => format!("{chosen} ({means}; of {})", list(wanted)),
            // An error before it comes to this.
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
        SynHandling::Defer => "SYNs answered once the server has",
    }
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Client => "the server sees the client's address",
        Source::Self_ => "the server sees this machine's address",
    }
}

/// The file with our key, and what peers have to know of it where we may read it.
fn own_key(path: &Path) -> String {
    let public = keys::read(path).map(|key| keys::public_key(&key));
    let public = public.map(|public| format!(", public key {public}"));
    format!("{}{}", path.display(), public.unwrap_or_default())
}

/// Without an address that is stated nobody is listened for by TCP.
fn peers_come_by(config: &Config) -> &'static str {
    match config.peers_port() {
        Some(_) => "UDP and TCP",
        None => "UDP",
    }
}

fn described(peer: &Peer) -> String {
    let called = match &peer.endpoint {
        Some(endpoint) => format!("at {endpoint}"),
        None => "calls us".to_owned(),
    };
    let rate = peer
        .rate
        .map_or("rate measured".to_owned(), |rate| rate.to_string());
    let rtt = peer.rtt.map_or("unknown".to_owned(), duration::format);
    let psk = if peer.psk_file.is_some() {
        ", with a shared key"
    } else {
        ""
    };
    let dedicated = if peer.dedicated {
        ", nobody else's link"
    } else {
        ""
    };
    let lost = duration::format(peer.lost_after);
    let name = &peer.name;
    format!(
        "{name}: {called}{psk}, {rate}{dedicated}, round trip {rtt}, gone after {lost} of silence"
    )
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
    // Those that take flows are of TCP, all of them.
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
    let keepalive = t.keepalive.map_or("off".to_owned(), |keepalive| {
        let (idle, interval) = (keepalive.idle, keepalive.interval);
        let [idle, interval] = [idle, interval].map(duration::format);
        format!("after {idle} every {interval}, {} times", keepalive.count)
    });
    format!(
        "connect {}, idle {}, user_timeout {}, rto_max {}, orphan {}, keepalive {keepalive}",
        duration::format(t.connect),
        or_off(t.idle),
        or_off(t.user_timeout),
        or_off(t.rto_max),
        duration::format(t.orphan),
    )
}
