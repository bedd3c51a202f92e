//! Admission of a peer's packets to hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arbitrary::Arbitrary;
use pep_core::site::{Answers, Matcher, PortRange, is_martian, may_be_host};

use crate::shapes::{Ip, Shape};

/// The peer's packets.
#[derive(Arbitrary, Debug)]
pub struct Case {
    packets: Vec<Sent>,
}

#[derive(Arbitrary, Debug)]
enum Sent {
    Packet(Shape),
    /// An ICMP error about a packet, to its sender or to another address.
    Error {
        to: Option<Ip>,
        kind: u8,
        about: Shape,
    },
    /// A packet to a group that the site names, or to another.
    Group {
        shape: Shape,
        named: bool,
    },
}

/// Returns a matcher that accepts packets to ports 53 and 80, and to one group of each family.
fn matcher() -> Matcher {
    let nets = |texts: &[&str]| {
        let nets = texts.iter().map(|text| text.parse());
        nets.collect::<Result<_, _>>().expect("prefixes")
    };
    Matcher {
        src: nets(&["10.0.0.0/31", "2001:db8::10.0.0.0/127"]),
        dst: nets(&[
            "10.1.0.0/16",
            "2001:db8::10.1.0.0/112",
            "239.1.0.0/16",
            "ff1e::/64",
        ]),
        dport: vec![PortRange::single(53), PortRange::single(80)],
        ..Matcher::default()
    }
}

/// Checks that nothing panics, that a peer reaches only hosts and groups of the site, and that of
/// valid packets exactly the answers are admitted.
pub fn run(case: &Case) {
    let matcher = matcher();
    let answers = Answers::new(&matcher);
    for (number, sent) in (0..).zip(case.packets.iter().take(64)) {
        let packet = sent.bytes(number);
        let admitted = answers.admit(&packet);
        let of_group = answers.admit_group(&packet);
        let martian = is_martian(&packet);
        let Some((from, to)) = ends(&packet) else {
            assert!(!admitted && !of_group && martian);
            continue;
        };
        let is_host = matcher.src.iter().any(|net| net.contains(&to));
        assert!(!admitted || is_host, "{from} to {to}");
        assert!(!of_group || (to.is_multicast() && matcher.names_group(to)));
        if !martian {
            assert!(from != to && may_be_host(from), "{from} to {to}");
            assert!(may_be_host(to) || to.is_multicast(), "{from} to {to}");
        }
        if let Some(expected) = sent.is_answer() {
            assert_eq!((admitted, martian), (expected, false), "{sent:?}");
        }
    }
}

fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let end = |at| packet.get(at..).and_then(<[u8]>::first_chunk::<4>);
            Some((
                Ipv4Addr::from(*end(12)?).into(),
                Ipv4Addr::from(*end(16)?).into(),
            ))
        }
        6 => {
            let end = |at| packet.get(at..).and_then(<[u8]>::first_chunk::<16>);
            Some((
                Ipv6Addr::from(*end(8)?).into(),
                Ipv6Addr::from(*end(24)?).into(),
            ))
        }
        _ => None,
    }
}

impl Sent {
    fn bytes(&self, number: u16) -> Vec<u8> {
        match self {
            Self::Packet(shape) => shape.bytes(number),
            Self::Error { to, kind, about } => {
                let back = back_from(about);
                let ip = to.as_ref().unwrap_or(&back);
                let mut message = vec![kind % 13, 0, 0, 0, 0, 0, 0, 0];
                message.extend(about.bytes(number));
                ip.around(number, if ip.v6 { 58 } else { 1 }, message)
            }
            Self::Group { shape, named } => {
                let mut packet = shape.bytes(number);
                let group = if *named { 1 } else { 2 };
                match packet.first().map(|first| first >> 4) {
                    Some(4) if packet.len() >= 20 => {
                        packet[16..20].copy_from_slice(&[239, group, 2, 3]);
                    }
                    Some(6) if packet.len() >= 40 => {
                        packet[24..40].fill(0);
                        packet[24..26].copy_from_slice(&[0xff, 0x1d + group]);
                    }
                    _ => {}
                }
                packet
            }
        }
    }

    /// Returns whether the site admits the packet; `None` if it is damaged or too complex to tell.
    fn is_answer(&self) -> Option<bool> {
        match self {
            Self::Packet(shape) => {
                let (ip, is_tcp) = whole(shape)?;
                // Answers of UDP come from another port here.
                Some(is_tcp && ip.reversed && is_hosts(ip))
            }
            Self::Error { to, kind, about } => {
                let (of, _) = whole(about)?;
                let errors: &[u8] = if of.v6 { &[1, 2, 3, 4] } else { &[3, 11, 12] };
                let known = to.is_none() && errors.contains(&(kind % 13));
                known.then_some(!of.reversed && is_hosts(of))
            }
            Self::Group { .. } => None,
        }
    }
}

/// Returns the reverse path of a packet.
fn back_from(shape: &Shape) -> Ip {
    let of = whole(shape).map(|(ip, _)| ip);
    Ip {
        v6: of.is_some_and(|ip| ip.v6),
        host: of.map_or(0, |ip| ip.host),
        reversed: of.is_none_or(|ip| !ip.reversed),
        ecn: 0,
        id: 0,
        wrong: None,
    }
}

/// Returns the IP header of an undamaged TCP or UDP packet, and whether it is TCP.
fn whole(shape: &Shape) -> Option<(&Ip, bool)> {
    let (ip, is_tcp) = match shape {
        Shape::Tcp { ip, .. } => (ip, true),
        Shape::Udp { ip, .. } => (ip, false),
        Shape::Other { .. } | Shape::Raw(_) => return None,
    };
    ip.wrong.is_none().then_some((ip, is_tcp))
}

/// Returns whether the near end of a packet is a host of the site.
fn is_hosts(ip: &Ip) -> bool {
    ip.host % 4 < 2
}
