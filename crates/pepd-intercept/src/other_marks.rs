//! Marks that other programs have set on hosts' SYNs, by which policy rules choose their way.
//!
//! The chain `marks_again` keeps them, after all other programs' rules. A server leg of pepd then
//! has the same mark, so that it goes where the host's packets would have gone.

use std::net::IpAddr;

use pep_core::{config::Config, syn::FlowTuple};
use pepd_sys::marks::MarkSet;

use super::nft;

/// The mark of one SYN.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OtherMark {
    /// Bits of it that are not pepd's; 0 for none.
    pub mark: u32,
    /// True where the route by this mark leads by another interface than the link.
    pub is_off_link: bool,
}

/// Marks of hosts' SYNs of late, as the kernel keeps them.
#[derive(Debug, Clone)]
pub struct OtherMarks {
    table: String,
    marks: MarkSet,
}

impl OtherMarks {
    /// Marks in the table of this configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            table: config.intercept.table.to_string(),
            marks: MarkSet::new(config.intercept.marks),
        }
    }

    /// The mark of the SYN that opened this flow; none where the kernel does not say.
    pub fn for_flow(&self, flow: &FlowTuple) -> OtherMark {
        let hash = u64::from(jhash(&addresses(flow), nft::marks_seed()));
        // The kernel scales it so (`reciprocal_scale`).
        let key = ((hash * u64::from(nft::MARKS_MODULUS)) >> 32) as u32;
        match nft::element(&self.table, nft::MARKS_MAP, &key.to_ne_bytes()) {
            Ok(mark) => self.read(mark.unwrap_or(0)),
            Err(error) => {
                tracing::debug!(%error, "cannot ask by which mark a host's SYN was routed");
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

/// The four addresses as nft joins them: each field begins at a multiple of four bytes.
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

/// Bob Jenkins' lookup3 as the kernel has it (`linux/jhash.h`), of a key that is four bytes longer
/// than some multiple of twelve.
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
        // Six steps, after each of which the three change places.
        for shift in [4, 6, 8, 16, 19, 4] {
            a = a.wrapping_sub(c) ^ c.rotate_left(shift);
            c = c.wrapping_add(b);
            [a, b, c] = [b, c, a];
        }
    }
    a = a.wrapping_add(rest.first().copied().map_or(0, u32::from_le_bytes));
    // Seven steps, likewise.
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

    /// Of a program in C with the kernel's macros.
    #[test]
    fn hashes_are_the_kernels() {
        let key: Vec<u8> = (0..40).collect();
        assert_eq!(jhash(&key[..16], 0x7065_7064), 0xce21_3fc5);
        assert_eq!(jhash(&key, 0x7065_7064), 0x55b1_1cd2);
    }

    #[test]
    fn pepds_own_bits_say_whether_the_route_leads_elsewhere() {
        let marks = OtherMarks::new(&pep_core::config::parse(PLAIN).expect("valid"));
        let other_mark = |kept| {
            let found = marks.read(kept);
            (found.mark, found.is_off_link)
        };
        assert_eq!(other_mark(0), (0, false));
        assert_eq!(other_mark(0x0000_0100), (0x100, false));
        assert_eq!(other_mark(0x5200_0100), (0x100, true));
    }
}
