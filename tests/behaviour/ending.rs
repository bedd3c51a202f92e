//! Ends of pepd: by SIGKILL, drained, at once; and its leftovers.

use std::{
    fs::{self, Permissions},
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::sys::signal::Signal;
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    footprint::Footprint,
    host::Dial,
    matrix::{matrix_pepd_only, shared},
    objects::{self, ObjectServer},
    outcome::Ended,
    payload::{Payload, receive, receive_slowly},
    pep::Pep,
    serve::Server,
    wait::{PATIENCE, wait_until},
};

use crate::{
    support::{PORT, connect, counter, echo_once},
    survive::send_signal,
};

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Opens a flow through the gateway, accelerated or not; returns its client address.
fn one_flow(bed: &Bed) -> String {
    let mut stream = connect(bed);
    echo_once(&mut stream, b"hello");
    stream.local_addr().expect("connected").to_string()
}

#[test]
fn killed_it_leaves_the_network_working_and_starts_again_over_what_is_left() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let clean = Footprint::measure(&bed.gateway);
        let mut pep = bed.start().expect("not direct");
        let mut open = connect(bed);
        echo_once(&mut open, b"accelerated");
        for _ in 0..2 {
            pep.kill();
            // By RST: after FIN, half a download would look complete.
            assert_eq!(Ended::from_stream(&open), Ended::RESET);
            for _ in 0..5 {
                one_flow(bed);
            }
            pep = bed.start().expect("not direct");
            open = connect(bed);
            echo_once(&mut open, b"accelerated");
            assert_eq!(pep.counter("flows_accepted"), 1);
        }
        drop(open);
        pep.wait_idle();
        assert_eq!(pep.terminate(), 0);
        let left = Footprint::measure(&bed.gateway).difference(&clean);
        assert!(left.is_empty(), "left behind: {left:#?}");
        one_flow(bed);
    });
}

/// Connections that the kernel forwarded while pepd was down stay forwarded when it is up again,
/// however recent they are.
#[test]
fn a_new_one_leaves_alone_what_was_forwarded_in_between() {
    const BEAT: Duration = Duration::from_millis(2);
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = bed.start().expect("not direct");
        one_flow(bed);
        pep.kill();
        let mut forwarded = connect(bed);
        let mut pep = thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            let talking = scope.spawn(move || {
                while stopped.recv_timeout(BEAT) == Err(mpsc::RecvTimeoutError::Timeout) {
                    echo_once(&mut forwarded, b"still");
                }
                echo_once(&mut forwarded, b"at the end");
            });
            let pep = bed.start().expect("not direct");
            one_flow(bed);
            drop(stop);
            talking.join().expect("it is not reset");
            pep
        });
        assert_eq!(pep.counter("flows_accepted"), 1);
        assert_eq!(pep.terminate(), 0);
    });
}

/// New connections are made all the time while pepd is killed: each works, or fails at once; none
/// hangs.
#[test]
fn while_it_is_killed_no_connection_hangs() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = bed.start().expect("not direct");
        let (failures, total) = thread::scope(|scope| {
            let (stop, stopped) = mpsc::channel::<()>();
            let connecting = scope.spawn(move || {
                let (mut failures, mut total) = (0, 0);
                while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) || total < 200 {
                    total += 1;
                    failures += usize::from(!works(bed));
                }
                (failures, total)
            });
            pep.wait_counter("flows_accepted", |flows| flows > 20);
            pep.kill();
            drop(stop);
            connecting.join().expect("none hangs")
        });
        // Only those that the dying daemon had answered: one that it carried, and at each listener
        // one not yet accepted. Each worker has a listener, and they are closed one after the
        // other.
        let answered = 1 + thread::available_parallelism().map_or(1, usize::from);
        assert!(failures <= answered, "{failures} of {total} failed");
    });
}

/// Returns whether a connection echoes a byte; panics when it takes longer than [`PATIENCE`].
fn works(bed: &Bed) -> bool {
    let Ok(mut stream) = bed.client.connect(bed.at(Place::Server, PORT)) else {
        return false;
    };
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let sent = std::io::Write::write_all(&mut stream, b"x");
    let answered = sent.and_then(|()| stream.read_exact(&mut [0]));
    let timed_out = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(
        !answered.as_ref().is_err_and(timed_out),
        "a connection hangs"
    );
    answered.is_ok()
}

#[test]
fn without_flows_it_ends_by_itself_and_leaves_nothing() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let mut pep = bed.start().expect("not direct");
            one_flow(bed);
            pep.wait_idle();
            pep.signal(signal);
            assert_eq!(pep.wait().code(), Some(0), "{signal}");
            pep.assert_nothing_left();
            one_flow(bed);
        }
    });
}

#[test]
fn a_flow_in_progress_is_finished_before_it_ends() {
    const SIZE: u64 = 30_000_000;
    matrix_pepd_only(|bed| {
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed
            .start_with("[timeouts]\ndrain = \"60s\"")
            .expect("not direct");
        let mut stream = connect(bed);
        objects::get(&mut stream, 1, SIZE).expect("connected");
        pep.wait_counter("down_bytes", |bytes| bytes > 0);
        pep.signal(Signal::SIGTERM);
        pep.log().expect("drain");
        // A new connection meanwhile: unaccelerated, but intact.
        let mut new = connect(bed);
        objects::get(&mut new, 2, 1000).expect("connected");
        assert_eq!(receive(&mut new).expect("it works").0, 1000);
        assert_eq!(
            pep.wait_at_most(Duration::ZERO),
            None,
            "the flow is not done"
        );
        // No faster than a link would be.
        let pause = || thread::sleep(Duration::from_micros(500));
        let received = receive_slowly(&mut stream, pause).expect("the download");
        assert_eq!(received, (SIZE, Payload::new(1, SIZE).sum()));
        drop(stream);
        assert_eq!(pep.wait().code(), Some(0));
        let ends = pep.flow_ends();
        let reasons: Vec<_> = ends.iter().map(|end| end.reason.as_str()).collect();
        assert_eq!(reasons, ["closed"]);
        pep.assert_nothing_left();
    });
}

/// Writes an `nft` to `directory` that fails while the file `fails` exists.
fn write_failing_nft(directory: &std::path::Path) {
    let (nft, fails) = (directory.join("nft"), directory.join("fails"));
    let script = format!(
        "#!/bin/sh\n[ -e {} ] && echo 'Error: as asked' >&2 && exit 1\n\
         PATH=/usr/sbin:/usr/bin:/sbin:/bin exec nft \"$@\"\n",
        fails.display()
    );
    fs::write(&nft, script).expect("a temporary file");
    fs::set_permissions(nft, Permissions::from_mode(0o755)).expect("the file is writable");
}

#[test]
fn a_gate_that_cannot_be_closed_when_draining_is_closed_later() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let tools = tempfile::tempdir().expect("a temporary directory");
        write_failing_nft(tools.path());
        let config = bed.config("[timeouts]\ndrain = \"60s\"");
        let config = config.expect("not direct");
        let mut pep = Pep::start_by(&bed.gateway, &config, |mut command| {
            command.env("PATH", tools.path());
            command
        });
        let mut stream = connect(bed);
        echo_once(&mut stream, b"accelerated");
        fs::write(tools.path().join("fails"), "").expect("a temporary file");
        pep.signal(Signal::SIGTERM);
        pep.log().expect("cannot close the gate");
        fs::remove_file(tools.path().join("fails")).expect("just written");
        wait_until("new flows to pass", || {
            echo_once(&mut connect(bed), b"new");
            counter(&bed.gateway, "pepd", "passed") > 0
        });
        echo_once(&mut stream, b"still there");
        drop(stream);
        assert_eq!(pep.wait().code(), Some(0));
        pep.assert_nothing_left();
    });
}

#[test]
fn a_flow_that_outlives_the_grace_is_reset_and_named() {
    matrix_pepd_only(|bed| {
        let (result, ended) = mpsc::channel();
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |stream, _| {
            result
                .send(Ended::from_stream(&stream))
                .expect("the test waits");
        });
        let mut pep = bed
            .start_with("[timeouts]\ndrain = \"1s\"")
            .expect("not direct");
        let stream = connect(bed);
        let client = stream.local_addr().expect("connected").to_string();
        pep.wait_counter("flows_open", |open| open == 1);
        assert_eq!(pep.terminate(), 5);
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        assert_eq!(ended.recv_timeout(PATIENCE), Ok(Ended::RESET));
        let end = pep.wait_flow_end(|end| end.client == client);
        assert_eq!(end.reason, "drained");
        pep.assert_nothing_left();
    });
}

/// Sends the signal as `timeout` and some init programs do: to the process, and to its group.
#[test]
fn a_signal_that_comes_twice_drains() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = bed
            .start_with("[timeouts]\ndrain = \"10min\"")
            .expect("not direct");
        let mut stream = connect(bed);
        echo_once(&mut stream, b"before");
        let worker = pep.id();
        pep.signal(Signal::SIGTERM);
        send_signal(worker, Signal::SIGTERM);
        pep.signal(Signal::SIGTERM);
        pep.log().expect("drain");
        echo_once(&mut stream, b"while it drains");
        drop(stream);
        assert_eq!(pep.wait().code(), Some(0));
        pep.assert_nothing_left();
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = bed
            .start_with("[timeouts]\ndrain = \"10min\"")
            .expect("not direct");
        let mut stream = connect(bed);
        echo_once(&mut stream, b"during the drain");
        pep.signal(Signal::SIGTERM);
        pep.log().expect("drain");
        assert_eq!(pep.wait_at_most(Duration::ZERO), None, "a flow is open");
        assert_eq!(pep.terminate_at_once(), 6);
        assert_eq!(Ended::from_stream(&stream), Ended::RESET);
        pep.assert_nothing_left();
        one_flow(bed);
    });
}

/// A failing start logs the reason, exits with its code, and leaves nothing behind.
#[test]
fn a_start_that_fails_leaves_nothing() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let good = bed.config("").expect("not direct");
        // On loopback, where the listener of the first site belongs.
        let taken = "127.0.0.1:5000".parse().expect("an address");
        let in_the_way = bed.gateway.listen(taken);
        let mut pep = Pep::spawn(&bed.gateway, &good, |command| command);
        assert_eq!(pep.wait().code(), Some(4));
        wait_until("the log to be complete", || pep.log().ended());
        let log = pep.log().text();
        assert!(log.contains("5000"), "which port? {log}");
        pep.assert_nothing_left();
        drop(in_the_way);
        Pep::start(&bed.gateway, &good).stop();
    });
}

#[test]
fn without_rights_it_says_which_it_needs() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let config = bed.config("").expect("not direct");
        let mut pep = Pep::spawn(&bed.gateway, &config, |command| {
            let mut outer = bed.gateway.command("setpriv");
            outer.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
            outer.arg(command.get_program()).args(command.get_args());
            outer
        });
        assert_eq!(pep.wait().code(), Some(4));
        wait_until("the log to be complete", || pep.log().ended());
        let log = pep.log().text();
        assert!(log.contains("CAP_NET_ADMIN"), "which capability? {log}");
        pep.assert_nothing_left();
    });
}

/// The server ends each flow first, so that pepd's client leg remains in TIME_WAIT: with the
/// server's address, for a minute.
#[test]
fn after_it_has_ended_hosts_can_use_their_ports_again() {
    matrix_pepd_only(|bed| {
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, |mut stream, _| {
            stream.write_all(b"hello").expect("the client reads");
        });
        let end: [fn(&mut Pep); 2] = [|pep| assert_eq!(pep.terminate(), 0), Pep::kill];
        for (run, end) in end.into_iter().enumerate() {
            let ports: Vec<_> = (0..4).map(|port| 21_000 + 10 * run as u16 + port).collect();
            let mut pep = bed.start().expect("not direct");
            ports.iter().for_each(|port| greeted(bed, *port));
            pep.wait_idle();
            end(&mut pep);
            ports.iter().for_each(|port| greeted(bed, *port));
        }
    });
}

fn greeted(bed: &Bed, port: u16) {
    let dial = Dial::to(bed.at(Place::Server, PORT)).from(bed.client_at(port));
    let mut stream = bed.client.dial(&dial).expect("the port can be used");
    let mut stream_header = String::new();
    stream.read_to_string(&mut stream_header).expect("no reset");
    assert_eq!(stream_header, "hello");
}
