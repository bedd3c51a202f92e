//! Tests of the program as users run it.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, UdpSocket},
    os::fd::{AsFd as _, AsRawFd as _},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use winkemu::{netns::Netns, shell::LinkReport};

const PROGRAM: &str = env!("CARGO_BIN_EXE_winkemu");
const PATIENCE: Duration = Duration::from_secs(20);

/// Path of a namespace for the command line.
fn path(netns: &Netns) -> String {
    format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        netns.as_fd().as_raw_fd()
    )
}

/// Link that is up, between two new namespaces.
struct Link {
    a: Netns,
    b: Netns,
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    json: Option<tempfile::NamedTempFile>,
}

impl Link {
    fn start(options: &[&str]) -> Self {
        let json = tempfile::NamedTempFile::new().unwrap();
        let path = json.path().to_str().unwrap().to_owned();
        let options = [&["--json", &path], options].concat();
        Self {
            json: Some(json),
            ..Self::start_without_report(&options)
        }
    }

    fn start_without_report(options: &[&str]) -> Self {
        let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
        let mut child = Command::new(PROGRAM)
            .args([
                "link",
                "--a",
                &format!("{}/l0=10.0.0.1/24,fd00::1/64", path(&a)),
            ])
            .args(["--b", &format!("{}/l0=10.0.0.2/24,fd00::2/64", path(&b))])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains("link up"), "{line}");
        Self {
            a,
            b,
            child,
            stderr,
            json: None,
        }
    }

    /// Sends packets from A to B and waits for each to arrive.
    fn carry(&self, count: usize) {
        let bind = |netns: &Netns, address: &str| {
            let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let (near, far) = (bind(&self.a, "10.0.0.1:9"), bind(&self.b, "10.0.0.2:9"));
        for _ in 0..count {
            near.send_to(&[0; 72], "10.0.0.2:9").unwrap();
            far.recv_from(&mut [0; 200]).unwrap();
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end; returns the exit code and the output.
    fn wait(&mut self) -> (i32, String) {
        let mut text = String::new();
        self.stderr.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code().unwrap(), text)
    }

    /// Waits for the end; returns the exit code, the output and the report.
    fn end(mut self) -> (i32, String, LinkReport) {
        let (code, text) = self.wait();
        let json = self.json.as_ref().unwrap().path();
        let report = std::fs::read_to_string(json).unwrap();
        (code, text, serde_json::from_str(&report).unwrap())
    }
}

#[test]
fn a_link_runs_until_it_is_interrupted_and_reports() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let link = Link::start(&["--delay", "2ms", "--rate", "10mbit", "--late-after", "10s"]);
        link.carry(20);
        link.signal(signal);
        let (code, text, report) = link.end();
        assert_eq!(code, 0, "{text}");
        assert!(
            text.contains("a to b: 20 packets in (2000 bytes), 20 out"),
            "{text}"
        );
        assert_eq!(
            (report.ab.packets.delivered, report.ba.packets.offered),
            (20, 0)
        );
        assert_eq!(report.lateness.packets, 20);
        assert_eq!(report.seed, 1);
        assert_eq!(report.link["ab"]["rate"]["fixed"], "10Mbit/s");
    }
}

#[test]
fn a_link_ends_by_itself_after_its_duration() {
    let link = Link::start(&["--duration", "200ms", "--loss", "100%"]);
    let (code, text, report) = link.end();
    assert_eq!(code, 0, "{text}");
    assert!((0.2..10.0).contains(&report.seconds), "{}", report.seconds);
}

#[test]
fn what_an_interface_that_is_down_refuses_is_not_delivered() {
    let link = Link::start(&["--duration", "3s", "--late-after", "10s"]);
    link.b.set_down("l0").unwrap();
    let socket = link.a.enter(|| UdpSocket::bind("10.0.0.1:0"));
    let socket = socket.unwrap().unwrap();
    for _ in 0..5 {
        socket.send_to(b"into the void", "10.0.0.2:9").unwrap();
    }
    let (code, text, report) = link.end();
    assert_eq!(code, 0, "{text}");
    assert_eq!((report.ab.refused, report.ab.packets.delivered), (5, 0));
    assert!(text.contains("refused by the interface 5"), "{text}");
}

#[test]
fn a_run_that_was_too_late_exits_with_3_and_says_why() {
    // No machine delivers within a nanosecond.
    let link = Link::start(&["--late-after", "1ns", "--late-share", "10%"]);
    link.carry(20);
    link.signal(Signal::SIGINT);
    let (code, text, report) = link.end();
    assert_eq!(code, 3, "{text}");
    assert!(text.contains("does not count: 20 of 20 packets"), "{text}");
    assert!(!report.accuracy.counts);
}

#[test]
fn an_interactive_link_ends_well_however_busy_the_machine_was() {
    let mut link = Link::start_without_report(&["--late-after", "1ns", "--late-share", "10%"]);
    link.carry(20);
    link.signal(Signal::SIGINT);
    let (code, text) = link.wait();
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("does not count"), "{text}");
}

#[test]
fn real_time_is_used_as_far_as_permitted() {
    let link = Link::start(&["--rt", "--delay", "1ms", "--late-after", "10s"]);
    link.carry(5);
    link.signal(Signal::SIGINT);
    let (code, text, report) = link.end();
    assert_eq!(code, 0, "{text}");
    let realtime = report.realtime.unwrap();
    let complete = realtime.missing().is_empty();
    assert_eq!(complete, !text.contains("--rt is incomplete"), "{text}");
}

#[test]
fn mistakes_have_their_exit_codes() {
    let code = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        (
            output.status.code().unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (number, text) = code(&["link", "--a", "x/l0", "--b", "y/l0", "--rate", "fast"]);
    assert!(number == 2 && text.contains("10Mbit/s"), "{text}");
    let (number, text) = code(&["link", "--a", "no-such-netns/l0", "--b", "y/l0"]);
    assert!(number == 4 && text.contains("no-such-netns"), "{text}");
    let netns = Netns::new().unwrap();
    let (a, b) = (
        format!("{}/l0", path(&netns)),
        format!("{}/l1", path(&netns)),
    );
    let (number, text) = code(&["link", "--a", &a, "--b", &b, "--loss", "@/no/such/file"]);
    assert!(number == 4 && text.contains("/no/such/file"), "{text}");
    let machine = Netns::new().unwrap();
    machine.add_veth("l1", &machine, "l2").unwrap();
    let taken = format!("{}/l1", path(&machine));
    let (number, text) = code(&["link", "--a", &a, "--b", &taken]);
    assert!(
        number == 4 && text.contains("l1: name already in use"),
        "{text}"
    );
}

#[test]
fn a_trace_may_begin_with_a_byte_order_mark() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "\u{feff}1\r\n2\r\n3\r\n").unwrap();
    let rate = format!("@{}", trace.path().display());
    let output = run_on(&Netns::new().unwrap(), &["--rate", &rate], &["true"]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Runs `winkemu run` in a namespace that stands for the machine, so that tests do not change the
/// host.
fn run_on(machine: &Netns, options: &[&str], command: &[&str]) -> Output {
    let mut program = machine.command(PROGRAM);
    program.args(["run", "--late-after", "10s"]).args(options);
    program.arg("--").args(command);
    program.output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_command_behind_the_link_reaches_this_machine() {
    let machine = Netns::new().unwrap();
    let listen = || TcpListener::bind("0.0.0.0:80");
    let listener = machine.enter(listen).unwrap().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, peer) = listener.accept().unwrap();
        let mut request = [0; 1000];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream
            .write_all(b"HTTP/1.0 200 OK\r\n\r\nfar away")
            .unwrap();
        peer
    });
    let begin = Instant::now();
    let output = run_on(
        &machine,
        &["--delay", "100ms"],
        &["sh", "-c", "curl -sS --max-time 20 http://$WINKEMU_HOST/"],
    );
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(text(&output), "far away");
    // The connection takes one round trip, the answer another.
    assert!(begin.elapsed() >= Duration::from_millis(400));
    assert_eq!(server.join().unwrap().ip().to_string(), "10.0.0.2");
    assert_eq!(machine.interfaces().unwrap(), ["lo"], "interfaces are left");
}

#[test]
fn addresses_in_use_are_left_alone() {
    let machine = Netns::new().unwrap();
    for (interface, address) in [("x0", "10.0.0.1/24"), ("x1", "10.0.1.2/30")] {
        machine
            .add_veth(interface, &machine, &format!("{interface}p"))
            .unwrap();
        machine
            .add_address(interface, address.parse().unwrap())
            .unwrap();
    }
    let output = run_on(
        &machine,
        &[],
        &["sh", "-c", "echo $WINKEMU_HOST $WINKEMU_HOST6"],
    );
    assert_eq!(text(&output), "10.0.2.1 fd77:3::1\n");
}

#[test]
fn each_of_several_commands_has_a_subnet_of_its_own() {
    const MANY: usize = 6;
    let machine = Netns::new().unwrap();
    // Each command waits until all of them run.
    let barrier = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {}; touch here.$$; while [ $(ls | wc -l) -lt {MANY} ]; do sleep 0.05; done; echo $WINKEMU_HOST",
        barrier.path().display()
    );
    let run = || text(&run_on(&machine, &[], &["sh", "-c", &script]));
    let hosts: BTreeSet<String> = thread::scope(|scope| {
        let runs: Vec<_> = (0..MANY).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let expected = (0..MANY).map(|number| format!("10.0.{number}.1\n"));
    assert_eq!(hosts, expected.collect());
}

#[test]
fn a_command_does_not_outlive_its_link() {
    let machine = Netns::new().unwrap();
    let mut program = machine.command(PROGRAM);
    program.args(["run", "--", "sh", "-c", "echo $$; exec sleep 1000"]);
    let mut winkemu = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(winkemu.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    winkemu.kill().unwrap();
    winkemu.wait().unwrap();
    let command = Pid::from_raw(line.trim().parse().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while is_running(command) {
        assert!(Instant::now() < deadline, "command still runs");
        // The command is no child of this process, so it cannot be waited for.
        thread::sleep(Duration::from_millis(10));
    }
}

/// Reports whether a process exists and is no zombie.
fn is_running(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_commands_own_exit_code_comes_through() {
    let machine = Netns::new().unwrap();
    let code = |script: &str| run_on(&machine, &[], &["sh", "-c", script]).status.code();
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -9 $$"), Some(128 + 9));
    assert_eq!(code("true"), Some(0));
    for (name, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let output = run_on(&machine, &[], &[name]);
        assert_eq!(output.status.code(), Some(code));
        assert!(text(&output).contains(name), "{}", text(&output));
    }
}

#[test]
fn a_server_of_its_own_is_waited_for_and_ended() {
    let machine = Netns::new().unwrap();
    let output = run_on(
        &machine,
        &["--preset", "wifi", "--server", "iperf3 -s"],
        &["sh", "-c", "iperf3 -t 1 -J -c $WINKEMU_HOST"],
    );
    assert!(output.status.success(), "{}", text(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let bits = report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap();
    assert!(bits > 10_000.0 && bits < 20e6, "{bits}");
    let output = run_on(&machine, &["--server", "exit 3"], &["true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("server command ended early"),
        "{}",
        text(&output)
    );
}

/// Runs `winkemu predict`; returns its exit code, stdout and stderr.
fn predict(arguments: &str) -> (i32, String, String) {
    let arguments = ["predict"].into_iter().chain(arguments.split_whitespace());
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code().unwrap(), out, err)
}

#[test]
fn a_transfer_is_predicted_in_a_table_and_for_programs() {
    let one = "--p 0.4 --interval 40ms --perfect 1.86s";
    let (code, out, err) = predict(one);
    assert_eq!((code, err.as_str()), (0, ""));
    for expected in ["takes 1.86 s", "3.10", "12.55", "tcp-charged"] {
        assert!(out.contains(expected), "{out}");
    }
    let (_, out, _) = predict(&format!("{one} --custody"));
    assert!(out.contains("3.10") && !out.contains("tcp"), "{out}");
    let grid = "--p 0..0.4/0.05 --interval 40ms..1100ms/20ms --perfect 1.86s --json -";
    let (code, out, _) = predict(grid);
    assert_eq!(code, 0);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let predictions = report["predictions"].as_array().unwrap();
    assert_eq!(
        (predictions.len(), &report["perfect_s"]),
        (9 * 54, &1.86.into())
    );
    let last = &predictions[9 * 54 - 1];
    assert_eq!(
        (&last["p"], &last["interval_s"]),
        (&0.4.into(), &1.1.into())
    );
    assert_eq!(last["intervals"], 2.0);
    assert!(last["tcp_s"].as_f64().unwrap() > last["bound_s"].as_f64().unwrap());
}

#[test]
fn predictions_that_make_no_sense_are_refused() {
    for (arguments, expected) in [
        ("--p 1 --interval 40ms --perfect 1s", "below 1"),
        ("--p 1.1 --interval 40ms --perfect 1s", "between 0 and 1"),
        ("--p -0.1 --interval 40ms --perfect 1s", "negative"),
        (
            "--p 0.1 --interval 0 --perfect 1s",
            "interval must be longer than 0",
        ),
        ("--p 0.1 --interval 40 --perfect 1s", "264ms"),
        (
            "--p 0.1 --interval 40ms --perfect 0",
            "always up must be longer than 0",
        ),
        ("--p 0.1 --interval 40ms", "--perfect <TIME>"),
        ("--p 0.1 --interval 40ms..1s --perfect 1s", "FROM..TO/STEP"),
        (
            "--p 0..0.9/0.001 --interval 1ms..1s/1ms --perfect 1s",
            "901000 combinations",
        ),
    ] {
        let (code, out, err) = predict(arguments);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments}");
        assert!(err.contains(expected), "{arguments}: {err}");
    }
    let unwritable = "--p 0.1 --interval 40ms --perfect 1s --json /no/such/place";
    let (code, _, err) = predict(unwritable);
    assert!(code == 1 && err.contains("/no/such/place"), "{code}: {err}");
}
