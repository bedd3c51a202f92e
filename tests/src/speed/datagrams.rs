//! The maximum rate of datagrams, carried as packets.

use std::{
    io::{IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{
        MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt,
        sockopt::{RcvBufForce, UdpGsoSegment},
    },
};

use super::{Bed, Result, meter};

/// Datagrams per system call.
const BATCH: usize = 32;
/// Bytes that a receiver may lag behind.
const BUFFER: usize = 16 << 20;
/// The accepted loss at a sustained rate.
const LOST_MAX: f64 = 0.01;
/// The first rate to try, in datagrams per second, and the maximum.
const FIRST: f64 = 20_000.0;
const LAST: f64 = 2_000_000.0;
/// Bisection steps between a sustained rate and one that is not.
const HALVINGS: u32 = 4;
/// The time for datagrams in flight to arrive.
const AFTER: Duration = Duration::from_millis(150);

/// The result of a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reached {
    /// The maximum rate with 99 % delivered, counted at the receiver.
    pub per_second: f64,
    /// CPU time per packet at half of that rate: of the busier pepd, if there are two.
    pub cpu_us: f64,
}

/// The sent datagrams: `len` bytes, of 1 to [`BATCH`] flows in turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub len: usize,
    pub flows: usize,
    /// The sender gives the kernel all of a system call as one (`UDP_SEGMENT` in udp(7)), as
    /// programs for QUIC and video do.
    pub joined: bool,
}

/// Searches for the maximum sustained rate.
///
/// # Errors
/// When the system refuses something, or no rate is sustained.
pub(super) fn search(bed: &Bed, kind: Kind, time: Duration) -> Result<Reached> {
    let flood = Flood::new(bed, kind)?;
    let (mut good, mut bad, mut best) = (0.0, f64::INFINITY, 0.0_f64);
    let mut rate = FIRST;
    for _ in 0..HALVINGS {
        loop {
            let (sent, came) = flood.run(rate, time)?;
            let comes_through = came as f64 >= sent as f64 * (1.0 - LOST_MAX)
                // The sender itself can do no more.
                && sent as f64 >= rate * time.as_secs_f64() * 0.9;
            if comes_through {
                good = rate;
                best = best.max(came as f64 / time.as_secs_f64());
            } else {
                bad = rate;
            }
            if bad.is_finite() || rate > LAST {
                break;
            }
            rate *= 1.5;
        }
        if !bad.is_finite() {
            break;
        }
        rate = (good + bad) / 2.0;
    }
    if best == 0.0 {
        return Err(format!("not even {rate} datagrams a second come through").into());
    }
    let before = cpu_times(bed)?;
    let (_, came) = flood.run(good / 2.0, time)?;
    let after = cpu_times(bed)?;
    let used = before.iter().zip(after);
    let used = used.map(|(before, after)| after.saturating_sub(*before));
    let most = used.max().unwrap_or_default();
    Ok(Reached {
        per_second: best,
        cpu_us: most.as_secs_f64() * 1e6 / came.max(1) as f64,
    })
}

fn cpu_times(bed: &Bed) -> Result<Vec<Duration>> {
    bed.pepds().into_iter().map(meter::cpu_time).collect()
}

/// Sockets of both ends.
struct Flood {
    /// One socket per flow.
    clients: Vec<UdpSocket>,
    server: UdpSocket,
    len: usize,
    joined: bool,
}

impl Flood {
    fn new(bed: &Bed, kind: Kind) -> Result<Self> {
        let Kind { len, flows, joined } = kind;
        let (server, to) = bed.datagrams()?;
        setsockopt(&server, RcvBufForce, &BUFFER)?;
        server.set_read_timeout(Some(Duration::from_millis(20)))?;
        let client = || {
            let client = bed.client().enter(|| UdpSocket::bind("0.0.0.0:0"))??;
            client.connect(to)?;
            if joined {
                setsockopt(&client, UdpGsoSegment, &i32::try_from(len)?)?;
            }
            Ok(client)
        };
        Ok(Self {
            clients: (0..flows).map(|_| client()).collect::<Result<_>>()?,
            server,
            len,
            joined,
        })
    }

    /// Returns the numbers of datagrams sent and received.
    fn run(&self, per_second: f64, time: Duration) -> Result<(u64, u64)> {
        let over = AtomicBool::new(false);
        let came = AtomicU64::new(0);
        let sent = thread::scope(|scope| -> Result<u64> {
            let receiver = scope.spawn(|| self.receive(&over, &came));
            let sent = self.send(per_second, time);
            // Until no more arrive.
            let mut last = 0;
            while last != came.load(Relaxed) {
                last = came.load(Relaxed);
                thread::sleep(AFTER);
            }
            over.store(true, Relaxed);
            receiver.join().expect("does not panic")?;
            sent
        })?;
        Ok((sent, came.load(Relaxed)))
    }

    fn send(&self, per_second: f64, time: Duration) -> Result<u64> {
        let each = BATCH / self.clients.len();
        let of_message = if self.joined { each } else { 1 };
        let messages = each / of_message;
        let payload = vec![7; self.len * of_message];
        let slices = vec![[IoSlice::new(&payload)]; messages];
        let none = vec![None::<SockaddrIn>; messages];
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(messages, None);
        let mut turns = self.clients.iter().cycle();
        let began = Instant::now();
        let mut sent = 0;
        loop {
            let due = Duration::from_secs_f64(f64::from(sent) / per_second);
            let elapsed = began.elapsed();
            if elapsed >= time {
                return Ok(u64::from(sent));
            }
            if let Some(early) = due.checked_sub(elapsed) {
                thread::sleep(early.min(time - elapsed));
                continue;
            }
            let client = turns.next().expect("there are flows").as_raw_fd();
            match sendmmsg(client, &mut headers, &slices, &none, [], MsgFlags::empty()) {
                Ok(messages) => sent += u32::try_from(messages.count() * of_message)?,
                // The queue of the interface is full.
                Err(Errno::ENOBUFS | Errno::EAGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&self, over: &AtomicBool, came: &AtomicU64) -> Result<()> {
        let mut buffers = vec![vec![0; self.len]; BATCH];
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
        while !over.load(Relaxed) {
            let mut slices: Vec<_> = buffers
                .iter_mut()
                .map(|buffer| [IoSliceMut::new(buffer)])
                .collect();
            let flags = MsgFlags::MSG_WAITFORONE;
            let fd = self.server.as_raw_fd();
            match recvmmsg(fd, &mut headers, &mut slices, flags, None) {
                Ok(messages) => {
                    came.fetch_add(messages.count() as u64, Relaxed);
                }
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Bed {
    /// Opens a datagram socket of the server.
    fn datagrams(&self) -> Result<(UdpSocket, SocketAddr)> {
        let (listener, at) = self.listen()?;
        drop(listener);
        let socket = self.server().enter(|| UdpSocket::bind(at))??;
        Ok((socket, at))
    }
}
