//! What a running pepd shows.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
};

use pepd_tests::{bed::Family, echo::EchoServer, tunnel::TunnelBed, wait::wait_until};
use serde_json::Value;

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, Running, SITE, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn status(running: &Running) -> Value {
    let shown = running.boat.ask(&["status", "--json"]);
    serde_json::from_str(&shown).expect("JSON")
}

/// What a scrape is answered with, and the head of the answer.
fn metrics(running: &Running) -> String {
    let mut stream = UnixStream::connect(running.boat.path("admin.sock")).expect("it listens");
    let request = b"GET /metrics HTTP/1.1\r\nhost: pepd\r\n\r\n";
    stream.write_all(request).expect("it reads");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("an answer");
    page
}

#[test]
fn status_counts_flows_and_bytes_by_site_and_knows_the_peer() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let before = status(&running);
    let of_site =
        |status: &Value, field: &str| status["sites"][0][field].as_u64().expect("a number");
    assert_eq!(of_site(&before, "flows_open"), 0, "{before}");
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"0123456789");
    wait_until("bytes are counted", || {
        let status = status(&running);
        of_site(&status, "up_bytes") == 10 && of_site(&status, "down_bytes") == 10
    });
    wait_until("a session is known", || {
        let peer = &status(&running)["peers"][0];
        peer["here"] == true
            && peer["flows"] == 1
            && peer["session"]["rtt_s"].as_f64() > Some(0.0)
            && peer["session"]["packets_received"].as_u64() > Some(0)
    });
    let shown = status(&running);
    assert_eq!(of_site(&shown, "flows_open"), 1, "{shown}");
    assert_eq!(shown["sites"][0]["mode"], "tunnel");
    assert_eq!(shown["total"]["flows_accepted"], 1, "{shown}");
    assert_eq!(shown["from_peers"]["flows_accepted"], 0, "{shown}");
    assert_eq!(shown["limits"]["flows"]["used"], 1, "{shown}");
    assert_eq!(shown["counters"]["tunnel_flows_near"], 1, "{shown}");
    let text = running.boat.ask(&["status"]);
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let page = metrics(&running);
    for sample in [
        "\npepd_site_flows_open{site=\"all\"} 1.0\n",
        "\npepd_site_bytes_total{site=\"all\",direction=\"up\"} 10.0\n",
        "\npepd_peer_up{peer=\"hub\"} 1.0\n",
        "\npepd_tunnel_flows_near_total 1.0\n",
    ] {
        assert!(page.contains(sample), "{sample}: {page}");
    }
    assert!(page.contains("application/openmetrics-text") && page.ends_with("# EOF\n"));
    drop(stream);
    wait_until("the flow has ended", || {
        let status = status(&running);
        of_site(&status, "flows_open") == 0 && status["sites"][0]["flows_ended"]["closed"] == 1
    });
    running.stop_after_errors();
}
