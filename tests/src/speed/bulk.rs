//! Long transfers: bytes per second at the receiver.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use serde::Serialize;

use super::{Bed, Result, meter};

/// Bytes of one read or write, large enough that system calls cost little beside the copying.
pub(super) const PIECE: usize = 256 * 1024;
/// Time for windows and rings to grow before bytes are counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// The interval in which threads check for the end of the transfer, in milliseconds.
const LOOK: u8 = 100;

/// The direction of the transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum BulkDirection {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// The result of one transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throughput {
    /// The goodput of all flows together, counted at the receiver, in Gbit/s.
    pub gbit_per_s: f64,
    /// CPU seconds per 1e9 bytes: of pepd, of both if there are two, or on a direct bed of the two
    /// hosts, which also receive and send each byte once.
    pub cpu_s_per_gb: f64,
}

/// Transfers over `flows` connections at once for the given time, after a short warm-up, by writes
/// of `message` bytes.
pub(super) fn transfer(
    bed: &Bed,
    flows: usize,
    direction: BulkDirection,
    message: usize,
    time: Duration,
) -> Result<Throughput> {
    let (clients, servers) = connected(bed, flows)?;
    if message < PIECE {
        // As for most programs, which write little at a time.
        clients
            .iter()
            .try_for_each(|client| client.set_nodelay(false))?;
    }
    let (sources, sinks) = match direction {
        BulkDirection::Up => (clients, servers),
        BulkDirection::Down => (servers, clients),
    };
    let run = Run::default();
    let threads = [
        run.start(DRAIN, PIECE, sinks)?,
        run.start(FILL, message, sources)?,
    ];
    thread::sleep(WARM_UP);
    let throughput = measure(bed, &run.received, time);
    run.over.store(true, Relaxed);
    for thread in threads {
        thread.join().expect("a traffic thread reports errors")?;
    }
    throughput
}

/// State shared by the threads of a transfer.
#[derive(Debug, Clone, Default)]
pub(super) struct Run {
    pub(super) over: Arc<AtomicBool>,
    pub(super) received: Arc<AtomicU64>,
}

impl Run {
    pub(super) fn start(
        &self,
        step: Step,
        piece: usize,
        streams: Vec<TcpStream>,
    ) -> Result<JoinHandle<Result<()>>> {
        let run = self.clone();
        let thread = thread::Builder::new().name(step.name.to_owned());
        Ok(thread.spawn(move || run.serve(&streams, step, piece))?)
    }

    /// Lets each ready stream take one step, until the run is over.
    fn serve(&self, streams: &[TcpStream], step: Step, piece: usize) -> Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        for (index, stream) in streams.iter().enumerate() {
            stream.set_nonblocking(true)?;
            epoll.add(stream, EpollEvent::new(step.wants, index as u64))?;
        }
        let mut events = vec![EpollEvent::empty(); streams.len()];
        let mut buffer = vec![0; piece];
        while !self.over.load(Relaxed) {
            let ready = epoll.wait(&mut events, LOOK)?;
            for event in &events[..ready] {
                let stream = &streams[event.data() as usize];
                let stepped = (step.act)(stream, &mut buffer, &self.received);
                // At the end the other thread may have closed its streams already.
                if stepped.is_err() && !self.over.load(Relaxed) {
                    return stepped;
                }
            }
        }
        Ok(())
    }
}

/// The step of a thread on a ready stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    name: &'static str,
    wants: EpollFlags,
    act: fn(&TcpStream, &mut [u8], &AtomicU64) -> Result<()>,
}

pub(super) const DRAIN: Step = Step {
    name: "sink",
    wants: EpollFlags::EPOLLIN,
    act: drain,
};

pub(super) const FILL: Step = Step {
    name: "source",
    wants: EpollFlags::EPOLLOUT,
    act: fill,
};

fn drain(mut stream: &TcpStream, buffer: &mut [u8], received: &AtomicU64) -> Result<()> {
    match stream.read(buffer) {
        Ok(0) => Err("a flow ended before its transfer was over".into()),
        Ok(bytes) => {
            received.fetch_add(bytes as u64, Relaxed);
            Ok(())
        }
        Err(err) => unless_would_block(err),
    }
}

fn fill(mut stream: &TcpStream, buffer: &mut [u8], _: &AtomicU64) -> Result<()> {
    // A partial write suffices: the next call sends the same bytes.
    stream
        .write(buffer)
        .map_or_else(unless_would_block, |_| Ok(()))
}

fn unless_would_block(err: std::io::Error) -> Result<()> {
    match err.kind() {
        ErrorKind::WouldBlock => Ok(()),
        _ => Err(err.into()),
    }
}

fn connected(bed: &Bed, flows: usize) -> Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let (listener, address) = bed.listen()?;
    let clients = bed.connect(address, flows)?;
    let servers = (0..flows)
        .map(|_| Ok(listener.accept()?.0))
        .collect::<Result<_>>()?;
    Ok((clients, servers))
}

fn measure(bed: &Bed, received: &AtomicU64, time: Duration) -> Result<Throughput> {
    let processes = match bed.pepds() {
        none if none.is_empty() => vec![std::process::id()],
        pepds => pepds,
    };
    let cpu = || -> Result<Duration> {
        let times = processes.iter().map(|process| meter::cpu_time(*process));
        times.sum()
    };
    let (bytes_before, cpu_before, began) = (received.load(Relaxed), cpu()?, Instant::now());
    thread::sleep(time);
    let (bytes_after, cpu_after, took) = (received.load(Relaxed), cpu()?, began.elapsed());
    let bytes = (bytes_after - bytes_before) as f64;
    if bytes == 0.0 {
        return Err(format!(
            "no bytes arrived in {took:?} on the {} bed",
            bed.variant.name()
        )
        .into());
    }
    Ok(Throughput {
        gbit_per_s: bytes * 8.0 / took.as_secs_f64() / 1e9,
        cpu_s_per_gb: (cpu_after - cpu_before).as_secs_f64() / (bytes / 1e9),
    })
}
