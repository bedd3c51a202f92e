//! Compressed flows in a tunnel.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    payload::{Payload, receive, sum_of},
    pep::Pep,
    serve::Server,
    tunnel::TunnelBed,
    wait::wait_until,
};

use crate::{
    support::echo_once,
    tunnel::{LINK, PORT, Running, SITE, connect, exchange, exchange_server},
};

fn compressing() -> String {
    format!("{SITE}compress = true\n")
}

/// Returns the bytes that the hub's interface toward the boat has received and sent.
fn link_bytes(bed: &TunnelBed) -> u64 {
    let devices = bed.host("hub").run("cat", &["/proc/net/dev"]);
    let mut lines = devices.lines();
    let boat = lines.find_map(|line| line.trim().strip_prefix("boat:"));
    let numbers: Vec<u64> = boat
        .expect("the interface")
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    numbers[0] + numbers[8]
}

/// Returns lines like those of log files.
fn text(len: usize) -> Vec<u8> {
    let line = |n: u64| {
        let (a, b) = (n * 7919 % 9973, n * 104_729 % 997);
        format!(
            "{{\"at\":{n},\"from\":\"10.0.{}.{}\",\"took_us\":{a}}}\n",
            b % 256,
            a % 256
        )
    };
    (0..).flat_map(|n| line(n).into_bytes()).take(len).collect()
}

fn assert_counted(pep: &Pep, plain: u64, packed: impl Fn(u64) -> bool) {
    pep.wait_counter("tunnel_uncompressed_bytes", |bytes| bytes == plain);
    let carried = pep.counter("tunnel_compressed_bytes");
    assert!(packed(carried), "{carried} of {plain}");
}

#[test]
fn text_arrives_whole_both_ways_with_less_on_the_link_and_half_closes() {
    const LEN: usize = 4_000_000;
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &compressing());
    let sum = sum_of(&text(LEN));
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, move |mut stream, _| {
        let received = receive(&mut stream).expect("in order");
        assert_eq!(received, (LEN as u64, sum));
        stream.write_all(&text(LEN)).expect("connected");
    });
    let before = link_bytes(&bed);
    let mut stream = connect(&bed, Family::V4);
    stream.write_all(&text(LEN)).expect("connected");
    // The answer follows the half-close.
    stream.shutdown(Shutdown::Write).expect("connected");
    assert_eq!(receive(&mut stream).expect("in order"), (LEN as u64, sum));
    let sent = link_bytes(&bed) - before;
    assert!(sent < LEN as u64, "{sent} bytes on the link for 2 x {LEN}");
    for pep in [&running.boat, &running.hub] {
        pep.wait_idle();
        assert_counted(pep, LEN as u64, |carried| carried < LEN as u64 / 3);
        let end = pep.log().expect("flow ended");
        for direction in ["up", "down"] {
            assert_eq!(end.number(&format!("{direction}_bytes")), LEN as u64);
            assert!(end.number(&format!("{direction}_carried")) < LEN as u64 / 3);
        }
    }
    running.stop();
}

#[test]
fn what_does_not_shrink_costs_less_than_a_hundredth() {
    const LEN: u64 = 3_000_000;
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &compressing());
    let _server = exchange_server(&bed, Family::V4, LEN);
    exchange(&bed, Family::V4, LEN);
    for pep in [&running.boat, &running.hub] {
        pep.wait_idle();
        assert_counted(pep, LEN, |carried| {
            carried > LEN && carried < LEN + LEN / 100
        });
        let (all, stored) = (
            "tunnel_compression_blocks",
            "tunnel_compression_blocks_stored",
        );
        assert_eq!(pep.counter(all), pep.counter(stored));
    }
    running.stop();
}

/// The compressor must not wait for more input: each message is answered before the next is sent.
#[test]
fn each_message_is_answered_before_the_next_is_sent() {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=1ms,queue=100kB");
    let running = Running::start(&bed, "", &compressing());
    let server = bed.host("server");
    let _echo = EchoServer::start(server.listen(bed.server_at(Family::V4, PORT)));
    let mut stream = connect(&bed, Family::V4);
    let (mut sent, lines) = (0, text(30_000));
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        echo_once(&mut stream, line);
        sent += line.len() as u64;
    }
    drop(stream);
    for pep in [&running.boat, &running.hub] {
        pep.wait_idle();
        assert_counted(pep, sent, |carried| 4 * carried < 3 * sent);
    }
    running.stop();
}

#[test]
fn a_flow_that_is_compressed_outlives_an_outage() {
    const LEN: usize = 10_000_000;
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &compressing());
    let sum = sum_of(&text(LEN));
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let _server = Server::start(listener, move |mut stream, _| {
        let _ = stream.write_all(&text(LEN));
    });
    let mut stream = connect(&bed, Family::V4);
    let mut first = [0; 1000];
    stream.read_exact(&mut first).expect("in order");
    bed.cut_link();
    running.boat.log().expect("peer silent");
    bed.restore_link();
    let mut all = first.to_vec();
    stream.read_to_end(&mut all).expect("in order");
    assert_eq!((all.len(), sum_of(&all)), (LEN, sum));
    drop(stream);
    running.stop();
}

/// The hub has no sites: the stream header states whether a stream is compressed.
#[test]
fn sites_that_compress_and_others_share_a_peer() {
    const LEN: u64 = 300_000;
    let other =
        "[[site]]\nname = \"plain\"\nmode = \"tunnel\"\npeer = \"hub\"\nmatch = { dport = 7001 }\n";
    let bed = TunnelBed::new(LINK);
    let running = Running::start(&bed, "", &format!("{other}{}", compressing()));
    let server = bed.host("server");
    let _servers = [PORT, 7001].map(|port| {
        let listener = server.listen(bed.server_at(Family::V4, port));
        Server::start(listener, move |mut stream, _| {
            let (received, _) = receive(&mut stream).expect("in order");
            assert_eq!(received, LEN);
            let _ = stream.write_all(b"done");
        })
    });
    for (port, compressed) in [(7001, 0), (PORT, LEN)] {
        let client = bed.host("client");
        let mut stream: TcpStream = client
            .connect(bed.server_at(Family::V4, port))
            .expect("pepd answers");
        Payload::new(1, LEN).send(&mut stream).expect("connected");
        stream.shutdown(Shutdown::Write).expect("connected");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("in order");
        assert_eq!(answer, "done");
        running.boat.wait_idle();
        assert_eq!(
            running.boat.counter("tunnel_uncompressed_bytes"),
            compressed
        );
    }
    wait_until("the hub to end both flows", || {
        running.hub.flow_ends().len() == 2
    });
    running.assert_in_tunnel(2);
    running.stop();
}
