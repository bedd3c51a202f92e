//! Peers that hold a valid key and break the rules, beside an honest one.
//!
//! The hub is a real one, and the honest boat, too. A rogue peer in the place of the second boat
//! plays all kinds of `crates/rogue`. Each must leave the hub's process, its memory, its log and
//! the honest boat's flows as they are, and the hub must accept the rogue's next session.
//!
//! ```text
//!   client -- boat ~~~~ link ~~~~ hub -- server
//!             rogue ~~~ link ~~~~~+
//! ```
//!
//! `ROGUE_SECONDS` makes each kind last so many seconds; `ROGUE_KINDS` selects those whose names
//! contain one of its comma-separated words. The test prints a table of all figures.

mod attacker;
mod load;

use std::{env, thread, time::Duration};

use parking_lot::Mutex;
use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_within},
};
use rogue::{
    cases,
    floods::{self, Target},
};

use attacker::{Attacker, Sent};
use load::{Load, Rounds};

const LINK: &str = "delay=10ms,queue=1MB";
const SITE: &str = "[[site]]\nname = \"all\"\nmode = \"tunnel\"\npeer = \"hub\"\n";
const MEMORY: u64 = 512 << 20;
const ECHO: u16 = 7000;
const SINK: u16 = 7001;
const REFUSED: u16 = 7002;
/// Flows of the honest boat.
const FLOWS: usize = 8;

/// Smallest share of the rounds of the honest boat's flows that a kind may leave.
const SHARE: f64 = 0.5;
/// Largest resident memory of the hub.
const RESIDENT: u64 = MEMORY + (64 << 20);
/// Most of the log, in bytes per second.
const LOG: u64 = 10_000;

/// Both tests measure.
static MACHINE: Mutex<()> = Mutex::new(());

/// Duration of a kind.
fn duration() -> Duration {
    let seconds = env::var("ROGUE_SECONDS").ok();
    let seconds = seconds.map_or(1.2, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs_f64(seconds)
}

fn is_wanted(name: &str) -> bool {
    let Ok(words) = env::var("ROGUE_KINDS") else {
        return true;
    };
    words.split(',').any(|word| name.contains(word))
}

/// Hub and honest boat, with flows, and servers.
struct Bed {
    // It ends first: flows are reset when the others end.
    load: Load,
    /// Rounds per second before all kinds.
    usual: f64,
    hub: Pep,
    _boat: Pep,
    _servers: (EchoServer, Server),
    bed: TunnelBed,
}

impl Bed {
    fn new() -> Self {
        let bed = TunnelBed::with_two_boats(LINK);
        let quiet = |config: String| config.replace("level = \"debug\"", "level = \"info\"");
        let second = bed.peer(End::Hub, End::SecondBoat);
        let limits = format!("[limits]\nmemory = \"{}MiB\"\nflows = 4096\n", MEMORY >> 20);
        let hub = bed.config(End::Hub, "", "", &format!("{second}\n{limits}"));
        let hub = bed.start(End::Hub, &quiet(hub));
        let boat = bed.start(End::Boat, &quiet(bed.config(End::Boat, "", "", SITE)));
        let listen = |port| bed.host("server").listen(bed.server_at(Family::V4, port));
        let echo = EchoServer::start(listen(ECHO));
        let sink = Server::start(listen(SINK), |mut stream, _| {
            // Its bytes are of no interest, nor is how it ends.
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        boat.wait_counter("tunnel_peers_up", |peers| peers == 1);
        let load = Load::start(&bed.host("client"), bed.server_at(Family::V4, ECHO), FLOWS);
        load.measure();
        thread::sleep(Duration::from_millis(500));
        let usual = load.measure().rate;
        Self {
            bed,
            usual,
            hub,
            _boat: boat,
            _servers: (echo, sink),
            load,
        }
    }

    /// Waits until the flows work again after what was done to the hub.
    fn recover(&self) {
        self.load.measure();
        wait_within(PATIENCE, || {
            thread::sleep(Duration::from_millis(100));
            (self.load.measure().rate > self.usual * SHARE).then_some(())
        });
    }

    fn target(&self) -> Target {
        Target {
            server: self.bed.server_at(Family::V4, SINK),
            refused: self.bed.server_at(Family::V4, REFUSED),
            client: ([10, 250, 0, 1], 4000).into(),
        }
    }
}

/// Figures of a kind.
struct Outcome {
    name: String,
    sent: Sent,
    rounds: Rounds,
    /// Without the kind, but with as many datagrams to a closed port.
    control: Rounds,
    log: u64,
    resident: u64,
    same_process: bool,
    accepted: bool,
}

impl Outcome {
    fn share(&self, usual: f64) -> f64 {
        self.rounds.rate / usual
    }

    /// Reasons why the kind does harm.
    fn harm(&self, usual: f64) -> Vec<String> {
        let mut harm = Vec::new();
        let share = self.share(usual);
        let mut check = |harms: bool, text: String| {
            if harms {
                harm.push(format!("{}: {text}", self.name));
            }
        };
        check(!self.same_process, "the hub's process ended".to_owned());
        check(share < SHARE, format!("{share:.2} of the usual rounds"));
        check(
            self.log > LOG,
            format!("{} bytes of log per second", self.log),
        );
        let mib = self.resident >> 20;
        check(
            self.resident > RESIDENT,
            format!("{mib} MiB of resident memory"),
        );
        check(
            !self.accepted,
            "the hub accepts no later session".to_owned(),
        );
        harm
    }

    fn row(&self, usual: f64) -> String {
        let p99 = self.rounds.p99.as_secs_f64() / self.control.p99.as_secs_f64().max(1e-6);
        format!(
            "| {} | {:.2} | {p99:.1} | {:.1} | {} | {} | {} |",
            self.name,
            self.share(usual),
            self.log as f64 / 1000.0,
            self.resident >> 20,
            self.sent.datagrams,
            self.sent.sessions,
        )
    }
}

/// Lets the rogue play one kind, then measures as long without it.
fn measure(
    bed: &Bed,
    attacker: &mut Attacker,
    name: &str,
    play: impl FnOnce(&mut Attacker) -> Sent,
) -> Outcome {
    attacker.connect();
    bed.recover();
    let (process, log) = (bed.hub.id(), bed.hub.log().bytes());
    let sent = play(attacker);
    let rounds = bed.load.measure();
    let log = ((bed.hub.log().bytes() - log) as f64 / rounds.time.as_secs_f64()) as u64;
    let resident = bed.hub.resident_bytes();
    let accepted = attacker.can_begin();
    bed.recover();
    // The supervisor kills a process that hangs after a while.
    let same_process = bed.hub.id() == process;
    attacker.send_to_closed_port(&sent, rounds.time / 2);
    Outcome {
        name: name.to_owned(),
        sent,
        rounds,
        control: bed.load.measure(),
        log,
        resident,
        same_process,
        accepted,
    }
}

/// Returns the median rate of the controls: what one kind leaves behind may slow its own.
fn usual(outcomes: &[Outcome]) -> f64 {
    let mut rates: Vec<f64> = outcomes
        .iter()
        .map(|outcome| outcome.control.rate)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn assert_harmless(outcomes: &[Outcome]) {
    let usual = usual(outcomes);
    println!("{usual:.0} rounds per second without a rogue");
    println!("| kind | rounds | p99 | log, kB/s | resident, MiB | datagrams | sessions |");
    println!("|---|---|---|---|---|---|---|");
    for outcome in outcomes {
        println!("{}", outcome.row(usual));
    }
    let harm: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.harm(usual))
        .collect();
    assert!(harm.is_empty(), "{harm:#?}");
}

#[test]
fn floods_of_a_rogue_boat_harm_nobody_else() {
    let _alone = MACHINE.lock();
    let bed = Bed::new();
    let (target, duration) = (bed.target(), duration());
    let mut outcomes = Vec::new();
    for flood in floods::ALL.iter().filter(|flood| is_wanted(flood.name)) {
        let mut attacker = Attacker::new(&bed.bed, flood.deaf);
        let play = |attacker: &mut Attacker| attacker.flood(flood, &target, duration);
        outcomes.push(measure(&bed, &mut attacker, flood.name, play));
    }
    assert_harmless(&outcomes);
}

/// In the short form a part of them, which differs from run to run.
#[test]
fn broken_rules_of_a_rogue_boat_harm_nobody_else() {
    let _alone = MACHINE.lock();
    let bed = Bed::new();
    let mut cases = cases::all();
    let seed = env::var("PEPD_TEST_SEED").ok();
    let seed = seed.map_or(std::process::id().into(), |text| {
        text.parse().expect("a seed")
    });
    println!("seed {seed}");
    shuffle(&mut cases, seed);
    let mut attacker = Attacker::new(&bed.bed, false);
    let play = |attacker: &mut Attacker| attacker.cases(&cases, duration() * 3);
    let outcome = measure(&bed, &mut attacker, "broken rules", play);
    assert_harmless(&[outcome]);
}

fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut random = splitmix::SplitMix64::new(seed);
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
}
