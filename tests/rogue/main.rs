//! Peers that hold a valid key and break the rules, beside an honest one.
//!
//! Hub and boat are real ones. A rogue peer in the place of the second boat plays all kinds of
//! `crates/rogue`, by UDP and by TCP. As a boat it calls the hub; as a second hub the boat calls
//! it. Each kind must leave the victim's process, its memory, its log and the flows between boat
//! and hub as they are, and the victim must accept the rogue's next session.
//!
//! ```text
//!   client -- boat ~~~~ link ~~~~ hub -- server
//!             rogue ~~~ link ~~~~~+
//! ```
//!
//! In the short form each kind goes by one carrier, and the rogue hub plays a part of them: by a
//! seed (`PEPD_TEST_SEED`). `ROGUE_SECONDS` makes each kind last so many seconds, at up to 10
//! Mbit/s, and demands what docs/threat-model.md states; `ROGUE_KINDS` selects those whose names
//! contain one of its comma-separated words, and `ROGUE_CARRIER` (`UDP`, `TCP`) one carrier. The
//! tests print tables of all figures.

mod attacker;
mod bed;
mod load;

use std::{env, iter, time::Duration};

use parking_lot::Mutex;
use rogue::{
    Side, cases,
    floods::{self, Flood},
};
use splitmix::SplitMix64;

use attacker::{Attacker, Carrier, Sent};
use bed::{Bed, MEMORY};
use load::Rounds;

/// Smallest share of the rounds of the honest flows that a kind may leave, and most of their p99,
/// each by the control. The short form also runs in debug builds on busy machines.
const SHARE: [f64; 2] = [0.5, 0.9];
const SLOWER: [f64; 2] = [f64::INFINITY, 3.0];
/// Most memory of the victim: resident, and what the kernel has received for it.
const MOST: u64 = MEMORY + (64 << 20);
/// Most that all may have of the kernel's memory for fragments, and of its table of connections.
const OF_KERNEL: f64 = 0.75;
/// Most of the log, in bytes per second. Some lines of each kind come at once.
const LOG: [u64; 2] = [20_000, 10_000];
/// Bytes that may come out of the victim: for each byte of the rogue, at once, and per second.
const EXPANSION: [u64; 3] = [64, 4 << 20, 1 << 20];

/// All tests measure.
static MACHINE: Mutex<()> = Mutex::new(());

/// Seconds per kind, in the long form.
fn long() -> Option<f64> {
    let seconds = env::var("ROGUE_SECONDS").ok()?;
    Some(seconds.parse().expect("a number of seconds"))
}

/// Duration of a kind.
fn duration() -> Duration {
    Duration::from_secs_f64(long().unwrap_or(0.8))
}

fn is_wanted(name: &str) -> bool {
    let Ok(words) = env::var("ROGUE_KINDS") else {
        return true;
    };
    words.split(',').any(|word| name.contains(word))
}

/// Choices of the short form.
fn seeded() -> SplitMix64 {
    let seed = env::var("PEPD_TEST_SEED").ok();
    let seed = seed.map_or(std::process::id().into(), |text| {
        text.parse().expect("a seed")
    });
    println!("seed {seed}");
    SplitMix64::new(seed)
}

/// Carriers by which a kind goes.
fn carriers(random: &mut SplitMix64) -> Vec<Carrier> {
    let wanted = env::var("ROGUE_CARRIER").ok();
    let is_wanted = |carrier: &Carrier| {
        wanted
            .as_ref()
            .is_none_or(|name| *name == carrier.to_string())
    };
    let all: Vec<_> = [Carrier::Udp, Carrier::Tcp]
        .into_iter()
        .filter(is_wanted)
        .collect();
    match long() {
        Some(_) => all,
        None => vec![random.one_of(&all)],
    }
}

/// Figures of a kind.
struct Outcome {
    name: String,
    carrier: Carrier,
    sent: Sent,
    rounds: Rounds,
    /// Without the kind, but with as many datagrams to a closed port.
    control: Rounds,
    log: u64,
    /// Resident, and of the kernel for bytes that the victim has not read.
    memory: u64,
    /// Shares in use of the kernel's memory for fragments, and of its table of connections.
    of_kernel: [f64; 2],
    /// Bytes that the server got by the rogue.
    expanded: u64,
    /// Packets of packet mode that left the hub from an address for which the rogue may not speak.
    forged: u64,
    same_process: bool,
    accepted: bool,
}

impl Outcome {
    /// Share of the rounds. In the short form the median of all controls counts, as what one kind
    /// leaves behind may slow its own.
    fn share(&self, usual: f64) -> f64 {
        let control = long().map_or(usual, |_| self.control.rate);
        self.rounds.rate / control
    }

    fn slower(&self) -> f64 {
        self.rounds.p99.as_secs_f64() / self.control.p99.as_secs_f64().max(1e-6)
    }

    /// Reasons why the kind does harm.
    fn harm(&self, usual: f64) -> Vec<String> {
        let mut harm = Vec::new();
        let form = usize::from(long().is_some());
        let (share, slower) = (self.share(usual), self.slower());
        let mut check = |harms: bool, text: String| {
            if harms {
                harm.push(format!("{}, {}: {text}", self.name, self.carrier));
            }
        };
        check(!self.same_process, "the process ended".to_owned());
        check(share < SHARE[form], format!("{share:.2} of the rounds"));
        check(slower > SLOWER[form], format!("{slower:.1} times the p99"));
        check(
            self.log > LOG[form],
            format!("{} bytes of log per second", self.log),
        );
        let mib = self.memory >> 20;
        check(self.memory > MOST, format!("{mib} MiB of memory"));
        for (share, what) in iter::zip(self.of_kernel, ["fragments", "connections"]) {
            check(
                share > OF_KERNEL,
                format!("{share:.2} of what the kernel has for {what}"),
            );
        }
        let [ratio, burst, per_second] = EXPANSION;
        let seconds = self.rounds.time.as_secs() + 1;
        let most = self.sent.bytes * ratio + burst + per_second * seconds;
        check(
            self.expanded > most,
            format!("{} bytes became {}", self.sent.bytes, self.expanded),
        );
        check(self.forged > 0, format!("{} forged packets", self.forged));
        check(!self.accepted, "no later session is accepted".to_owned());
        harm
    }

    fn row(&self, usual: f64) -> String {
        let load = self.sent.bytes as f64 * 8e-6 / self.rounds.time.as_secs_f64();
        format!(
            "| {} | {} | {load:.2} | {:.2} | {:.1} | {:.1} | {} | {:.2} | {:.2} | {:.1} | {} | {} |",
            self.name,
            self.carrier,
            self.share(usual),
            self.slower(),
            self.log as f64 / 1000.0,
            self.memory >> 20,
            self.of_kernel[0],
            self.of_kernel[1],
            self.expanded as f64 / 1e6,
            self.sent.datagrams,
            self.sent.sessions,
        )
    }
}

/// Lets the rogue play one kind, then measures as long without it.
fn measure(
    bed: &Bed,
    carrier: Carrier,
    name: &str,
    play: impl FnOnce(&mut Attacker) -> Sent,
) -> Outcome {
    let mut attacker = Attacker::new(&bed.bed, bed.side, carrier);
    attacker.connect();
    bed.recover(SHARE[0]);
    let (process, log) = (bed.victim.id(), bed.victim.log().bytes());
    let before = bed.outgoing();
    let sent = play(&mut attacker);
    let rounds = bed.load.measure();
    let log = ((bed.victim.log().bytes() - log) as f64 / rounds.time.as_secs_f64()) as u64;
    let (memory, of_kernel) = (bed.memory_of_victim(), bed.of_kernel());
    let after = bed.outgoing();
    let accepted = attacker.can_begin();
    bed.recover(SHARE[0]);
    // The supervisor kills a process that hangs after a while.
    let same_process = bed.victim.id() == process;
    attacker.send_to_closed_port(&sent, rounds.time / 2);
    Outcome {
        name: name.to_owned(),
        carrier,
        sent,
        rounds,
        control: bed.load.measure(),
        log,
        memory,
        of_kernel,
        expanded: after.bytes - before.bytes,
        forged: after.forged - before.forged,
        same_process,
        accepted,
    }
}

/// Returns the median rate of the controls.
fn usual(outcomes: &[Outcome]) -> f64 {
    let mut rates: Vec<f64> = outcomes
        .iter()
        .map(|outcome| outcome.control.rate)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}

fn assert_harmless(outcomes: &[Outcome]) {
    let usual = usual(outcomes);
    println!("{usual:.0} rounds per second without a rogue");
    println!(
        "| kind | carrier | Mbit/s | rounds | p99 | log, kB/s | memory, MiB | fragments | \
         connections | out, MB | datagrams | sessions |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for outcome in outcomes {
        println!("{}", outcome.row(usual));
    }
    let harm: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.harm(usual))
        .collect();
    assert!(harm.is_empty(), "{harm:#?}");
}

fn play_flood(bed: &Bed, flood: &Flood, carrier: Carrier) -> Outcome {
    let carrier = if flood.deaf {
        Carrier::DeafTcp
    } else {
        carrier
    };
    let (target, duration) = (bed.target(), duration());
    let rate = long().is_none().then_some(flood.rate);
    let play = |attacker: &mut Attacker| attacker.flood(flood, rate, &target, duration);
    measure(bed, carrier, flood.name, play)
}

/// In the short form a part of the cases, which differs from run to run.
fn play_cases(bed: &Bed, carrier: Carrier, random: &mut SplitMix64) -> Outcome {
    let mut cases = cases::all(bed.side);
    shuffle(&mut cases, random);
    let play = |attacker: &mut Attacker| attacker.cases(&cases, duration() * 3);
    measure(bed, carrier, "broken rules", play)
}

fn shuffle<T>(all: &mut [T], random: &mut SplitMix64) {
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at as u64 + 1) as usize);
    }
}

#[test]
fn floods_of_a_rogue_boat_harm_nobody_else() {
    let _alone = MACHINE.lock();
    let mut random = seeded();
    let bed = Bed::new(Side::Caller, Carrier::Udp);
    let mut outcomes = Vec::new();
    for flood in floods::ALL.iter().filter(|flood| is_wanted(flood.name)) {
        for carrier in carriers(&mut random) {
            outcomes.push(play_flood(&bed, flood, carrier));
        }
    }
    assert_harmless(&outcomes);
    // Else the checks above would see nothing.
    let arriving = [
        "tiny packets",
        "forged packets",
        "expanding blocks",
        "single bytes",
        "released by arq",
        "released by jitter",
        "packets of one link",
    ];
    for outcome in &outcomes {
        let arrives = !arriving.contains(&&*outcome.name) || outcome.expanded > 0;
        assert!(arrives, "{}: nothing has reached the server", outcome.name);
    }
}

#[test]
fn broken_rules_of_a_rogue_boat_harm_nobody_else() {
    let _alone = MACHINE.lock();
    let mut random = seeded();
    let bed = Bed::new(Side::Caller, Carrier::Udp);
    let carriers = [Carrier::Udp, Carrier::Tcp];
    let outcomes = carriers.map(|carrier| play_cases(&bed, carrier, &mut random));
    assert_harmless(&outcomes);
}

#[test]
fn a_rogue_hub_harms_no_flows_by_another_hub() {
    let _alone = MACHINE.lock();
    let mut random = seeded();
    let mut all = Vec::new();
    for carrier in carriers(&mut random) {
        let bed = Bed::new(Side::Called, carrier);
        let mut kinds: Vec<_> = floods::ALL
            .iter()
            .filter(|flood| is_wanted(flood.name) && !flood.deaf)
            .collect();
        if long().is_none() {
            shuffle(&mut kinds, &mut random);
            kinds.truncate(5);
        }
        if is_wanted("broken rules") {
            all.push(play_cases(&bed, carrier, &mut random));
        }
        all.extend(kinds.iter().map(|flood| play_flood(&bed, flood, carrier)));
    }
    assert_harmless(&all);
}

#[test]
fn a_rogue_directs_at_most_three_bytes_per_byte_at_another_host() {
    let _alone = MACHINE.lock();
    let bed = Bed::new(Side::Caller, Carrier::Udp);
    let mut attacker = Attacker::new(&bed.bed, Side::Caller, Carrier::Udp);
    let [own, other] = attacker.reflect(&bed.bed, duration() * 3);
    println!("its own address: {own:?}, another one: {other:?}");
    // Else the limit would not show.
    assert!(own.came > 10 * own.sent, "{own:?}");
    assert!(other.came > 0 && other.came <= 3 * other.sent, "{other:?}");
}
