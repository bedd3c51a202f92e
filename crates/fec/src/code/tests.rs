use std::time::Duration;

use proptest::{prelude::*, sample::Index};

use super::*;
use crate::{
    block::{BlockDecoder, BlockEncoder, DecoderConfig, EncoderConfig},
    kernel::Kernel,
    scheme::{Decoder, Encoder},
};

/// A block of k data symbols and its first rows.
#[derive(Debug)]
struct Block {
    k: usize,
    symbols: Vec<Vec<u8>>,
}

impl Block {
    /// Encoded by reed-solomon-erasure itself, without this crate's code.
    fn new(k: usize, h: usize, length: usize, seed: u64) -> Self {
        let mut symbols: Vec<Vec<u8>> = (0..k).map(|i| bytes(seed + i as u64, length)).collect();
        symbols.resize(k + h, vec![0; length]);
        let code = reed_solomon_erasure::galois_8::ReedSolomon::new(k, h).unwrap();
        code.encode(&mut symbols).unwrap();
        Self { k, symbols }
    }

    fn data(&self) -> Vec<&[u8]> {
        self.symbols[..self.k].iter().map(Vec::as_slice).collect()
    }

    fn encoded(&self, code: &mut dyn ErasureCode, first_row: usize, rows: usize) -> Vec<Vec<u8>> {
        let mut output = vec![vec![0xa5; self.symbols[0].len()]; rows];
        code.encode(&self.data(), first_row, &mut slices(&mut output))
            .unwrap();
        output
    }

    fn received(&self, numbers: &[u8]) -> Vec<(u8, &[u8])> {
        let symbol = |number: &u8| self.symbols[usize::from(*number)].as_slice();
        numbers
            .iter()
            .map(|number| (*number, symbol(number)))
            .collect()
    }

    fn decoded(
        &self,
        code: &mut dyn ErasureCode,
        received: &[u8],
        lost: &[u8],
    ) -> Result<Vec<Vec<u8>>, CodeError> {
        let mut restored = vec![vec![0xa5; self.symbols[0].len()]; lost.len()];
        let received = self.received(received);
        code.decode(self.k, &received, lost, &mut slices(&mut restored))?;
        Ok(restored)
    }
}

fn slices(vectors: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    vectors.iter_mut().map(Vec::as_mut_slice).collect()
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut draw = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        (draw >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// All symbol numbers of a block in any order.
fn shuffled(symbols: usize, order: &[Index]) -> Vec<u8> {
    let mut numbers: Vec<u8> = (0..symbols).map(|number| number as u8).collect();
    for (i, index) in order.iter().enumerate().take(symbols) {
        numbers.swap(i, i + index.index(symbols - i));
    }
    numbers
}

fn every_back_end() -> Vec<(Backend, Box<dyn ErasureCode + Send>)> {
    let kernels = Kernel::available().map(Backend::Kernel);
    #[cfg(feature = "reference")]
    let kernels = kernels.chain([Backend::Reference]);
    kernels.map(|backend| (backend, backend.code())).collect()
}

/// Any length of a packet, short ones as often as long ones.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1..130_usize, 1..1500_usize, 1..=9000_usize]
}

#[test]
fn rows_are_those_of_reed_solomon_erasure_together_and_one_by_one() {
    let symbols = (1_usize..=32, length(), 0..u64::MAX / 2);
    for k in 1..=64 {
        proptest!(ProptestConfig::with_cases(6), |(
            (h, length, seed) in &symbols,
            split in any::<Index>(),
        )| {
            let block = Block::new(k, h, length, seed);
            for (backend, mut code) in every_back_end() {
                let rows = block.encoded(code.as_mut(), 0, h);
                prop_assert_eq!(&rows[..], &block.symbols[k..], "{}, k {}", backend, k);
                // Requested later, from a code that has cached them and from one that has not.
                let first = split.index(h);
                for code in [code.as_mut(), backend.code().as_mut()] {
                    let later = block.encoded(code, first, h - first);
                    prop_assert_eq!(&later[..], &block.symbols[k + first..], "{}, k {}", backend, k);
                    let single = block.encoded(code, first, 1);
                    prop_assert_eq!(&single[0], &block.symbols[k + first], "{}, k {}", backend, k);
                }
            }
        });
    }
}

#[test]
fn any_k_symbols_or_more_give_any_of_the_data_back() {
    let symbols = (1_usize..=32, length(), 0..u64::MAX / 2);
    let order = prop::collection::vec(any::<Index>(), 96);
    for k in 1..=64 {
        proptest!(ProptestConfig::with_cases(6), |(
            (h, length, seed) in &symbols,
            order in &order,
            (spare, asked) in any::<(Index, Index)>(),
        )| {
            let block = Block::new(k, h, length, seed);
            let numbers = shuffled(k + h, &order);
            let (received, gone) = numbers.split_at(k + spare.index(h + 1));
            let lost = gone.iter().copied().filter(|number| usize::from(*number) < k);
            let lost: Vec<u8> = lost.collect();
            let lost = &lost[..asked.index(lost.len() + 1)];
            for (backend, mut code) in every_back_end() {
                let restored = block.decoded(code.as_mut(), received, lost).unwrap();
                for (number, restored) in lost.iter().zip(&restored) {
                    let expected = &block.symbols[usize::from(*number)];
                    prop_assert_eq!(restored, expected, "{}, k {}", backend, k);
                }
            }
        });
    }
}

/// The largest possible blocks, with the maximum loss.
#[test]
fn blocks_that_use_up_the_field_are_right() {
    for (k, h) in [(1, 255), (128, 128), (200, 56), (255, 1)] {
        let block = Block::new(k, h, 33, 0);
        let lost: Vec<u8> = (0..k.min(h)).map(|number| number as u8).collect();
        let received: Vec<u8> = (lost.len()..k + h).map(|number| number as u8).collect();
        for (backend, mut code) in every_back_end() {
            assert_eq!(
                block.encoded(code.as_mut(), 0, h),
                block.symbols[k..],
                "{backend}"
            );
            let restored = block.decoded(code.as_mut(), &received, &lost).unwrap();
            assert_eq!(
                restored,
                block.symbols[..lost.len()],
                "{backend}, ({k},{h})"
            );
        }
    }
}

/// More patterns than are cached, some of which only differ in the wanted symbols, repeatedly.
#[test]
fn patterns_are_not_mistaken_for_each_other() {
    let block = Block::new(6, 4, 40, 1);
    let patterns: [(&[u8], &[u8]); 9] = [
        (&[2, 3, 4, 5, 6, 7], &[0, 1]),
        (&[2, 3, 4, 5, 6, 7], &[1, 0]),
        (&[2, 3, 4, 5, 6, 7], &[1]),
        (&[2, 3, 4, 5, 6, 7], &[0]),
        (&[7, 6, 5, 4, 3, 2], &[0, 1]),
        (&[2, 3, 4, 5, 6, 8], &[0, 1]),
        (&[2, 3, 4, 5, 6, 7, 8, 9], &[0, 1]),
        (&[0, 1, 6, 7, 8, 9], &[2, 3, 4, 5]),
        (&[1, 2, 3, 4, 5, 9], &[0]),
    ];
    for (backend, mut code) in every_back_end() {
        for (received, lost) in patterns
            .iter()
            .chain(&patterns)
            .chain(patterns.iter().rev())
        {
            let restored = block.decoded(code.as_mut(), received, lost).unwrap();
            for (number, restored) in lost.iter().zip(&restored) {
                let expected = &block.symbols[usize::from(*number)];
                assert_eq!(restored, expected, "{backend}, {lost:?} of {received:?}");
            }
        }
    }
}

/// All 495 patterns of 4 losses among 12, of which reed-solomon-erasure caches 254.
#[test]
fn more_patterns_than_any_cache_holds_are_decoded() {
    let block = Block::new(12, 4, 9, 3);
    let patterns: Vec<(Vec<u8>, Vec<u8>)> = (0_u16..1 << 12)
        .filter(|losses| losses.count_ones() == 4)
        .map(|losses| (0..12).partition(|number| losses >> number & 1 == 1))
        .map(|(lost, kept): (Vec<u8>, Vec<u8>)| ([kept, vec![12, 13, 14, 15]].concat(), lost))
        .collect();
    assert_eq!(patterns.len(), 495);
    for (backend, mut code) in every_back_end() {
        for (received, lost) in patterns.iter().chain(patterns.iter().rev()) {
            let restored = block.decoded(code.as_mut(), received, lost).unwrap();
            let expected = lost
                .iter()
                .map(|number| &block.symbols[usize::from(*number)]);
            assert!(restored.iter().eq(expected), "{backend}, {lost:?}");
        }
    }
}

/// Another k in between, so that the coefficients of one are not taken for those of another.
#[test]
fn blocks_of_different_sizes_take_turns() {
    let blocks = [(5, 3), (7, 2), (5, 1), (1, 3), (7, 6)].map(|(k, h)| Block::new(k, h, 70, 2));
    for (backend, mut code) in every_back_end() {
        for block in blocks.iter().chain(&blocks) {
            let h = block.symbols.len() - block.k;
            let rows = block.encoded(code.as_mut(), 0, h);
            assert_eq!(
                rows,
                block.symbols[block.k..],
                "{backend}, ({},{h})",
                block.k
            );
        }
    }
}

#[test]
fn what_makes_no_block_is_refused_and_nothing_is_written() {
    let (a, b, short): (&[u8], &[u8], &[u8]) = (&[1; 40], &[2; 40], &[3; 39]);
    let cases: [(&[&[u8]], usize, usize, CodeError); 5] = [
        (&[], 0, 1, CodeError::NoData),
        (&[a, b], 250, 5, CodeError::TooManySymbols(257)),
        (&[a], usize::MAX, 1, CodeError::TooManySymbols(usize::MAX)),
        (&[a, short], 0, 1, CodeError::Lengths),
        (&[short, short], 0, 1, CodeError::Lengths),
    ];
    for (backend, mut code) in every_back_end() {
        for (data, first_row, rows, error) in &cases {
            let mut output = vec![vec![0xa5; 40]; *rows];
            let result = code.encode(data, *first_row, &mut slices(&mut output));
            assert_eq!(result, Err(*error), "{backend}");
            assert!(
                output.iter().flatten().all(|byte| *byte == 0xa5),
                "{backend}"
            );
        }
    }
}

#[test]
fn what_cannot_be_decoded_is_refused_and_nothing_is_written() {
    let (a, b, short): (&[u8], &[u8], &[u8]) = (&[1; 40], &[2; 40], &[3; 39]);
    type Received<'a> = &'a [(u8, &'a [u8])];
    let cases: [(usize, Received<'_>, &[u8], usize, CodeError); 12] = [
        (0, &[(0, a)], &[], 0, CodeError::NoData),
        (257, &[(0, a)], &[], 0, CodeError::TooManySymbols(257)),
        (
            2,
            &[(0, a)],
            &[1],
            1,
            CodeError::TooFew { received: 1, k: 2 },
        ),
        (1, &[], &[], 0, CodeError::TooFew { received: 0, k: 1 }),
        (2, &[(0, a), (3, short)], &[1], 1, CodeError::Lengths),
        (2, &[(0, short), (3, short)], &[1], 1, CodeError::Lengths),
        (2, &[(2, a), (2, b)], &[1], 1, CodeError::Number(2)),
        (2, &[(0, a), (3, b), (0, a)], &[1], 1, CodeError::Number(0)),
        (2, &[(0, a), (3, b)], &[0], 1, CodeError::Number(0)),
        (2, &[(0, a), (3, b)], &[2], 1, CodeError::Number(2)),
        (2, &[(2, a), (3, b)], &[1, 1], 2, CodeError::Number(1)),
        (
            2,
            &[(2, a), (3, b)],
            &[1],
            2,
            CodeError::Places {
                lost: 1,
                restored: 2,
            },
        ),
    ];
    for (backend, mut code) in every_back_end() {
        for (k, received, lost, places, error) in &cases {
            let mut output = vec![vec![0xa5; 40]; *places];
            let result = code.decode(*k, received, lost, &mut slices(&mut output));
            assert_eq!(result, Err(*error), "{backend}, {error}");
            assert!(
                output.iter().flatten().all(|byte| *byte == 0xa5),
                "{backend}"
            );
        }
    }
}

#[test]
fn symbols_without_bytes_and_blocks_without_loss_are_no_trouble() {
    for (backend, mut code) in every_back_end() {
        let empty: &[u8] = &[];
        assert_eq!(
            code.encode(&[empty; 3], 0, &mut [&mut []]),
            Ok(()),
            "{backend}"
        );
        let received = [(1, empty), (3, empty), (2, empty)];
        assert_eq!(
            code.decode(3, &received, &[0], &mut [&mut []]),
            Ok(()),
            "{backend}"
        );
        assert_eq!(code.decode(3, &received, &[], &mut []), Ok(()), "{backend}");
        assert_eq!(
            code.encode(&[&[1; 40][..]; 3], 0, &mut []),
            Ok(()),
            "{backend}"
        );
        assert_eq!(
            code.encode(&[&[1; 40][..]; 256], 0, &mut []),
            Ok(()),
            "{backend}"
        );
    }
}

#[test]
fn one_code_serves_blocks_of_which_other_rows_have_come() {
    let block = Block::new(5, 40, 300, 7);
    for (backend, mut code) in every_back_end() {
        for (rows, first) in [(1, 0), (40, 38), (3, 1), (40, 0)] {
            let received: Vec<u8> = (2..5).chain(5 + first..).take(5).collect();
            let restored = block.decoded(code.as_mut(), &received, &[1, 0]).unwrap();
            assert_eq!(
                restored,
                [&block.symbols[1][..], &block.symbols[0]],
                "{backend}"
            );
            let encoded = block.encoded(code.as_mut(), 0, rows);
            assert_eq!(&encoded[..], &block.symbols[5..5 + rows], "{backend}");
        }
    }
}

#[test]
fn back_ends_are_found_by_name() {
    assert_eq!("auto".parse(), Ok(Backend::Kernel(Kernel::detect())));
    for (backend, _) in every_back_end() {
        assert_eq!(backend.to_string().parse(), Ok(backend));
    }
    let unknown = "isa-l".parse::<Backend>().unwrap_err();
    assert!(matches!(unknown, UnknownBackend::Kernel(_)), "{unknown:?}");
    #[cfg(not(feature = "reference"))]
    assert_eq!(
        "reed-solomon-erasure".parse::<Backend>(),
        Err(UnknownBackend::NotBuilt)
    );
}

#[test]
fn a_back_end_chosen_by_name_codes_packets() {
    for name in ["auto", "scalar", "reed-solomon-erasure"] {
        let code = || name.parse::<Backend>().unwrap().code();
        let config = EncoderConfig::default();
        let mut encoder = BlockEncoder::with_code(config, code()).unwrap();
        let mut decoder = BlockDecoder::with_code(&DecoderConfig::default(), code()).unwrap();
        encoder.handle_data(b"lost", Duration::ZERO).unwrap();
        encoder.handle_drained(Duration::ZERO);
        let (header, symbol) = encoder.poll_repair().unwrap();
        decoder.handle(header, symbol).unwrap();
        assert_eq!(decoder.poll_recovered().unwrap().1, b"lost");
    }
}
