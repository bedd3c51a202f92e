//! Loop that carries packets between two interfaces.

use std::{io, os::fd::AsFd as _, sync::Arc, time::Instant};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
    unistd::{read, write},
};

use super::{
    DirectionReport, LinkError, LinkReport, LinkSpec, Priority, Stop, Tun, Verdict,
    clock::{Clock, thread_time},
    lateness::Lateness,
    punctual::Punctual,
    record::Recorder,
    spin::{Spin, SpinBudget},
};
use crate::link::{Decision, Direction, Engine, NANOS_PER_SECOND, Nanos, Packet};

/// Packets read or written in a row before the other side gets its turn. At 1 us each, a batch
/// delays the other side no more than the timers do.
const BATCH: usize = 32;

/// Maximum packet size of any interface.
const PACKET_BYTES_MAX: usize = 65_536;

/// Interface with its counters.
#[derive(Debug)]
struct End {
    tun: Tun,
    ignored: u64,
    refused: u64,
    refused_bytes: u64,
}

impl End {
    fn new(tun: Tun) -> Self {
        Self {
            tun,
            ignored: 0,
            refused: 0,
            refused_bytes: 0,
        }
    }
}

/// State of the loop.
#[derive(Debug)]
pub(super) struct Pump {
    /// Packets that arrive at `ends[d]` travel in direction d.
    ends: [End; 2],
    engine: Engine,
    clock: Clock,
    began: Instant,
    buffer: Vec<u8>,
    lateness: Lateness,
    recorder: Option<Recorder>,
    stop: Arc<Stop>,
    priority: Priority,
    punctual: Punctual,
    spin: SpinBudget,
    seed: u64,
    limit: super::AccuracyLimit,
    link: serde_json::Value,
}

/// Descriptors that are ready, by direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ready([bool; 2]);

impl Ready {
    fn any(self) -> bool {
        self.0.contains(&true)
    }
}

impl Pump {
    /// Instant at which the link's time is 0.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn new(spec: LinkSpec, stop: Arc<Stop>) -> Result<Self, LinkError> {
        let mut engine = Engine::new(&spec.config, spec.seed);
        engine.replay(&spec.replay);
        let recorder = spec.record.as_deref().map(Recorder::create).transpose()?;
        if recorder.is_some() {
            engine.record();
        }
        Ok(Self {
            ends: [End::new(spec.a), End::new(spec.b)],
            engine,
            clock: Clock::start(),
            began: Instant::now(),
            buffer: vec![0; PACKET_BYTES_MAX],
            lateness: Lateness::new(&spec.limit),
            recorder,
            stop,
            priority: spec.priority,
            punctual: Punctual::default(),
            spin: SpinBudget::new(match spec.priority {
                Priority::Realtime => Spin::Always,
                Priority::Preferred => Spin::Never,
                Priority::Ordinary => Spin::Sometimes,
            }),
            seed: spec.seed,
            limit: spec.limit,
            link: serde_json::to_value(&spec.config).expect("a configuration is plain data"),
        })
    }

    /// Carries packets until a stop request, or until an interface is gone.
    pub(super) fn run(&mut self) -> LinkReport {
        self.punctual = Punctual::thread(self.priority);
        let outcome = self.carry();
        let failure = outcome
            .err()
            .map(|error| format!("an interface failed: {error}"));
        self.report(failure)
    }

    fn carry(&mut self) -> io::Result<()> {
        while !self.stop.is_asked() {
            let ready = self.wait()?;
            for direction in Direction::BOTH {
                if ready.0[direction as usize] {
                    self.read(direction)?;
                }
            }
            self.deliver()?;
            self.record();
        }
        Ok(())
    }

    /// Waits until a packet arrives or is due, or until a stop request.
    fn wait(&mut self) -> io::Result<Ready> {
        let deadline = self.engine.poll_timeout();
        let spin = self.spin.allowance(self.clock.now());
        let mut awake_since = None;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_sub(self.clock.now()));
            let ready = self.poll(left.map(|left| left.saturating_sub(spin)))?;
            let now = self.clock.now();
            let passed = deadline.is_some_and(|deadline| deadline <= now);
            // Otherwise the loop woke up early: poll without a timeout until the deadline.
            if ready.any() || passed || spin == 0 || self.stop.is_asked() {
                self.spin.spend(now - awake_since.unwrap_or(now));
                return Ok(ready);
            }
            awake_since.get_or_insert(now);
        }
    }

    fn poll(&self, timeout: Option<Nanos>) -> io::Result<Ready> {
        let [a, b] = &self.ends;
        let mut fds = [a.tun.as_fd(), b.tun.as_fd(), self.stop.wake.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let timeout = timeout.map(time_spec);
        match ppoll(&mut fds, timeout, None) {
            Err(Errno::EINTR) => Ok(Ready([false; 2])),
            Err(error) => Err(error.into()),
            Ok(_) => {
                let any = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
                Ok(Ready([any(&fds[0]), any(&fds[1])]))
            }
        }
    }

    /// Reads a batch of waiting packets at one end.
    fn read(&mut self, direction: Direction) -> io::Result<()> {
        let end = &mut self.ends[direction as usize];
        for _ in 0..BATCH {
            let length = match read(&end.tun, &mut self.buffer) {
                Ok(length) => length,
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let packet = &self.buffer[..length];
            if is_housekeeping(packet) {
                end.ignored += 1;
            } else {
                self.engine
                    .handle_packet(direction, packet, self.clock.now());
            }
        }
        Ok(())
    }

    /// Writes a batch of due packets.
    fn deliver(&mut self) -> io::Result<()> {
        let mut now = self.clock.now();
        for _ in 0..2 * BATCH {
            let Some((direction, packet)) = self.engine.poll_deliver(now) else {
                break;
            };
            self.put_out(direction, &packet)?;
            now = self.clock.now();
            self.lateness.add(now - packet.due);
            self.engine.recycle(packet);
        }
        Ok(())
    }

    fn put_out(&mut self, direction: Direction, packet: &Packet) -> io::Result<()> {
        let end = &mut self.ends[1 - direction as usize];
        match write(&end.tun, &packet.bytes) {
            Ok(_) => Ok(()),
            // The packet is no valid IP packet any more, the interface is down, or memory is short.
            Err(Errno::EINVAL | Errno::EIO | Errno::ENOMEM | Errno::ENOBUFS | Errno::EAGAIN) => {
                end.refused += 1;
                end.refused_bytes += packet.bytes.len() as u64;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn record(&mut self) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        let next = || self.engine.poll_decision();
        let decisions: Vec<Decision> = std::iter::from_fn(next).collect();
        if !decisions.is_empty() {
            recorder.write(decisions);
        }
    }

    pub(super) fn report(&mut self, failure: Option<String>) -> LinkReport {
        let seconds = self.clock.now() as f64 / NANOS_PER_SECOND as f64;
        self.record();
        let recorded = self.recorder.take().map_or(Ok(()), Recorder::finish);
        let failure = failure.or(recorded.err().map(|error| error.to_string()));
        let [ab, ba] = Direction::BOTH.map(|direction| self.direction(direction));
        let delivered = ab.packets.delivered + ba.packets.delivered;
        let drops = ab.tun_drops + ba.tun_drops;
        LinkReport {
            began: Some(self.began),
            seconds,
            cpu_seconds: thread_time() as f64 / NANOS_PER_SECOND as f64,
            seed: self.seed,
            link: self.link.take(),
            realtime: self.punctual.realtime(),
            accuracy: Verdict::new(&self.limit, delivered, self.lateness.late(), drops),
            lateness: self.lateness.report(),
            ab,
            ba,
            failure,
        }
    }

    fn direction(&self, direction: Direction) -> DirectionReport {
        let (from, to) = (
            &self.ends[direction as usize],
            &self.ends[1 - direction as usize],
        );
        let history = self.engine.queue_history(direction);
        let mut packets = self.engine.stats(direction);
        // The engine counted refused packets as delivered.
        packets.delivered -= to.refused;
        packets.delivered_bytes -= to.refused_bytes;
        DirectionReport {
            packets,
            queue_bytes: history.over(0, Nanos::MAX).unwrap_or_default(),
            history,
            // A missing namespace counts as zero drops: no program can send into it any more.
            tun_drops: from.tun.drops().unwrap_or(0),
            refused: to.refused,
            ignored: from.ignored,
        }
    }
}

fn time_spec(ns: Nanos) -> TimeSpec {
    TimeSpec::new(
        (ns / NANOS_PER_SECOND) as i64,
        (ns % NANOS_PER_SECOND) as i64,
    )
}

/// Reports whether a packet is housekeeping of the kernel's IPv6: multicast listener reports and
/// neighbour discovery to link-local multicast addresses.
///
/// A point-to-point link needs neither. Packets sent by the kernel's timers would take indices, and
/// with them fates, from the traffic.
fn is_housekeeping(packet: &[u8]) -> bool {
    const LINK_LOCAL_MULTICAST: [u8; 2] = [0xff, 0x02];
    const ICMPV6: u8 = 58;
    // The shortest housekeeping packet, a router solicitation, has 40 + 8 bytes.
    let ipv6 = packet.len() >= 48 && packet[0] >> 4 == 6;
    if !ipv6 || packet[24..26] != LINK_LOCAL_MULTICAST {
        return false;
    }
    // Listener reports carry a router alert in a hop-by-hop header of 8 bytes.
    let (protocol, kind) = match packet[6] {
        0 => (packet[40], packet.get(48).copied().unwrap_or(0)),
        protocol => (protocol, packet[40]),
    };
    protocol == ICMPV6 && matches!(kind, 130..=137 | 143)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_link_local_multicast_housekeeping_is_left_out() {
        let mut report = [0; 76];
        report[0] = 0x60;
        report[24..26].copy_from_slice(&[0xff, 0x02]);
        report[40] = 58;
        report[48] = 143;
        assert!(is_housekeeping(&report));
        let mut solicitation = [0; 48];
        solicitation[..41].copy_from_slice(&report[..41]);
        (solicitation[6], solicitation[40]) = (58, 133);
        assert!(is_housekeeping(&solicitation));
        let mut echo = report;
        (echo[6], echo[40]) = (58, 128);
        assert!(!is_housekeeping(&echo), "a ping of all nodes is traffic");
        let mut routed = report;
        routed[25] = 0x05;
        assert!(!is_housekeeping(&routed));
        assert!(!is_housekeeping(&report[..40]));
        assert!(!is_housekeeping(&[0x45; 60]));
    }
}
