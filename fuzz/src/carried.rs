//! Datagrams in a TCP stream, cut anywhere, before and after the sender is authenticated.

use arbitrary::Arbitrary;
use tunnel::wire::{Carried, append_carried};

/// A stream: the received pieces, and the piece after which the sender is authenticated.
#[derive(Arbitrary, Debug)]
pub struct Case {
    bytes: Vec<u8>,
    /// Lengths of datagrams, inserted with correct headers in front of `bytes`.
    honest: Vec<u16>,
    pieces: Vec<u8>,
    proven: Option<u8>,
}

/// The minimum and maximum length of a datagram.
const LENGTHS: std::ops::RangeInclusive<usize> = 21..=9216;

/// Checks that nothing panics, that the output matches a simple parse of the whole stream, and that
/// memory stays small.
pub fn run(case: &Case) {
    let mut stream = Vec::new();
    for length in case.honest.iter().take(8) {
        let length = usize::from(*length).clamp(21, 2000);
        append_carried(&vec![7; length], &mut stream);
    }
    stream.extend_from_slice(&case.bytes);
    assert_eq!(carried(case, &stream), plain(&stream));
}

/// Parses the stream simply; returns the datagrams and whether it is valid.
fn plain(mut stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut datagrams = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*header));
        if !LENGTHS.contains(&length) {
            return (datagrams, false);
        }
        let Some((datagram, rest)) = rest.split_at_checked(length) else {
            break;
        };
        datagrams.push(datagram.to_vec());
        stream = rest;
    }
    (datagrams, true)
}

fn carried(case: &Case, mut stream: &[u8]) -> (Vec<Vec<u8>>, bool) {
    let mut carried = Carried::default();
    let mut datagrams = Vec::new();
    let mut pieces = case.pieces.iter().cycle();
    let mut turn = 0;
    while !stream.is_empty() {
        if case.proven.is_some_and(|at| usize::from(at) == turn) {
            carried.prove();
        }
        turn += 1;
        let space = carried.space();
        let most = if case.proven.is_some() {
            16 << 10
        } else {
            9218
        };
        assert!(!space.is_empty() && space.len() <= most);
        let piece = pieces
            .next()
            .map_or(1000, |piece| usize::from(*piece) * 8 + 1);
        let count = piece.min(space.len()).min(stream.len());
        space[..count].copy_from_slice(&stream[..count]);
        carried.filled(count);
        stream = &stream[count..];
        loop {
            match carried.next() {
                Ok(Some(datagram)) => datagrams.push(datagram.to_vec()),
                Ok(None) => break,
                Err(_) => return (datagrams, false),
            }
        }
        if turn % 2 == 0 {
            carried.shrink();
        }
    }
    (datagrams, true)
}
