//! Marks that other programs set on SYNs of hosts, and that policy rules use for routing.
//!
//! The chain `marks_again` keeps them, after the rules of all other programs. The server leg then
//! gets the same mark, so that its route equals that of the host's packets. By which interface a
//! route of several next hops leads, the leg's own SYN tells.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::BorrowedFd,
};

use pep_core::{config::Config, syn::FlowTuple};
use pepd_sys::{
    leg::Family,
    marks::{MarkSet, OtherMark},
};
use socket2::SockRef;

use super::{
    hops::SeveralHops,
    nft::{self, Names as _},
};

/// Marks of recent SYNs of hosts, as kept by the kernel.
#[derive(Debug, Clone)]
pub struct OtherMarks {
    table: String,
    marks: MarkSet,
    several_hops: SeveralHops,
}

impl OtherMarks {
    /// Returns the marks in the table of this configuration.
    pub fn new(config: &Config, several_hops: SeveralHops) -> Self {
        Self {
            table: config.intercept.table.to_string(),
            marks: MarkSet::new(config.intercept.marks),
            several_hops,
        }
    }

    /// Returns whether only its SYN tells if a server leg crosses the link.
    pub fn have_several_hops(&self) -> bool {
        self.several_hops.exist()
    }

    /// Returns true if a leg that has just begun to connect leaves by another interface than the
    /// link; false if the kernel does not answer.
    pub fn is_off_link(&self, leg: BorrowedFd<'_>, destination: SocketAddr) -> bool {
        self.have_several_hops()
            && self.has_left_so(leg, destination).unwrap_or_else(|error| {
                tracing::debug!(%error, "interface of a server leg unknown: the query to the kernel failed");
                false
            })
    }

    fn has_left_so(&self, leg: BorrowedFd<'_>, destination: SocketAddr) -> io::Result<bool> {
        let own = SockRef::from(&leg).local_addr()?.as_socket();
        let client = own.ok_or(io::ErrorKind::InvalidData)?;
        let set = Family::from_address(&destination).set(nft::Set::OffLink);
        let leg = FlowTuple {
            client,
            destination,
        };
        nft::contains(&self.table, &set, &addresses(&leg))
    }

    /// Returns the mark of the SYN that opened this flow; none if the kernel does not answer.
    pub fn for_flow(&self, flow: &FlowTuple) -> OtherMark {
        let hash = u64::from(jhash(&addresses(flow), nft::marks_seed()));
        // Scaled as in the kernel (`reciprocal_scale`).
        let key = ((hash * u64::from(nft::MARKS_MODULUS)) >> 32) as u32;
        match nft::element(&self.table, nft::MARKS_MAP, &key.to_ne_bytes()) {
            Ok(mark) => self.read(mark.unwrap_or(0)),
            Err(error) => {
                tracing::debug!(%error, "mark of a host's SYN unknown: the query to the kernel failed");
                OtherMark::default()
            }
        }
    }

    fn read(&self, kept: u32) -> OtherMark {
        let mask = self.marks.mask();
        OtherMark {
            mark: kept & !mask,
            is_off_link: kept & mask == self.marks.passed(),
        }
    }
}

/// Returns the four addresses as nft concatenates them: each field starts at a multiple of four
/// bytes.
fn addresses(flow: &FlowTuple) -> Vec<u8> {
    let mut bytes = Vec::new();
    for end in [flow.client, flow.destination] {
        match end.ip() {
            IpAddr::V4(address) => bytes.extend(address.octets()),
            IpAddr::V6(address) => bytes.extend(address.octets()),
        }
        bytes.extend(end.port().to_be_bytes());
        bytes.extend([0; 2]);
    }
    bytes
}

/// Bob Jenkins' lookup3 as in the kernel (`linux/jhash.h`), for a key that is four bytes longer
/// than a multiple of twelve.
fn jhash(key: &[u8], seed: u32) -> u32 {
    let [mut a, mut b, mut c] = [0xdead_beef_u32
        .wrapping_add(key.len() as u32)
        .wrapping_add(seed); 3];
    let (words, _) = key.as_chunks::<4>();
    let (blocks, rest) = words.as_chunks::<3>();
    for &[first, second, third] in blocks {
        a = a.wrapping_add(u32::from_ne_bytes(first));
        b = b.wrapping_add(u32::from_ne_bytes(second));
        c = c.wrapping_add(u32::from_ne_bytes(third));
        // Six steps; the three variables rotate after each.
        for shift in [4, 6, 8, 16, 19, 4] {
            a = a.wrapping_sub(c) ^ c.rotate_left(shift);
            c = c.wrapping_add(b);
            [a, b, c] = [b, c, a];
        }
    }
    a = a.wrapping_add(rest.first().copied().map_or(0, u32::from_le_bytes));
    // Seven steps, in the same way.
    for shift in [14, 11, 25, 16, 4, 14, 24] {
        c = (c ^ b).wrapping_sub(b.rotate_left(shift));
        [a, b, c] = [b, c, a];
    }
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "[intercept]\nlan = [\"lan0\"]\n";

    #[test]
    fn addresses_have_their_fields_at_multiples_of_four_bytes() {
        let flow = |client: &str, destination: &str| FlowTuple {
            client: client.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
        };
        let found = addresses(&flow("10.0.0.1:256", "192.0.2.9:80"));
        assert_eq!(found, [10, 0, 0, 1, 1, 0, 0, 0, 192, 0, 2, 9, 0, 80, 0, 0]);
        assert_eq!(addresses(&flow("[fd00::1]:1", "[fd00::2]:2")).len(), 40);
    }

    /// Values from a C program with the kernel's macros.
    #[test]
    fn hashes_are_the_kernels() {
        let key: Vec<u8> = (0..40).collect();
        assert_eq!(jhash(&key[..16], 0x7065_7064), 0xce21_3fc5);
        assert_eq!(jhash(&key, 0x7065_7064), 0x55b1_1cd2);
    }

    #[test]
    fn pepds_own_bits_say_whether_the_route_leads_elsewhere() {
        let config = pep_core::config::parse(PLAIN).expect("valid");
        let marks = OtherMarks::new(&config, SeveralHops::default());
        let other_mark = |kept| {
            let found = marks.read(kept);
            (found.mark, found.is_off_link)
        };
        assert_eq!(other_mark(0), (0, false));
        assert_eq!(other_mark(0x0000_0100), (0x100, false));
        assert_eq!(other_mark(0x5200_0100), (0x100, true));
    }
}
