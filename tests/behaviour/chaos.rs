//! All faults at once: of the link, of pepd, of its machine and of hostile hosts, beside programs
//! that only transfer bytes.
//!
//! An hour, with 200 flows at a time:
//!
//! ```text
//! PEPD_TEST_CHAOS=3600 PEPD_TEST_FLOWS=200 \
//! cargo test -p pepd-tests --test behaviour -- chaos:: --ignored --nocapture
//! ```

mod fleet;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::Host,
    matrix::shared,
    payload::{Sum, run_seed},
    pep::Pep,
    pep_binary::pepd,
    programs::program,
    tunnel::TunnelBed,
    wait::PATIENCE,
};
use serde_json::Value;
use splitmix::SplitMix64;

use crate::{
    churn::{self, Flows},
    programs::{Files, nginx, sum_of_file},
    survive::GROWN,
    survive_tunnel::{BothWays, given},
    tunnel::{LINK, PORT},
};

use fleet::{Fleet, State, assert_nothing_leaks};

/// The port of well-behaved traffic that does not cross the bad link.
const WELL: u16 = PORT + 1;
/// The interval between messages of the well-behaved host.
const PACE: Duration = Duration::from_millis(20);
/// The delay of slow readers.
const WHILE: Duration = Duration::from_secs(3);
/// Objects of the web server, in bytes.
const OBJECTS: [u64; 4] = [1000, 30_000, 200_000, 1_000_000];
/// An object that no client reads to its end.
const LONG: &str = "long";

/// Programs over the bad link, repeatedly, many at a time.
struct Programs<'a> {
    bed: &'a TunnelBed,
    seed: u64,
    files: &'a Files,
    sums: Vec<Sum>,
    stop: AtomicBool,
    done: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl Programs<'_> {
    fn run(&self, number: usize) {
        let mut random = SplitMix64::new(self.seed + number as u64);
        while !self.stop.load(Ordering::SeqCst) {
            let object = random.below(OBJECTS.len() as u64) as usize;
            let result = if random.below(3) == 0 {
                self.put(number, object)
            } else {
                self.get(number, object)
            };
            self.done.fetch_add(1, Ordering::SeqCst);
            if let Err(err) = result {
                self.errors.lock().push(err);
            }
        }
    }

    fn get(&self, number: usize, object: usize) -> Result<(), String> {
        let got = self.files.path(&format!("got-{number}"));
        self.curl("--output", &got, &OBJECTS[object].to_string())?;
        self.check(&got, object, "GET")
    }

    fn put(&self, number: usize, object: usize) -> Result<(), String> {
        let from = self.files.path(&format!("root/{}", OBJECTS[object]));
        let name = format!("put-{number}");
        self.curl("--upload-file", &from, &name)?;
        self.check(&self.files.path(&format!("root/{name}")), object, "PUT")
    }

    fn check(&self, path: &Path, object: usize, what: &str) -> Result<(), String> {
        if sum_of_file(path) == self.sums[object] {
            return Ok(());
        }
        let len = OBJECTS[object];
        Err(format!("{what} of {len} bytes: wrong ones"))
    }

    fn curl(&self, direction: &str, file: &Path, name: &str) -> Result<(), String> {
        let server = self.bed.server_at(Family::V4, 80);
        let (url, file) = (
            format!("http://{server}/{name}"),
            file.to_str().expect("text"),
        );
        let words = ["-sS", "--fail", "--max-time", "600", direction, file, &url];
        let seen = ["--write-out", "from port %{local_port}, %{time_total} s"];
        let words = [&words[..], &seen].concat();
        let output = self.bed.host("client").output(&program("curl"), &words);
        if output.status.success() {
            return Ok(());
        }
        // pepd's log shows whether it carried the connection.
        let [seen, errors] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        Err(format!("{direction} {name} {seen}: {errors}"))
    }
}

/// Requests data, does not read it, and gives up after a while.
fn read_slowly(bed: &TunnelBed, done: &AtomicBool) {
    while !done.load(Ordering::SeqCst) {
        let to = bed.server_at(Family::V4, 80);
        let ask = || {
            let mut stream = bed.host("client").connect(to).ok()?;
            let request = format!("GET /{LONG} HTTP/1.0\r\n\r\n");
            stream.write_all(request.as_bytes()).ok()?;
            Some(stream)
        };
        let unread: Vec<_> = (0..10).filter_map(|_| ask()).collect();
        thread::sleep(WHILE);
        drop(unread);
    }
}

/// Flows of the test itself; collects diagnostics for a stalled one from all machines on its path.
struct Watched {
    /// All machines.
    hosts: Vec<(&'static str, Host)>,
    /// The admin sockets of both pepds.
    sockets: Vec<(Host, PathBuf)>,
}

impl Watched {
    fn new(fleet: &Fleet<'_>) -> Self {
        let bed = fleet.bed;
        let names = ["client", "boat", "hub", "server"];
        let at = |name: &str, pep: &Pep| (bed.host(name), pep.path("admin.sock"));
        Self {
            hosts: names.map(|name| (name, bed.host(name))).into(),
            sockets: vec![at("boat", &fleet.boat), at("hub", &fleet.hub)],
        }
    }

    /// Describes whether a flow is accelerated, and the bytes queued at each point.
    fn explain(&self, client: SocketAddr) -> String {
        let mut details = String::new();
        for (host, socket) in &self.sockets {
            let pepd = pepd();
            let (pepd, socket) = (pepd.to_str().expect("text"), socket.to_str().expect("text"));
            let flows = ["flows", "--limit", "10000", "--json", "--socket", socket];
            let flows = host.output(pepd, &flows).stdout;
            let flows: Value = serde_json::from_slice(&flows).unwrap_or_default();
            let all = flows["flows"].as_array().into_iter().flatten();
            let its = all.filter(|flow| flow["client"] == client.to_string());
            details.extend(its.map(|flow| format!("\n  pepd: {flow}")));
        }
        let port = client.port();
        let filter = format!("( sport = {port} or dport = {port} )");
        for (name, host) in &self.hosts {
            let sockets = host.run(&program("ss"), &["-tnioeOH", "state", "all", &filter]);
            details.extend(sockets.lines().map(|line| format!("\n  {name}: {line}")));
        }
        details
    }

    /// Adds diagnostics to an error; must run before the connection is closed.
    fn watch(&self, client: io::Result<SocketAddr>, result: io::Result<()>) -> io::Result<()> {
        let (Ok(client), Err(err)) = (client, &result) else {
            return result;
        };
        let details = self.explain(client);
        Err(io::Error::new(err.kind(), format!("{err}{details}")))
    }
}

impl Flows for Watched {
    fn kind(&self, id: u64) -> String {
        BothWays.kind(id)
    }

    fn client(&self, id: u64, stream: TcpStream) -> io::Result<()> {
        let kept = stream.try_clone()?;
        self.watch(kept.local_addr(), BothWays.client(id, stream))
    }

    fn server(&self, id: u64, stream: &TcpStream) -> io::Result<()> {
        self.watch(stream.peer_addr(), BothWays.server(id, stream))
    }
}

/// Phases in which the well-behaved host sends a message.
const WHEN: [&str; 3] = [
    "load alone",
    "everything happens to others",
    "its own hub ends and begins",
];
const LOAD: u64 = 0;
const OTHERS: u64 = 1;
const HUB: u64 = 2;
/// The end of the test.
const OVER: u64 = 3;
/// The maximum time for which the boats feel a fault of the hub.
const FELT: Duration = Duration::from_secs(5);

/// Response times by phase.
type Rounds = Mutex<[Vec<Duration>; 3]>;

/// Exchanges messages at fixed times on one connection, without waiting for earlier answers;
/// records each answer's delay from its scheduled time.
fn be_well(stream: &TcpStream, at: &AtomicU64, rounds: &Rounds) {
    const WORKS: &str = "the well-behaved connection lasts";
    let began = Instant::now();
    let due = |number: u32| began + PACE * number;
    let (sent, numbers) = mpsc::channel::<(u32, usize)>();
    thread::scope(|scope| {
        scope.spawn(move || {
            for (number, phase) in numbers {
                let mut answer = [0; 4];
                (&mut &*stream).read_exact(&mut answer).expect(WORKS);
                assert_eq!(answer, number.to_be_bytes());
                rounds.lock()[phase].push(due(number).elapsed());
            }
        });
        for number in 0.. {
            thread::sleep(due(number).saturating_duration_since(Instant::now()));
            let phase = at.load(Ordering::SeqCst);
            if phase == OVER {
                return drop(sent);
            }
            (&mut &*stream)
                .write_all(&number.to_be_bytes())
                .expect(WORKS);
            sent.send((number, phase as usize)).expect(WORKS);
        }
    });
}

fn percentile(took: &mut [Duration], of_hundred: usize) -> Duration {
    took.sort_unstable();
    let last = took.len().saturating_sub(1);
    took[last * of_hundred / 100]
}

/// A flag that is set on drop.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A phase that is set to [`OVER`] on drop.
struct Ended<'a>(&'a AtomicU64);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(OVER, Ordering::SeqCst);
    }
}

#[test]
#[ignore = "for minutes or hours, and takes most of the machine"]
fn no_byte_is_wrong_and_nothing_leaks_whatever_happens() {
    shared(|| {
        let time = Duration::from_secs(given("PEPD_TEST_CHAOS", 40));
        let flows = given("PEPD_TEST_FLOWS", 30) as usize;
        let bed = TunnelBed::with_links(&format!("{LINK},wink=p=0.4,i=500ms"), LINK);
        let mut fleet = Fleet::start(&bed);
        let hosts = ["boat", "hub"].map(|name| bed.host(name));
        let state = |fleet: &Fleet<'_>| {
            let [boat, hub] = fleet.at_bad_link();
            [State::new(boat, &hosts[0]), State::new(hub, &hosts[1])]
        };
        let before = state(&fleet);
        live(&mut fleet, time, flows);
        for pep in [&fleet.boat, &fleet.hub, &fleet.well] {
            pep.wait_idle();
            assert!(!pep.log().text().contains("panicked at"), "pepd panicked");
        }
        assert_nothing_leaks(&before, || state(&fleet));
        for pep in [fleet.boat, fleet.well, fleet.hub] {
            pep.stop();
        }
    });
}

/// Lets hosts work, first with load only, then under faults.
fn live(fleet: &mut Fleet<'_>, time: Duration, flows: usize) {
    let bed = fleet.bed;
    let files = Files::new();
    files.directory("root");
    let sums = OBJECTS.map(|len| files.random(&format!("root/{len}"), len, len));
    files.random(&format!("root/{LONG}"), 1, 100_000_000);
    let _nginx = nginx(&bed.host("server"), &files);
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, WELL)));
    let well = bed.host("client2").connect(bed.server_at(Family::V4, WELL));
    let well = well.expect("pepd answers");
    well.set_nodelay(true).expect("a socket");
    well.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let seed = run_seed();
    let programs = Programs {
        bed,
        seed,
        files: &files,
        sums: sums.into(),
        stop: AtomicBool::default(),
        done: AtomicU64::default(),
        errors: Mutex::default(),
    };
    let (phase, rounds) = (AtomicU64::new(LOAD), Rounds::default());
    let slow = AtomicBool::default();
    let listener = bed.host("server").listen(bed.server_at(Family::V4, PORT));
    let to = bed.server_at(Family::V4, PORT);
    let connect = || bed.host("client").connect(to);
    let patience = PATIENCE * (2 + flows as u32 / 20);
    thread::scope(|scope| {
        let (_ended, _stop) = (Ended(&phase), [Stop(&programs.stop), Stop(&slow)]);
        scope.spawn(|| be_well(&well, &phase, &rounds));
        for number in 0..flows / 2 {
            let programs = &programs;
            scope.spawn(move || programs.run(number));
        }
        let own = (connect, listener);
        churn::under_load(
            Watched::new(fleet),
            flows - flows / 2,
            patience,
            own,
            || {
                // The baseline: load only.
                thread::sleep(time / 10);
                scope.spawn(|| read_slowly(bed, &slow));
                happen(fleet, time, seed, &phase);
                drop((Stop(&programs.stop), Stop(&slow)));
            },
        );
    });
    report(&programs, rounds.into_inner());
}

/// Runs faults one after the other, each kind once or more.
fn happen(fleet: &mut Fleet<'_>, time: Duration, seed: u64, phase: &AtomicU64) {
    phase.store(OTHERS, Ordering::SeqCst);
    let mut random = SplitMix64::new(seed);
    let (began, pause) = (Instant::now(), time / 150);
    let mut turn = 0;
    while turn < 9 || began.elapsed() < time {
        thread::sleep(GROWN + pause + Duration::from_micros(random.below(500_000)));
        let of_hub = Fleet::is_of_hub(turn);
        phase.store(if of_hub { HUB } else { OTHERS }, Ordering::SeqCst);
        fleet.suffer(turn, &mut random);
        if of_hub {
            thread::sleep(FELT);
        }
        phase.store(OTHERS, Ordering::SeqCst);
        turn += 1;
    }
    println!("{turn} faults in {:?}", began.elapsed());
    if fleet.reloads % 2 == 1 {
        // The initial configuration.
        fleet.reload();
    }
}

fn report(programs: &Programs<'_>, mut rounds: [Vec<Duration>; 3]) {
    let done = programs.done.load(Ordering::SeqCst);
    println!("{done} runs of curl");
    for (what, took) in WHEN.iter().zip(&mut rounds) {
        let (median, late) = (percentile(took, 50), percentile(took, 99));
        let count = took.len();
        println!(
            "{what}: the well-behaved host had {count} answers, 50 % within {median:?}, 99 % within {late:?}"
        );
    }
    let errors = programs.errors.lock();
    assert!(errors.is_empty(), "of {done} runs: {errors:#?}");
    assert!(done > 0);
}
