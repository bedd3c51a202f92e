//! Silent hosts, and pepd's timeouts for them.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{
    bed::Place,
    echo::EchoServer,
    matrix::{matrix, matrix_pepd_only},
    outcome::Ended,
    payload::{self, Payload},
    serve::Server,
    wait::PATIENCE,
};

use crate::{
    support::{PORT, connect, cut_off, echo_once, reconnect},
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
        pepd_tests::wait::wait_until("the server's connection to close", || echo.open() == 0);
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
