//! Silent hosts, and pepd's timeouts for them.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{
    bed::{Bed, Place},
    echo::EchoServer,
    matrix::{matrix, matrix_pepd_only},
    outcome::Ended,
    payload::{self, Payload},
    serve::Server,
    wait::{PATIENCE, wait_until},
};
use socket2::{SockRef, TcpKeepalive};

use crate::{
    support::{PORT, connect, cut_off, echo_once, reconnect, socket_toward},
    survive,
};

#[test]
fn an_idle_flow_is_ended() {
    matrix_pepd_only(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed
            .start_with("[timeouts]\nidle = \"1s\"")
            .expect("not direct");
        let mut stream = connect(bed);
        echo_once(&mut stream, b"and then silence");
        let ended = Ended::from_stream(&stream);
        assert_ne!(ended, Ended::Hung);
        pep.wait_flow_end(|end| end.reason == "idle_timeout");
        wait_until("the server's connection to close", || echo.open() == 0);
        pep.assert_healthy();
    });
}

/// The control is the plain network, which has no such limit.
#[test]
fn a_flow_that_speaks_now_and_then_is_not_idle() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let _pep = bed.start_with("[timeouts]\nidle = \"2s\"");
        let mut stream = connect(bed);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) {
            echo_once(&mut stream, b"alive");
            // The pauses are the traffic under test.
            thread::sleep(Duration::from_millis(400));
        }
    });
}

/// A flow that moves in one direction only is not idle either.
#[test]
fn a_slow_one_way_flow_is_not_idle() {
    matrix(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, |mut stream, _| {
            for _ in 0..10 {
                if stream.write_all(b"tick").is_err() {
                    return;
                }
                // The pauses are the traffic under test.
                thread::sleep(Duration::from_millis(400));
            }
        });
        let _pep = bed.start_with("[timeouts]\nidle = \"2s\"");
        assert_eq!(
            Ended::from_stream(&connect(bed)),
            Ended::Closed { after: 40 }
        );
    });
}

const KEEPALIVE: &str = "[timeouts]
user_timeout = \"2s\"
rto_max = \"1s\"
keepalive = { idle = \"1s\", interval = \"1s\", count = 2 }";

#[test]
fn a_silent_flow_whose_server_vanished_is_ended_by_keepalive() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start_with(KEEPALIVE).expect("not direct");
        let mut stream = connect(bed);
        echo_once(&mut stream, b"x");
        cut_off(&bed.server);
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        pep.wait_flow_end(|end| end.reason == "user_timeout");
    });
}

#[test]
fn a_silent_flow_whose_client_vanished_is_ended_by_keepalive() {
    matrix_pepd_only(|bed| {
        let (result, ended) = mpsc::channel();
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            stream.read_exact(&mut [0]).expect("a byte");
            result
                .send(Ended::from_stream(&stream))
                .expect("the test waits");
        });
        let pep = bed.start_with(KEEPALIVE).expect("not direct");
        let mut stream = connect(bed);
        stream.write_all(b"x").expect("connected");
        pep.wait_counter("up_bytes", |bytes| bytes == 1);
        cut_off(&bed.client);
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(Ended::RESET));
        pep.wait_flow_end(|end| end.reason == "user_timeout");
    });
}

/// Returns a reader of the number of packets that the server has received.
fn packets_at_server(bed: &Bed) -> impl Fn() -> u64 {
    bed.server.nft(&format!(
        "table inet seen {{
            counter received {{}}
            chain input {{ type filter hook input priority 0; tcp dport {PORT} counter name received; }}
        }}"
    ));
    move || {
        let text = bed
            .server
            .run("nft", &["list", "counter", "inet", "seen", "received"]);
        let mut words = text
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        let number = words.nth(1).and_then(|number| number.parse().ok());
        number.expect("a counter")
    }
}

fn keep_alive(stream: &TcpStream, count: u32) {
    let second = Duration::from_secs(1);
    let times = TcpKeepalive::new().with_time(second).with_interval(second);
    let set = SockRef::from(stream).set_tcp_keepalive(&times.with_retries(count));
    set.expect("a socket");
}

/// Returns the number of the client's connections whose last keepalives were not answered.
fn unanswered_flows(bed: &Bed) -> usize {
    let sockets = bed.client.run("ss", &["-Htno", "state", "established"]);
    let timers = sockets.split("timer:(keepalive,").skip(1);
    let unanswered = |timer: &&str| timer.split([',', ')']).nth(1) != Some("0");
    timers.filter(unanswered).count()
}

/// Balancers and NATs beyond the gateway forget connections without packets. The control is the
/// plain network.
#[test]
fn keepalives_of_a_host_reach_the_server_and_without_them_nothing_does() {
    matrix(|bed| {
        let pep = bed.start();
        let (_echo, mut stream) = survive::talking(bed);
        let packets = packets_at_server(bed);
        // The silence is the traffic under test; the last acknowledgement may still come.
        thread::sleep(Duration::from_secs(4));
        assert!(packets() <= 1, "{} packets", packets());
        keep_alive(&stream, 5);
        wait_until("keepalives at the server", || packets() > 3);
        if pep.is_some() {
            // A host may sleep for an hour.
            let client = stream.local_addr().expect("connected");
            let leg = socket_toward(bed, client);
            assert!(leg.contains("timer:(keepalive,1"), "{leg}");
            assert!(leg.contains("min,0)"), "{leg}");
        }
        echo_once(&mut stream, b"after");
    });
}

/// Like a pool whose database has gone. The control is the plain network.
#[test]
fn a_host_that_keeps_alive_learns_of_a_server_that_has_vanished() {
    matrix(|bed| {
        let pep = bed.start();
        let (_echo, mut stream) = survive::talking(bed);
        keep_alive(&stream, 3);
        cut_off(&bed.server);
        let gone = stream.read(&mut [0]).expect_err("no server");
        assert_eq!(gone.kind(), ErrorKind::TimedOut);
        if let Some(pep) = pep {
            pep.wait_flow_end(|end| end.reason == "client_reset");
        }
    });
}

/// A server that is back before the host gives up, bytes that wait meanwhile, and a client that has
/// closed its side: none of these is a reason to end a flow. The control is the plain network.
#[test]
fn keepalives_of_a_host_end_no_flow_whose_server_comes_back() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut flows = [connect(bed), connect(bed), connect(bed)];
        for flow in &mut flows {
            echo_once(flow, b"before");
            keep_alive(flow, 100);
        }
        cut_off(&bed.server);
        wait_until("unanswered keepalives", || {
            unanswered_flows(bed) == flows.len()
        });
        let [idle, waiting, closed] = &mut flows;
        waiting.write_all(b"later").expect("connected");
        closed.write_all(b"the end").expect("connected");
        closed.shutdown(Shutdown::Write).expect("connected");
        if let Some(pep) = &pep {
            pep.wait_counter("up_bytes", |bytes| bytes == 3 * 6 + 5 + 7);
        }
        reconnect(&bed.server);
        waiting.read_exact(&mut [0; 5]).expect("an echo");
        echo_once(idle, b"after");
        echo_once(waiting, b"after");
        assert_eq!(Ended::from_stream(closed), Ended::Closed { after: 7 });
    });
}

#[test]
fn data_that_is_never_acknowledged_ends_the_flow() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let config = "[timeouts]\nuser_timeout = \"2s\"\nrto_max = \"1s\"";
        let pep = bed.start_with(config).expect("not direct");
        let mut stream = connect(bed);
        echo_once(&mut stream, b"x");
        cut_off(&bed.server);
        stream.write_all(b"into the void").expect("connected");
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        pep.wait_flow_end(|end| end.reason == "user_timeout");
    });
}

/// A printer without paper: it accepts no data, but answers window probes.
#[test]
fn a_receiver_that_pauses_keeps_its_flow() {
    const LEN: u64 = 8 << 20;
    matrix(|bed| {
        let (resume, resumed) = mpsc::channel();
        let (result, received) = mpsc::channel();
        let resumed = Mutex::new(resumed);
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            let resumed = resumed.lock();
            resumed.recv().expect("the test goes on");
            result
                .send(payload::receive(&mut stream).ok())
                .expect("the test waits");
        });
        let pep = bed.start_with("[timeouts]\nuser_timeout = \"3s\"\nrto_max = \"1s\"");
        let mut stream = connect(bed);
        let mut bytes = Payload::new(7, LEN);
        let sum = bytes.sum();
        thread::scope(|scope| {
            scope.spawn(|| {
                bytes.send(&mut stream).expect("the receiver is there");
                stream
                    .shutdown(Shutdown::Write)
                    .expect("the receiver is there");
            });
            // The length of the pause: more than the user timeout, by the kernel's clock, before an
            // upgrade of pepd and after.
            thread::sleep(Duration::from_secs(5));
            if let Some(pep) = &pep {
                survive::upgrade(pep);
            }
            thread::sleep(Duration::from_secs(5));
            resume.send(()).expect("the server waits");
            let all = received.recv_timeout(PATIENCE).expect("it goes on");
            assert_eq!(all, Some((LEN, sum)));
        });
        if let Some(mut pep) = pep {
            pep.wait_flow_end(|end| end.reason == "closed");
            pep.assert_healthy();
        }
    });
}

/// An outage within the user timeout costs only time, and little after its end.
#[test]
fn a_flow_outlives_an_outage() {
    matrix(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut stream = connect(bed);
        echo_once(&mut stream, b"before");
        cut_off(&bed.server);
        stream.write_all(b"during").expect("connected");
        // The length of the outage.
        thread::sleep(Duration::from_secs(3));
        reconnect(&bed.server);
        let mut answer = [0; 6];
        stream.read_exact(&mut answer).expect("the link is up");
        assert_eq!(&answer, b"during");
        echo_once(&mut stream, b"after");
        if let Some(mut pep) = pep {
            pep.assert_healthy();
        }
    });
}
