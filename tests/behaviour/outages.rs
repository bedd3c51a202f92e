//! Outages of links: their detection, and pepd's reports.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    thread,
};

use pepd_tests::{
    bed::{Bed, Path, Place, WAN},
    echo::EchoServer,
    matrix::matrix_pepd_only,
    outcome::Ended,
    payload::{Payload, receive},
    pep::Pep,
    pep_binary::pepd,
    serve::Server,
    wait::wait_until,
};

use crate::{
    support::{PORT, assert_reset_after_connect, connect, cut_off, echo_once, reconnect},
    survive::crash,
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// Returns a client that has sent all its data while the link is down, where that makes it wait.
fn waiting(bed: &Bed, pep: &Pep) -> Option<TcpStream> {
    (bed.path == Path::Spoof).then(|| {
        let mut stream = connect(bed);
        stream.write_all(b"all of it").expect("connected");
        stream.shutdown(Shutdown::Write).expect("connected");
        pep.wait_counter("link_waited", |count| count == 1);
        stream
    })
}

/// Checks that the client still waits, in the process that has taken over its flow.
fn assert_waits_on(waiting: Option<&TcpStream>, pep: &Pep, echo: &EchoServer) {
    if waiting.is_some() {
        pep.wait_counter("link_waited", |count| count == 1);
    }
    assert_eq!(echo.accepted(), 0, "it waits on");
}

/// Checks that the client's data is echoed, and the connection ends.
fn assert_served(waiting: Option<TcpStream>) {
    if let Some(stream) = waiting {
        assert_eq!(Ended::from_stream(&stream), Ended::Closed { after: 9 });
    }
}

#[test]
fn an_upload_begun_while_the_link_is_down_is_delivered_when_it_is_up() {
    matrix_pepd_only(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed.start_with(ADMIN).expect("not direct");
        let down = pep.ask(&["link", "down"]);
        assert!(
            down.contains("link: down") && down.contains("operator"),
            "{down}"
        );
        let mut stream = connect(bed);
        if bed.path == Path::Spoof {
            stream.write_all(b"all of it").expect("connected");
            stream.shutdown(Shutdown::Write).expect("connected");
            pep.wait_counter("link_waited", |count| count == 1);
            assert_eq!(echo.accepted(), 0);
            pep.ask(&["link", "auto"]);
            assert_eq!(Ended::from_stream(&stream), Ended::Closed { after: 9 });
        } else {
            // Its server has answered: there is no reason to wait.
            echo_once(&mut stream, b"the link is up again");
        }
        let status = pep.ask(&["link", "status", "--json"]);
        assert!(status.contains("\"outages\":1"), "{status}");
        pep.assert_healthy();
    });
}

#[test]
fn new_flows_are_refused_or_bypassed_where_the_site_says_so() {
    matrix_pepd_only(|bed| {
        if bed.path == Path::Defer {
            return;
        }
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let _other = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT + 1)));
        let sites = format!(
            "{ADMIN}[[site]]\nname = \"refused\"\nwhile_down = \"refuse\"\nmatch = {{ dport = {PORT} }}\n\
             [[site]]\nname = \"bypassed\"\nwhile_down = \"bypass\"\n"
        );
        let mut pep = bed.start_with(&sites).expect("not direct");
        let mut before = connect(bed);
        echo_once(&mut before, b"before");
        pep.ask(&["link", "down", "--for", "1h"]);
        assert_reset_after_connect(bed.client.connect(bed.at(Place::Server, PORT)));
        let end = pep.wait_flow_end(|end| end.site == "refused" && end.reason != "closed");
        assert_eq!(end.reason, "link_down");
        assert_eq!(pep.counter("ended_link_down"), 1);
        echo_once(&mut before, b"an existing flow continues");
        wait_until("the other site to be bypassed", || {
            let accepted = pep.counter("flows_accepted");
            let other = bed.client.connect(bed.at(Place::Server, PORT + 1));
            echo_once(
                &mut other.expect("the server listens"),
                b"by pepd or past it",
            );
            pep.counter("flows_accepted") == accepted
        });
        pep.ask(&["link", "auto"]);
        echo_once(&mut connect(bed), b"after");
        pep.assert_healthy();
    });
}

#[test]
fn a_gateway_that_stops_answering_means_that_the_link_is_down() {
    matrix_pepd_only(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let gateway = Place::Server.address(bed.family);
        let link = format!(
            "[link]\ninterface = \"{WAN}\"\ngateway = \"{gateway}\"\ngateway_every = \"100ms\"\n{ADMIN}"
        );
        let pep = bed.start_with(&link).expect("not direct");
        let is = |pep: &Pep, state: &str| {
            let said = pep.ask(&["link", "status"]);
            let first = said.lines().next().unwrap_or_default();
            first.starts_with(&format!("link: {state} ")) && first.ends_with("by probe")
        };
        wait_until("the gateway to answer", || is(&pep, "up"));
        cut_off(&bed.server);
        wait_until("the gateway to be missed", || is(&pep, "down"));
        let waiting = waiting(bed, &pep);
        assert_eq!(echo.accepted(), 0);
        // The next process inherits the link's state.
        crash(&pep);
        let known = pep.ask(&["link", "status"]);
        assert!(
            known.starts_with("link: down") && known.contains("outages: 1,"),
            "{known}"
        );
        assert_waits_on(waiting.as_ref(), &pep, &echo);
        reconnect(&bed.server);
        assert_served(waiting);
        wait_until("the gateway to answer", || is(&pep, "up"));
        let status = pep.ask(&["link", "status"]);
        assert!(
            status.contains("outages: 1,") && status.contains("by probe"),
            "{status}"
        );
        pep.stop();
    });
}

/// A modem whose port stays up, and no gateway to ask.
#[test]
fn flows_without_answers_mean_that_the_link_is_down() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start_with(ADMIN).expect("not direct");
        let status = |pep: &Pep| pep.ask(&["link", "status"]);
        let mut flows = [connect(bed), connect(bed)];
        flows.iter_mut().for_each(|flow| echo_once(flow, b"before"));
        cut_off(&bed.server);
        for flow in &mut flows {
            flow.write_all(b"in vain").expect("connected");
        }
        let is_down = |pep: &Pep| {
            let said = status(pep);
            said.starts_with("link: down ") && said.contains("reported by flows")
        };
        wait_until("the silence to be noticed", || is_down(&pep));
        pep.log().expect("no flow over it gets an answer");
        crash(&pep);
        assert!(is_down(&pep), "{}", status(&pep));
        reconnect(&bed.server);
        for flow in &mut flows {
            flow.read_exact(&mut [0; 7]).expect("an echo");
        }
        wait_until("the end", || status(&pep).starts_with("link: up "));
        let said = status(&pep);
        assert!(said.contains("outages: 1,"), "{said}");
        drop(flows);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn an_operators_order_outlasts_the_process_that_received_it() {
    matrix_pepd_only(|bed| {
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start_with(ADMIN).expect("not direct");
        pep.ask(&["link", "down", "--for", "1h"]);
        let waiting = waiting(bed, &pep);
        crash(&pep);
        let status = pep.ask(&["link", "status"]);
        assert!(
            status.starts_with("link: down") && status.contains("operator's override: "),
            "{status}"
        );
        assert_waits_on(waiting.as_ref(), &pep, &echo);
        pep.ask(&["link", "auto"]);
        assert_served(waiting);
        crash(&pep);
        let status = pep.ask(&["link", "status"]);
        assert!(status.starts_with("link: up"), "{status}");
        pep.stop();
    });
}

/// Neither bytes nor the flow are lost, and stuck data probes the link.
#[test]
fn a_transfer_continues_after_an_unreported_outage() {
    const BYTES: u64 = 3_000_000;
    matrix_pepd_only(|bed| {
        let (results, sums) = std::sync::mpsc::channel();
        let (starts, started) = std::sync::mpsc::channel();
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            let mut first = [0];
            stream.read_exact(&mut first).expect("a byte");
            starts.send(()).expect("the test listens");
            results
                .send(receive(&mut stream).expect("all of it"))
                .expect("the test listens");
        });
        let mut pep = bed.start_with(ADMIN).expect("not direct");
        let mut stream = connect(bed);
        stream.write_all(b"0").expect("connected");
        // pepd has answered the client's SYN, and may still be connecting to the server.
        started
            .recv_timeout(pepd_tests::wait::PATIENCE)
            .expect("the server leg is open");
        cut_off(&bed.server);
        let mut payload = Payload::new(pepd_tests::payload::run_seed(), BYTES);
        let sum = payload.sum();
        let sender = thread::spawn(move || {
            payload.send(&mut stream).expect("pepd takes it");
            stream.shutdown(Shutdown::Write).expect("connected");
            stream
        });
        pep.wait_counter("link_probes", |probes| probes >= 3);
        let held = pep.ask(&["custody"]);
        assert!(held.contains("1 flow with held data"), "{held}");
        reconnect(&bed.server);
        let received = sums
            .recv_timeout(pepd_tests::wait::PATIENCE)
            .expect("it arrives");
        assert_eq!(received, (BYTES, sum));
        drop(sender.join());
        pep.wait_flow_end(|end| end.reason == "closed");
        pep.assert_healthy();
    });
}

/// The client ends after sending, like a program that sends mail. Its kernel forgets the connection
/// after a while, and answers probes by RST.
#[test]
fn an_upload_whose_client_closed_long_ago_is_delivered_when_the_link_is_up() {
    // Accepted before the kernel's buffers grow.
    const BYTES: u64 = 150_000;
    matrix_pepd_only(|bed| {
        let (results, sums) = std::sync::mpsc::channel();
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            results
                .send(receive(&mut stream).ok())
                .expect("the test listens");
        });
        bed.client.sysctl("net.ipv4.tcp_fin_timeout", "1");
        let keepalive = "[timeouts]\nkeepalive = { idle = \"1s\", interval = \"1s\", count = 1 }\n";
        let mut pep = bed
            .start_with(&format!("{ADMIN}{keepalive}"))
            .expect("not direct");
        let mut stream = connect(bed);
        // A flow that still connects accepts no more than the kernel's buffer.
        wait_until("both legs to be connected", || {
            let legs = bed.gateway.run("ss", &["-Htn", "state", "established"]);
            legs.lines().count() >= 2
        });
        cut_off(&bed.server);
        let mut payload = Payload::new(pepd_tests::payload::run_seed(), BYTES);
        let sum = payload.sum();
        payload.send(&mut stream).expect("pepd takes it");
        drop(stream);
        wait_until("the client's kernel to forget it", || {
            bed.client.run("ss", &["-Htan"]).is_empty()
        });
        // The client's kernel answers pepd's probe by RST.
        wait_until("pepd's leg to the client to be reset", || {
            let legs = bed.gateway.run("ss", &["-Htan", "state", "close-wait"]);
            legs.is_empty()
        });
        reconnect(&bed.server);
        let received = sums
            .recv_timeout(pepd_tests::wait::PATIENCE)
            .expect("it arrives");
        assert_eq!(received, Some((BYTES, sum)));
        pep.assert_healthy();
    });
}

#[test]
fn what_cannot_be_answered_is_refused_and_the_socket_goes_with_pepd() {
    matrix_pepd_only(|bed| {
        let mut pep = bed.start_with(ADMIN).expect("not direct");
        let unknown = bed.gateway.output(
            pepd().to_str().expect("a path"),
            &[
                "custody",
                "--site",
                "absent",
                "--socket",
                pep.path("admin.sock").to_str().expect("a path"),
            ],
        );
        let said = String::from_utf8_lossy(&unknown.stderr);
        assert!(
            !unknown.status.success() && said.contains("no site `absent`"),
            "{said}"
        );
        let socket = pep.path("admin.sock");
        pep.terminate();
        assert!(!socket.exists(), "it is removed at the end");
    });
}
