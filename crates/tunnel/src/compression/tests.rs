use proptest::prelude::*;
use splitmix::SplitMix64;
use zstd_safe::CCtx;

use super::*;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut numbers = SplitMix64::new(seed);
    let words = std::iter::repeat_with(|| numbers.next_u64());
    words.flat_map(u64::to_le_bytes).take(len).collect()
}

/// Returns lines that differ by numbers.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let numbers = noise(seed, len / 8 + 64);
    let lines = numbers.chunks(4).enumerate().flat_map(|(at, n)| {
        format!(
            "{{\"at\": {at}, \"of\": \"sensor\", \"value\": {}}}\n",
            n[0]
        )
        .into_bytes()
    });
    lines.take(len).collect()
}

/// Packs in portions of these sizes, in turn; returns the number of stored ones, too.
fn pack(plain: &[u8], portions: &[usize]) -> (Vec<u8>, usize) {
    let (mut codec, mut packer) = (Codec::new(), Packer::new());
    let (mut out, mut stored) = (Vec::new(), 0);
    let mut rest = plain;
    for portion in portions.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (next, others) = rest.split_at((*portion).clamp(1, PLAIN_MAX).min(rest.len()));
        let before = out.len();
        stored += usize::from(packer.pack(&mut codec, next, &mut out) == Packed::Stored);
        assert!(out.len() - before <= next.len() + HEADER_MAX);
        rest = others;
    }
    (out, stored)
}

/// Unpacks a stream that arrives in pieces of these sizes; returns the bytes, and whether it ends
/// well.
fn unpack(stream: &[u8], pieces: &[usize]) -> (Vec<u8>, Result<bool, UnpackError>) {
    let (mut codec, mut unpacker) = (Codec::new(), Unpacker::new());
    let (mut all, mut plain) = (Vec::new(), Vec::new());
    let mut pieces = pieces.iter().cycle();
    let (mut at, mut until) = (0, 0);
    while at < stream.len() {
        if at == until {
            until = stream
                .len()
                .min(at + pieces.next().map_or(1, |size| (*size).max(1)));
        }
        plain.clear();
        let taken = unpacker.unpack(&mut codec, &stream[at..until], &mut plain);
        assert!(plain.len() < 2 * PLAIN_MAX);
        assert!(unpacker.memory() <= 64 << 10);
        all.extend_from_slice(&plain);
        match taken {
            Ok(0) => panic!("no progress on {} bytes", until - at),
            Ok(taken) => at += taken,
            Err(err) => return (all, Err(err)),
        }
    }
    (all, Ok(unpacker.is_between()))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let portion =
        (any::<u64>(), 0..3_u8, 1..40_000_usize).prop_map(|(seed, kind, len)| match kind {
            0 => noise(seed, len),
            1 => text(seed, len),
            _ => vec![7; len],
        });
    prop::collection::vec(portion, 0..5).prop_map(|portions| portions.concat())
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(
        prop_oneof![1..100_usize, 1..3000_usize, 1..40_000_usize],
        1..6,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_packed_comes_out_however_it_is_cut(
        plain in bytes(), portions in sizes(), pieces in sizes(),
    ) {
        let portions: Vec<_> = portions.iter().map(|size| size + 60).collect();
        let (stream, _) = pack(&plain, &portions);
        let (back, end) = unpack(&stream, &pieces);
        prop_assert_eq!(end, Ok(true));
        prop_assert!(back == plain);
    }

    #[test]
    fn what_is_cut_short_is_known_to_be_or_refused(
        plain in bytes(), portions in sizes(), cut in any::<prop::sample::Index>(),
    ) {
        let portions: Vec<_> = portions.iter().map(|size| size + 60).collect();
        let (stream, _) = pack(&plain, &portions);
        prop_assume!(!stream.is_empty());
        let (back, _) = unpack(&stream[..cut.index(stream.len())], &[5000]);
        prop_assert!(plain.starts_with(&back));
    }

    /// The output is arbitrary, but short at a time, and nothing panics.
    #[test]
    fn what_is_damaged_does_no_harm(
        plain in bytes(), portions in sizes(), pieces in sizes(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..5),
    ) {
        let portions: Vec<_> = portions.iter().map(|size| size + 60).collect();
        let (mut stream, _) = pack(&plain, &portions);
        prop_assume!(!stream.is_empty());
        for (at, mask) in flips {
            let at = at.index(stream.len());
            stream[at] ^= mask;
        }
        let _ = unpack(&stream, &pieces);
    }

    #[test]
    fn any_bytes_do_no_harm(stream in prop::collection::vec(any::<u8>(), 0..3000), pieces in sizes()) {
        let _ = unpack(&stream, &pieces);
    }
}

#[test]
fn noise_costs_less_than_a_thousandth_and_is_mostly_not_tried() {
    let plain = noise(1, 8 << 20);
    let (stream, stored) = pack(&plain, &[PLAIN_MAX]);
    assert_eq!(stored, plain.len() / PLAIN_MAX);
    assert!(stream.len() - plain.len() <= plain.len() / 1000);
    let mut skip = skip::Skip::new();
    let tried = (0..stored).filter(|_| {
        let tries = skip.tries(PLAIN_MAX);
        if tries {
            skip.on_tried(PLAIN_MAX, false);
        }
        tries
    });
    let tried = tried.count();
    assert!((4..=stored / 16).contains(&tried), "{tried} of {stored}");
}

#[test]
fn what_shrinks_after_noise_is_found() {
    let plain = [noise(1, 1 << 20), text(2, 4 << 20)].concat();
    let (stream, _) = pack(&plain, &[PLAIN_MAX]);
    assert!(stream.len() < (2 << 20) + (1 << 19), "{}", stream.len());
}

#[test]
fn short_messages_profit_from_earlier_ones() {
    let (mut codec, mut packer) = (Codec::new(), Packer::new());
    let plain = text(3, 100_000);
    let lines = plain.split_inclusive(|byte| *byte == b'\n').take(200);
    let sizes: Vec<_> = lines
        .map(|line| {
            let mut out = Vec::new();
            packer.pack(&mut codec, line, &mut out);
            (line.len(), out.len())
        })
        .collect();
    assert!(sizes[0].1 > sizes[0].0 / 2, "{:?}", sizes[0]);
    let (plain, packed) = sizes[100..]
        .iter()
        .fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    assert!(5 * packed < 3 * plain, "{packed} of {plain}");
}

#[test]
fn text_shrinks_to_less_than_a_third() {
    let plain = text(4, 1 << 20);
    for portion in [PLAIN_MAX, 4000] {
        let (stream, stored) = pack(&plain, &[portion]);
        assert_eq!(stored, 0);
        assert!(
            3 * stream.len() < plain.len(),
            "{portion}: {}",
            stream.len()
        );
    }
}

/// zstd would take a dictionary that begins like this for a formatted one.
#[test]
fn a_history_that_looks_like_a_dictionary_is_none() {
    let plain = [&[0x37, 0xA4, 0x30, 0xEC], &text(5, 90_000)[..]].concat();
    for portion in [20, 5000, PLAIN_MAX] {
        let (stream, _) = pack(&plain, &[portion]);
        assert_eq!(unpack(&stream, &[1000]), (plain.clone(), Ok(true)));
    }
}

/// Returns a compression block of zstd frames, without the four bytes that every frame begins with.
fn framed(frames: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    for plain in frames {
        let mut next = vec![0; zstd_safe::compress_bound(plain.len())];
        let len = CCtx::create().compress(&mut next[..], plain, 1).unwrap();
        frame.extend_from_slice(&next[..len]);
    }
    compression(2 * (frame.len() as u64 - 4) + 1, &frame[4..])
}

fn compression(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    crate::wire::varint::emit(number, &mut out);
    out.extend_from_slice(bytes);
    out
}

#[test]
fn invalid_blocks_are_refused() {
    let good = framed(&[&[7; PLAIN_MAX]]);
    assert_eq!(unpack(&good, &[9]), (vec![7; PLAIN_MAX], Ok(true)));
    let frame = Err(UnpackError::Frame);
    let cases = [
        ("a bomb", framed(&[&vec![0; 32 << 20]]), frame),
        ("one byte too many", framed(&[&[7; PLAIN_MAX + 1]]), frame),
        ("nothing", framed(&[&[]]), frame),
        ("two frames", framed(&[b"one", b"two"]), frame),
        ("no frame", compression(2 * 8 + 1, &[0; 8]), frame),
        ("no bytes", compression(0, &[]), Err(UnpackError::Length)),
        (
            "no packed bytes",
            compression(1, &[]),
            Err(UnpackError::Length),
        ),
        (
            "too many bytes",
            compression(2 * (PLAIN_MAX as u64 + 1), &[]),
            Err(UnpackError::Length),
        ),
        (
            "a long length",
            compression(1 << 31, &[]),
            Err(UnpackError::Length),
        ),
    ];
    for (name, stream, expected) in cases {
        for piece in [1, 100_000] {
            let (plain, end) = unpack(&stream, &[piece]);
            assert_eq!((plain.len(), end), (0, expected), "{name}");
        }
    }
}

/// As in docs/protocol.md.
#[test]
fn the_example_of_the_protocol_is_what_it_says() {
    let (mut codec, mut packer) = (Codec::new(), Packer::new());
    let mut stored = Vec::new();
    packer.pack(&mut codec, b"GET /\n", &mut stored);
    assert_eq!(stored, b"\x0cGET /\n");
    let packed = b"\x39\x20\x31\xbd\0\0\x880123456789abcdef\n\x01\0\x06\x9f\x4b";
    let (plain, end) = unpack(&[&stored, &packed[..]].concat(), &[3]);
    let expected = format!("GET /\n{}\n", "0123456789abcdef".repeat(3));
    assert_eq!((plain, end), (expected.into_bytes(), Ok(true)));
}
