//! Packets of all kinds, intact and damaged.

use arbitrary::{Arbitrary, Unstructured};

#[derive(Arbitrary, Debug)]
pub(crate) enum Shape {
    Tcp {
        ip: Ip,
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        options: [u8; 12],
        words: u8,
        len: u16,
    },
    Udp {
        ip: Ip,
        checksum: u16,
        len: u16,
    },
    Other {
        ip: Ip,
        protocol: u8,
        bytes: Bytes,
    },
    Raw(Bytes),
}

/// Up to 127 bytes.
#[derive(Debug)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl<'a> Arbitrary<'a> for Bytes {
    fn arbitrary(u: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let len = usize::from(u8::arbitrary(u)? % 128).min(u.len());
        Ok(Self(u.bytes(len)?.to_vec()))
    }
}

#[derive(Arbitrary, Debug)]
pub(crate) struct Ip {
    pub(crate) v6: bool,
    pub(crate) host: u8,
    pub(crate) reversed: bool,
    pub(crate) ecn: u8,
    pub(crate) id: u16,
    /// A bit to flip.
    pub(crate) wrong: Option<u16>,
}

impl Shape {
    /// Builds the n-th packet of the flow.
    pub(crate) fn bytes(&self, n: u16) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.0.clone(),
            Self::Other {
                ip,
                protocol,
                bytes,
            } => ip.around(n, *protocol, bytes.0.clone()),
            Self::Udp { ip, checksum, len } => {
                let len = usize::from(len % 1400);
                let mut bytes = vec![0x13, 0x88, 0, 53];
                bytes.extend_from_slice(&((len + 8) as u16).to_be_bytes());
                bytes.extend_from_slice(&checksum.to_be_bytes());
                bytes.extend((0..len).map(|i| (i / 7) as u8));
                ip.around(n, 17, bytes)
            }
            Self::Tcp {
                ip,
                seq,
                ack,
                flags,
                window,
                options,
                words,
                len,
            } => {
                let options = &options[..usize::from(words % 4) * 4];
                let ports = if ip.reversed {
                    [0, 80, 0x13, 0x88]
                } else {
                    [0x13, 0x88, 0, 80]
                };
                // Numbers close to each other, and arbitrary ones.
                let near = |n: u32| if n.is_multiple_of(4) { n } else { n % 20_000 };
                let mut bytes = ports.to_vec();
                bytes.extend_from_slice(
                    &near(*seq)
                        .wrapping_add(u32::from(n) * u32::from(len % 1400))
                        .to_be_bytes(),
                );
                bytes.extend_from_slice(&near(*ack).to_be_bytes());
                bytes.push(((20 + options.len()) as u8 / 4) << 4);
                bytes.push(*flags);
                bytes.extend_from_slice(&window.to_be_bytes());
                bytes.extend_from_slice(&[0; 4]);
                bytes.extend_from_slice(options);
                bytes.extend((0..len % 1400).map(|i| (i % 251) as u8));
                ip.around(n, 6, bytes)
            }
        }
    }
}

impl Ip {
    /// Builds a packet with the given payload. Checksums of TCP are right.
    pub(crate) fn around(&self, n: u16, protocol: u8, behind: Vec<u8>) -> Vec<u8> {
        let (ecn, id) = (self.ecn ^ n as u8, self.id.wrapping_add(n));
        let host = self.host % 4;
        let (near, far) = ([10, 0, 0, host], [10, 1, 0, 1]);
        let (from, to) = if self.reversed {
            (far, near)
        } else {
            (near, far)
        };
        let len = behind.len().min(4000);
        let mut packet = if self.v6 {
            let mut header = vec![
                0x60,
                ecn << 4,
                0,
                0,
                (len >> 8) as u8,
                len as u8,
                protocol,
                64,
            ];
            for host in [from, to] {
                header.extend_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
                header.extend_from_slice(&host);
            }
            header
        } else {
            let total = 20 + len;
            let mut header = vec![0x45, ecn & 3, (total >> 8) as u8, total as u8];
            header.extend_from_slice(&id.to_be_bytes());
            header.extend_from_slice(&[0x40, 0, 64, protocol, 0, 0]);
            header.extend_from_slice(&from);
            header.extend_from_slice(&to);
            let sum = boosters::checksum::fold(boosters::checksum::sum(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            header
        };
        packet.extend_from_slice(&behind[..len]);
        boosters::tcp::seal(&mut packet);
        if let Some(bit) = self.wrong.filter(|bit| bit % 3 != n % 3) {
            let at = usize::from(bit / 8) % packet.len();
            packet[at] ^= 1 << (bit % 8);
        }
        packet
    }
}
