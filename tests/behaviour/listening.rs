//! History of the last hours, and the event stream of the admin socket.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
};

use pepd_tests::{bed::Family, echo::EchoServer, tunnel::TunnelBed, wait::wait_until};
use serde_json::Value;

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, Running, SITE, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn history(running: &Running, query: &str) -> Value {
    let mut answer = String::new();
    let mut stream = running.ask(&format!("/v1/history{query}"));
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    serde_json::from_str(body).unwrap_or_else(|err| panic!("{err}: {answer}"))
}

/// Returns a column of the history, per second or per ten seconds.
fn column(history: &Value, series: usize, name: &str) -> Vec<Option<f64>> {
    let columns = history["columns"].as_array().expect("columns");
    let place = columns.iter().position(|column| column == name);
    let place = place.expect("there is such a column");
    let rows = history["series"][series]["rows"].as_array().expect("rows");
    rows.iter().map(|row| row[1][place].as_f64()).collect()
}

#[test]
fn history_has_what_was_seen_and_the_outages() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    echo_once(&mut stream, &[7; 100_000]);
    wait_until("bytes and packets are in it", || {
        let seen = history(&running, "");
        [
            "up_rate",
            "down_rate",
            "packets",
            "flows",
            "link_up",
            "rtt_s",
        ]
        .iter()
        .all(|name| {
            [0, 1].iter().all(|series| {
                let values = column(&seen, *series, name);
                values.into_iter().flatten().any(|value| value > 0.0)
            })
        })
    });
    let seen = history(&running, "");
    assert_eq!(
        (&seen["series"][0]["step_s"], &seen["series"][1]["step_s"]),
        (&1.into(), &10.into())
    );
    // One lasts until the session begins, which takes a second where the boat is ready first.
    let before = seen["outages"].as_array().expect("a list").len();
    assert!(before <= 1, "{seen}");
    running.boat.ask(&["link", "down"]);
    wait_until("the outage is in it", || {
        let seen = history(&running, "");
        let down = column(&seen, 0, "link_up").last() == Some(&Some(0.0));
        let outage = &seen["outages"][before];
        down && outage["lasted_s"].is_null() && outage["began"].is_f64()
    });
    running.boat.ask(&["link", "up"]);
    wait_until("its end is in it", || {
        let seen = history(&running, "");
        seen["outages"][before]["lasted_s"].as_f64() > Some(0.0)
    });
    let seen = history(&running, "");
    let last = seen["series"][0]["rows"]
        .as_array()
        .and_then(|rows| rows.last());
    let last = last.expect("a row")[0].as_u64().expect("a second");
    let late = history(&running, &format!("?since={last}"));
    assert!(
        late["series"][0]["rows"].as_array().expect("rows").len() <= 3,
        "{late}"
    );
    let future = history(&running, "?since=99999999999");
    assert_eq!(
        (&future["series"][1]["rows"], &future["outages"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let mut refused = String::new();
    running
        .ask("/v1/history?since=yesterday")
        .read_to_string(&mut refused)
        .expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 400"), "{refused}");
    drop(stream);
    running.stop_after_errors();
}

/// Subscribes to events, and reads the first status.
fn listen(running: &Running) -> BufReader<UnixStream> {
    let mut stream = running.ask("/v1/stream");
    assert!(heard(&mut stream, "status")["uptime_s"].is_f64());
    stream
}

/// Returns the data of the next event of that name.
fn heard(stream: &mut BufReader<UnixStream>, name: &str) -> Value {
    let lines = stream
        .by_ref()
        .lines()
        .map(|line| line.expect("it goes on"));
    let mut lines = lines.skip_while(|line| *line != format!("event: {name}"));
    lines.next().unwrap_or_else(|| panic!("no {name}"));
    let data = lines.next().expect("data");
    let data = data.strip_prefix("data: ").expect("data");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn subscribers_get_a_status_each_second_until_pepd_ends_and_are_limited() {
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{SITE}{ADMIN}"));
    let mut listeners: Vec<_> = (0..8).map(|_| listen(&running)).collect();
    let mut refused = String::new();
    running
        .ask("/v1/stream")
        .read_to_string(&mut refused)
        .expect("an answer");
    assert!(
        refused.starts_with("HTTP/1.1 503")
            && refused.contains("all 8 streams are in use")
            && refused.contains("query /v1/status"),
        "{refused}"
    );
    // Other requests are still answered.
    assert_eq!(
        history(&running, "?since=99999999999")["series"][0]["step_s"],
        1
    );
    for stream in &mut listeners {
        let status = heard(stream, "status");
        let row = heard(stream, "row");
        let next = heard(stream, "row");
        assert_eq!(status["sites"][0]["name"], "all", "{status}");
        assert!(next[0].as_u64() > row[0].as_u64(), "{row} {next}");
    }
    drop(listeners.pop());
    wait_until("the closed subscriber's slot to be free", || {
        let mut stream = running.ask("/v1/stream");
        let mut first = String::new();
        stream.read_line(&mut first).expect("an answer");
        first.starts_with("HTTP/1.1 200")
    });
    running.stop_after_errors();
    for mut stream in listeners {
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(ended.is_ok(), "{ended:?}");
    }
}

/// Any local user may read at the TCP port, and the socket still serves its owner.
#[test]
fn readers_at_the_port_take_no_streams_or_traces_of_the_socket() {
    const HTTP: &str = "127.0.0.1:9180";
    let bed = TunnelBed::new(LINK);
    let admin = format!("{ADMIN}http = \"{HTTP}\"\n");
    let running = Running::start(&bed, "", &format!("{SITE}{admin}"));
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let mut flow = connect(&bed, Family::V4);
    echo_once(&mut flow, b"a flow");
    let by_port = |target: &str| {
        let stream = bed.host("boat").enter(|| TcpStream::connect(HTTP));
        let mut stream = stream.expect("it listens");
        let request = format!("GET {target} HTTP/1.1\r\nhost: {HTTP}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut stream = BufReader::new(stream);
        let mut first = String::new();
        stream.read_line(&mut first).expect("an answer");
        (first, stream)
    };
    let trace = format!("/v1/flows/{}/trace", flow.local_addr().expect("connected"));
    let mut readers = Vec::new();
    for target in ["/v1/stream", &trace] {
        for _ in 0..8 {
            let (first, reader) = by_port(target);
            assert!(first.starts_with("HTTP/1.1 200"), "{target}: {first}");
            readers.push(reader);
        }
        let (first, _) = by_port(target);
        assert!(first.starts_with("HTTP/1.1 503"), "{target}: {first}");
        let mut first = String::new();
        let mut stream = running.ask(target);
        stream.read_line(&mut first).expect("an answer");
        assert!(first.starts_with("HTTP/1.1 200"), "{target}: {first}");
    }
    drop(readers);
    drop(flow);
    running.stop();
}
