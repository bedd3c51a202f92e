//! Many flows, large and small, at once.

use std::{
    collections::HashMap,
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    host::Dial,
    matrix::{matrix_alone, matrix_in_turn},
    measure::{Latencies, bulk_server, ping_pong},
    objects::{self, ObjectServer},
    payload::{self, Payload, receive, receive_slowly, run_seed},
    wait::{PATIENCE, wait_until},
};

use crate::support::{PORT, connect, echo_once};

/// The number of transfers, and of those at one time.
const TRANSFERS: u64 = 500;
const AT_ONCE: u64 = 25;
/// The size of the largest transfer.
const LARGEST: u64 = 3_000_000;

/// Returns the size of the `number`-th transfer of a run.
fn size(seed: u64, number: u64) -> u64 {
    payload::size(seed.wrapping_add(number), LARGEST)
}

/// Runs all transfers, [`AT_ONCE`] at a time.
fn transfers(run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= TRANSFERS {
                        return;
                    }
                    run(number);
                }
            });
        }
    });
}

/// Reads as a client: at full speed, at some 8 MB/s, or only after a stall.
fn read_in_some_way(number: u64, stream: &mut TcpStream) -> (u64, payload::Sum) {
    let received = match number % 3 {
        0 => receive(stream),
        1 => receive_slowly(stream, || thread::sleep(Duration::from_millis(8))),
        _ => {
            // The stall is the behaviour under test: the server has long closed when it ends.
            thread::sleep(Duration::from_millis(150));
            receive(stream)
        }
    };
    received.unwrap_or_else(|error| panic!("download {number}: {error}"))
}

#[test]
fn five_hundred_downloads_of_servers_that_close_at_once_are_whole() {
    let seed = run_seed();
    matrix_in_turn(|bed| {
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        transfers(|number| {
            let len = size(seed, number);
            let mut dial = Dial::to(bed.at(Place::Server, PORT));
            if number % 2 == 0 {
                dial = dial.receive_buffer(8192);
            }
            let mut stream = bed.client.dial(&dial).expect("the server listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            objects::get(&mut stream, number, len).expect("connected");
            let received = read_in_some_way(number, &mut stream);
            assert_eq!(received.0, len, "download {number} has another length");
            assert_eq!(
                received.1,
                Payload::new(number, len).sum(),
                "download {number}"
            );
        });
        if let Some(pep) = pep {
            all_closed(pep);
        }
    });
}

fn all_closed(mut pep: pepd_tests::pep::Pep) {
    pep.wait_idle();
    assert_eq!(pep.counter("ended_closed"), TRANSFERS);
    pep.assert_healthy();
    pep.stop();
}

/// Every second client closes at once, the others wait for the server's checksum.
#[test]
fn five_hundred_uploads_are_whole() {
    let seed = run_seed();
    matrix_in_turn(|bed| {
        let objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        transfers(|number| {
            let len = size(seed, number);
            let expected = Payload::new(number, len).sum();
            let mut stream = connect(bed);
            if number % 2 == 0 {
                objects::put_and_close(stream, number, len).expect("connected");
            } else {
                let sum = objects::put_and_wait(&mut stream, number, len);
                assert_eq!(sum.expect("an answer"), expected, "upload {number}");
            }
            assert_eq!(objects.stored(number), (len, expected), "upload {number}");
        });
        if let Some(pep) = pep {
            all_closed(pep);
        }
    });
}

/// Ends of 5,000 flows within 20,000 descriptors: 10,000 are pepd's, 10,000 this process's.
#[test]
fn five_thousand_flows_are_open_at_once() {
    const FLOWS: usize = 5000;
    matrix_alone(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        // All flows come from one host.
        let pep = bed.start_with("[limits]\nflows_per_host = 8192\nheld_rate_per_source = 10000");
        let dial = Dial::to(bed.at(Place::Server, PORT));
        let connect_all = || (0..FLOWS).map(|_| dial.connect_here()).collect();
        let streams: Result<Vec<_>, _> = bed.client.enter(connect_all);
        let mut streams = streams.expect("every connection is made");
        // All of them carry something at the same time, then again in another order.
        for (number, stream) in (0_u32..).zip(&mut streams) {
            stream.write_all(&number.to_le_bytes()).expect("connected");
        }
        for (number, stream) in (0_u32..).zip(&mut streams) {
            let mut answer = [0; 4];
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(u32::from_le_bytes(answer), number);
        }
        for stream in streams.iter_mut().rev() {
            echo_once(stream, b"and again");
        }
        assert_eq!(echo.open(), FLOWS);
        if let Some(pep) = &pep {
            assert_eq!(pep.counter("flows_open"), FLOWS as u64);
            assert!(pep.descriptors() < 20_000 / 2 + 1000, "descriptors in use");
        }
        drop(streams);
        wait_until("all to be closed", || echo.open() == 0);
        if let Some(mut pep) = pep {
            pep.wait_idle();
            pep.assert_healthy();
            pep.stop();
        }
    });
}

/// Measures latencies of a flow during other activity, in rounds until `done`.
fn latencies_until(stream: &mut TcpStream, done: &AtomicBool) -> Latencies {
    let mut samples = Vec::new();
    while !done.load(Ordering::SeqCst) || samples.is_empty() {
        let round = ping_pong(stream, 64, 1).expect("a healthy flow");
        samples.push(round.median());
    }
    Latencies::new(samples)
}

/// Measures latencies of a flow for a while.
fn latencies_for(stream: &mut TcpStream, time: Duration) -> Latencies {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(time);
            done.store(true, Ordering::SeqCst);
        });
        latencies_until(stream, &done)
    })
}

/// Returns the latency limit: twenty times the one without load, or 20 ms if that is more. A
/// machine of two cores that also runs both ends of the load has hiccups. A relay that makes flows
/// wait for one another takes longer.
fn bearable(alone: Duration) -> Duration {
    (alone * 20).max(Duration::from_millis(20))
}

const MEASURED: Duration = Duration::from_secs(1);

#[test]
fn fifteen_hundred_connections_to_a_black_hole_do_not_slow_others() {
    matrix_alone(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        // The clients retransmit their SYNs during the whole measurement.
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let pep = bed.start();
        let mut healthy = connect(bed);
        let alone = latencies_for(&mut healthy, MEASURED).quantile(0.99);
        let hole = Dial::to(bed.at(Place::BlackHole, PORT));
        let begin = || (0..1500).map(|_| hole.begin_here()).collect();
        let hanging: Result<Vec<_>, _> = bed.client.enter(begin);
        let hanging = hanging.expect("every connect begins");
        let beside = latencies_for(&mut healthy, 2 * MEASURED).quantile(0.99);
        assert!(
            beside < bearable(alone),
            "99 % of round trips within {alone:?} alone, {beside:?} beside 1,500 SYNs"
        );
        // New flows get through as well.
        for _ in 0..20 {
            let start = Instant::now();
            echo_once(&mut connect(bed), b"x");
            let took = start.elapsed();
            assert!(
                took < Duration::from_secs(1),
                "a new connection took {took:?}"
            );
        }
        drop(hanging);
        if let Some(mut pep) = pep {
            pep.assert_healthy();
        }
    });
}

#[test]
fn a_saturating_flow_does_not_starve_a_small_one() {
    let direct = Mutex::new(HashMap::new());
    matrix_alone(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let bulk = bed.at(Place::Second, PORT);
        let _bulk = bulk_server(bed.server.listen(bulk));
        let pep = bed.start();
        let mut small = connect(bed);
        let beside = beside_downloads(bed, bulk, &mut small);
        let median = beside.median();
        let mut direct = direct.lock();
        match bed.path {
            Path::Direct => drop(direct.insert(bed.family.name(), median)),
            Path::Spoof | Path::Defer => {
                // The control is missing if only some cases are run.
                let control = direct.get(bed.family.name()).copied().unwrap_or_default();
                let message = format!("median {median:?}, {control:?} direct");
                assert!(median < bearable(control), "{message}");
            }
        }
        if let Some(mut pep) = pep {
            pep.assert_healthy();
        }
    });
}

/// Measures latencies of a small flow beside two bulk downloads.
fn beside_downloads(bed: &Bed, bulk: std::net::SocketAddr, small: &mut TcpStream) -> Latencies {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut stream = bed.client.connect(bulk).expect("the server listens");
                let request = stream.write_all(&u64::MAX.to_le_bytes());
                request.expect("connected");
                let mut buffer = vec![0; 1 << 20];
                while !done.load(Ordering::SeqCst) {
                    assert_ne!(stream.read(&mut buffer).expect("bulk"), 0);
                }
            });
        }
        let latencies = latencies_for(small, 2 * MEASURED);
        done.store(true, Ordering::SeqCst);
        latencies
    })
}

/// Flows of both families together, through the same daemon.
#[test]
fn both_families_at_once() {
    matrix_in_turn(|bed| {
        if bed.family == Family::V6 {
            return;
        }
        let families = [Family::V4, Family::V6];
        let at = |family| std::net::SocketAddr::new(Place::Server.address(family), PORT);
        let _echoes = families.map(|family| EchoServer::start(bed.server.listen(at(family))));
        let pep = bed.start();
        thread::scope(|scope| {
            for family in families {
                scope.spawn(move || {
                    for _ in 0..50 {
                        let mut stream = bed.client.connect(at(family)).expect("it listens");
                        echo_once(&mut stream, &[1; 3000]);
                    }
                });
            }
        });
        if let Some(pep) = pep {
            assert_eq!(pep.counter("flows_accepted"), 100);
        }
    });
}
