//! Figures of pepd's processes and of their machines, cycle by cycle.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use pepd_tests::{
    host::Host,
    pep::Pep,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_within},
};
use serde_json::Value;

use crate::{load::IDLE, slope::Line};

/// Span in which wakeups of idle processes are counted.
const SPAN: Duration = Duration::from_secs(1);
/// First process, worker, keeper, and the one that runs programs.
const PROCESSES: usize = 4;
/// Series, and the growth in the second half that counts as none whatever the noise.
const SERIES: [(&str, f64); 9] = [
    // What the allocator keeps changes by as much.
    ("memory, KiB", 1024.0),
    ("descriptors", 2.0),
    ("threads", 2.0),
    // pepd's timers are not the kernel's: a leaked one shows when it fires.
    ("wakeups per second", 50.0),
    ("tracked connections", 10.0),
    // Ended flows are remembered for a minute, which the short form does not outlast.
    ("elements of nft sets", 30.0),
    ("policy rules", 0.0),
    ("routes in tables", 0.0),
    // Events differ in their lines.
    ("log bytes per cycle", 10_000.0),
];

/// A pepd, and its samples: seconds since the beginning, and the values of each series.
pub struct Watched<'a> {
    name: &'static str,
    host: Host,
    pep: &'a Pep,
    /// True if events replace its worker. The memory of a new process says nothing about that of
    /// the previous one, so only the other processes count.
    restarts: bool,
    logged: u64,
    samples: Vec<(f64, [u64; SERIES.len()])>,
}

impl<'a> Watched<'a> {
    pub fn new(bed: &TunnelBed, name: &'static str, pep: &'a Pep, restarts: bool) -> Self {
        Self {
            name,
            host: bed.host(name),
            pep,
            restarts,
            logged: 0,
            samples: Vec::new(),
        }
    }

    fn sum(&self, of: impl Fn(u32) -> u64) -> u64 {
        self.pep.processes().into_iter().map(of).sum()
    }

    fn wakeups(&self) -> u64 {
        let of_thread = |thread: &PathBuf| field(thread, "voluntary_ctxt_switches:");
        self.sum(|id| entries(id, "task").iter().map(of_thread).sum())
    }

    fn sample(&mut self, seconds: f64, wakeups: u64) {
        let status = |id, name| field(Path::new(&format!("/proc/{id}")), name);
        let worker = self.restarts.then(|| self.pep.id());
        let memory = |id| status(id, "RssAnon:") * u64::from(Some(id) != worker);
        let logged = self.pep.log().bytes();
        let values = [
            self.sum(memory),
            self.sum(|id| entries(id, "fd").len() as u64),
            self.sum(|id| status(id, "Threads:")),
            wakeups,
            tracked(&self.host),
            elements(&self.host),
            lines(&self.host, "rule", ""),
            lines(&self.host, "route show table all", " table 50"),
            logged - self.logged,
        ];
        self.logged = logged;
        self.samples.push((seconds, values));
    }

    /// Prints a row for each series; returns those that grow.
    fn judge(&self) -> Vec<String> {
        let mut growing = Vec::new();
        for (at, (series, allowance)) in SERIES.into_iter().enumerate() {
            let points = self.samples.iter();
            let points = points.map(|(seconds, values)| (*seconds, values[at] as f64));
            let line = Line::fit(&points.collect::<Vec<_>>(), allowance);
            let verdict = if line.grows() { "GROWS" } else { "ok" };
            let row = format!(
                "| {} | {series} | {} | {:.1} | {:.1} | {:.1} | {:.0} | {verdict} |",
                self.name, self.samples[0].1[at], line.begin, line.end, line.noise, line.per_day
            );
            println!("{row}");
            growing.extend(line.grows().then_some(row));
        }
        growing
    }
}

/// Samples all, once only idle flows are open and only the usual processes live.
pub fn sample(all: &mut [Watched<'_>], seconds: f64) {
    for Watched { name, pep, .. } in &*all {
        let is_idle = || {
            let status = pep.ask(&["status", "--json"]);
            let status: Value = serde_json::from_str(&status).expect("JSON");
            let is_idle = status["counters"]["flows_open"] == IDLE;
            (is_idle && pep.processes().len() == PROCESSES).then_some(())
        };
        wait_within(PATIENCE, is_idle).unwrap_or_else(|| {
            let flows = pep.ask(&["flows"]);
            panic!(
                "{name} is not idle: processes {:?}, {flows}",
                pep.processes()
            )
        });
    }
    let before: Vec<_> = all.iter().map(Watched::wakeups).collect();
    thread::sleep(SPAN);
    let after: Vec<_> = all.iter().map(Watched::wakeups).collect();
    for (at, watched) in all.iter_mut().enumerate() {
        watched.sample(seconds, after[at].saturating_sub(before[at]));
    }
}

/// Prints the table.
///
/// # Panics
/// When a series grows, with all that do.
pub fn assert_nothing_grows(all: &[Watched<'_>]) {
    println!("| pepd | series | first | begin of half | end | noise | per day | verdict |");
    println!("|---|---|---|---|---|---|---|---|");
    let growing: Vec<_> = all.iter().flat_map(Watched::judge).collect();
    assert!(growing.is_empty(), "{growing:#?}");
}

/// Returns the paths in a directory of a process; none if it has ended.
fn entries(id: u32, directory: &str) -> Vec<PathBuf> {
    let listed = fs::read_dir(format!("/proc/{id}/{directory}"));
    let listed = listed.into_iter().flatten().flatten();
    listed.map(|entry| entry.path()).collect()
}

/// Returns a number of the status of a process or thread; 0 if it has ended.
fn field(task: &Path, name: &str) -> u64 {
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the established connections that the kernel tracks. It forgets the others by itself.
fn tracked(host: &Host) -> u64 {
    let listed = host.run("conntrack", &["-L", "-p", "tcp", "--state", "ESTABLISHED"]);
    listed.lines().count() as u64
}

/// Returns the elements of all sets and maps of pepd.
fn elements(host: &Host) -> u64 {
    let listed = host.run("nft", &["--json", "list", "table", "inet", "pepd"]);
    let listed: Value = serde_json::from_str(&listed).expect("JSON");
    let objects = listed["nftables"].as_array().into_iter().flatten();
    let objects = objects.flat_map(|object| object.as_object().into_iter().flatten());
    let sizes = objects.filter_map(|(_, object)| object["elem"].as_array().map(Vec::len));
    sizes.sum::<usize>() as u64
}

/// Returns the number of lines of `ip`, for both families, that have these words.
fn lines(host: &Host, words: &str, having: &str) -> u64 {
    let listed = ["-4", "-6"].map(|family| host.ip(&format!("{family} {words}")));
    let listed = listed.concat();
    listed.lines().filter(|line| line.contains(having)).count() as u64
}
