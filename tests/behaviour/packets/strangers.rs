//! Packets of a peer that match no site here: pepd drops them, and reports the reason.

use std::net::{SocketAddr, UdpSocket};

use pepd_tests::{
    bed::Family,
    tunnel::TunnelBed,
    wait::{wait_for, wait_until},
};
use serde_json::Value;

use super::BothEnds;
use crate::tunnel::{LINK, PORT};

/// Sends a datagram from this port of the server.
fn speak(bed: &TunnelBed, port: u16) {
    let (from, to) = (
        bed.server_at(Family::V4, port),
        SocketAddr::new(bed.address("client", Family::V4), 9),
    );
    let host = bed.host("server");
    let socket = wait_for("a socket", || host.enter(|| UdpSocket::bind(from)).ok());
    // No program listens there, so the next call returns an ICMP error.
    let _ = socket.send_to(b"unasked", to);
}

/// Returns the boat's status of its only peer.
fn of_peer(ends: &BothEnds) -> Value {
    let status = ends.boat.ask(&["status", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    status["peers"][0].clone()
}

#[test]
fn an_end_without_the_peers_site_reports_the_packets_it_drops() {
    let bed = TunnelBed::new(LINK);
    let back = [(PORT, ""), (PORT + 1, "")];
    let ends = BothEnds::start(&bed, &[(PORT, "")], &back);
    wait_until("a packet of the site", || {
        speak(&bed, PORT);
        of_peer(&ends)["packets"][0]["delivered"].as_u64() > Some(0)
    });
    wait_until("what no site takes", || {
        speak(&bed, PORT + 1);
        of_peer(&ends)["packets_unmatched"].as_u64() > Some(2)
    });
    let before = of_peer(&ends)["packets"][0]["delivered"].clone();
    let named = format!("udp from {}", bed.server_at(Family::V4, PORT + 1));
    let line = ends
        .boat
        .log()
        .expect("no local site carries their answers");
    assert_eq!(line.level(), "WARN");
    assert!(line.message().contains(&named), "{}", line.message());
    let lines = ends.boat.log().events_since(0);
    let matching = lines
        .iter()
        .filter(|line| line.message().contains("no local site carries"));
    assert_eq!(matching.count(), 1, "once for all");
    let text = ends.boat.ask(&["status"]);
    assert!(text.contains("that no site here accepts: "), "{text}");
    assert!(text.contains(&named), "{text}");
    let top = ends.boat.ask(&["top", "--once"]);
    let of_site = top
        .lines()
        .find(|line| line.starts_with(&format!("site-{PORT} ")) && line.contains("/s"));
    assert!(of_site.is_some(), "{top}");
    assert!(
        top.contains("packets of hub that no site here accepts"),
        "{top}"
    );
    let config = ends.boat.path("pepd.toml");
    let words = ["check", "--config", config.to_str().expect("a path")];
    let checked = bed.host("boat").run(
        pepd_tests::pep_binary::pepd().to_str().expect("a path"),
        &words,
    );
    assert!(checked.contains(&named), "{checked}");
    assert!(checked.contains("no local site carries"), "{checked}");
    // Refused packets belong to no site.
    speak(&bed, PORT + 1);
    assert_eq!(of_peer(&ends)["packets"][0]["delivered"], before);
    assert_eq!(ends.hub.counter("packets_unmatched"), 0);
    ends.stop();
}
