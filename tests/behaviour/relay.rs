//! Bytes, ends of streams and resets cross pepd as they cross the network.

use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    sync::mpsc,
    thread,
    time::Duration,
};

use crate::support::{PORT, connected, counter};
use pepd_tests::{
    bed::Place,
    echo::EchoServer,
    matrix::matrix,
    measure::{Latencies, openings, ping_pong},
    outcome::{Connected, Ended, reset},
    payload::{Payload, receive, sum_of},
    serve::Server,
    wait::PATIENCE,
};

const TEN_MB: u64 = 10_000_000;

/// A limit that a busy machine keeps. A corked tail (200 ms), a delayed ACK (40 ms) or a
/// retransmission (200 ms) of every message would exceed it.
const PROMPT: Duration = Duration::from_millis(30);

#[test]
fn after_the_client_half_closes_ten_megabytes_come_back() {
    matrix(|bed| {
        let (mut client, _running) = connected(bed, |mut stream| {
            let (received, _) = receive(&mut stream).expect("the request and its end");
            assert_eq!(received, 7);
            let mut payload = Payload::new(11, TEN_MB);
            payload.send(&mut stream).expect("the client still reads");
        });
        client.write_all(b"request").expect("connected");
        client.shutdown(Shutdown::Write).expect("connected");
        let (received, sum) = receive(&mut client).expect("the whole answer");
        assert_eq!(received, TEN_MB);
        assert_eq!(sum, Payload::new(11, TEN_MB).sum());
    });
}

#[test]
fn after_the_server_half_closes_ten_megabytes_still_go_up() {
    matrix(|bed| {
        let (result, received) = mpsc::channel();
        let (mut client, _running) = connected(bed, move |mut stream| {
            stream.write_all(b"welcome").expect("connected");
            stream.shutdown(Shutdown::Write).expect("connected");
            result.send(receive(&mut stream)).expect("the test waits");
        });
        let (stream_header, _) = receive(&mut client).expect("the server's first line and its end");
        assert_eq!(stream_header, 7);
        let mut payload = Payload::new(12, TEN_MB);
        payload.send(&mut client).expect("the server still reads");
        drop(client);
        let received = received.recv_timeout(PATIENCE).expect("the server reads");
        let expected = (TEN_MB, Payload::new(12, TEN_MB).sum());
        assert_eq!(received.expect("no error"), expected);
    });
}

#[test]
fn both_directions_at_once_carry_every_byte() {
    matrix(|bed| {
        let (result, received) = mpsc::channel();
        let (mut client, _running) = connected(bed, move |stream| {
            let (mut reading, mut writing) = (&stream, &stream);
            thread::scope(|scope| {
                scope.spawn(|| {
                    Payload::new(21, TEN_MB)
                        .send(&mut writing)
                        .expect("connected");
                    stream.shutdown(Shutdown::Write).expect("connected");
                });
                result.send(receive(&mut reading)).expect("the test waits");
            });
        });
        let sending = client.try_clone().expect("a descriptor is left");
        let down = thread::scope(|scope| {
            scope.spawn(|| {
                Payload::new(22, TEN_MB)
                    .send(&mut &sending)
                    .expect("connected");
                sending.shutdown(Shutdown::Write).expect("connected");
            });
            receive(&mut client).expect("the whole download")
        });
        let up = received.recv_timeout(PATIENCE).expect("the server reads");
        assert_eq!(down, (TEN_MB, Payload::new(21, TEN_MB).sum()));
        let expected = (TEN_MB, Payload::new(22, TEN_MB).sum());
        assert_eq!(up.expect("the whole upload"), expected);
    });
}

#[test]
fn a_client_that_reads_nothing_stops_the_server_and_loses_nothing() {
    const SIZE: u64 = 64_000_000;
    matrix(|bed| {
        for host in [&bed.client, &bed.gateway] {
            // Linux 6.16 lets one receive buffer grow to half of the transfer (32 MiB).
            host.sysctl("net.ipv4.tcp_rmem", "4096 131072 6291456");
        }
        let (progress, sent) = mpsc::channel();
        let (mut client, _running) = connected(bed, move |mut stream| {
            let mut payload = Payload::new(31, SIZE);
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(len @ 1..) = payload.read(&mut chunk) {
                stream.write_all(&chunk[..len]).expect("connected");
                progress.send(len as u64).expect("the test counts");
            }
        });
        // Nothing is sent for a second: every buffer on the path is full.
        let mut total = 0;
        while let Ok(len) = sent.recv_timeout(Duration::from_secs(1)) {
            total += len;
        }
        assert!(total < SIZE / 2, "{total} bytes were taken from the server");
        assert_eq!(
            receive(&mut client).expect("the rest"),
            (SIZE, Payload::new(31, SIZE).sum())
        );
    });
}

#[test]
fn a_reset_by_the_server_reaches_the_client() {
    matrix(|bed| {
        let (mut client, _running) = connected(bed, |mut stream| {
            stream.read_exact(&mut [0]).expect("a byte");
            reset(stream);
        });
        client.write_all(b"x").expect("connected");
        assert_eq!(Ended::from_stream(&client), Ended::RESET);
    });
}

#[test]
fn a_reset_by_the_server_in_mid_download_reaches_the_client() {
    matrix(|bed| {
        let (client, _running) = connected(bed, |mut stream| {
            Payload::new(41, 300_000)
                .send(&mut stream)
                .expect("connected");
            reset(stream);
        });
        assert_eq!(Ended::from_stream(&client), Ended::RESET);
    });
}

#[test]
fn a_reset_by_the_client_reaches_the_server() {
    matrix(|bed| {
        let (result, ended) = mpsc::channel();
        let (mut client, _running) = connected(bed, move |mut stream| {
            stream.write_all(b"x").expect("connected");
            result
                .send(Ended::from_stream(&stream))
                .expect("the test waits");
        });
        client.read_exact(&mut [0]).expect("a byte");
        client.write_all(b"some last words").expect("connected");
        reset(client);
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(Ended::RESET));
    });
}

#[test]
fn a_client_that_closes_with_unread_data_resets_the_server() {
    matrix(|bed| {
        let (result, ended) = mpsc::channel();
        let (client, _running) = connected(bed, move |mut stream| {
            // More than all buffers hold, so that the close comes in the middle.
            let sent = Payload::new(51, 100_000_000).send(&mut stream);
            let errno = sent.map_err(|error| pepd_tests::outcome::errno(&error));
            result.send(errno).expect("the test waits");
        });
        (&client).read_exact(&mut [0]).expect("a byte");
        drop(client);
        use nix::errno::Errno::{ECONNRESET, EPIPE};
        let ended = ended.recv_timeout(PATIENCE).expect("the server notices");
        assert!(matches!(ended, Err(ECONNRESET | EPIPE)), "{ended:?}");
    });
}

#[test]
fn a_close_without_a_byte_is_a_close() {
    matrix(|bed| {
        let (result, ended) = mpsc::channel();
        let (client, _running) = connected(bed, move |stream| {
            result
                .send(Ended::from_stream(&stream))
                .expect("the test waits");
        });
        client.shutdown(Shutdown::Write).expect("connected");
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(Ended::EMPTY));
        assert_eq!(Ended::from_stream(&client), Ended::EMPTY);
    });
}

#[test]
fn bytes_marked_urgent_arrive_in_their_place() {
    matrix(|bed| {
        let (result, received) = mpsc::channel();
        let (client, running) = connected(bed, move |stream| {
            let socket = socket2::SockRef::from(&stream);
            socket.set_out_of_band_inline(true).expect("a TCP socket");
            let mut all = Vec::new();
            let read = (&stream).read_to_end(&mut all);
            result.send(read.map(|_| all)).expect("the test waits");
        });
        (&client).write_all(b"before ").expect("connected");
        let socket = socket2::SockRef::from(&client);
        socket.send_out_of_band(b"!").expect("connected");
        (&client).write_all(b" after").expect("connected");
        drop(client);
        let received = received.recv_timeout(PATIENCE).expect("the server reads");
        assert_eq!(received.expect("no error"), b"before ! after");
        if running.pep.is_some() {
            assert!(counter(&bed.gateway, "pepd", "urgent") > 0);
        }
    });
}

#[test]
fn small_messages_are_not_held_back() {
    matrix(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _echo = EchoServer::start(listener);
        let _pep = bed.start();
        let mut stream = bed
            .client
            .connect(bed.at(Place::Server, PORT))
            .expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        for size in [1, 2, 10, 100, 536, 1000] {
            let took = ping_pong(&mut stream, size, 60).expect("echoes");
            let median = took.median();
            assert!(median < PROMPT, "{size} bytes and back took {median:?}");
        }
    });
}

/// An answer larger than a segment ends in a short one, which corking would hold back.
#[test]
fn tails_of_answers_are_not_held_back() {
    const ANSWERS: [u64; 4] = [1461, 4097, 20_000, 70_001];
    matrix(|bed| {
        let (mut client, _running) = connected(bed, |mut stream| {
            let mut request = [0; 8];
            while stream.read_exact(&mut request).is_ok() {
                let len = u64::from_le_bytes(request);
                Payload::new(61, len)
                    .send(&mut stream)
                    .expect("the client reads");
            }
        });
        for len in ANSWERS {
            let expected = Payload::new(61, len).sum();
            let mut answer = vec![0; len as usize];
            let times = (0..30).map(|_| {
                let start = std::time::Instant::now();
                client.write_all(&len.to_le_bytes()).expect("connected");
                client.read_exact(&mut answer).expect("an answer");
                assert_eq!(sum_of(&answer), expected);
                start.elapsed()
            });
            let median = Latencies::new(times.collect()).median();
            assert!(median < PROMPT, "an answer of {len} bytes took {median:?}");
        }
    });
}

#[test]
fn the_first_byte_comes_soon() {
    matrix(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _echo = EchoServer::start(listener);
        let _pep = bed.start();
        let opening = openings(&bed.client, bed.at(Place::Server, PORT), 30).expect("it listens");
        let (connect, first) = (opening.connect.median(), opening.first_byte.median());
        assert!(connect < PROMPT, "connecting took {connect:?}");
        assert!(first < PROMPT, "the first byte took {first:?}");
    });
}

#[test]
fn a_server_that_speaks_first_is_heard_at_once() {
    matrix(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, |mut stream, _| {
            // The client closes after the server's first line.
            let _ = stream.write_all(b"220 hello\r\n");
            let _ = stream.read(&mut [0]);
        });
        let _pep = bed.start();
        let times = (0..30).map(|_| {
            let start = std::time::Instant::now();
            let stream = bed.client.connect(bed.at(Place::Server, PORT));
            assert_eq!(Connected::from_result(&stream), Connected::Yes);
            let mut stream = stream.expect("just checked");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut [0; 11]).expect("the first bytes");
            start.elapsed()
        });
        let median = Latencies::new(times.collect()).median();
        assert!(median < PROMPT, "the first line took {median:?}");
    });
}
