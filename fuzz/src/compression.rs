//! Compressed streams, cut anywhere, and damaged ones.

use arbitrary::Arbitrary;
use tunnel::compression::{Codec, HEADER_MAX, PLAIN_MAX, Packer, Unpacker};

/// A host's writes, the segmentation of the stream, and damage to it.
#[derive(Arbitrary, Debug)]
pub struct Case {
    /// Data of each write, with a repeat count.
    writes: Vec<(Vec<u8>, u8)>,
    pieces: Vec<u16>,
    /// Damaged bytes of the stream: position and change.
    damage: Vec<(u16, u8)>,
    /// Bytes that follow the stream.
    rest: Vec<u8>,
}

/// Checks that nothing panics, that output per call is small, and that an intact stream is decoded
/// completely.
pub fn run(case: &Case) {
    let (plain, mut stream) = pack(case);
    for (at, mask) in &case.damage {
        if let Some(byte) = stream.get_mut(usize::from(*at)) {
            *byte ^= mask;
        }
    }
    stream.extend_from_slice(&case.rest);
    let found = unpack(case, &stream);
    if case.damage.is_empty() {
        assert!(found.starts_with(&plain));
        assert!(!case.rest.is_empty() || found.len() == plain.len());
    }
}

fn pack(case: &Case) -> (Vec<u8>, Vec<u8>) {
    let (mut codec, mut packer) = (Codec::new(), Packer::new());
    let (mut plain, mut stream) = (Vec::new(), Vec::new());
    for (bytes, times) in case.writes.iter().take(16) {
        for portion in bytes.repeat(usize::from(*times)).chunks(PLAIN_MAX).take(4) {
            let before = stream.len();
            packer.pack(&mut codec, portion, &mut stream);
            assert!(stream.len() - before <= portion.len() + HEADER_MAX);
            plain.extend_from_slice(portion);
        }
    }
    (plain, stream)
}

fn unpack(case: &Case, mut stream: &[u8]) -> Vec<u8> {
    let (mut codec, mut unpacker) = (Codec::new(), Unpacker::new());
    let (mut all, mut plain) = (Vec::new(), Vec::new());
    let mut pieces = case.pieces.iter().cycle();
    while !stream.is_empty() {
        let piece = pieces.next().map_or(1000, |piece| usize::from(*piece) + 1);
        let (mut bytes, others) = stream.split_at(piece.min(stream.len()));
        while !bytes.is_empty() {
            plain.clear();
            let taken = unpacker.unpack(&mut codec, bytes, &mut plain);
            assert!(plain.len() < 2 * PLAIN_MAX && unpacker.memory() <= 64 << 10);
            all.extend_from_slice(&plain);
            match taken {
                Ok(taken) => bytes = &bytes[taken..],
                Err(_) => return all,
            }
            assert!(taken != Ok(0));
        }
        stream = others;
    }
    all
}
