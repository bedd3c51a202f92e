//! Sample status for tests.

use crate::status::Status;

/// Returns a status with a value in every field and names of maximum length.
///
/// # Panics
/// If the sample does not match the type.
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
    site["clear_never"] = true.into();
    let mut lost = site.clone();
    for (key, value) in [
        ("bypassed", "interception"),
        ("on_interception_loss", "pass"),
    ] {
        lost[key] = value.into();
    }
    lost["clear_never"] = false.into();
    lost["interception_lost"] = serde_json::json!(["IPv4", "IPv6"]);
    let mut blocked = lost.clone();
    blocked["bypassed"] = serde_json::Value::Null;
    blocked["on_interception_loss"] = "block".into();
    let hosts = ["10.1.0.0/16"].into_iter().map(str::to_owned);
    let more = (0..7).map(|host| format!("2001:db8:ffff:ffff:ffff:ffff:ffff:{host}/112"));
    let from: Vec<_> = hosts.chain(more).collect();
    let peers = serde_json::json!([
        {"name": "y".repeat(64), "endpoint": null, "up": true, "heard_s": 1.0,
          "remote": "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
          "received_bytes": 1_u64 << 40, "sent_bytes": 1_u64 << 30, "flows": 8192,
          "from": from, "to": [], "may_open_flows": false, "unreached": ["IPv4", "IPv6"], "session": {
            "carrier": "udp", "path": "stopped", "rtt_s": 12.3456, "rtt_min_s": 0.6,
            "rate": 999_000_000, "link_rate": 1, "loss": 0.1234, "fec_overhead": 1.0, "packets_sent": 1,
            "bytes_sent": 1, "repairs_sent": 1, "segments_retransmitted": 12_345_678, "packets_received": 1,
            "segments_restored": 1, "outages": 12_345_678,
            "lost": {"link": 1, "congestion": 2, "outage": 3},
        }, "packets": [{
            "site": "voice", "packets": 1, "bytes": 2, "messages": 3, "message_bytes": 4, "delivered": 5,
            "dropped_full": 6, "dropped_late": 7, "dropped_long": 9, "queued_bytes": 8, "queued_s": 0.1,
            "boosters": {"fec": {"on": 1, "repairs": 2}},
        }], "takes_packets": true, "understands": ["fec"], "packets_refused": 1, "packets_unmatched": 7, "packets_martian": 8,
          "unmatched_last": "udplite from [2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535 to [2001:db8:ffff:ffff:ffff:ffff:ffff:fffe]:65535",
          "packets_received": [{
            "chain": 3, "messages": 1, "packets": 2, "unreadable": 3, "given_up": 4, "dropped_congested": 5,
            "boosters": {"fec": {"restored": 2}},
        }]},
        {"name": "quiet", "endpoint": null, "up": false, "flows": 0, "session": null,
          "from": ["192.0.2.0/24"], "to": ["198.51.100.0/24", "10.9.0.1:443"], "may_open_flows": true},
        {"name": "lost", "endpoint": "hub.example:5001", "remote": "192.0.2.1:5001", "up": false,
          "addresses": ["[2001:db8::1]:5001", "192.0.2.1:5001"],
          "flows": 0, "session": null, "heard_s": 3700.0, "received_bytes": 1024, "sent_bytes": 2048},
        {"name": "deaf", "endpoint": "hub.example:5001", "up": false, "flows": 8192, "session": null, "no_session": "answers_rejected"},
    ]);
    let boosted = serde_json::json!([{
        "site": "radio", "packets": 1, "bytes": 2, "messages": 3, "message_bytes": 4, "delivered": 5,
        "dropped_full": 6, "dropped_late": 7, "dropped_long": 0, "queued_bytes": 8, "queued_s": 0.1,
        "boosters": {"snoop": {"on": 1, "retransmitted": 2}},
    }]);
    let status = serde_json::json!({
        "boosted": boosted,
        "version": "10.11.12", "pid": 4_194_304, "started": 1.0, "uptime_s": 1e7, "restarts": 12,
        "draining": true, "unknown": "is ignored", "lan_missing": ["abcdefghijklmno", "bcdefghijklmnop"],
        "link": {
            "interface": "abcdefghijklmno", "rate": 9_990_000, "rate_down": 99_900_000, "rtt_s": 0.6, "other_rate": 1_234_000,
            "up": true, "by": "operator",
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
