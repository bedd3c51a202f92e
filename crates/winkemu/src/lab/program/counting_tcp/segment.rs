//! TCP segments over IPv4, in the form that raw sockets send and receive.

use std::net::{Ipv4Addr, SocketAddrV4};

pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const ACK: u8 = 0x10;

const TCP: u8 = 6;
const HEADER: usize = 20;

/// Segment (RFC 9293, section 3.1) without addresses and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Segment {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Maximum segment size option.
    pub mss: Option<u16>,
    /// Window scale option (RFC 7323, section 2).
    pub scale: Option<u8>,
    /// Length of the data in bytes.
    pub len: usize,
}

impl Segment {
    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    /// Serialises the segment from the TCP header on, with `len` bytes of data; the kernel adds the
    /// IP header.
    pub fn emit(&self, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            options.extend([2, 4, high, low]);
        }
        if let Some(scale) = self.scale {
            options.extend([1, 3, 3, scale]);
        }
        let header = HEADER + options.len();
        let mut bytes = Vec::with_capacity(header + self.len);
        bytes.extend(from.port().to_be_bytes());
        bytes.extend(to.port().to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        bytes.extend([(header as u8 / 4) << 4, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(options);
        bytes.resize(header + self.len, 0x5a);
        let sum = checksum(*from.ip(), *to.ip(), &bytes);
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// Parses an IPv4 packet into source, destination and segment. Checksums are not verified:
    /// between namespaces of one machine the kernel omits them.
    pub fn parse(packet: &[u8]) -> Option<(SocketAddrV4, SocketAddrV4, Self)> {
        if packet.first()? >> 4 != 4 || *packet.get(9)? != TCP {
            return None;
        }
        let ip = |at: usize| {
            let bytes: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
            Some(Ipv4Addr::from(bytes))
        };
        let tcp = packet.get(usize::from(packet[0] & 0x0f) * 4..)?;
        let short = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let long = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let header = usize::from(*tcp.get(12)? >> 4) * 4;
        let (mss, scale) = options(tcp.get(HEADER..header)?);
        let segment = Self {
            seq: long(4)?,
            ack: long(8)?,
            flags: *tcp.get(13)?,
            window: short(14)?,
            mss,
            scale,
            len: tcp.len() - header,
        };
        let from = SocketAddrV4::new(ip(12)?, short(0)?);
        let to = SocketAddrV4::new(ip(16)?, short(2)?);
        Some((from, to, segment))
    }
}

fn options(mut bytes: &[u8]) -> (Option<u16>, Option<u8>) {
    let (mut mss, mut scale) = (None, None);
    loop {
        bytes = match bytes {
            [2, 4, high, low, rest @ ..] => {
                mss = Some(u16::from_be_bytes([*high, *low]));
                rest
            }
            [3, 3, shift, rest @ ..] => {
                // RFC 7323, section 2.3: values above 14 count as 14.
                scale = Some((*shift).min(14));
                rest
            }
            [1, rest @ ..] => rest,
            [kind, len, ..] if *kind != 0 && *len >= 2 => {
                bytes.get(usize::from(*len)..).unwrap_or_default()
            }
            _ => return (mss, scale),
        };
    }
}

/// Checksum of RFC 9293, section 3.1, including the pseudo-header.
fn checksum(from: Ipv4Addr, to: Ipv4Addr, segment: &[u8]) -> u16 {
    let len = u16::try_from(segment.len()).expect("a segment fits a packet");
    let pseudo = [
        &from.octets()[..],
        &to.octets(),
        &[0, TCP],
        &len.to_be_bytes(),
    ]
    .concat();
    let words = pseudo.chunks(2).chain(segment.chunks(2));
    let word = |pair: &[u8]| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    let mut sum: u64 = words.map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    #[test]
    fn what_was_emitted_is_parsed() {
        let (from, to) = (address("10.77.0.1:9001"), address("10.77.2.2:40000"));
        for segment in [
            Segment {
                seq: 0xfedc_ba98,
                flags: SYN,
                window: 0xffff,
                mss: Some(1448),
                scale: Some(7),
                ..Segment::default()
            },
            Segment {
                seq: 7,
                ack: 9,
                flags: ACK,
                len: 1447,
                ..Segment::default()
            },
        ] {
            let tcp = segment.emit(from, to);
            assert_eq!(
                checksum(*from.ip(), *to.ip(), &tcp),
                0,
                "checksum is not zero"
            );
            let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, TCP, 0, 0];
            packet.extend(from.ip().octets());
            packet.extend(to.ip().octets());
            packet.extend(tcp);
            assert_eq!(Segment::parse(&packet), Some((from, to, segment)));
            for cut in 0..40 {
                assert_eq!(Segment::parse(&packet[..cut]), None, "{cut}");
            }
        }
    }

    #[test]
    fn options_that_are_unknown_or_cut_short_end_nothing_else() {
        assert_eq!(options(&[4, 2, 1, 3, 3, 20, 0, 9]), (None, Some(14)));
        assert_eq!(options(&[8, 10, 1, 2]), (None, None));
        assert_eq!(options(&[8, 0, 2, 4, 5, 6]), (None, None));
    }
}
