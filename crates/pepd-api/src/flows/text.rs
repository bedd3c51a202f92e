//! Text form of flows.

use std::fmt;

use units::counted;

use super::{FlowStatus, FlowsReport, LeftSite, LegStatus, NotAccelerated};
use crate::text::{NAME, bits, bytes, milliseconds, short, span};

/// Share of the busy time below which a limit is not reported.
const NOTABLE: f64 = 0.05;

impl fmt::Display for FlowsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, listed) = (self.total, self.flows.len());
        match listed {
            _ if total == 0 => writeln!(f, "no flows")?,
            _ if total == listed => writeln!(f, "{}", counted(total as u64, "flow"))?,
            _ => writeln!(f, "{listed} of {total} flows (--limit)")?,
        }
        if listed > 0 {
            writeln!(
                f,
                "\n{:<NAME$} {:<6} {:<9} {:>8} {:>9} {:>9} {:>9}",
                "site", "kind", "state", "age", "up", "down", "held",
            )?;
        }
        for flow in &self.flows {
            write_flow(f, flow)?;
        }
        writeln!(f, "\n{}", self.not_accelerated)
    }
}

fn write_flow(f: &mut fmt::Formatter<'_>, status: &FlowStatus) -> fmt::Result {
    let FlowStatus { flow, .. } = status;
    let site = flow.site.as_deref().unwrap_or("(from peers)");
    writeln!(
        f,
        "{:<NAME$} {:<6} {:<9} {:>8} {:>9} {:>9} {:>9}",
        short(site),
        flow.kind,
        status.state,
        span(flow.age_s as f64),
        bytes(status.up_bytes),
        bytes(status.down_bytes),
        bytes(flow.total()),
    )?;
    write!(
        f,
        "    {}  {} -> {}",
        flow.id, flow.client, flow.destination
    )?;
    match &status.peer {
        Some(peer) => writeln!(f, ", tunnel with {peer}")?,
        None => writeln!(f)?,
    }
    for (side, leg) in [
        ("client", &status.client_leg),
        ("server", &status.server_leg),
    ] {
        if let Some(leg) = leg {
            writeln!(f, "    {side}: {leg}")?;
        }
    }
    Ok(())
}

impl fmt::Display for LegStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.congestion)?;
        if self.state != "established" {
            write!(f, ", {}", self.state)?;
        }
        if let Some(rtt) = self.rtt_s {
            write!(f, ", rtt {}", milliseconds(rtt))?;
        }
        if let Some(minimum) = self.rtt_min_s {
            write!(f, " (min {})", milliseconds(minimum))?;
        }
        let (in_flight, cwnd) = (self.in_flight, self.cwnd);
        write!(f, ", {in_flight} of {cwnd} segments in flight")?;
        if let Some(rate) = self.delivery_rate {
            write!(f, ", {}", bits(rate as f64))?;
        }
        if self.retransmitted > 0 {
            write!(f, ", {} retransmitted", self.retransmitted)?;
        }
        write!(f, "{}", self.limits())
    }
}

impl LegStatus {
    /// Returns the limits of the leg as the end of a line (`, limited by send buffer 45 %`); empty
    /// if only the congestion window limits it.
    pub fn limits(&self) -> String {
        let limits = [
            (self.rwnd_limited_s, "receiver's window"),
            (self.sndbuf_limited_s, "send buffer"),
        ];
        let limits = limits.map(|(seconds, by)| {
            let share = self.share(seconds);
            if share >= NOTABLE {
                format!(", limited by {by} {:.0} %", 100.0 * share)
            } else {
                String::new()
            }
        });
        let receive = self.receive_limit.map(|window| {
            format!(
                ", sender limited by pepd's receive window of {}",
                bytes(window)
            )
        });
        limits.concat() + &receive.unwrap_or_default()
    }

    /// Returns true if the leg's own send buffer limits it.
    pub fn is_send_buffer_limited(&self) -> bool {
        self.share(self.sndbuf_limited_s) >= NOTABLE
    }

    /// Returns the share of the busy time.
    fn share(&self, seconds: f64) -> f64 {
        seconds / self.busy_s.max(f64::MIN_POSITIVE)
    }
}

impl fmt::Display for LeftSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why.as_str() {
            "mode" => "mode bypass",
            "operator" => "switched off by an operator",
            "link" => "link down",
            "peer" => "peer down",
            "interception" => "redirected packets are dropped on this machine",
            "silence" => "no server answers over IPv6",
            why => why,
        };
        let families = self.families.join(", ");
        let gap = if families.is_empty() { "" } else { ": " };
        write!(f, "{} ({families}{gap}{why})", self.site)
    }
}

impl fmt::Display for NotAccelerated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.sites.iter().map(ToString::to_string).collect();
        if self.gate_closed {
            let (used, most) = (self.flows.used, self.flows.most);
            parts.push(format!(
                "all new connections (gate closed; flows {used} of {most})"
            ));
        }
        let counted = self.reasons.iter().filter(|(_, count)| **count > 0);
        let counted: Vec<_> = counted
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        if parts.is_empty() {
            parts.push("none now".to_owned());
        }
        write!(f, "new connections not accelerated: {}", parts.join(", "))?;
        if !self.blocked.is_empty() {
            let blocked = self.blocked.iter().map(ToString::to_string);
            write!(f, "; blocked: {}", blocked.collect::<Vec<_>>().join(", "))?;
        }
        if !counted.is_empty() {
            write!(f, "; so far: {}", counted.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leg() -> LegStatus {
        LegStatus {
            local: None,
            remote: None,
            state: "established".to_owned(),
            congestion: "hybla".to_owned(),
            rtt_s: Some(0.612),
            rtt_min_s: Some(0.6),
            cwnd: 120,
            mss: 1448,
            unacked: 88,
            in_flight: 88,
            retransmitted: 3,
            pacing_rate: None,
            delivery_rate: Some(1_500_000),
            busy_s: 10.0,
            rwnd_limited_s: 4.5,
            sndbuf_limited_s: 0.1,
            receive_limit: None,
        }
    }

    #[test]
    fn a_leg_says_what_limits_it_and_not_what_hardly_does() {
        let expected = "hybla, rtt 612 ms (min 600 ms), 88 of 120 segments in flight, 1.50 Mbit/s, \
                        3 retransmitted, limited by receiver's window 45 %";
        assert_eq!(leg().to_string(), expected);
        let idle = LegStatus {
            state: "close-wait".to_owned(),
            rtt_s: None,
            rtt_min_s: None,
            retransmitted: 0,
            delivery_rate: None,
            busy_s: 0.0,
            rwnd_limited_s: 0.0,
            sndbuf_limited_s: 0.0,
            ..leg()
        };
        assert_eq!(
            idle.to_string(),
            "hybla, close-wait, 88 of 120 segments in flight"
        );
    }

    #[test]
    fn the_last_line_names_unaccelerated_sites_and_causes() {
        let mut report = FlowsReport {
            total: 0,
            flows: Vec::new(),
            not_accelerated: NotAccelerated::default(),
        };
        assert_eq!(
            report.to_string(),
            "no flows\n\nnew connections not accelerated: none now\n"
        );
        let left = |site: &str, why: &str| LeftSite {
            site: site.to_owned(),
            why: why.to_owned(),
            families: Vec::new(),
        };
        report.not_accelerated.sites = vec![left("voice", "mode"), left("mail", "peer")];
        report.not_accelerated.gate_closed = true;
        report.not_accelerated.reasons = [
            ("gate_closed".to_owned(), 2),
            ("memory_short".to_owned(), 0),
        ]
        .into();
        let text = report.to_string();
        let expected = "new connections not accelerated: voice (mode bypass), mail (peer down), all new connections \
                        (gate closed; flows 0 of 0); so far: gate_closed 2\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn a_site_with_lost_interception_passes_or_is_blocked() {
        let lost = |site: &str, families: &[&str]| LeftSite {
            site: site.to_owned(),
            why: "interception".to_owned(),
            families: families.iter().map(ToString::to_string).collect(),
        };
        let report = NotAccelerated {
            sites: vec![lost("all", &["IPv4"])],
            blocked: vec![lost("mail", &["IPv4", "IPv6"])],
            ..NotAccelerated::default()
        };
        let expected = "new connections not accelerated: all (IPv4: redirected packets are dropped on this machine); \
                        blocked: mail (IPv4, IPv6: redirected packets are dropped on this machine)";
        assert_eq!(report.to_string(), expected);
    }

    #[test]
    fn a_flow_is_shown_with_its_legs() {
        let flow = serde_json::json!({
            "id": "3-00ff", "site": "mail", "kind": "near", "client": "192.0.2.1:1", "destination": "198.51.100.1:25", "age_s": 61,
            "memory": [1024, 0], "disk": [0, 0], "kernel": [0, 0], "peer": "hub", "state": "relaying",
            "up_bytes": 2048, "down_bytes": 0, "client_leg": leg(), "server_leg": null,
        });
        let report = serde_json::json!({"total": 2, "flows": [flow], "not_accelerated": NotAccelerated::default()});
        let report: FlowsReport = serde_json::from_value(report).expect("a report");
        let text = report.to_string();
        for part in [
            "1 of 2 flows",
            "    3-00ff  192.0.2.1:1 -> 198.51.100.1:25, tunnel with hub",
            "    client: hybla, rtt 612 ms",
            " 2.00 KiB ",
            " 1.00 KiB\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("server:"), "{text}");
    }
}
