//! `cargo bench -p pepd-tests --bench watching`: measures the cost of monitoring pepd. Reports the
//! time of a scrape and of flow lists with many flows open, and pepd's CPU load with idle flows,
//! scraped and not. Needs root.

use std::{
    error::Error,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::net::UnixStream,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use clap::Parser;
use nix::{time::ClockId, unistd::Pid};
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    pep::Pep,
};

/// Measures the cost of monitoring pepd.
#[derive(Debug, Parser)]
#[command(name = "watching")]
struct Options {
    /// Open flows while answers are timed
    #[arg(long, default_value_t = 5000)]
    many: usize,
    /// Open flows while CPU time is measured
    #[arg(long, default_value_t = 1000)]
    idle: usize,
    /// Answers of each kind
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Duration of the measurement of CPU time
    #[arg(long, default_value = "60s", value_parser = units::duration::parse)]
    time: Duration,
    /// Passed by cargo bench
    #[arg(long, hide = true)]
    bench: bool,
}

const PORT: u16 = 7000;
/// A common interval of Prometheus.
const SCRAPE_EVERY: Duration = Duration::from_secs(5);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A pepd with flows.
struct Watched {
    pep: Pep,
    flows: Vec<TcpStream>,
    _server: EchoServer,
    _bed: Bed,
}

impl Watched {
    fn start(flows: usize) -> Result<Self> {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let more =
            "[admin]\nsocket = \"admin.sock\"\n[limits]\nflows = 8000\nflows_per_host = 8000\n";
        // Log lines of each flow are not measured.
        let config = bed.config(more).ok_or("a path with pepd")?;
        let config = config.replace("level = \"debug\"", "level = \"info\"");
        let pep = Pep::start(&bed.gateway, &config);
        let server = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let connect = || -> Result<TcpStream> {
            let mut stream = bed.client.connect(bed.at(Place::Server, PORT))?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0])?;
            Ok(stream)
        };
        let flows = (0..flows).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        // Work that recurs every ten seconds has run once by then.
        thread::sleep(Duration::from_secs(12));
        Ok(Self {
            pep,
            flows,
            _server: server,
            _bed: bed,
        })
    }

    fn ask(&self, target: &str) -> Result<(Duration, usize)> {
        let begin = Instant::now();
        let mut stream = UnixStream::connect(self.pep.path("admin.sock"))?;
        let request = format!("GET {target} HTTP/1.1\r\nhost: pepd\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let took = begin.elapsed();
        if !answer.starts_with(b"HTTP/1.1 200 ") {
            return Err(String::from_utf8_lossy(&answer).into());
        }
        Ok((took, answer.len()))
    }

    /// Returns the CPU time of the process that carries flows.
    fn cpu(&self) -> Result<Duration> {
        let id = Pid::from_raw(i32::try_from(self.pep.id())?);
        Ok(ClockId::pid_cpu_clock_id(id)?.now()?.into())
    }
}

fn answers(options: &Options) -> Result<()> {
    let watched = Watched::start(options.many)?;
    println!(
        "with {} flows open, {} times each:",
        watched.flows.len(),
        options.rounds
    );
    for target in [
        "/metrics",
        "/v1/status",
        "/v1/flows?limit=100",
        "/v1/flows?limit=10000",
    ] {
        let (mut took, mut bytes) = (Vec::new(), 0);
        let before = watched.cpu()?;
        for _ in 0..options.rounds {
            let (time, length) = watched.ask(target)?;
            took.push(time);
            bytes = length;
            thread::sleep(Duration::from_millis(50));
        }
        let cpu = (watched.cpu()? - before) / u32::try_from(options.rounds)?;
        took.sort_unstable();
        let [median, most] = [took[took.len() / 2], took[took.len() - 1]].map(milliseconds);
        let cpu = milliseconds(cpu);
        println!("  {target:<22} median {median}, maximum {most}, CPU {cpu} each; {bytes} bytes");
    }
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn idling(options: &Options) -> Result<()> {
    let watched = Watched::start(options.idle)?;
    let seconds = options.time.as_secs_f64();
    println!(
        "with {} idle flows open, CPU time over {seconds} s:",
        watched.flows.len()
    );
    for scraped in [false, true] {
        let (before, begin) = (watched.cpu()?, Instant::now());
        while begin.elapsed() < options.time {
            if scraped {
                watched.ask("/metrics")?;
            }
            thread::sleep(SCRAPE_EVERY.min(options.time.saturating_sub(begin.elapsed())));
        }
        let share = (watched.cpu()? - before).as_secs_f64() / begin.elapsed().as_secs_f64();
        let how = if scraped {
            "scraped every 5 s"
        } else {
            "not scraped"
        };
        println!("  {how:<18} {:.2} % of a CPU", 100.0 * share);
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = Options::parse();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before: {}", load.trim());
    match answers(&options).and_then(|()| idling(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("watching: {err}");
            ExitCode::FAILURE
        }
    }
}
