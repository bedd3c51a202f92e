//! Flows outlive the process that carries them: crashes at any moment, upgrades, restarts.
//!
//! The hosts never reconnect. The tests compare both directions of every flow with the sent bytes,
//! and the ends of flows.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram},
    },
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, setfsuid},
};
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    footprint::Footprint,
    host::Dial,
    matrix::{matrix_pepd_only, shared},
    outcome::{Ended, reset},
    payload::{Payload, receive, receive_slowly, run_seed},
    pep::{Pep, carrier, children},
    wait::{PATIENCE, wait_for, wait_until, wait_within},
};
use splitmix::SplitMix64;

use crate::{
    churn::{self, Flows, send},
    support::{PORT, connect, echo_once},
};

/// The traffic of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Both ends send at once, and then FIN.
    Bulk,
    /// Small messages and their answers.
    Tiny,
    /// A download with a slow reader.
    Slow,
    /// The client resets in mid-download.
    Reset,
    /// The client half-closes before the download begins.
    HalfClose,
}

const KINDS: [Kind; 5] = [
    Kind::Bulk,
    Kind::Tiny,
    Kind::Slow,
    Kind::Reset,
    Kind::HalfClose,
];

const BULK: u64 = 6_000_000;
const MESSAGES: u64 = 40;
const PAUSE: Duration = Duration::from_millis(4);

struct Mixed;

impl Flows for Mixed {
    fn kind(&self, id: u64) -> String {
        format!("{:?}", kind(id))
    }

    fn client(&self, id: u64, stream: TcpStream) -> io::Result<()> {
        be_client(id, stream)
    }

    fn server(&self, id: u64, stream: &TcpStream) -> io::Result<()> {
        serve(id, stream)
    }
}

fn kind(id: u64) -> Kind {
    KINDS[(id % 5) as usize]
}

fn up(id: u64) -> Payload {
    Payload::new(2 * id, BULK)
}

fn down(id: u64) -> Payload {
    Payload::new(2 * id + 1, BULK)
}

fn expect<T: PartialEq + std::fmt::Debug>(found: &T, expected: &T) -> io::Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{found:?} instead of {expected:?}"
    )))
}

fn both(stream: &TcpStream, sent: Payload, expected: &Payload) -> io::Result<()> {
    thread::scope(|scope| {
        let sending = scope.spawn(|| send(stream, sent));
        expect(&receive(&mut &*stream)?, &(BULK, expected.sum()))?;
        sending.join().expect("does not panic")
    })
}

fn be_client(id: u64, stream: TcpStream) -> io::Result<()> {
    let expected = (BULK, down(id).sum());
    match kind(id) {
        Kind::Bulk => both(&stream, up(id), &down(id)),
        Kind::Tiny => {
            let mut random = SplitMix64::new(id);
            for _ in 0..MESSAGES {
                let message = random.next_u64().to_be_bytes();
                (&stream).write_all(&message)?;
                let mut answer = [0; 8];
                (&stream).read_exact(&mut answer)?;
                expect(&answer, &message)?;
                thread::sleep(PAUSE);
            }
            stream.shutdown(Shutdown::Write)?;
            expect(&Ended::from_stream(&stream), &Ended::EMPTY)
        }
        Kind::Slow => {
            let pause = || thread::sleep(PAUSE);
            expect(&receive_slowly(&mut &stream, pause)?, &expected)
        }
        Kind::Reset => {
            let mut some = vec![0; (BULK / 3) as usize];
            (&stream).read_exact(&mut some)?;
            let mut model = vec![0; some.len()];
            down(id).read_exact(&mut model)?;
            reset(stream);
            expect(&(some == model), &true)
        }
        Kind::HalfClose => {
            send(&stream, up(id))?;
            expect(&receive(&mut &stream)?, &expected)
        }
    }
}

fn serve(id: u64, stream: &TcpStream) -> io::Result<()> {
    let expected = (BULK, up(id).sum());
    match kind(id) {
        Kind::Bulk => both(stream, down(id), &up(id)),
        Kind::Tiny => {
            for _ in 0..MESSAGES {
                let mut message = [0; 8];
                (&*stream).read_exact(&mut message)?;
                (&*stream).write_all(&message)?;
            }
            expect(&Ended::from_stream(stream), &Ended::EMPTY)
        }
        Kind::Slow => {
            send(stream, down(id))?;
            expect(&Ended::from_stream(stream), &Ended::EMPTY)
        }
        // Never by FIN: the client would then seem to have everything.
        Kind::Reset => match down(id).send(&mut &*stream) {
            Ok(()) => expect(&Ended::from_stream(stream), &Ended::RESET),
            Err(err) if err.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(err) => expect(&err.kind(), &io::ErrorKind::ConnectionReset),
        },
        Kind::HalfClose => {
            expect(&receive(&mut &*stream)?, &expected)?;
            send(stream, down(id))
        }
    }
}

/// Runs flows of all kinds during an action on pepd. All of them must be complete.
pub fn under_load(bed: &Bed, flows: usize, act: impl FnOnce()) {
    let at = bed.at(Place::Server, PORT);
    let hosts = (|| bed.client.connect(at), bed.server.listen(at));
    churn::under_load(Mixed, flows, PATIENCE, hosts, act);
}

/// Returns the worker, once it differs from `before`.
pub fn next_worker(pep: &Pep, before: u32) -> u32 {
    let other = || Some(pep.id()).filter(|id| *id != before && *id != pep.supervisor());
    wait_within(PATIENCE, other)
        .unwrap_or_else(|| panic!("no process after {before}: {}", errors_of(pep)))
}

/// Returns the processes' log lines on each other's ends.
fn errors_of(pep: &Pep) -> String {
    let events = pep.log().events_since(0);
    let logged = events.iter().filter(|event| event.level() == "ERROR");
    let lines: Vec<_> = logged.map(|event| format!("{event:?}")).collect();
    lines.join("\n")
}

pub fn send_signal(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().expect("a process id"));
    kill(process, signal).expect("it lives");
}

pub fn wait_ready(pep: &Pep, position: usize) {
    let ready = |event: &pepd_tests::pep_log::Event| event.message().contains("pepd is ready");
    assert!(
        pep.log().find(position, PATIENCE, ready).is_some(),
        "it does not become ready"
    );
}

/// Kills the process that carries flows, and waits for the next one.
pub fn crash(pep: &Pep) {
    let (worker, position) = (pep.id(), pep.log().position());
    assert_ne!(worker, pep.supervisor());
    send_signal(worker, Signal::SIGKILL);
    wait_ready(pep, position);
}

/// Replaces the program, which continues the flows.
pub fn upgrade(pep: &Pep) {
    let (worker, position) = (pep.id(), pep.log().position());
    pep.signal(Signal::SIGUSR2);
    next_worker(pep, worker);
    wait_ready(pep, position);
}

/// The age at which a worker no longer counts as young: its death is then not attributed to the
/// flows it took over. Only time matters, so there is no event to wait for.
pub const GROWN: Duration = Duration::from_millis(2100);

fn below(random: &mut SplitMix64, limit: Duration) -> Duration {
    Duration::from_nanos(random.below(limit.as_nanos() as u64))
}

#[test]
fn no_flow_is_lost_by_crashes_at_any_moment() {
    let seed = run_seed();
    matrix_pepd_only(|bed| {
        let pep = bed.start().expect("not direct");
        let mut random = SplitMix64::new(seed);
        under_load(bed, 10, || {
            for round in 0..4 {
                // Not SIGSEGV: Rust's handler returns from a SIGSEGV without a fault.
                let signal = [Signal::SIGKILL, Signal::SIGABRT, Signal::SIGILL][round % 3];
                thread::sleep(GROWN + below(&mut random, Duration::from_millis(200)));
                let (position, worker) = (pep.log().position(), pep.id());
                send_signal(worker, signal);
                wait_ready(&pep, position);
            }
        });
        let counters = pep.counters();
        assert_eq!(counters["flows_lost_at_restart"], 0);
        assert_eq!(counters["restarts"], 4, "{}", errors_of(&pep));
        assert!(counters["flows_recovered"] > 0, "{counters:?}");
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn an_upgrade_keeps_flows_and_the_process_id() {
    matrix_pepd_only(|bed| {
        let pep = bed.start().expect("not direct");
        under_load(bed, 6, || {
            for _ in 0..2 {
                thread::sleep(Duration::from_millis(300));
                upgrade(&pep);
            }
        });
        let counters = pep.counters();
        assert_eq!(
            (counters["flows_lost_at_restart"], counters["restarts"]),
            (0, 2)
        );
        pep.wait_idle();
        pep.stop();
    });
}

/// Returns a server that answers, and a used connection to it.
pub fn talking(bed: &Bed) -> (EchoServer, TcpStream) {
    let listener = bed.server.listen(bed.at(Place::Server, PORT));
    let echo = EchoServer::start(listener);
    let mut open = connect(bed);
    echo_once(&mut open, b"before");
    (echo, open)
}

#[test]
fn an_upgrade_to_a_configuration_that_is_wrong_changes_nothing() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start().expect("not direct");
        let (_echo, mut open) = talking(&bed);
        let worker = pep.id();
        std::fs::write(pep.path("pepd.toml"), "[intercept]\nlan = 5\n").expect("writable");
        pep.signal(Signal::SIGUSR2);
        pep.log().expect("upgrade failed");
        echo_once(&mut open, b"after");
        assert_eq!(pep.id(), worker);
    });
}

/// Any local user may bind any abstract name.
#[test]
fn a_claim_of_another_user_stops_no_pepd_and_ends_no_flow() {
    matrix_pepd_only(|bed| {
        // It names living processes of root, which no test needs.
        let (table, own) = ("pepd/5000+1/50000000+5/ff000000/5000+1", std::process::id());
        let names = [
            format!("pepd/{own}+{own}/{table}/0"),
            format!("pepd/{own}+{own}/{table}"),
        ];
        let bind = || {
            // Of this thread only.
            setfsuid(65534.into());
            let bound = names.each_ref().map(|name| {
                let name = SocketAddr::from_abstract_name(name)?;
                UnixDatagram::bind_addr(&name)
            });
            setfsuid(0.into());
            bound.map(|socket| socket.expect("a free name"))
        };
        let _strange = bed.gateway.enter(bind);
        let pep = bed.start().expect("not direct");
        let (_echo, mut open) = talking(bed);
        send_signal(pep.id(), Signal::SIGKILL);
        echo_once(&mut open, b"after");
        pep.log().expect("took over 1 flow");
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

/// Like `systemctl restart`, and like a kill of the wrong process.
#[test]
fn a_new_pepd_takes_over_from_one_that_has_left_and_from_one_whose_supervisor_was_killed() {
    for leave in [Signal::SIGQUIT, Signal::SIGKILL] {
        matrix_pepd_only(|bed| {
            let clean = Footprint::measure(&bed.gateway);
            let config = bed.config("").expect("not direct");
            let mut first = start_apart(bed, &config);
            under_load(bed, 6, || {
                thread::sleep(Duration::from_millis(300));
                first.signal(leave);
                first.wait();
                thread::sleep(Duration::from_millis(100));
                let mut second = start_apart(bed, &config);
                std::mem::swap(&mut first, &mut second);
                thread::sleep(Duration::from_millis(300));
            });
            assert_eq!(first.terminate(), Some(0));
            let left = || {
                let left = Footprint::measure(&bed.gateway).difference(&clean);
                left.is_empty().then_some(())
            };
            wait_for("all processes to end", left);
        });
    }
}

/// Like an operator who stops pepd, loses patience, and starts it again.
#[test]
fn a_new_pepd_takes_over_from_one_that_drains_whatever_signals_it_got() {
    let (first, worker) = (0, 1);
    let orders: [&[(usize, Signal)]; 7] = [
        &[(first, Signal::SIGTERM)],
        &[(worker, Signal::SIGTERM)],
        &[(first, Signal::SIGTERM), (first, Signal::SIGKILL)],
        &[(worker, Signal::SIGTERM), (first, Signal::SIGKILL)],
        &[(first, Signal::SIGKILL), (worker, Signal::SIGTERM)],
        &[(first, Signal::SIGTERM), (first, Signal::SIGQUIT)],
        &[(first, Signal::SIGTERM), (worker, Signal::SIGUSR2)],
    ];
    matrix_pepd_only(|bed| {
        let clean = Footprint::measure(&bed.gateway);
        for order in orders {
            let config = bed
                .config("[timeouts]\ndrain = \"1h\"\n")
                .expect("not direct");
            let mut old = start_apart(bed, &config);
            let processes = [old.child.id(), carrier(old.child.id())];
            let (echo, mut open) = talking(bed);
            for (process, signal) in order {
                let process = processes[*process];
                send_signal(process, *signal);
                match signal {
                    Signal::SIGTERM => wait_until("the drain", || old.log().contains("draining")),
                    Signal::SIGKILL => wait_until("its end", || old.has_ended()),
                    _ => {}
                }
            }
            let mut new = start_apart(bed, &config);
            old.wait();
            echo_once(&mut open, b"after");
            echo_once(&mut connect(bed), b"another");
            drop(open);
            wait_for_end(&echo);
            assert_eq!(new.terminate(), Some(0), "{order:?}");
        }
        let left = || {
            let left = Footprint::measure(&bed.gateway).difference(&clean);
            left.is_empty().then_some(())
        };
        wait_for("all processes to end", left);
    });
}

const LOG: &str = "log";

/// A pepd whose processes outlive the one that was started.
struct Apart {
    child: std::process::Child,
    directory: tempfile::TempDir,
}

fn start_apart(bed: &Bed, config: &str) -> Apart {
    let apart = Apart::begin(bed, config, None);
    wait_until("pepd to be ready", || apart.is_ready());
    apart
}

impl Apart {
    /// Starts pepd with at most so many descriptors.
    fn begin(bed: &Bed, config: &str, descriptors: Option<usize>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pepd.toml");
        std::fs::write(&path, config).expect("writable");
        let log = std::fs::File::create(directory.path().join(LOG)).expect("writable");
        let pepd = pepd_tests::pep_binary::pepd();
        let mut command: Command = bed.gateway.command("prlimit");
        let limit = descriptors.map(|limit| format!("--nofile={limit}:{limit}"));
        command
            .args(limit)
            .arg(pepd)
            .arg("run")
            .arg("--config")
            .arg(&path);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = winkemu::netns::spawn(&mut command).expect("pepd starts");
        Self { child, directory }
    }

    fn is_ready(&self) -> bool {
        self.log().contains("pepd is ready")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default()
    }

    /// Returns whether the process that was started has ended.
    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal);
    }

    fn wait(&mut self) -> Option<i32> {
        self.child.wait().expect("a child").code()
    }

    fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait()
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // It has ended already if the test succeeded.
        let _ = self.child.kill();
    }
}

/// After a kill of all processes the network is as before.
#[test]
fn without_surviving_there_is_one_process_and_its_flows_end_with_it() {
    matrix_pepd_only(|bed| {
        let mut pep = bed
            .start_with("[custody]\nsurvive = false\n")
            .expect("not direct");
        assert_eq!(pep.id(), pep.supervisor());
        let (_echo, open) = talking(bed);
        pep.kill();
        assert_eq!(Ended::from_stream(&open), Ended::RESET);
        let mut open = connect(bed);
        echo_once(&mut open, b"forwarded");
    });
}

/// Returns the process that shares the descriptors of this one, as its child.
fn keeper_of(worker: u32) -> u32 {
    let is_keeper = |id: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "pepd-keeper")
    };
    children(worker)
        .into_iter()
        .find(is_keeper)
        .expect("it has one")
}

/// No process holds the sockets any more. pepd logs the consequence, and new flows work.
#[test]
fn flows_without_a_keeper_are_reset_and_reported() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start().expect("not direct");
        let (_echo, open) = talking(&bed);
        let (worker, position) = (pep.id(), pep.log().position());
        send_signal(keeper_of(worker), Signal::SIGKILL);
        send_signal(worker, Signal::SIGKILL);
        assert_eq!(Ended::from_stream(&open), Ended::RESET);
        wait_ready(&pep, position);
        // The next process may still see the keeper while that ends, without any descriptors.
        let reasons = ["nothing to take over", "memory is missing"];
        let logged = pep.log().find(position, PATIENCE, |event| {
            reasons
                .iter()
                .any(|direction| event.message().contains(direction))
        });
        assert!(logged.is_some(), "{}", errors_of(&pep));
        echo_once(&mut connect(&bed), b"after");
        pep.stop();
    });
}

/// The rules remember a recent SYN, as the answer to a SYN cookie has no socket yet. A new
/// connection from the same port that passes is not answered by pepd's listener.
#[test]
fn a_port_of_a_recent_flow_connects_while_no_pepd_runs() {
    matrix_pepd_only(|bed| {
        let pep = bed.start_past_forward("").expect("not direct");
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let dial = Dial::to(bed.at(Place::Server, PORT)).from(bed.client_at(40_006));
        let connect = || {
            let stream = bed.client.dial(&dial).expect("the server listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            stream
        };
        let mut before = connect();
        echo_once(&mut before, b"before");
        reset(before);
        wait_for_end(&echo);
        let (position, worker) = (pep.log().position(), pep.id());
        send_signal(pep.supervisor(), Signal::SIGSTOP);
        send_signal(worker, Signal::SIGKILL);
        let tun = || bed.gateway.output("ip", &["link", "show", "pepd0"]);
        wait_until("the TUN to be gone", || !tun().status.success());
        let mut between = connect();
        // With `spoof` the kernel completes the handshake, and the next pepd takes the flow.
        if bed.path == Path::Defer {
            echo_once(&mut between, b"between");
        }
        send_signal(pep.supervisor(), Signal::SIGCONT);
        wait_ready(&pep, position);
        echo_once(&mut between, b"after");
        drop(between);
        wait_for_end(&echo);
        pep.stop();
    });
}

/// The kernel completes handshakes at the listeners of all workers, of which the next process has
/// fewer.
#[test]
fn clients_that_wait_are_served_by_a_pepd_with_fewer_workers() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start_past_forward("").expect("not direct");
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let (position, worker) = (pep.log().position(), pep.id());
        send_signal(pep.supervisor(), Signal::SIGSTOP);
        send_signal(worker, Signal::SIGKILL);
        let mut waiting: Vec<_> = (0..12).map(|_| connect(&bed)).collect();
        let supervisor = pep.supervisor().to_string();
        let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let cpus = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first = cpus.and_then(|cpus| cpus.trim().split(['-', ',']).next());
        let first = first.expect("a list of CPUs");
        bed.gateway
            .run("taskset", &["--pid", "--cpu-list", first, &supervisor]);
        send_signal(pep.supervisor(), Signal::SIGCONT);
        wait_ready(&pep, position);
        for client in &mut waiting {
            echo_once(client, b"after");
        }
        drop(waiting);
        pep.wait_idle();
        pep.stop();
    });
}

fn wait_for_end(echo: &EchoServer) {
    wait_until("the server to see the end", || echo.open() == 0);
}

/// Killed processes did not die of the flows they took over.
#[test]
fn kills_in_quick_succession_reset_nothing() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start().expect("not direct");
        let (_echo, mut open) = talking(&bed);
        for _ in 0..5 {
            crash(&pep);
        }
        echo_once(&mut open, b"still there");
        assert_eq!(pep.counter("flows_lost_at_restart"), 0);
        drop(open);
        pep.wait_idle();
    });
}

/// Whatever a start lacks, it lacks before it takes the flows: the next start takes them.
#[test]
fn starts_that_fail_for_lack_of_descriptors_lose_no_flow() {
    const FLOWS: usize = 10;
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let config = bed.config("").expect("not direct");
        let mut last = start_apart(&bed, &config);
        let (_echo, open) = talking(&bed);
        let mut flows = vec![open];
        flows.resize_with(FLOWS, || connect(&bed));
        flows.iter_mut().for_each(|flow| echo_once(flow, b"before"));
        last.signal(Signal::SIGQUIT);
        last.wait();
        let (mut limit, mut failed) = (2 * FLOWS, 0);
        loop {
            last = Apart::begin(&bed, &config, Some(limit));
            wait_until("a start or its failure", || {
                last.is_ready() || last.has_ended()
            });
            if last.is_ready() {
                break;
            }
            (limit, failed) = (limit + 3, failed + 1);
        }
        assert!(failed > 5, "{failed} starts failed");
        flows.iter_mut().for_each(|flow| echo_once(flow, b"after"));
        drop(flows);
        assert_eq!(last.terminate(), Some(0), "{}", last.log());
    });
}

/// A process that dies at once, repeatedly, is not restarted for ever: flows end, rules are
/// removed, and the kernel forwards.
#[test]
fn after_ten_deaths_in_a_row_it_gives_up_and_the_kernel_forwards() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V6);
        let mut pep = bed.start().expect("not direct");
        let (_echo, open) = talking(&bed);
        let mut last = 0;
        let status = wait_for("it to give up", || {
            let worker = pep.id();
            if worker != last && worker != pep.supervisor() {
                last = worker;
                send_signal(worker, Signal::SIGKILL);
            }
            pep.wait_at_most(Duration::from_millis(1))
        });
        assert_eq!(status.code(), Some(1));
        assert_eq!(Ended::from_stream(&open), Ended::RESET);
        pep.assert_nothing_left();
        echo_once(&mut connect(&bed), b"forwarded");
    });
}

/// Measures the time from the kill to the first answer of one flow, and to those of all.
#[test]
#[ignore = "measures: thousands of flows, and a quiet machine"]
fn the_gap_that_a_crash_leaves_with_thousands_of_flows() {
    const CRASHES: usize = 7;
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start().expect("not direct");
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _echo = EchoServer::start(listener);
        let mut open: Vec<TcpStream> = Vec::new();
        for flows in [200, 3000] {
            while open.len() < flows {
                open.push(connect(&bed));
            }
            let mut gaps: [Vec<Duration>; 2] = Default::default();
            for _ in 0..CRASHES {
                open.iter_mut().for_each(|flow| echo_once(flow, b"before"));
                thread::sleep(GROWN);
                let (worker, began) = (pep.id(), Instant::now());
                send_signal(worker, Signal::SIGKILL);
                // Output of the dying process is no answer of the next one.
                thread::sleep(Duration::from_millis(1));
                for (number, flow) in open.iter_mut().enumerate() {
                    echo_once(flow, b"after");
                    if number == 0 {
                        gaps[0].push(began.elapsed());
                    }
                }
                gaps[1].push(began.elapsed());
                next_worker(&pep, worker);
            }
            for (what, gaps) in ["one", "all"].iter().zip(&mut gaps) {
                gaps.sort_unstable();
                let [first, .., last] = gaps.as_slice() else {
                    unreachable!()
                };
                let median = gaps[CRASHES / 2];
                println!("{flows} flows, {what}: {median:.1?} [{first:.1?}..{last:.1?}]");
            }
            assert_eq!(pep.counter("flows_lost_at_restart"), 0);
        }
        drop(open);
        pep.wait_idle();
    });
}
