//! Text form of trace events.

use std::fmt;

use super::{DirectionSample, End, Look, TraceEvent, WaitsFor, What};
use crate::{
    flows::{FlowStatus, LegStatus},
    text::{bytes, milliseconds, span},
};

/// Indentation of the lines below the time.
const INDENT: &str = "              ";

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  ", clock(self.at))?;
        match &self.what {
            What::Flow(flow) => write_flow(f, flow),
            What::Look(look) => write!(f, "{look}"),
            What::Ended(end) => write!(f, "{end}"),
        }
    }
}

/// Formats a time of day in UTC.
fn clock(at: f64) -> String {
    let millis = (at.max(0.0) * 1e3) as u64 % 86_400_000;
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    let (seconds, millis) = (millis / 1000 % 60, millis % 1000);
    format!("{hours:02}:{minutes:02}:{seconds:02}.{millis:03}")
}

fn write_flow(f: &mut fmt::Formatter<'_>, status: &FlowStatus) -> fmt::Result {
    let flow = &status.flow;
    let (id, client, destination, kind) = (&flow.id, &flow.client, &flow.destination, &flow.kind);
    let site = flow.site.as_deref().unwrap_or("(from peers)");
    write!(f, "flow {id}  {client} -> {destination}, {kind}, {site}")?;
    if let Some(peer) = &status.peer {
        write!(f, ", tunnel with {peer}")?;
    }
    writeln!(f, ", for {}; times are UTC", span(flow.age_s as f64))?;
    for (side, leg) in [
        ("client", &status.client_leg),
        ("server", &status.server_leg),
    ] {
        if let Some(leg) = leg {
            writeln!(f, "{INDENT}{side}: {leg}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (up, down) = (&self.up, &self.down);
        write!(f, "{}  up {up}, down {down}", self.state)?;
        if self.link_down {
            write!(f, "; link down")?;
        }
        if self.missed > 0 {
            write!(f, "; {} events missed: the reader is too slow", self.missed)?;
        }
        writeln!(f)?;
        let legs = [("client", &self.client_leg), ("server", &self.server_leg)];
        let legs = legs.iter().filter_map(|(side, leg)| {
            let leg = leg.as_ref()?;
            Some(format!("{side} {}", brief(leg)))
        });
        let legs: Vec<_> = legs.collect();
        if !legs.is_empty() {
            writeln!(f, "{INDENT}{}", legs.join("; "))?;
        }
        for (name, direction, hosts) in [
            ("up", up, ["client", "server"]),
            ("down", down, ["server", "client"]),
        ] {
            if let Some(waits) = direction.waits_for {
                writeln!(
                    f,
                    "{INDENT}{name} waits for {}",
                    waits.describe(hosts, direction, self)
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for DirectionSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", bytes(self.bytes))?;
        if self.moved > 0 {
            write!(f, " (+{})", bytes(self.moved))?;
        }
        let held = self.held + self.kernel;
        if held > 0 {
            write!(f, " {} held", bytes(held))?;
        }
        match (self.source_ended, self.ended) {
            (_, true) => write!(f, " closed"),
            (true, false) => write!(f, " closing"),
            _ => Ok(()),
        }
    }
}

fn brief(leg: &LegStatus) -> String {
    let mut parts = Vec::new();
    if leg.state != "established" {
        parts.push(leg.state.clone());
    }
    if let Some(rtt) = leg.rtt_s {
        parts.push(format!("rtt {}", milliseconds(rtt)));
    }
    parts.push(format!(
        "{} of {} segments in flight",
        leg.in_flight, leg.cwnd
    ));
    if leg.retransmitted > 0 {
        parts.push(format!("{} retransmitted", leg.retransmitted));
    }
    parts.join(", ")
}

impl WaitsFor {
    /// Describes the cause for the direction from host `from` to host `to`.
    fn describe(self, [from, to]: [&str; 2], direction: &DirectionSample, look: &Look) -> String {
        let segments = match to {
            "client" => &look.client_leg,
            _ => &look.server_leg,
        };
        let segments = segments.as_ref().map_or(0, |leg| leg.cwnd);
        match self {
            Self::Answer => "an answer of the server, or of the peer".to_owned(),
            // Everything received was forwarded at once.
            Self::Source if direction.moved > 0 => {
                format!("more data from the {from}: all received data was forwarded")
            }
            Self::Source => format!("data from the {from}: none arrives"),
            Self::Link => "the link, which is down".to_owned(),
            Self::Peer => "the peer, which is down".to_owned(),
            Self::Tunnel => {
                format!("the tunnel: data is in transit, or the {to} at the far end does not read")
            }
            Self::ReceiverWindow => format!("the {to} to read: its receive window is full"),
            Self::SendBuffer => {
                format!("room in the send buffer toward the {to} (link_buffer too small?)")
            }
            Self::CongestionWindow => {
                format!("the path to the {to}: its congestion window ({segments} segments) is full")
            }
            Self::Pacing => format!("the sending rate toward the {to} (pacing)"),
            Self::Acknowledgements => format!("acknowledgements of the {to}: all data was sent"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(reason) = &self.reason else {
            return writeln!(f, "ended: reason unknown, see the log");
        };
        let [up, down] = self.bytes.map(bytes);
        write!(
            f,
            "ended: {reason}, after {}; delivered {up} up, {down} down",
            span(self.duration_s)
        )?;
        let [up, down] = self.undelivered;
        if up + down > 0 {
            write!(f, "; not delivered {} up, {} down", bytes(up), bytes(down))?;
        }
        if let Some(error) = &self.error {
            write!(f, "; {error}")?;
        }
        writeln!(f)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(event: serde_json::Value) -> String {
        let event: TraceEvent = serde_json::from_value(event).expect("an event");
        event.to_string()
    }

    #[test]
    fn a_look_says_what_moves_what_is_held_and_what_it_waits_for() {
        let leg = |rtt: f64, in_flight: u32, retransmitted: u32| {
            json!({
                "state": "established", "congestion": "hybla", "rtt_s": rtt, "rtt_min_s": rtt, "cwnd": 512, "mss": 1448,
                "unacked": in_flight, "in_flight": in_flight, "retransmitted": retransmitted, "pacing_rate": null, "delivery_rate": null, "busy_s": 1.0,
                "rwnd_limited_s": 0.0, "sndbuf_limited_s": 0.0,
            })
        };
        let look = json!({
            "at": 1_795_435_201.25, "event": "look", "state": "relaying", "link_down": true, "missed": 3,
            "up": {"bytes": 2048, "moved": 1024, "held": 512, "kernel": 512, "source_ended": true, "ended": false,
                "waits_for": "congestion_window"},
            "down": {"bytes": 0, "moved": 0, "held": 0, "kernel": 0, "source_ended": false, "ended": false,
                "waits_for": "source"},
            "client_leg": leg(0.001, 0, 0), "server_leg": leg(0.64, 512, 12),
        });
        let expected = "\
            12:00:01.250  relaying  up 2.00 KiB (+1.00 KiB) 1.00 KiB held closing, down 0 B; link down; 3 events missed: \
            the reader is too slow\n\
            \x20             client rtt 1 ms, 0 of 512 segments in flight; server rtt 640 ms, 512 of 512 segments \
            in flight, 12 retransmitted\n\
            \x20             up waits for the path to the server: its congestion window (512 segments) is full\n\
            \x20             down waits for data from the server: none arrives\n";
        assert_eq!(shown(look.clone()), expected);
        let mut moves = look;
        moves["down"]["moved"] = 250_000.into();
        let moves = shown(moves);
        let waits = "down waits for more data from the server: all received data was forwarded\n";
        assert!(moves.ends_with(waits), "{moves}");
    }

    #[test]
    fn the_end_says_why_and_what_was_not_delivered() {
        let end = |reason: Option<&str>, undelivered: [u64; 2], error: Option<&str>| {
            shown(json!({
                "at": 0.0, "event": "ended", "reason": reason, "bytes": [1024, 0], "undelivered": undelivered,
                "duration_s": 72.0, "error": error,
            }))
        };
        assert_eq!(
            end(Some("closed"), [0, 0], None),
            "00:00:00.000  ended: closed, after 1min12s; delivered 1.00 KiB up, 0 B down\n"
        );
        let reset = end(Some("server_reset"), [7, 0], Some("Connection reset"));
        assert!(
            reset.ends_with("; not delivered 7 B up, 0 B down; Connection reset\n"),
            "{reset}"
        );
        let unknown = end(None, [0, 0], None);
        assert!(unknown.contains("see the log"), "{unknown}");
    }
}
