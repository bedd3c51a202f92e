//! The measurements, in order.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use clap::ValueEnum;

use super::{
    Bed, Report, Result, Variant,
    bulk::{self, BulkDirection, Throughput},
    datagrams, echo,
    meter::{self, Resident},
    report::{Compare, Quantity},
    strangers,
};

/// Flows of the measurement of many at once.
const MANY_FLOWS: usize = 64;
/// Bytes of each write of the measurement of messages.
const WRITES: [usize; 4] = [64, 512, 4096, 65536];
/// Lengths of datagrams, with the number of their flows, and whether their sender joins them.
const DATAGRAMS: [(usize, usize, bool); 5] = [
    (200, 1, false),
    (200, 16, false),
    (200, 1, true),
    (1400, 1, false),
    (1400, 1, true),
];
/// Sizes of ping-pong messages in bytes.
const MESSAGE_SIZES: [usize; 3] = [1, 64, 1000];
/// Round trips of each ping-pong, and connections of each connect-and-echo.
const EXCHANGES: usize = 2000;
/// Connections of each measurement of short ones, and the number of clients.
const SHORT_CONNECTIONS: usize = 4000;
const SHORT_CLIENTS: [usize; 2] = [1, 32];
/// Numbers of idle flows at which memory is read.
const IDLE_FLOWS: [usize; 3] = [0, 100, 1000];
/// The wait without a fall of memory before it is read; `SETTLE_MAX` limits it.
const SETTLED: Duration = Duration::from_secs(3);
const SETTLE_MAX: Duration = Duration::from_secs(12);

/// One kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// Throughput of one flow, and pepd's CPU time for it
    OneFlow,
    /// Throughput of 64 flows together, and pepd's CPU time for it
    ManyFlows,
    /// Throughput of one flow whose client writes 64, 512, 4096 and 65536 bytes at a time, and CPU
    /// time
    Messages,
    /// Round trips of 1, 64 and 1000 bytes on an open connection
    PingPong,
    /// Connecting and exchanging one byte
    ConnectEcho,
    /// Connections opened and closed per second, one after the other and by 32 clients
    ShortConnections,
    /// Maximum rate of datagrams of 200 and 1400 bytes, carried as packets, and CPU time for each
    Datagrams,
    /// Goodput of a tunnelled flow of 100 Mbit/s under 100,000 unauthenticated datagrams per second
    Strangers,
    /// Resident memory with 0, 100 and 1000 idle flows
    IdleMemory,
}

/// A selection of measurements and variants.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Measurements, in this order.
    pub measures: Vec<Measure>,
    /// Variants, in turns within each round.
    pub variants: Vec<Variant>,
    /// Repetitions, whose median is used.
    pub rounds: usize,
    /// The length of each bulk transfer.
    pub transfer_time: Duration,
    /// pepd's executable.
    pub pepd_program: PathBuf,
}

impl Measure {
    /// Returns whether the measurement applies to that variant.
    fn is_of(self, variant: Variant) -> bool {
        match self {
            Self::Datagrams => variant == Variant::Direct || variant.carries_packets(),
            _ => !variant.carries_packets(),
        }
    }
}

impl Plan {
    /// Runs the plan. `progress` is called with the name of each step.
    ///
    /// # Errors
    /// When pepd does not start, or a connection fails or hangs.
    pub fn run(&self, mut progress: impl FnMut(&str)) -> Result<Report> {
        let mut report = Report::default();
        let is_measured = |variant: &&Variant| {
            let mut measures = self.measures.iter();
            measures.any(|measure| measure.is_of(**variant))
        };
        let variants = self.variants.iter().filter(is_measured);
        let beds = variants.map(|variant| self.bed(*variant));
        let beds: Vec<Bed> = beds.collect::<Result<_>>()?;
        for measure in &self.measures {
            for round in 1..=self.rounds {
                let name = measure.to_possible_value().expect("no variant is skipped");
                progress(&format!(
                    "{}, round {round} of {}",
                    name.get_name(),
                    self.rounds
                ));
                for bed in beds.iter().filter(|bed| measure.is_of(bed.variant)) {
                    self.measure(*measure, bed, &mut report)
                        .map_err(|err| format!("{}: {err}", bed.variant.name()))?;
                }
            }
        }
        Ok(report)
    }

    fn bed(&self, variant: Variant) -> Result<Bed> {
        Bed::new(variant, &self.pepd_program)
    }

    fn measure(&self, measure: Measure, bed: &Bed, report: &mut Report) -> Result<()> {
        match measure {
            Measure::OneFlow => self.bulk(bed, 1, "one flow", report),
            Measure::ManyFlows => self.bulk(bed, MANY_FLOWS, "64 flows", report),
            Measure::Messages => self.messages(bed, report),
            Measure::PingPong => ping_pong(bed, report),
            Measure::ConnectEcho => connect_echo(bed, report),
            Measure::ShortConnections => short_connections(bed, report),
            Measure::Datagrams => self.datagrams(bed, report),
            Measure::Strangers => self.strangers(bed, report),
            Measure::IdleMemory => self.idle_memory(bed.variant, report),
        }
    }

    fn bulk(&self, bed: &Bed, flows: usize, name: &str, report: &mut Report) -> Result<()> {
        for (direction, arrow) in [(BulkDirection::Up, "up"), (BulkDirection::Down, "down")] {
            let reached = bulk::transfer(bed, flows, direction, bulk::PIECE, self.transfer_time)?;
            record(report, bed.variant, &format!("{name} {arrow}"), reached);
        }
        Ok(())
    }

    fn messages(&self, bed: &Bed, report: &mut Report) -> Result<()> {
        for size in WRITES {
            let reached = bulk::transfer(bed, 1, BulkDirection::Up, size, self.transfer_time)?;
            record(report, bed.variant, &format!("writes of {size} B"), reached);
        }
        Ok(())
    }

    fn datagrams(&self, bed: &Bed, report: &mut Report) -> Result<()> {
        for (len, flows, joined) in DATAGRAMS {
            let kind = datagrams::Kind { len, flows, joined };
            let reached = datagrams::search(bed, kind, self.transfer_time / 2)?;
            let name = match flows {
                _ if joined => format!("datagrams of {len} B, joined"),
                1 => format!("datagrams of {len} B"),
                _ => format!("datagrams of {len} B, {flows} flows"),
            };
            let rate = Quantity::new(name.clone(), "/s", Compare::Ratio);
            report.record(rate, bed.variant, reached.per_second);
            if bed.variant != Variant::Direct {
                let cpu = Quantity::new(format!("{name}, time each"), "us", Compare::Nothing);
                report.record(cpu, bed.variant, reached.cpu_us);
            }
        }
        Ok(())
    }

    fn strangers(&self, bed: &Bed, report: &mut Report) -> Result<()> {
        let Some(target) = bed.target() else {
            return Ok(());
        };
        let flooded = strangers::flood(bed, target, self.transfer_time)?;
        let values = [
            ("strangers, goodput left", "of 1", flooded.left),
            ("strangers, sent", "/s", flooded.per_second),
            ("strangers, bytes answered", "of 1", flooded.answered),
        ];
        for (name, unit, value) in values {
            let quantity = Quantity::new(name.to_owned(), unit, Compare::Nothing);
            report.record(quantity, bed.variant, value);
        }
        Ok(())
    }

    /// Measures on a separate pepd, because earlier measurements leave memory allocated.
    fn idle_memory(&self, variant: Variant, report: &mut Report) -> Result<()> {
        if variant == Variant::Direct || variant.has_tunnel() {
            return Ok(());
        }
        for flows in IDLE_FLOWS {
            let bed = self.bed(variant)?;
            let pepd = bed.pepds()[0];
            let open = echo::idle_flows(&bed, flows)?;
            let settled = settled_memory(pepd)?;
            let parts = [
                ("", settled.total),
                (", heap and stacks", settled.anonymous),
                (", rings", settled.shared),
            ];
            for (part, bytes) in parts {
                let name = format!("memory, {flows} idle flows{part}");
                let quantity = Quantity::new(name, "MB", Compare::Nothing);
                report.record(quantity, variant, bytes as f64 / 1e6);
            }
            drop(open);
        }
        Ok(())
    }
}

fn record(report: &mut Report, variant: Variant, name: &str, reached: Throughput) {
    let throughput = Quantity::new(name.to_owned(), "Gbit/s", Compare::Ratio);
    report.record(throughput, variant, reached.gbit_per_s);
    let cpu = Quantity::new(format!("{name}, CPU"), "s/GB", Compare::Ratio);
    report.record(cpu, variant, reached.cpu_s_per_gb);
}

fn ping_pong(bed: &Bed, report: &mut Report) -> Result<()> {
    for size in MESSAGE_SIZES {
        let median = echo::ping_pong(bed, size, EXCHANGES)?;
        let quantity = Quantity::new(format!("ping-pong of {size} B"), "us", Compare::Added);
        report.record(quantity, bed.variant, median);
    }
    Ok(())
}

fn connect_echo(bed: &Bed, report: &mut Report) -> Result<()> {
    let median = echo::connect_echo(bed, EXCHANGES)?;
    let quantity = Quantity::new("connect and echo".to_owned(), "us", Compare::Added);
    report.record(quantity, bed.variant, median);
    Ok(())
}

fn short_connections(bed: &Bed, report: &mut Report) -> Result<()> {
    for clients in SHORT_CLIENTS {
        let rate = echo::short_connections(bed, clients, SHORT_CONNECTIONS)?;
        let name = format!("short connections, {clients} at once");
        let quantity = Quantity::new(name, "/s", Compare::Ratio);
        report.record(quantity, bed.variant, rate);
    }
    Ok(())
}

/// Returns the minimum memory, once it has stopped falling.
fn settled_memory(pid: u32) -> Result<Resident> {
    let began = Instant::now();
    let mut minimum = meter::resident(pid)?;
    let mut fell = began;
    while fell.elapsed() < SETTLED && began.elapsed() < SETTLE_MAX {
        thread::sleep(Duration::from_millis(100));
        let now = meter::resident(pid)?;
        if now.total < minimum.total {
            (minimum, fell) = (now, Instant::now());
        }
    }
    Ok(minimum)
}
