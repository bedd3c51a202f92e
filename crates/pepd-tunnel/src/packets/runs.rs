//! Packets on their way to the kernel: those of a flow are grouped in order.

use std::net::IpAddr;

use pepd_intercept::tun::{Run, Single};

/// Maximum of flows grouped at once.
const RUNS_MAX: usize = 32;

/// Interface by which packets enter the kernel.
type Interfaces = (usize, usize);
/// Source and destination hosts.
type HostPair = Option<(IpAddr, IpAddr)>;
/// Source and destination ports.
type Ports = [u8; 4];

/// Groups to which packets may still be added.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    list: Vec<Underway>,
}

#[derive(Debug)]
struct Underway {
    of: Interfaces,
    ends: HostPair,
    /// Ports; `None` for packets that join no group: others between the same hosts may be of their
    /// flow.
    ports: Option<Ports>,
    run: Run,
    /// A later packet may belong to the same flow.
    passed: bool,
}

impl Runs {
    /// Adds a packet behind all others that may be of its flow.
    pub(crate) fn push(&mut self, of: Interfaces, ends: HostPair, packet: Vec<u8>) {
        let mut packet = Single::from(packet);
        let ports = packet.ports();
        let list = self.list.iter_mut();
        let between = list.filter(|last| !last.passed && (last.of, last.ends) == (of, ends));
        for last in between {
            if ports.is_some() && last.ports == ports {
                match last.run.push(packet) {
                    Ok(()) => return,
                    Err(again) => packet = again,
                }
            }
            last.passed = ports.is_none() || last.ports == ports;
        }
        self.list.push(Underway {
            of,
            ends,
            ports,
            run: Run::new(packet),
            passed: ports.is_none(),
        });
    }

    /// Returns whether a further flow would find no place.
    pub(crate) fn is_full(&self) -> bool {
        self.list.len() >= RUNS_MAX
    }

    /// Returns all groups in order.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (Interfaces, Run)> + '_ {
        self.list
            .drain(..)
            .map(|underway| (underway.of, underway.run))
    }
}

#[cfg(test)]
mod tests {
    use boosters::{checksum, ip::Ip};

    use super::*;

    /// Builds a datagram between two hosts.
    fn udp(ports: [u8; 2], number: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0x40, 0, 64, 17, 0, 0];
        packet.extend([10, 1, 0, 1, 10, 2, 0, 1]);
        packet.extend([0, ports[0], 0, ports[1], 0, 9, 0, 0, number]);
        let sum = checksum::fold(checksum::sum(&packet[..20]));
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let ip = Ip::parse(&packet).expect("a datagram");
        let sum = checksum::of_transport(&ip, ip.payload());
        packet[26..28].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// Builds the last fragment of a datagram.
    fn fragment(number: u8) -> Vec<u8> {
        let mut packet = udp([1, 2], number);
        (packet[6], packet[7]) = (0, 3);
        packet
    }

    fn runs(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut runs = Runs::default();
        for packet in packets {
            runs.push((0, 0), super::super::groups::ends(packet), packet.clone());
        }
        assert!(!runs.is_full());
        let numbers = |run: &Run| run.packets().iter().map(|packet| packet[28]).collect();
        runs.take().map(|(_, run)| numbers(&run)).collect()
    }

    #[test]
    fn datagrams_of_a_flow_go_together_though_others_come_between() {
        let [a, b] = [[1, 2], [1, 3]];
        let packets = [udp(a, 0), udp(b, 1), udp(a, 2), udp(b, 3), udp(a, 4)];
        assert_eq!(runs(&packets), [vec![0, 2, 4], vec![1, 3]]);
    }

    #[test]
    fn what_may_be_of_a_flow_keeps_its_place_in_it() {
        let [a, b] = [[1, 2], [1, 3]];
        let packets = [
            udp(a, 0),
            udp(b, 1),
            fragment(2),
            udp(a, 3),
            udp(b, 4),
            udp(a, 5),
        ];
        assert_eq!(
            runs(&packets),
            [vec![0], vec![1], vec![2], vec![3, 5], vec![4]]
        );
        let mut other = udp(a, 1);
        other[8] = 63;
        let packets = [udp(a, 0), other, udp(a, 2)];
        assert_eq!(runs(&packets), [[0], [1], [2]]);
    }
}
