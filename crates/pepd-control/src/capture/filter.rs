//! Program for the kernel's packet filter (classic BPF, `Documentation/networking/filter.rst`) that
//! accepts TCP segments of some connections. It sees packets from their IP header on.

use std::net::{IpAddr, SocketAddr};

use socket2::SockFilter;

/// Two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoints(pub SocketAddr, pub SocketAddr);

/// Opcodes: loads of a byte, a half-word and a word at a fixed offset; the load of a half-word
/// behind the IPv4 header, and that of the header's length; AND; jumps if equal and if any bit is
/// set; return.
const LDB: u16 = 0x30;
const LDH: u16 = 0x28;
const LDW: u16 = 0x20;
const LDH_X: u16 = 0x48;
const LDX_MSH: u16 = 0xb1;
const AND: u16 = 0x54;
const JEQ: u16 = 0x15;
const JSET: u16 = 0x45;
const RET: u16 = 0x06;
/// Operand of `RET`: accepts the whole packet.
const ALL: u32 = u32::MAX;
const TCP: u32 = 6;

/// Step of a part of the program.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Executes the instruction with its operand.
    Do(u16, u32),
    /// Continues if the loaded value is equal, else jumps to the next part.
    Is(u32),
    /// Continues if none of these bits is set, else jumps to the next part.
    Not(u32),
}

/// Returns the program for both directions of these connections; without any, one that rejects all
/// packets.
pub fn program(connections: &[Endpoints]) -> Vec<SockFilter> {
    let directions = connections
        .iter()
        .flat_map(|Endpoints(a, b)| [(a, b), (b, a)]);
    let parts = directions.flat_map(|(from, to)| assemble(&part(*from, *to)));
    parts.chain([SockFilter::new(RET, 0, 0, 0)]).collect()
}

/// Returns the part that accepts packets between these ends.
fn part(from: SocketAddr, to: SocketAddr) -> Vec<Step> {
    let mut steps = vec![Step::Do(LDB, 0), Step::Do(AND, 0xf0)];
    let ports = [from.port(), to.port()].map(u32::from);
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            steps.extend([Step::Is(0x40), Step::Do(LDB, 9), Step::Is(TCP)]);
            // Later fragments have no ports.
            steps.extend([Step::Do(LDH, 6), Step::Not(0x1fff)]);
            steps.extend([Step::Do(LDW, 12), Step::Is(from.into())]);
            steps.extend([Step::Do(LDW, 16), Step::Is(to.into())]);
            steps.push(Step::Do(LDX_MSH, 0));
            for (at, port) in [0, 2].into_iter().zip(ports) {
                steps.extend([Step::Do(LDH_X, at), Step::Is(port)]);
            }
        }
        (from, to) => {
            steps.extend([Step::Is(0x60), Step::Do(LDB, 6), Step::Is(TCP)]);
            for (at, address) in [8, 24].into_iter().zip([from, to]) {
                let address = match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped(),
                    IpAddr::V6(address) => address,
                };
                let words = address.octets();
                let words = words.as_chunks().0.iter();
                for (at, word) in (at..).step_by(4).zip(words) {
                    steps.extend([Step::Do(LDW, at), Step::Is(u32::from_be_bytes(*word))]);
                }
            }
            for (at, port) in [40, 42].into_iter().zip(ports) {
                steps.extend([Step::Do(LDH, at), Step::Is(port)]);
            }
        }
    }
    steps.push(Step::Do(RET, ALL));
    steps
}

fn assemble(steps: &[Step]) -> Vec<SockFilter> {
    let steps_after = (0..steps.len()).rev();
    let instructions = steps.iter().zip(steps_after).map(|(step, after)| {
        // A part is far shorter than the maximum jump.
        let after = u8::try_from(after).unwrap_or(u8::MAX);
        match *step {
            Step::Do(code, operand) => SockFilter::new(code, 0, 0, operand),
            Step::Is(value) => SockFilter::new(JEQ, 0, after, value),
            Step::Not(bits) => SockFilter::new(JSET, after, 0, bits),
        }
    });
    instructions.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Emulates the parts of the program, one by one.
    fn lets_through(connections: &[Endpoints], packet: &[u8]) -> bool {
        let directions = connections
            .iter()
            .flat_map(|Endpoints(a, b)| [(a, b), (b, a)]);
        let mut parts = directions.map(|(from, to)| part(*from, *to));
        parts.any(|steps| runs_through(&steps, packet))
    }

    fn runs_through(steps: &[Step], packet: &[u8]) -> bool {
        let load = |at: u32, length: usize| {
            let bytes = packet.get(at as usize..at as usize + length)?;
            Some(
                bytes
                    .iter()
                    .fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte)),
            )
        };
        let (mut a, mut x) = (0, 0);
        for step in steps {
            let loaded = match *step {
                Step::Do(LDB, at) => load(at, 1),
                Step::Do(LDH, at) => load(at, 2),
                Step::Do(LDW, at) => load(at, 4),
                Step::Do(LDH_X, at) => load(at + x, 2),
                Step::Do(AND, bits) => Some(a & bits),
                Step::Do(LDX_MSH, at) => {
                    x = 4 * (load(at, 1).unwrap_or(0) & 0xf);
                    Some(a)
                }
                Step::Do(RET, ALL) => return true,
                Step::Do(code, _) => panic!("{code:#x}"),
                Step::Is(value) => (a == value).then_some(a),
                Step::Not(bits) => (a & bits == 0).then_some(a),
            };
            let Some(loaded) = loaded else { return false };
            a = loaded;
        }
        false
    }

    /// Returns the headers of a segment; IPv4 with four bytes of options (RFC 791, RFC 8200).
    fn packet(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let mut packet = vec![0; 20];
        match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (packet[0], packet[9]) = (0x46, 6);
                packet[12..16].copy_from_slice(&from.octets());
                packet[16..20].copy_from_slice(&to.octets());
                packet.extend([0; 4]);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                packet.resize(40, 0);
                (packet[0], packet[6]) = (0x60, 6);
                packet[8..24].copy_from_slice(&from.octets());
                packet[24..40].copy_from_slice(&to.octets());
            }
            _ => panic!("two families"),
        }
        packet.extend(from.port().to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend([0; 16]);
        packet
    }

    #[test]
    fn only_segments_of_the_connection_are_let_through_both_ways() {
        for [a, b, other] in [
            ["10.0.0.1:4000", "198.51.100.1:80", "10.0.0.2:4000"],
            [
                "[2001:db8::1]:4000",
                "[2001:db8:1::1]:80",
                "[2001:db8::2]:4000",
            ],
        ] {
            let [a, b, other] = [a, b, other].map(|text| text.parse::<SocketAddr>().unwrap());
            let ends = [Endpoints(a, b)];
            assert!(lets_through(&ends, &packet(a, b)));
            assert!(lets_through(&ends, &packet(b, a)));
            let with_port = |mut address: SocketAddr| {
                address.set_port(81);
                address
            };
            for (from, to) in [
                (other, b),
                (b, other),
                (with_port(a), b),
                (a, with_port(b)),
                (a, a),
            ] {
                assert!(!lets_through(&ends, &packet(from, to)), "{from} {to}");
                assert!(lets_through(
                    &[ends[0], Endpoints(to, from)],
                    &packet(from, to)
                ));
            }
            let whole = packet(a, b);
            assert!(!lets_through(&ends, &whole[..whole.len() - 18]));
            let mut udp = whole.clone();
            udp[if a.is_ipv4() { 9 } else { 6 }] = 17;
            assert!(!lets_through(&ends, &udp));
            if a.is_ipv4() {
                let mut fragment = whole.clone();
                fragment[7] = 1;
                assert!(!lets_through(&ends, &fragment));
            }
        }
    }
}
