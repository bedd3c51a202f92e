//! Metrics, status and web page of a running pepd.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::Dial,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;

use crate::{
    support::echo_once,
    survive::crash,
    tunnel::{LINK, PORT, Running, SITE, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn status(running: &Running) -> Value {
    let shown = running.boat.ask(&["status", "--json"]);
    serde_json::from_str(&shown).expect("JSON")
}

/// Returns the body and the head of the answer to a scrape.
fn metrics(running: &Running) -> String {
    let mut page = String::new();
    let mut answer = running.ask("/metrics");
    answer.read_to_string(&mut page).expect("an answer");
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
        peer["up"] == true
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

#[test]
fn a_hub_that_has_ended_is_shown_with_when_it_was_heard() {
    let bed = TunnelBed::new(LINK);
    let mut running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    running.wait_for_session();
    assert_eq!(running.hub.terminate(), 0);
    wait_until("the peer to be down", || {
        let shown = status(&running);
        let peer = &shown["peers"][0];
        // pepd checks its peers once a second.
        peer["up"] == false && peer["heard_s"].is_number() && shown["link"]["by"] != "tunnel"
    });
    let shown = status(&running);
    let peer = &shown["peers"][0];
    assert!(peer["remote"].is_string(), "{peer}");
    assert!(peer["heard_s"].as_f64() > Some(0.0), "{peer}");
    for bytes in ["received_bytes", "sent_bytes"] {
        assert!(peer[bytes].as_u64() > Some(0), "{peer}");
    }
    let text = running.boat.ask(&["status"]);
    assert!(text.contains(" ago, received "), "{text}");
}

#[test]
fn flows_are_listed_with_what_the_kernel_says_of_their_legs() {
    const PASSES: &str =
        "[[site]]\nname = \"voice\"\nmode = \"bypass\"\nmatch = { dport = [7999] }\n";
    const SPLIT: &str =
        "[[site]]\nname = \"split\"\ncongestion = \"reno\"\nmatch = { dport = [7001] }\n";
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{PASSES}{SPLIT}{SITE}{ADMIN}"));
    let servers = [PORT, 7001].map(|port| {
        let listener = bed.host("server").listen(bed.server_at(Family::V4, port));
        EchoServer::start(listener)
    });
    let none = flows(&running, &[]);
    assert_eq!(
        (&none["total"], &none["flows"]),
        (&0.into(), &Value::Array(vec![]))
    );
    let mut in_tunnel = connect(&bed, Family::V4);
    echo_once(&mut in_tunnel, b"0123456789");
    let split = bed.host("client").connect(bed.server_at(Family::V4, 7001));
    let mut split = split.expect("pepd answers");
    echo_once(&mut split, &[7; 30_000]);
    let shown = flows(&running, &[]);
    assert_eq!(shown["total"], 2, "{shown}");
    let [first, second] = [&shown["flows"][0], &shown["flows"][1]];
    assert_eq!(
        (&first["site"], &first["kind"]),
        (&"split".into(), &"split".into()),
        "{shown}"
    );
    assert_eq!(
        (&first["up_bytes"], &first["down_bytes"]),
        (&30_000.into(), &30_000.into())
    );
    assert_eq!(
        first["client"],
        split.local_addr().expect("connected").to_string()
    );
    assert_eq!(
        (&first["state"], &first["peer"]),
        (&"relaying".into(), &Value::Null)
    );
    let server = &first["server_leg"];
    assert_eq!(
        (&server["congestion"], &server["state"]),
        (&"reno".into(), &"established".into()),
        "{shown}"
    );
    // The link's delay is 20 ms in each direction.
    assert!(server["rtt_s"].as_f64() >= Some(0.04), "{shown}");
    assert!(server["rtt_min_s"].as_f64() >= Some(0.04), "{shown}");
    assert!(server["cwnd"].as_u64() > Some(0), "{shown}");
    assert!(server["busy_s"].as_f64() > Some(0.0), "{shown}");
    assert!(
        first["client_leg"]["rtt_s"].as_f64() < server["rtt_s"].as_f64(),
        "{shown}"
    );
    assert_eq!(
        (&second["site"], &second["kind"]),
        (&"all".into(), &"near".into()),
        "{shown}"
    );
    assert_eq!(
        (&second["peer"], &second["server_leg"]),
        (&"hub".into(), &Value::Null),
        "{shown}"
    );
    assert_eq!(second["client_leg"]["state"], "established", "{shown}");
    assert_eq!(
        shown["not_accelerated"]["sites"],
        serde_json::json!([{"site": "voice", "why": "mode", "families": []}])
    );
    assert_eq!(shown["not_accelerated"]["gate_closed"], false, "{shown}");

    let oldest = flows(&running, &["--sort", "age", "--limit", "1"]);
    assert_eq!(
        (&oldest["total"], &oldest["flows"][0]["site"]),
        (&2.into(), &"all".into()),
        "{oldest}"
    );
    assert_eq!(oldest["flows"][1], Value::Null, "{oldest}");
    let of_site = flows(&running, &["--site", "split"]);
    assert_eq!(
        (&of_site["total"], &of_site["flows"][0]["site"]),
        (&1.into(), &"split".into()),
        "{of_site}"
    );
    let text = running.boat.ask(&["flows"]);
    assert!(text.contains("server: reno, rtt "), "{text}");
    assert!(
        text.ends_with("\nnew connections not accelerated: voice (mode bypass)\n"),
        "{text}"
    );
    drop((in_tunnel, split, servers));
    running.stop_after_errors();
}

fn flows(running: &Running, words: &[&str]) -> Value {
    let shown = running.boat.ask(&[&["flows", "--json"], words].concat());
    serde_json::from_str(&shown).expect("JSON")
}

/// Returns the boat's answer by TCP: status code and full text.
fn by_tcp(bed: &TunnelBed, method: &str, target: &str, host: &str) -> (u16, String) {
    let answer = try_tcp(bed, method, target, host).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok());
    (status.expect("a status"), answer)
}

fn try_tcp(bed: &TunnelBed, method: &str, target: &str, host: &str) -> io::Result<String> {
    let mut stream = bed.host("boat").enter(|| TcpStream::connect(HTTP))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let request =
        format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

const HTTP: &str = "127.0.0.1:9180";

#[test]
fn what_only_reads_is_answered_by_tcp_and_nothing_else() {
    let bed = TunnelBed::new(LINK);
    let admin = format!("{ADMIN}http = \"{HTTP}\"\n");
    let running = Running::start(&bed, "", &format!("{SITE}{admin}"));
    for (target, part) in [
        ("/metrics", "\npepd_peer_up{peer=\"hub\"} 1.0\n"),
        ("/v1/status", "\"uptime_s\":"),
        ("/v1/flows?limit=3", "\"not_accelerated\":"),
        ("/v1/link", "\"outages\":"),
        ("/", "default-src 'none'; script-src 'self';"),
        ("/app.js", "\r\ncontent-type: text/javascript;"),
        ("/v1/history?since=1", "\"columns\":[\"up_rate\","),
        ("/v1/custody", "\"count\":0"),
    ] {
        for host in [HTTP, "localhost:9180", "[::1]"] {
            let (status, answer) = by_tcp(&bed, "GET", target, host);
            assert!(status == 200 && answer.contains(part), "{target}: {answer}");
        }
        let (status, answer) = by_tcp(&bed, "GET", target, "evil.example:9180");
        assert_eq!((status, answer.contains(part)), (403, false), "{answer}");
        for method in ["POST", "PUT", "DELETE"] {
            let (status, answer) = by_tcp(&bed, method, target, HTTP);
            assert_eq!(status, 405, "{answer}");
        }
    }
    // Detailed traces are only available on the admin socket.
    for path in ["/v1/flows/0-0000/qlog", "/v1/peers/hub/qlog"] {
        let (_, answer) = by_tcp(&bed, "GET", path, HTTP);
        assert!(answer.contains("available: "), "{path}: {answer}");
    }
    let (status, answer) = by_tcp(&bed, "GET", "/v1/flows/0-0000/trace", HTTP);
    assert!(status == 404 && answer.contains("no open flow"), "{answer}");
    // Endpoints that only the admin socket has.
    let (status, answer) = by_tcp(&bed, "GET", "/v1/config", HTTP);
    assert_eq!(status, 404, "{answer}");
    let (status, answer) = by_tcp(&bed, "PUT", "/v1/reload", HTTP);
    assert_eq!(status, 405, "{answer}");
    // A web page must not change anything by the socket either, wherever it is from.
    let socket = UnixStream::connect(running.boat.path("admin.sock"));
    let mut socket = socket.expect("it listens");
    let body = "{\"state\": \"down\"}";
    let request = format!(
        "PUT /v1/link HTTP/1.1\r\nhost: localhost:9180\r\norigin: http://localhost:9180\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("pages may only read"),
        "{answer}"
    );
    assert!(
        running
            .boat
            .ask(&["link", "status"])
            .starts_with("link: up")
    );
    // The next process has the port, too.
    crash(&running.boat);
    wait_until("the next process to answer", || {
        let answer = try_tcp(&bed, "GET", "/v1/status", HTTP);
        answer.is_ok_and(|answer| answer.contains("\"restarts\":1,"))
    });
    running.stop_after_errors();
}

/// Clients that take hold of the admin port: each sends a part of a head, or asks for an answer
/// that it never reads, or for a stream that it never reads.
fn slow_clients(connect: impl Fn() -> Box<dyn io::Write>, kind: usize) -> Vec<Box<dyn io::Write>> {
    let request = [
        "GET /v1/sta",
        "GET /app.js HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "GET /v1/stream HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ][kind];
    let client = |_| {
        let mut stream = connect();
        // pepd may have closed the connection already.
        let _ = stream.write_all(request.as_bytes());
        stream
    };
    (0..100).map(client).collect()
}

/// Others are answered beside slow clients of the socket and of the port, flows continue, and
/// memory is bounded.
#[test]
fn slow_clients_of_the_admin_port_make_nobody_wait() {
    /// Less than the time after which pepd closes slow connections, if it must not wait for them.
    const SOON: Duration = Duration::from_secs(4);
    let bed = TunnelBed::new(LINK);
    let admin = format!("{ADMIN}http = \"{HTTP}\"\n");
    let running = Running::start(&bed, "", &format!("{SITE}{admin}"));
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, b"before");
    let (before, idle) = (running.boat.resident_bytes(), running.boat.descriptors());
    let path = running.boat.path("admin.sock");
    let boat = bed.host("boat");
    let by_port = || -> Box<dyn io::Write> {
        let address = HTTP.parse().expect("an address");
        let dial = Dial::to(address).receive_buffer(2048);
        Box::new(boat.dial(&dial).expect("it listens"))
    };
    let by_socket =
        || -> Box<dyn io::Write> { Box::new(UnixStream::connect(&path).expect("it listens")) };
    let mut all = Vec::new();
    for kind in [0, 1, 2] {
        all.extend(slow_clients(by_port, kind));
        all.extend(slow_clients(by_socket, kind));
        let begun = Instant::now();
        let (code, answer) = by_tcp(&bed, "GET", "/v1/status", HTTP);
        assert_eq!(code, 200, "{answer}");
        assert!(status(&running)["uptime_s"].is_number());
        assert!(begun.elapsed() < SOON, "{kind}: {:?}", begun.elapsed());
        echo_once(&mut stream, &[7; 100_000]);
    }
    let peak = running.boat.resident_bytes();
    assert!(
        peak < before + (40 << 20),
        "{before} bytes before, now {peak}"
    );
    // Sixteen of the port, of the socket, and of their streams.
    let descriptors = running.boat.descriptors();
    assert!(
        descriptors <= idle + 60,
        "{idle} descriptors, now {descriptors}"
    );
    drop(all);
    drop(stream);
    running.stop();
}
