//! Text form of [`Status`], in lines of at most 100 columns.

use std::fmt;

use units::counted;

use super::{Held, HostAtCap, PeerStatus, Status, Traffic, Used, packets};
use crate::{
    link::source,
    text::{NAME, bits, bytes, milliseconds, percent, short, span},
};

/// Maximum of columns.
const WIDTH: usize = 100;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, pid, up) = (&self.version, self.pid, span(self.uptime_s));
        write!(f, "pepd {version}, process {pid}, up {up}")?;
        if self.restarts > 0 {
            write!(f, ", {}", counted(self.restarts, "restart"))?;
        }
        let draining = if self.draining { ", draining" } else { "" };
        writeln!(f, "{draining}")?;
        self.write_link(f)?;
        if !self.rules.is_empty() {
            writeln!(f, "rules: {}", self.rules)?;
        }
        if !self.lan_missing.is_empty() {
            let missing = self.lan_missing.join(", ");
            writeln!(f, "missing interfaces of intercept.lan: {missing}")?;
        }
        let [flows, descriptors] = [self.limits.flows, self.limits.descriptors]
            .map(|part| used_of_limit(part, |n| n.to_string()));
        let memory = used_of_limit(self.limits.memory, bytes);
        writeln!(
            f,
            "flows {flows}, memory {memory}, descriptors {descriptors}"
        )?;
        self.write_hosts(f)?;
        if !self.peers.is_empty() {
            let [memory, disk] =
                [self.custody.memory, self.custody.disk].map(|part| used_of_limit(part, bytes));
            writeln!(f, "held for peers: memory {memory}, disk {disk}")?;
        }
        self.write_sites(f)?;
        self.write_peers(f)?;
        packets::write(f, self)
    }
}

impl Status {
    fn write_link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.link;
        let state = if link.report.up { "up" } else { "down" };
        let (lasts, by) = (span(link.report.for_s), source(&link.report.by));
        let rate = |rate: u64| bits(rate as f64);
        let rates = match (link.rate, link.rate_down) {
            (Some(up), Some(down)) => Some(format!("{} up, {} down", rate(up), rate(down))),
            (Some(up), None) => Some(rate(up)),
            (None, Some(down)) => Some(format!("{} down", rate(down))),
            (None, None) => None,
        };
        let rtt = link.rtt_s.map(milliseconds);
        let other = link.other_rate.filter(|rate| *rate > 0);
        let other = other.map(|other| format!("{} other traffic", rate(other)));
        let facts = [link.interface.clone(), rates, rtt, other];
        let facts = facts.into_iter().flatten();
        let facts = facts.collect::<Vec<_>>().join(", ");
        let (outages, down) = (link.report.outages, span(link.report.down_s));
        // Without an outage the earlier processes leave no time of the last change.
        let more = if self.restarts > 0 && outages == 0 {
            " or more"
        } else {
            ""
        };
        let head = format!("link {state} for {lasts}{more}, {by}");
        let gap = match head.chars().count() + facts.chars().count() {
            _ if facts.is_empty() => "",
            0..=98 => ": ",
            _ => "\n  ",
        };
        let link = format!("{head}{gap}{facts}");
        let outages = format!("outages: {outages}, {down} in total");
        let fits = link.chars().count() + outages.chars().count() <= 98;
        let gap = if fits { "; " } else { "\n  " };
        writeln!(f, "{link}{gap}{outages}")
    }

    fn write_hosts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = &self.limits.hosts_at_cap;
        if hosts.is_empty() {
            return Ok(());
        }
        let most = self.limits.flows_per_host.unwrap_or_default();
        let all = self.counters.get("hosts_at_cap").copied();
        let all = all.unwrap_or(hosts.len() as u64);
        writeln!(
            f,
            "hosts at the limit of {most} flows, whose new flows are not accelerated: {all}"
        )?;
        hosts
            .iter()
            .try_for_each(|HostAtCap { host, flows }| writeln!(f, "  {host:<45} {flows}"))
    }

    fn write_sites(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n{:<NAME$} {:<6} {:>6} {:>9} {:>11} {:>11} {:>9} {:>8}",
            "site", "mode", "open", "accepted", "up", "down", "held", "oldest",
        )?;
        for site in &self.sites {
            // The mode has a column of its own.
            let note = match site.bypassed.as_deref() {
                // A lost interception has a line of its own.
                None | Some("mode" | "interception") => String::new(),
                Some("operator") => "off".to_owned(),
                Some("silence") => "no IPv6".to_owned(),
                Some(why) => format!("{why} down"),
            };
            line(f, &site.name, &site.mode, &site.traffic, &note)?;
            if let Some(loss) = site.loss() {
                writeln!(f, "  {loss}")?;
            }
            if site.clear_never {
                writeln!(
                    f,
                    "  never in the clear: packets outside of the tunnel are dropped"
                )?;
            }
        }
        if let Some(traffic) = &self.from_peers {
            line(f, "(from peers)", "tunnel", traffic, "")?;
        }
        line(f, "(all)", "", &self.total, "")
    }

    fn write_peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.peers.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n{:<NAME$} {:<7} {:<9} {:>5} {:>8} {:>11} {:>7} {:>8} {:>8} {:>8}",
            "peer",
            "state",
            "transport",
            "flows",
            "rtt",
            "rate",
            "loss",
            "FEC",
            "retrans",
            "outages",
        )?;
        self.peers.iter().try_for_each(|peer| {
            peer_line(f, peer)?;
            writeln!(f, "  {}", contact(peer))?;
            let reach = reach(peer, WIDTH - 2);
            reach.iter().try_for_each(|line| writeln!(f, "  {line}"))
        })
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    mode: &str,
    traffic: &Traffic,
    note: &str,
) -> fmt::Result {
    let Held {
        memory,
        disk,
        kernel,
        oldest_s,
    } = traffic.held;
    let text = format!(
        "{:<NAME$} {mode:<6} {:>6} {:>9} {:>11} {:>11} {:>9} {:>8} {note}",
        short(name),
        traffic.flows_open,
        traffic.flows_accepted,
        bits(traffic.up_rate),
        bits(traffic.down_rate),
        bytes(memory + disk + kernel),
        span(oldest_s as f64),
    );
    writeln!(f, "{}", text.trim_end())
}

fn peer_line(f: &mut fmt::Formatter<'_>, peer: &PeerStatus) -> fmt::Result {
    let is = match (&peer.session, peer.up) {
        (Some(session), true) => session.path.as_str(),
        (_, true) => "up",
        (_, false) => "down",
    };
    let (name, flows) = (short(&peer.name), peer.flows);
    let Some(session) = &peer.session else {
        let why = no_session(peer).map_or_else(String::new, |why| format!("  {why}"));
        return writeln!(f, "{name:<NAME$} {is:<7} {:<9} {flows:>5}{why}", "");
    };
    writeln!(
        f,
        "{name:<NAME$} {is:<7} {:<9} {flows:>5} {:>8} {:>11} {:>7} {:>8} {:>8} {:>8}",
        session.carrier.as_deref().unwrap_or_default(),
        milliseconds(session.rtt_s),
        bits(session.rate as f64),
        percent(session.loss),
        percent(session.fec_overhead),
        session.segments_retransmitted,
        session.outages,
    )?;
    let less = session.stated_rate.filter(|_| session.passes_less());
    let less = less.map(|stated| passes(session.link_rate, stated));
    for note in less.into_iter().chain(unreached(peer)) {
        writeln!(f, "{:<NAME$} {note}", "")?;
    }
    Ok(())
}

/// Reports hosts that a peer does not reach.
pub fn unreached(peer: &PeerStatus) -> Option<String> {
    let families = peer.unreached.join(" and ");
    let is_known = !families.is_empty();
    is_known.then(|| format!("reaches no {families} hosts: new connections to them are refused"))
}

/// Reports a link rate below the stated rate.
pub fn passes(carried: u64, stated: u64) -> String {
    let (carried, stated) = (bits(carried as f64), bits(stated as f64));
    format!("link carries {carried}, stated rate {stated}")
}

/// Returns the address of a peer, the time since it was last heard, and the bytes received and
/// sent.
pub fn contact(peer: &PeerStatus) -> String {
    let place = place(peer);
    let Some(heard) = peer.heard_s else {
        return format!("{place}never heard");
    };
    let heard = format!("{place}last heard {} ago", span(heard));
    let [received, sent] = [peer.received_bytes, peer.sent_bytes].map(bytes);
    let moved = format!("received {received}, sent {sent}");
    // With long IPv6 addresses the text exceeds a line.
    let fits = heard.chars().count() + moved.chars().count() <= 96;
    let gap = if fits { ", " } else { "\n  " };
    format!("{heard}{gap}{moved}")
}

/// Returns the configured limits of what a peer may do, if there are some, in lines of at most
/// `width` columns. Of a long list the first items are shown, and the number of others.
pub fn reach(peer: &PeerStatus, width: usize) -> Vec<String> {
    let list = |verb: &str, items: &Option<Vec<String>>| {
        let items = items.as_ref()?;
        let Some((first, others)) = items.split_first() else {
            return Some(format!("{verb} nothing"));
        };
        let mut text = format!("{verb} {first}");
        for (place, item) in others.iter().enumerate() {
            let left = others.len() - place;
            let with = text.chars().count() + 2 + item.chars().count();
            // Room for the number of those that follow.
            let room = if left == 1 { 0 } else { ", 1234 more".len() };
            if with + room > width {
                return Some(format!("{text}, {left} more"));
            }
            text = format!("{text}, {item}");
        }
        Some(text)
    };
    let parts = [
        list("speaks for", &peer.from),
        list("reaches", &peer.to),
        (peer.may_open_flows == Some(false)).then(|| "opens no flows".to_owned()),
    ];
    let mut lines: Vec<String> = Vec::new();
    for part in parts.into_iter().flatten() {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 2 + part.chars().count() <= width => {
                *last = format!("{last}; {part}");
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// Returns the address in use and the name that resolves to it.
fn place(peer: &PeerStatus) -> String {
    let Some(place) = peer.remote.as_ref().or(peer.endpoint.as_ref()) else {
        return String::new();
    };
    let count = peer.addresses.len();
    // An endpoint that is an address adds nothing.
    let name = peer
        .endpoint
        .as_ref()
        .filter(|endpoint| *endpoint != place && !peer.addresses.contains(endpoint));
    match name {
        Some(name) if count > 1 => format!("at {place} ({name}, {count} addresses), "),
        Some(name) => format!("at {place} ({name}), "),
        None => format!("at {place}, "),
    }
}

/// Returns the text for a missing session, if the cause is known.
pub fn no_session(peer: &PeerStatus) -> Option<String> {
    let text = match peer.no_session.as_deref()? {
        "unanswered" => "does not answer handshakes",
        "answers_rejected" => "rejects handshake responses (psk_file?)",
        "keys" => "sends responses that do not verify (psk_file?)",
        "counter" => "claims that the handshake counter is used up",
        _ => {
            let version = peer.other_version.map(|version| version.to_string());
            let version = version.as_deref().unwrap_or("other");
            return Some(format!("speaks tunnel protocol version {version}"));
        }
    };
    Some(text.to_owned())
}

fn used_of_limit(part: Used, show: impl Fn(u64) -> String) -> String {
    format!("{} of {}", show(part.used), show(part.most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::status;

    #[test]
    fn a_status_fits_100_columns_and_survives_json() {
        let status = status();
        let text = status.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
            assert_eq!(line.trim_end(), line);
        }
        for part in [
            "12 restarts, draining",
            " link down\n",
            "9.99 Mbit/s up, 99.9 Mbit/s down, 600 ms",
            "\n  IPv4, IPv6: new flows bypass the tunnel (redirected packets are dropped here)\n",
            "\n  IPv4, IPv6: new flows are blocked (redirected packets are dropped here)\n",
            "(from peers)",
            "stopped",
            ":65535, last heard 1s ago\n  received 1.00 TiB, sent 1.00 GiB\n",
            "down",
            "\n  never heard\n",
            "  at 192.0.2.1:5001 (hub.example:5001, 2 addresses), last heard 1h1min ago\n  \
             received 1.00 KiB, sent 2.00 KiB\n",
            "  at hub.example:5001, never heard\n",
            " never in the clear: packets outside of the tunnel are dropped\n",
            "  speaks for 10.1.0.0/16, 2001:db8:ffff:ffff:ffff:ffff:ffff:0/112, 6 more; reaches \
             nothing\n  opens no flows\n",
            "  never heard\n  speaks for 192.0.2.0/24; reaches 198.51.100.0/24, 10.9.0.1:443\n",
            "psk_file?",
            "not accelerated: 12345",
            "voice ",
            "100 ms  fec",
            "that no site here accepts: 7\n  last: udplite from [2001",
            "  to [2001:db8",
            "2001:db8:ffff:ffff::/64",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_string(&status).expect("a status");
        let again: Status = serde_json::from_str(&json).expect("what was written");
        assert_eq!(again, status);
    }

    #[test]
    fn the_limits_of_a_peer_fit_any_width() {
        let mut peer = status().peers.remove(2);
        for from in [0, 1, 2, 9, 2000] {
            for width in 78..100 {
                let host = |host| format!("2001:db8:ffff:ffff:ffff:ffff:{host:x}:0/112");
                peer.from = Some((0..from).map(host).collect());
                let lines = reach(&peer, width);
                assert!(lines.iter().all(|line| line.len() <= width), "{lines:?}");
                let shown = lines.concat().matches("2001:").count();
                let others = lines.concat().split(", ").last().and_then(|last| {
                    let (count, _) = last.split_once(" more")?;
                    count.parse().ok()
                });
                assert_eq!(shown + others.unwrap_or(0), from, "{lines:?}");
            }
        }
    }

    #[test]
    fn the_status_of_a_pepd_of_the_release_before_is_understood() {
        let json = serde_json::to_string(&status()).expect("a status");
        let mut former = json.clone();
        for (name, before) in [
            ("fec_overhead", "overcode"),
            ("segments_retransmitted", "segments_resent"),
            ("packets_unmatched", "packets_foreign"),
            ("unmatched_last", "foreign_last"),
        ] {
            former = former.replace(&format!("\"{name}\":"), &format!("\"{before}\":"));
        }
        // The link's `up` keeps its name.
        let (start, peers) = former.split_once("\"peers\":[").expect("peers");
        let former = format!(
            "{start}\"peers\":[{}",
            peers.replace("\"up\":", "\"here\":")
        );
        let read: Status = serde_json::from_str(&former).expect("the former names");
        assert_eq!(read, status());
    }
}
