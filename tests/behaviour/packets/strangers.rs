//! Packets of a peer that no site here has to do with: they are dropped, and whoever looks is told why.

use std::net::{SocketAddr, UdpSocket};

use pepd_tests::{
    bed::Family,
    tunnel::TunnelBed,
    wait::{wait_for, wait_until},
};
use serde_json::Value;

use super::Ends;
use crate::tunnel::{LINK, PORT};

/// Has the server send something from this port.
fn speak(bed: &TunnelBed, port: u16) {
    let (from, to) = (
        bed.server_at(Family::V4, port),
        SocketAddr::new(bed.address("client", Family::V4), 9),
    );
    let host = bed.host("server");
    let socket = wait_for("a socket", || host.enter(|| UdpSocket::bind(from)).ok());
    // Nobody is there, which the next one is told.
    let _ = socket.send_to(b"unasked", to);
}

/// What the boat says of its only peer.
fn of_peer(ends: &Ends) -> Value {
    let status = ends.boat.ask(&["status", "--json"]);
    let status: Value = serde_json::from_str(&status).expect("JSON");
    status["peers"][0].clone()
}

#[test]
fn who_lacks_a_site_that_the_peer_has_is_told_which_packets_it_drops() {
    let bed = TunnelBed::new(LINK);
    let back = [(PORT, ""), (PORT + 1, "")];
    let ends = Ends::start(&bed, &[(PORT, "")], &back);
    wait_until("what the site takes", || {
        speak(&bed, PORT);
        of_peer(&ends)["packets"][0]["delivered"].as_u64() > Some(0)
    });
    wait_until("what no site takes", || {
        speak(&bed, PORT + 1);
        of_peer(&ends)["packets_foreign"].as_u64() > Some(2)
    });
    let before = of_peer(&ends)["packets"][0]["delivered"].clone();
    let named = format!("udp from {}", bed.server_at(Family::V4, PORT + 1));
    let line = ends.boat.log().expect("no site takes what answers them");
    assert_eq!(line.level(), "WARN");
    assert!(line.message().contains(&named), "{}", line.message());
    let lines = ends.boat.log().events_since(0);
    let told = lines
        .iter()
        .filter(|line| line.message().contains("no site takes"));
    assert_eq!(told.count(), 1, "once for all");
    let text = ends.boat.ask(&["status"]);
    assert!(text.contains("as no site here takes them: "), "{text}");
    assert!(text.contains(&named), "{text}");
    let top = ends.boat.ask(&["top", "--once"]);
    let of_site = top
        .lines()
        .find(|line| line.starts_with(&format!("site-{PORT} ")) && line.contains("/s"));
    assert!(of_site.is_some(), "{top}");
    assert!(
        top.contains("packets of hub dropped, as no site here takes them"),
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
    // What was refused is of no site.
    speak(&bed, PORT + 1);
    assert_eq!(of_peer(&ends)["packets"][0]["delivered"], before);
    assert_eq!(ends.hub.counter("packets_foreign"), 0);
    ends.stop();
}
