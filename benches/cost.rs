//! CPU time of pepd at the rates that links have, over rate and number of peers.
//!
//! `PEPD_BEFORE` names a second pepd, such as that of the commit before; each round measures both.

use std::{env, path::Path, path::PathBuf, process::ExitCode, time::Duration};

use benches::{Needs, Run, run};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use pepd_tests::{
    pep_binary,
    speed::{Carried, Cost, Fleet, Idle, Result, Summary, Uploaded},
};

/// Repetitions in a full run, and in a quick one.
const ROUNDS: [usize; 2] = [5, 1];
/// Measured time of each run, in a full bench and in a quick one.
const TIME: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(2)];

/// A work with the CPU time allowed on each side, in s/GB.
struct Row {
    name: &'static str,
    carried: Carried,
    rate: u32,
    rtt_ms: u64,
    boats: usize,
    threads: usize,
    near: Option<f64>,
    far: Option<f64>,
}

const fn row(name: &'static str, carried: Carried, rate: u32, rtt_ms: u64, boats: usize) -> Row {
    Row {
        name,
        carried,
        rate,
        rtt_ms,
        boats,
        threads: 1,
        near: None,
        far: None,
    }
}

const ROWS: [Row; 13] = [
    row("direct-geo", Carried::Direct, 10, 600, 1),
    row("split-geo", Carried::Split, 10, 600, 1),
    Row {
        near: Some(10.0),
        far: Some(10.0),
        ..row("tunnel-geo", Carried::Tunnel, 10, 600, 1)
    },
    row("direct-100", Carried::Direct, 100, 40, 1),
    row("split-100", Carried::Split, 100, 40, 1),
    Row {
        near: Some(3.0),
        far: Some(4.0),
        ..row("tunnel-100", Carried::Tunnel, 100, 40, 1)
    },
    row("hub-1", Carried::Tunnel, 10, 40, 1),
    Row {
        far: Some(8.0),
        ..row("hub-10", Carried::Tunnel, 10, 40, 10)
    },
    // Pepds of more boats would take the CPU time that the hub needs.
    row("hub-sim-1", Carried::Simulated, 10, 40, 1),
    row("hub-40", Carried::Simulated, 10, 40, 40),
    Row {
        threads: 2,
        ..row("hub-40-threads", Carried::Simulated, 10, 40, 40)
    },
    // Half of what one thread of the hub carries.
    row("hub-fast", Carried::Simulated, 50, 40, 40),
    Row {
        threads: 2,
        ..row("hub-fast-threads", Carried::Simulated, 50, 40, 40)
    },
];

/// Tunnels without traffic, with the CPU time that the hub may take, in percent.
const IDLE: (&str, usize, f64) = ("idle-40", 40, 0.4);
/// Time until tunnels without traffic are at rest.
const REST_AFTER: Duration = Duration::from_secs(70);

fn main() -> ExitCode {
    let mut names = ROWS.map(|row| row.name).to_vec();
    names.push(IDLE.0);
    run("cost", &names, Needs::Root, measure)
}

/// Results of one row with one pepd, by round.
struct Measured<'a> {
    row: &'a Row,
    pepd: &'static str,
    rounds: Vec<Uploaded>,
}

fn measure(run: &Run) -> Result<bool> {
    let current = pep_binary::pepd().to_owned();
    let before = env::var_os("PEPD_BEFORE").map(PathBuf::from);
    let rows = ROWS.iter().filter(|row| run.has(row.name));
    let measured = rows.map(|row| measure_row(run, row, &current, before.as_deref()));
    let measured: Vec<_> = measured
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    println!("{}\n\n{}", table(&measured), TEXT);
    let idle_is_met = !run.has(IDLE.0) || measure_idle(run, &current, before.as_deref())?;
    Ok(measured.iter().all(Measured::is_met) && idle_is_met)
}

/// Measures the hub of idle tunnels. Returns whether the current pepd keeps the limit.
fn measure_idle(run: &Run, current: &Path, before: Option<&Path>) -> Result<bool> {
    let (name, boats, limit) = IDLE;
    let fleet = Fleet {
        carried: Carried::Tunnel,
        rate: 10,
        rtt: Duration::from_millis(40),
        boats,
        threads: 1,
    };
    let mut rounds: [Vec<Idle>; 2] = Default::default();
    let count = ROUNDS[usize::from(run.quick)];
    for round in 1..=count {
        eprintln!("{name}, round {round} of {count}");
        for (pepd, rounds) in [Some(current), before].iter().zip(&mut rounds) {
            let Some(pepd) = pepd else { continue };
            let time = TIME[usize::from(run.quick)];
            rounds.push(fleet.rest(pepd, REST_AFTER, time)?);
        }
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([
        "hub of idle tunnels",
        "pepd",
        "CPU, %",
        "resident, MB",
        "of it own, MB",
        "target, CPU %",
    ]);
    let mut medians = Vec::new();
    for (pepd, rounds) in ["", "before"].into_iter().zip(&rounds) {
        if rounds.is_empty() {
            continue;
        }
        let summary = |figure: fn(&Idle) -> f64| {
            Summary::from_values(&rounds.iter().map(figure).collect::<Vec<_>>())
        };
        let cpu = summary(|idle| idle.cpu_percent);
        medians.push(cpu.median);
        table.add_row([
            format!("{name}: {boats} tunnels"),
            pepd.to_owned(),
            cpu.to_string(),
            summary(|idle| idle.resident_mb[0]).to_string(),
            summary(|idle| idle.resident_mb[1]).to_string(),
            format!("<= {limit}"),
        ]);
    }
    println!("\n{table}");
    Ok(medians.first().is_some_and(|median| *median <= limit))
}

fn measure_row<'a>(
    run: &Run,
    row: &'a Row,
    current: &Path,
    before: Option<&Path>,
) -> Result<Vec<Measured<'a>>> {
    let mut kinds = vec![("", current)];
    // An older pepd may not know of threads.
    if row.carried != Carried::Direct && row.threads == 1 {
        kinds.extend(before.map(|before| ("before", before)));
    }
    let fleet = Fleet {
        carried: row.carried,
        rate: row.rate,
        rtt: Duration::from_millis(row.rtt_ms),
        boats: row.boats,
        threads: row.threads,
    };
    let new = |&(pepd, _): &(&'static str, &Path)| Measured {
        row,
        pepd,
        rounds: Vec::new(),
    };
    let mut measured: Vec<_> = kinds.iter().map(new).collect();
    let rounds = ROUNDS[usize::from(run.quick)];
    for round in 1..=rounds {
        eprintln!("{}, round {round} of {rounds}", row.name);
        for ((_, pepd), measured) in kinds.iter().zip(&mut measured) {
            // Windows and buffers have grown after some round trips.
            let warm_up = Duration::from_secs(2) + 4 * fleet.rtt;
            let uploaded = fleet.upload(pepd, warm_up, TIME[usize::from(run.quick)]);
            let uploaded = uploaded.map_err(|err| format!("{}: {err}", row.name))?;
            measured.rounds.push(uploaded);
        }
    }
    Ok(measured)
}

const TEXT: &str = "Median (minimum..maximum) of the rounds. CPU: seconds for each 1e9 bytes that \
hosts received.\nA packet is 1,448 such bytes. Waits are those of pepd's threads. The near side \
of simulated\nboats is the thread that simulates them, with the kernel's work for what the hub \
receives. An empty\ncell: no pepd, or no `perf`.";

const HEADER: [&str; 11] = [
    "work",
    "pepd",
    "goodput, Mbit/s",
    "near CPU, s/GB",
    "near, packets a wait",
    "near, calls a packet",
    "far CPU, s/GB",
    "far, packets a wait",
    "far, calls a packet",
    "targets, s/GB",
    "",
];

fn table(measured: &[Measured<'_>]) -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header(HEADER);
    table.add_rows(measured.iter().map(Measured::cells));
    table
}

impl Measured<'_> {
    fn summary(&self, figure: impl Fn(&Uploaded) -> Option<f64>) -> Option<Summary> {
        let values: Option<Vec<f64>> = self.rounds.iter().map(figure).collect();
        values.map(|values| Summary::from_values(&values))
    }

    fn cells(&self) -> [String; 11] {
        type Side = fn(&Uploaded) -> Option<Cost>;
        let (near, far): (Side, Side) = (|run| run.boats, |run| run.hub);
        let cell = |figure: &dyn Fn(&Uploaded) -> Option<f64>| {
            self.summary(figure)
                .map_or_else(String::new, |s| s.to_string())
        };
        let of =
            |side: Side, figure: fn(Cost) -> Option<f64>| cell(&|run| side(run).and_then(figure));
        let costs: [fn(Cost) -> Option<f64>; 3] = [
            |cost| Some(cost.cpu_s_per_gb),
            |cost| Some(cost.packets_a_wakeup),
            |cost| cost.calls_a_packet,
        ];
        let Row {
            name,
            carried,
            rate,
            rtt_ms,
            boats,
            threads,
            ..
        } = self.row;
        let threads = if *threads > 1 {
            format!(", {threads} threads")
        } else {
            String::new()
        };
        let boats = if *boats > 1 {
            format!("{boats} x ")
        } else {
            String::new()
        };
        [
            format!(
                "{name}: {}, {boats}{rate} Mbit/s, {rtt_ms} ms{threads}",
                carried.name()
            ),
            self.pepd.to_owned(),
            cell(&|run| Some(run.mbit_per_s)),
            of(near, costs[0]),
            of(near, costs[1]),
            of(near, costs[2]),
            of(far, costs[0]),
            of(far, costs[1]),
            of(far, costs[2]),
            self.targets(),
            self.verdict().to_owned(),
        ]
    }

    /// Figures of both sides with their limits.
    fn limited(&self) -> impl Iterator<Item = (Option<Summary>, f64)> {
        let near = self.summary(|run| run.boats.map(|cost| cost.cpu_s_per_gb));
        let far = self.summary(|run| run.hub.map(|cost| cost.cpu_s_per_gb));
        let sides = [(near, self.row.near), (far, self.row.far)];
        sides
            .into_iter()
            .filter_map(|(figure, limit)| Some((figure, limit?)))
    }

    fn is_met(&self) -> bool {
        !self.pepd.is_empty()
            || self
                .limited()
                .all(|(figure, limit)| figure.is_some_and(|s| s.median <= limit))
    }

    fn targets(&self) -> String {
        let side = |name, limit: Option<f64>| limit.map(|limit| format!("{name} <= {limit}"));
        let sides = [side("near", self.row.near), side("far", self.row.far)];
        sides.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    fn verdict(&self) -> &'static str {
        match (self.limited().next().is_some(), self.is_met()) {
            (false, _) => "",
            (true, _) if !self.pepd.is_empty() => "",
            (true, true) => "met",
            (true, false) => "MISSED",
        }
    }
}
