//! Packets on their way to the kernel: those of a flow together, in its order.

use std::net::IpAddr;

use crate::intercept::tun::Run;

/// How many flows have packets on the way at once.
const RUNS_MAX: usize = 16;

/// Which interface packets come in by.
type Of = (usize, usize);

/// Runs that packets may still be added to.
#[derive(Debug, Default)]
pub(super) struct Runs {
    list: Vec<Underway>,
}

#[derive(Debug)]
struct Underway {
    of: Of,
    /// From which host to which.
    ends: Option<(IpAddr, IpAddr)>,
    run: Run,
    /// Something between the same hosts has come behind it.
    passed: bool,
}

impl Runs {
    /// Adds a packet, behind all others between the same hosts.
    pub(super) fn push(&mut self, of: Of, ends: Option<(IpAddr, IpAddr)>, mut packet: Vec<u8>) {
        let mut list = self.list.iter_mut();
        let last = list.find(|last| !last.passed && (last.of, last.ends) == (of, ends));
        if let Some(last) = last {
            match last.run.push(packet) {
                Ok(()) => return,
                Err(again) => packet = again,
            }
            last.passed = true;
        }
        self.list.push(Underway {
            of,
            ends,
            run: Run::new(packet),
            passed: false,
        });
    }

    /// Whether no other flow's would find a place.
    pub(super) fn is_full(&self) -> bool {
        self.list.len() >= RUNS_MAX
    }

    /// All of them, in their order.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (Of, Run)> + '_ {
        self.list
            .drain(..)
            .map(|underway| (underway.of, underway.run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram without a checksum, which no other follows: every packet is a run.
    fn udp(host: u8, number: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 1, 0, host, 10, 2, 0, 1]);
        packet.extend([0, 1, 0, 2, 0, 9, 0, 0, number]);
        packet
    }

    #[test]
    fn what_is_between_two_hosts_keeps_its_order() {
        let mut runs = Runs::default();
        for (host, number) in [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1)] {
            let packet = udp(host, number);
            runs.push((0, 0), super::super::groups::ends(&packet), packet);
        }
        let taken: Vec<_> = runs
            .take()
            .flat_map(|(_, run)| run.packets().to_vec())
            .collect();
        let of = |host: u8| {
            let packets = taken.iter().filter(move |packet| packet[15] == host);
            packets.map(|packet| packet[28]).collect::<Vec<_>>()
        };
        assert_eq!((of(1), of(2)), (vec![0, 1, 2], vec![0, 1]));
        assert!(!runs.is_full());
    }
}
