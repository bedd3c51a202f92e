//! A [`Status`] for people, in lines of at most 100 columns.

use std::fmt;

use super::packets;
use super::status::{Held, HostAtCap, PeerStatus, Status, Traffic, Used};

/// The longest name that is written in full in a table.
pub(super) const NAME: usize = 20;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, pid, up) = (&self.version, self.pid, span(self.uptime_s));
        write!(f, "pepd {version}, process {pid}, for {up}")?;
        if self.restarts > 0 {
            write!(f, ", {} before it", self.restarts)?;
        }
        let draining = if self.draining { ", draining" } else { "" };
        writeln!(f, "{draining}")?;
        self.write_link(f)?;
        let [flows, descriptors] =
            [self.limits.flows, self.limits.descriptors].map(|part| of(part, |n| n.to_string()));
        let memory = of(self.limits.memory, bytes);
        writeln!(
            f,
            "flows {flows}, memory {memory}, descriptors {descriptors}"
        )?;
        self.write_hosts(f)?;
        if !self.peers.is_empty() {
            let [memory, disk] =
                [self.custody.memory, self.custody.disk].map(|part| of(part, bytes));
            writeln!(f, "held for peers: memory {memory}, disk {disk}")?;
        }
        self.write_sites(f)?;
        self.write_peers(f)?;
        packets::write(f, &self.peers)
    }
}

impl Status {
    fn write_link(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = &self.link;
        let state = if link.report.up { "up" } else { "down" };
        let (lasts, by) = (span(link.report.for_s), &link.report.by);
        let rate = |rate: u64| bits(rate as f64);
        let rates = match (link.rate, link.rate_down) {
            (Some(up), Some(down)) => Some(format!("{} up, {} down", rate(up), rate(down))),
            (Some(up), None) => Some(rate(up)),
            (None, Some(down)) => Some(format!("{} down", rate(down))),
            (None, None) => None,
        };
        let rtt = link.rtt_s.map(milliseconds);
        let facts = [link.interface.clone(), rates, rtt].into_iter().flatten();
        let facts = facts.collect::<Vec<_>>().join(", ");
        let gap = if facts.is_empty() { "" } else { ": " };
        let (outages, down) = (link.report.outages, span(link.report.down_s));
        let link = format!("link {state} for {lasts}, by {by}{gap}{facts}");
        let outages = format!("outages: {outages}, {down} in all");
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
            "hosts with as many flows as one may have ({most}), new ones pass by: {all}"
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
            // Its mode stands there already.
            let note = match site.bypassed.as_deref() {
                // That has a line of its own.
                None | Some("mode" | "interception") => String::new(),
                Some("operator") => "off".to_owned(),
                Some("silence") => "no IPv6".to_owned(),
                Some(why) => format!("no {why}"),
            };
            line(f, &site.name, &site.mode, &site.traffic, &note)?;
            if let Some(loss) = site.loss() {
                writeln!(f, "  {loss}")?;
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
            "\n{:<NAME$} {:<7} {:<4} {:>6} {:>8} {:>12} {:>8} {:>8} {:>8} {:>8}",
            "peer", "is", "by", "flows", "rtt", "rate", "loss", "FEC", "resent", "outages",
        )?;
        self.peers.iter().try_for_each(|peer| {
            peer_line(f, peer)?;
            writeln!(f, "  {}", contact(peer))
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
    let is = match (&peer.session, peer.here) {
        (Some(session), true) => session.path.as_str(),
        (_, true) => "here",
        (_, false) => "away",
    };
    let (name, flows) = (short(&peer.name), peer.flows);
    let Some(session) = &peer.session else {
        let why = peer.no_session.as_deref();
        let why = why.map_or_else(String::new, |why| format!("  {}", no_session(why)));
        return writeln!(f, "{name:<NAME$} {is:<7} {:<4} {flows:>6}{why}", "");
    };
    writeln!(
        f,
        "{name:<NAME$} {is:<7} {:<4} {flows:>6} {:>8} {:>12} {:>8} {:>8} {:>8} {:>8}",
        session.carrier.as_deref().unwrap_or_default(),
        milliseconds(session.rtt_s),
        bits(session.rate as f64),
        percent(session.loss),
        percent(session.overcode),
        session.segments_resent,
        session.outages,
    )?;
    match session.stated_rate.filter(|_| session.passes_less()) {
        Some(stated) => writeln!(f, "{:<NAME$} {}", "", passes(session.link_rate, stated)),
        None => Ok(()),
    }
}

/// Names the rate that the link carries beside the stated one.
pub(crate) fn passes(carried: u64, stated: u64) -> String {
    let (carried, stated) = (bits(carried as f64), bits(stated as f64));
    format!("link passes {carried} where its rate is stated as {stated}")
}

/// Address of a peer, time since it was last heard, bytes received and sent.
pub(crate) fn contact(peer: &PeerStatus) -> String {
    let place = place(peer);
    let Some(heard) = peer.heard_s else {
        return format!("{place}never heard");
    };
    let heard = format!("{place}last heard {} ago", span(heard));
    let [received, sent] = [peer.received_bytes, peer.sent_bytes].map(bytes);
    let moved = format!("received {received}, sent {sent}");
    // With the longest addresses of IPv6 it is too much for a line.
    let fits = heard.chars().count() + moved.chars().count() <= 96;
    let gap = if fits { ", " } else { "\n  " };
    format!("{heard}{gap}{moved}")
}

/// The address in use, and the name that leads there.
fn place(peer: &PeerStatus) -> String {
    let Some(place) = peer.remote.as_ref().or(peer.endpoint.as_ref()) else {
        return String::new();
    };
    let count = peer.addresses.len();
    // An endpoint that is stated by its address is no news beside that.
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

/// Why there is no session, in words.
pub(crate) fn no_session(why: &str) -> &'static str {
    match why {
        "unanswered" => "does not answer our handshakes",
        "untaken" => "takes none of our answers (psk_file?)",
        "keys" => "its answers do not fit (psk_file?)",
        _ => "speaks another version",
    }
}

fn of(part: Used, show: impl Fn(u64) -> String) -> String {
    format!("{} of {}", show(part.used), show(part.most))
}

/// A name that fits into a table.
pub(super) fn short(name: &str) -> String {
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let begin = name.chars().take(NAME - 1);
    begin.chain(['…']).collect()
}

/// Three digits and a unit.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // What would be rounded up to four digits has the next unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit])
}

/// A number of bits per second.
pub(crate) fn bits(rate: f64) -> String {
    scaled(
        rate,
        1e3,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// A number of bytes.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB"],
    )
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

pub(crate) fn milliseconds(seconds: f64) -> String {
    format!("{:.0} ms", 1e3 * seconds)
}

/// Its two greatest units.
pub(crate) fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    let (days, hours) = (whole / 86_400, whole / 3600 % 24);
    let (minutes, seconds) = (whole / 60 % 60, whole % 60);
    match (days, hours, minutes) {
        (1.., ..) => format!("{days}d{hours}h"),
        (_, 1.., _) => format!("{hours}h{minutes}min"),
        (_, _, 1..) => format!("{minutes}min{seconds}s"),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use units::counted;

    use super::*;

    #[test]
    fn one_thing_is_no_plural() {
        let told = [0, 1, 2].map(|number| counted(number, "flow"));
        assert_eq!(told, ["0 flows", "1 flow", "2 flows"]);
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let told = [0.0, 999.4, 999.6, 9_994.0, 99_960.0, 1e6, 2.5e9].map(bits);
        let expected = [
            "0 bit/s",
            "999 bit/s",
            "1.00 kbit/s",
            "9.99 kbit/s",
            "100 kbit/s",
            "1.00 Mbit/s",
            "2.50 Gbit/s",
        ];
        assert_eq!(told, expected);
        assert_eq!(
            [0, 1023, 1 << 20].map(bytes),
            ["0 B", "1.00 KiB", "1.00 MiB"]
        );
    }

    #[test]
    fn spans_are_short() {
        let told = [0.4, 59.9, 61.0, 3599.0, 7261.0, 200_000.0].map(span);
        assert_eq!(told, ["0s", "59s", "1min1s", "59min59s", "2h1min", "2d7h"]);
    }

    #[test]
    fn long_names_are_cut() {
        assert_eq!(short("mail"), "mail");
        let long = short(&"ä".repeat(64));
        assert_eq!(long.chars().count(), NAME);
        assert!(long.ends_with('…'));
    }

    /// One in which everything has a value, and the longest names.
    pub fn status() -> Status {
        let traffic = serde_json::json!({
            "flows_open": 8192, "flows_accepted": 123_456_789, "flows_ended": {"closed": 1},
            "up_bytes": 1, "down_bytes": 2, "up_rate": 9.99e9, "down_rate": 123_456.0,
            "held": {"memory": 1 << 30, "disk": 0, "kernel": 0, "oldest_s": 900_000},
        });
        let mut site = traffic.clone();
        for (key, value) in [("name", "x".repeat(64)), ("mode", "tunnel".to_owned())] {
            site[key] = value.into();
        }
        site["congestion"] = ["hybla"].into();
        site["bypassed"] = "link".into();
        let mut lost = site.clone();
        for (key, value) in [
            ("bypassed", "interception"),
            ("on_interception_loss", "pass"),
        ] {
            lost[key] = value.into();
        }
        lost["interception_lost"] = serde_json::json!(["IPv4", "IPv6"]);
        let mut blocked = lost.clone();
        blocked["bypassed"] = serde_json::Value::Null;
        blocked["on_interception_loss"] = "block".into();
        let peers = serde_json::json!([
            {"name": "y".repeat(64), "endpoint": null, "here": true, "heard_s": 1.0,
              "remote": "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
              "received_bytes": 1_u64 << 40, "sent_bytes": 1_u64 << 30, "flows": 8192, "session": {
                "carrier": "udp", "path": "stopped", "rtt_s": 12.3456, "rtt_min_s": 0.6,
                "rate": 999_000_000, "link_rate": 1, "loss": 0.1234, "overcode": 1.0, "packets_sent": 1,
                "bytes_sent": 1, "repairs_sent": 1, "segments_resent": 12_345_678, "packets_received": 1,
                "segments_restored": 1, "outages": 12_345_678,
                "lost": {"link": 1, "congestion": 2, "outage": 3},
            }, "packets": [{
                "site": "voice", "packets": 1, "bytes": 2, "messages": 3, "message_bytes": 4, "delivered": 5,
                "dropped_full": 6, "dropped_late": 7, "dropped_long": 9, "queued_bytes": 8, "queued_s": 0.1,
                "boosters": {"fec": {"on": 1, "repairs": 2}},
            }], "takes_packets": true, "understands": ["fec"], "packets_refused": 1, "packets_foreign": 7, "packets_martian": 8,
              "foreign_last": "udplite from [2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535 to [2001:db8:ffff:ffff:ffff:ffff:ffff:fffe]:65535",
              "packets_received": [{
                "chain": 3, "messages": 1, "packets": 2, "unreadable": 3, "given_up": 4, "dropped_congested": 5,
                "boosters": {"fec": {"restored": 2}},
            }]},
            {"name": "away", "endpoint": null, "here": false, "flows": 0, "session": null},
            {"name": "lost", "endpoint": "hub.example:5001", "remote": "192.0.2.1:5001", "here": false,
              "addresses": ["[2001:db8::1]:5001", "192.0.2.1:5001"],
              "flows": 0, "session": null, "heard_s": 3700.0, "received_bytes": 1024, "sent_bytes": 2048},
            {"name": "deaf", "endpoint": "hub.example:5001", "here": false, "flows": 8192, "session": null, "no_session": "untaken"},
        ]);
        let status = serde_json::json!({
            "version": "10.11.12", "pid": 4_194_304, "started": 1.0, "uptime_s": 1e7, "restarts": 12,
            "draining": true, "unknown": "is ignored",
            "link": {
                "interface": "abcdefghijklmno", "rate": 9_990_000, "rate_down": 99_900_000, "rtt_s": 0.6, "up": true, "by": "operator",
                "for_s": 1e7, "ordered_for_s": null, "next_planned": null, "next_planned_in_s": null,
                "outages": 1234, "down_s": 1e6, "history": [],
            },
            "total": traffic, "sites": [site, lost, blocked], "from_peers": traffic,
            "peers": peers,
            "custody": {"memory": {"used": 1, "most": 2}, "disk": {"used": 0, "most": 0}},
            "limits": {
                "flows": {"used": 8192, "most": 8192}, "memory": {"used": 123_456_789, "most": 1 << 30},
                "descriptors": {"used": 20_000, "most": 1_048_576}, "flows_per_host": 2048,
                "hosts_at_cap": [{"host": "2001:db8:ffff:ffff::/64", "flows": 4_294_967_295u32}, {"host": "10.0.0.1", "flows": 1}],
            },
            "counters": {"flows_open": 3, "hosts_at_cap": 12_345},
        });
        serde_json::from_value(status).expect("a status")
    }

    #[test]
    fn a_status_fits_100_columns_and_survives_json() {
        let status = status();
        let text = status.to_string();
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
            assert_eq!(line.trim_end(), line);
        }
        for part in [
            "12 before it, draining",
            "no link\n",
            "9.99 Mbit/s up, 99.9 Mbit/s down, 600 ms",
            "\n  IPv4, IPv6: new flows pass outside of the tunnel, as what pepd redirects is dropped here\n",
            "\n  IPv4, IPv6: new flows are blocked, as what pepd redirects is dropped here\n",
            "(from peers)",
            "stopped",
            ":65535, last heard 1s ago\n  received 1.00 TiB, sent 1.00 GiB\n",
            "away",
            "\n  never heard\n",
            "  at 192.0.2.1:5001 (hub.example:5001, 2 addresses), last heard 1h1min ago\n  \
             received 1.00 KiB, sent 2.00 KiB\n",
            "  at hub.example:5001, never heard\n",
            "psk_file?",
            "pass by: 12345",
            "voice ",
            "100 ms  fec",
            "as no site here takes them: 7\n  the last one: udplite from [2001",
            "  to [2001:db8",
            "2001:db8:ffff:ffff::/64",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_string(&status).expect("a status");
        let again: Status = serde_json::from_str(&json).expect("what was written");
        assert_eq!(again, status);
    }
}
