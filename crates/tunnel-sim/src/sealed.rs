//! Stand-in for the encryption of a datagram: adds the same length, and detects damage.

use tunnel::wire::DATAGRAM_OVERHEAD;

use splitmix::mix;

/// Begins a datagram; the packet follows it. Returns the offset for [`seal`].
pub fn begin(out: &mut Vec<u8>) -> usize {
    out.resize(out.len() + DATAGRAM_OVERHEAD, 0);
    out.len() - DATAGRAM_OVERHEAD
}

/// Seals the datagram that begins there.
pub fn seal(out: &mut [u8], begin: usize, number: u64) {
    let (head, packet) = out[begin..].split_at_mut(DATAGRAM_OVERHEAD);
    head[..8].copy_from_slice(&number.to_be_bytes());
    head[8..16].copy_from_slice(&sum(number, packet).to_be_bytes());
}

/// Returns the number and the packet of a datagram, if it is not damaged.
pub fn open(datagram: &[u8]) -> Option<(u64, &[u8])> {
    let (head, packet) = datagram.split_at_checked(DATAGRAM_OVERHEAD)?;
    let number = u64::from_be_bytes(*head.first_chunk()?);
    let claimed = &head[8..16];
    (claimed == sum(number, packet).to_be_bytes()).then_some((number, packet))
}

fn sum(number: u64, packet: &[u8]) -> u64 {
    let (words, rest) = packet.as_chunks::<8>();
    let mut sum = mix(number ^ packet.len() as u64);
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
    }
    mix(sum)
}
