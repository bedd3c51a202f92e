//! Flows of an honest host: bytes that an echo server returns, one after the other.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use pepd_tests::{host::Host, wait::PATIENCE};

const MESSAGE: [u8; 64] = [7; 64];

/// Times of the rounds since a moment.
#[derive(Debug)]
struct Times {
    since: Instant,
    rounds: Vec<Duration>,
}

/// Flows that go on until they are dropped.
pub struct Load {
    times: Arc<Mutex<Times>>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Rounds of all flows in a span of time.
#[derive(Debug)]
pub struct Rounds {
    /// The span.
    pub time: Duration,
    /// Rounds per second.
    pub rate: f64,
    /// Time that 99 % of the rounds do not exceed; the span, if there was none.
    pub p99: Duration,
}

impl Load {
    /// Starts so many flows to each server, and waits until each has had an answer.
    pub fn start(client: &Host, servers: &[(SocketAddr, usize)]) -> Self {
        let since = Instant::now();
        let times = Arc::new(Mutex::new(Times {
            since,
            rounds: Vec::new(),
        }));
        let over = Arc::new(AtomicBool::new(false));
        let begin = |server: SocketAddr| {
            let mut stream = client.connect(server).expect("pepd answers");
            // A flow may stand for long, but must not be reset.
            stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
            round(&mut stream);
            let (times, over) = (Arc::clone(&times), Arc::clone(&over));
            thread::spawn(move || {
                while !over.load(Relaxed) {
                    let took = round(&mut stream);
                    times.lock().rounds.push(took);
                }
            })
        };
        let flows = servers.iter();
        let flows = flows.flat_map(|(server, flows)| std::iter::repeat_n(*server, *flows));
        let threads = flows.map(begin).collect();
        Self {
            times,
            over,
            threads,
        }
    }

    /// Returns the rounds since the previous call.
    pub fn measure(&self) -> Rounds {
        let now = Instant::now();
        let (time, mut rounds) = {
            let mut times = self.times.lock();
            let time = now - std::mem::replace(&mut times.since, now);
            (time, std::mem::take(&mut times.rounds))
        };
        rounds.sort();
        let p99 = rounds.get(rounds.len() * 99 / 100);
        Rounds {
            time,
            rate: rounds.len() as f64 / time.as_secs_f64(),
            p99: p99.copied().unwrap_or(time),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(thread::panicking() || ended.is_ok(), "a flow was reset");
        }
    }
}

fn round(stream: &mut TcpStream) -> Duration {
    let began = Instant::now();
    let mut answer = [0; MESSAGE.len()];
    stream.write_all(&MESSAGE).expect("connected");
    stream.read_exact(&mut answer).expect("an echo");
    began.elapsed()
}
