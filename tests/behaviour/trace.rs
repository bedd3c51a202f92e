//! `pepd trace`: the events of one flow.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    process::{Child, ChildStderr, ChildStdout, Stdio},
    thread,
};

use nix::{sys::signal::Signal, unistd::Pid};
use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::{Dial, Host},
    pep::Pep,
    pep_binary::pepd,
    serve::Server,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};
use serde_json::Value;
use winkemu::netns::spawn;

use crate::{
    support::echo_once,
    survive::crash,
    tunnel::{LINK, PORT, Running, SITE},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";
const SPLIT: &str = "[[site]]\nname = \"split\"\nmatch = { dport = [7001] }\n";
pub const SPLIT_PORT: u16 = 7001;

/// Starts a boat with a split site, and one whose flows use a tunnel.
pub fn start(bed: &TunnelBed) -> Running {
    Running::start(bed, "", &format!("{SPLIT}{SITE}{ADMIN}"))
}

pub fn echo_on(bed: &TunnelBed, port: u16) -> EchoServer {
    let listener = bed.host("server").listen(bed.server_at(Family::V4, port));
    EchoServer::start(listener)
}

pub fn connect_split(bed: &TunnelBed) -> TcpStream {
    let stream = bed
        .host("client")
        .connect(bed.server_at(Family::V4, SPLIT_PORT));
    let stream = stream.expect("pepd answers");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// Returns the numbers of the boat's open flows, in the order of their destinations.
pub fn numbers(running: &Running) -> Vec<String> {
    let shown = running.boat.ask(&["flows", "--json"]);
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let flows = shown["flows"].as_array().expect("flows");
    let mut flows: Vec<_> = flows.iter().collect();
    flows.sort_by_key(|flow| flow["destination"].to_string());
    let number = |flow: &&Value| flow["id"].as_str().expect("a number").to_owned();
    flows.iter().map(number).collect()
}

pub fn client_of(stream: &TcpStream) -> String {
    stream.local_addr().expect("connected").to_string()
}

/// A running `pepd trace`.
struct Trace {
    child: Child,
    out: BufReader<ChildStdout>,
    err: Option<ChildStderr>,
}

impl Trace {
    fn start(host: &Host, pep: &Pep, words: &[&str]) -> Self {
        let mut command = host.command(pepd().to_str().expect("a path"));
        command.arg("trace").args(words);
        command.arg("--socket").arg(pep.path("admin.sock"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = spawn(&mut command).expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let err = child.stderr.take();
        Self { child, out, err }
    }

    /// Returns the next matching event.
    fn event(&mut self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            self.out.read_line(&mut line).expect("text");
            assert!(
                !line.is_empty(),
                "it ended before: {what}: {}",
                self.complaints()
            );
            let event: Value = serde_json::from_str(&line).expect("JSON");
            if is_wanted(&event) {
                return event;
            }
        }
    }

    fn complaints(&mut self) -> String {
        let mut text = String::new();
        if let Some(mut err) = self.err.take() {
            err.read_to_string(&mut text).expect("text");
        }
        text
    }

    /// Returns exit code, remaining output and standard error.
    fn end(mut self) -> (Option<i32>, String, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        let complaints = self.complaints();
        let status = self.child.wait().expect("it ends");
        (status.code(), rest, complaints)
    }
}

fn is(name: &str) -> impl Fn(&Value) -> bool {
    move |event| event["event"] == name
}

#[test]
fn a_flow_is_watched_through_a_crash_to_its_end() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echo = echo_on(&bed, SPLIT_PORT);
    let mut stream = connect_split(&bed);
    echo_once(&mut stream, &[1; 1000]);
    let number = numbers(&running).remove(0);
    let boat = bed.host("boat");
    let mut trace = Trace::start(&boat, &running.boat, &[&number, "--json"]);
    let first = trace.event("the flow", is("flow"));
    assert_eq!(
        (&first["id"], &first["client"], &first["kind"]),
        (
            &number.as_str().into(),
            &client_of(&stream).into(),
            &"split".into()
        ),
        "{first}"
    );
    echo_once(&mut stream, &[2; 50_000]);
    let look = trace.event("bytes both ways", |event| {
        event["down"]["bytes"].as_u64() == Some(51_000)
    });
    assert_eq!(look["up"]["bytes"], 51_000, "{look}");
    assert!(look["down"]["moved"].as_u64() > Some(0), "{look}");
    // The link's delay is 20 ms in each direction.
    assert!(look["server_leg"]["rtt_s"].as_f64() >= Some(0.04), "{look}");
    trace.event("no data to be left", |event| {
        event["up"]["waits_for"] == "source" && event["down"]["waits_for"] == "source"
    });
    crash(&running.boat);
    let again = trace.event("the next process", is("flow"));
    assert_eq!(again["id"], number.as_str(), "{again}");
    echo_once(&mut stream, &[3; 1000]);
    trace.event("the flow goes on", |event| event["down"]["bytes"] == 52_000);
    drop(stream);
    let ended = trace.event("its end", is("ended"));
    assert_eq!(ended["reason"], "closed", "{ended}");
    assert_eq!(ended["undelivered"], serde_json::json!([0, 0]), "{ended}");
    let (code, rest, complaints) = trace.end();
    assert_eq!((code, rest.as_str()), (Some(0), ""), "{complaints}");
    assert!(complaints.contains("trace interrupted"), "{complaints}");
    running.stop_after_errors();
}

#[test]
fn the_cause_of_a_flows_wait_is_reported() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    // A server that reads nothing until its host ends.
    let listener = bed
        .host("server")
        .listen(bed.server_at(Family::V4, SPLIT_PORT));
    let _server = Server::start(listener, |_stream, _| thread::park());
    let stream = connect_split(&bed);
    let writing = stream.try_clone().expect("a descriptor");
    let writer = thread::spawn(move || {
        let mut stream = &writing;
        // Ends when the connection does.
        while stream.write_all(&[7; 65_536]).is_ok() {}
    });
    let boat = bed.host("boat");
    let mut trace = Trace::start(&boat, &running.boat, &[&client_of(&stream), "--json"]);
    let look = trace.event("the server takes no more", |event| {
        event["up"]["waits_for"] == "receiver_window"
    });
    assert!(look["up"]["kernel"].as_u64() > Some(0), "{look}");
    // Any input ends it in order.
    let mut text = Trace::start(&boat, &running.boat, &[&client_of(&stream)]);
    let mut shown = String::new();
    while !shown.contains("up waits for the server to read") {
        let read = text.out.read_line(&mut shown).expect("text");
        assert!(read > 0, "{shown}: {}", text.complaints());
    }
    assert!(shown.contains("; times are UTC\n"), "{shown}");
    let id = i32::try_from(text.child.id()).expect("an id");
    nix::sys::signal::kill(Pid::from_raw(id), Signal::SIGINT).expect("it runs");
    assert_eq!(text.end().0, Some(0));
    let limited = Trace::start(&boat, &running.boat, &[&client_of(&stream), "--for", "1s"]);
    assert_eq!(limited.end().0, Some(0));
    stream
        .shutdown(std::net::Shutdown::Both)
        .expect("connected");
    writer.join().expect("it ends");
    drop(stream);
    trace.child.kill().expect("it runs");
    trace.child.wait().expect("it was killed");
    running.boat.signal(Signal::SIGTERM);
}

#[test]
fn unknown_and_ambiguous_flows_are_reported_and_traces_are_limited() {
    let bed = TunnelBed::new(LINK);
    let running = start(&bed);
    let _echoes = [PORT, SPLIT_PORT].map(|port| echo_on(&bed, port));
    // The client's same port for two servers.
    let from = SocketAddr::new(bed.address("client", Family::V4), 40_112);
    let dial = |port| {
        let dial = Dial::to(bed.server_at(Family::V4, port)).from(from);
        bed.host("client").dial(&dial).expect("pepd answers")
    };
    let [mut first, mut second] = [PORT, SPLIT_PORT].map(dial);
    let boat = bed.host("boat");
    let refused = |words: &[&str]| {
        let (code, out, complaints) = Trace::start(&boat, &running.boat, words).end();
        assert_eq!((code, out.as_str()), (Some(1), ""), "{complaints}");
        complaints
    };
    for stream in [&mut first, &mut second] {
        echo_once(stream, b"a flow");
    }
    let both = numbers(&running);
    assert_eq!(both.len(), 2);
    for wanted in [from.to_string(), from.ip().to_string()] {
        let message = refused(&[&wanted]);
        assert!(
            message.contains(&format!("{wanted} has several flows")),
            "{message}"
        );
        assert!(
            both.iter()
                .all(|number| message.contains(&format!("  {number}  {from} -> "))),
            "{message}"
        );
    }
    for unknown in ["99999-0000", "192.0.2.1:1"] {
        let message = refused(&[unknown]);
        assert!(
            message.contains(&format!("no open flow `{unknown}`")),
            "{message}"
        );
    }
    // The flow is also available by its number.
    let shown = ask(&running, &format!("/v1/flows/{}", both[0]));
    assert!(
        shown.starts_with("HTTP/1.1 200") && shown.contains(&both[0]),
        "{shown}"
    );
    let mut traces: Vec<_> = (0..8)
        .map(|_| Trace::start(&boat, &running.boat, &[&both[0], "--json"]))
        .collect();
    for trace in &mut traces {
        let flow = trace.event("the flow", is("flow"));
        assert_eq!(flow["peer"], "hub", "{flow}");
    }
    let message = refused(&[&both[1]]);
    assert!(message.contains("all 8 traces are in use"), "{message}");
    // All traces notice the end, and release their slots.
    drop(first);
    for mut trace in traces {
        let ended = trace.event("its end", is("ended"));
        assert_eq!(ended["reason"], "closed", "{ended}");
        assert_eq!(trace.end().0, Some(0));
    }
    wait_until("a slot to be free", || {
        let (code, ..) = Trace::start(&boat, &running.boat, &[&both[1], "--for", "100ms"]).end();
        code == Some(0)
    });
    drop(second);
    running.stop();
}

fn ask(running: &Running, target: &str) -> String {
    let mut stream = UnixStream::connect(running.boat.path("admin.sock")).expect("it listens");
    let request = format!("GET {target} HTTP/1.1\r\nhost: pepd\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
