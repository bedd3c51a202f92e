//! Packets that no encoder sends, and streams that jump.

use super::*;
use crate::code::{ErasureCode, ReedSolomon};

fn data(block: u32, index: u8) -> Header {
    Header::BlockData { block, index }
}

fn repair(block: u32, row: u8, k: u8) -> Header {
    Header::BlockRepair {
        block,
        row,
        k,
        h: 6,
    }
}

fn contradicts(field: &'static str, value: u32) -> Result<Arrival, Refused> {
    Err(Refused::Contradiction { field, value })
}

#[test]
fn what_is_out_of_range_is_refused() {
    let mut decoder = decoder();
    let too_many = |field, value, max| Err(Refused::TooMany { field, value, max });
    assert_eq!(
        decoder.handle(data(0, 255), b""),
        too_many("index", 255, 254)
    );
    assert_eq!(
        decoder.handle(repair(0, 56, 200), b"xx"),
        too_many("row", 56, 55)
    );
    assert_eq!(decoder.handle(repair(0, 0, 0), b"xx"), contradicts("k", 0));
    assert_eq!(
        decoder.handle(data(0, 0), &[0; 101]),
        Err(Refused::Length(101))
    );
    assert_eq!(
        decoder.handle(repair(0, 0, 1), &[0; 103]),
        Err(Refused::Length(103))
    );
    assert_eq!(
        decoder.handle(repair(0, 0, 1), &[0]),
        Err(Refused::Length(1))
    );
    assert_eq!(
        decoder.handle(Header::WindowData { id: 0 }, b""),
        Err(Refused::Scheme)
    );
    let stats = decoder.stats();
    assert_eq!((stats.refused_too_many, stats.refused_length), (2, 3));
    assert_eq!((stats.refused_contradiction, stats.refused_scheme), (1, 1));
    assert_eq!((stats.refused(), stats.data, stats.repairs), (7, 0, 0));
    assert_eq!(
        (decoder.blocks(), decoder.packets()),
        (0, 0),
        "nothing is kept of them"
    );
}

#[test]
fn what_contradicts_earlier_packets_of_the_block_is_refused() {
    let mut decoder = decoder();
    // Repair packets must agree with a data packet ...
    decoder.handle(data(0, 9), &[1; 50]).unwrap();
    assert_eq!(
        decoder.handle(repair(0, 0, 9), &[0; 60]),
        contradicts("k", 9)
    );
    assert_eq!(
        decoder.handle(repair(0, 0, 10), &[0; 51]),
        contradicts("length", 51)
    );
    assert_eq!(
        decoder.handle(repair(0, 0, 10), &[0; 52]),
        Ok(Arrival::Repair)
    );
    // ... and all packets with a repair packet.
    assert_eq!(decoder.handle(data(0, 10), &[]), contradicts("index", 10));
    assert_eq!(
        decoder.handle(data(0, 0), &[0; 51]),
        contradicts("length", 51)
    );
    assert_eq!(
        decoder.handle(repair(0, 1, 11), &[0; 52]),
        contradicts("k", 11)
    );
    assert_eq!(
        decoder.handle(repair(0, 1, 10), &[0; 53]),
        contradicts("length", 53)
    );
    assert_eq!(
        decoder.handle(repair(0, 1, 10), &[0; 52]),
        Ok(Arrival::Repair)
    );
    assert_eq!(decoder.handle(data(0, 0), &[0; 50]), Ok(Arrival::Data));
    assert_eq!(decoder.stats().refused_contradiction, 6);
    assert_eq!((decoder.blocks(), decoder.packets()), (1, 4));
}

#[test]
fn what_contradicts_a_finished_block_is_refused() {
    let mut decoder = decoder();
    decoder.handle(data(0, 0), b"x").unwrap();
    decoder.handle(repair(0, 0, 1), b"\0\x01x").unwrap();
    assert_eq!(decoder.blocks(), 0);
    assert_eq!(decoder.handle(data(0, 1), b"y"), contradicts("index", 1));
    assert_eq!(
        decoder.handle(repair(0, 0, 2), b"\0\x01x"),
        contradicts("k", 2)
    );
    assert_eq!(decoder.handle(data(0, 0), b"x"), Ok(Arrival::Duplicate));
}

#[test]
fn a_row_that_comes_again_does_not_count() {
    let mut encoder = BlockEncoder::new(encoder(3, 2)).unwrap();
    let mut decoder = decoder();
    let (data, repair) = block(&mut encoder, 3, &mut Draw::new(0));
    for packet in [&data[0], &repair[0], &repair[0], &repair[0]] {
        take(&mut decoder, packet).unwrap();
        assert_eq!(recovered(&mut decoder), []);
    }
    assert_eq!(decoder.stats().repairs_spare, 2);
    take(&mut decoder, &repair[1]).unwrap();
    assert_eq!(recovered(&mut decoder), data[1..]);
}

#[test]
fn packets_that_give_nonsense_are_recognised_where_that_is_possible() {
    // Row 0 of a block of two whose second symbol has a length beyond its end, or nonzero bytes
    // after the packet.
    for nonsense in [[0xff, 0xff, 0, 0], [0, 1, 1, 9]] {
        let mut forged = [0; 4];
        let symbols = [&b"\0\x02ab"[..], &nonsense];
        ReedSolomon::new()
            .encode(&symbols, 0, &mut [&mut forged])
            .unwrap();
        let mut decoder = decoder();
        decoder.handle(data(0, 0), b"ab").unwrap();
        decoder.handle(repair(0, 0, 2), &forged).unwrap();
        assert_eq!(recovered(&mut decoder), []);
        assert_eq!(
            (decoder.stats().corrupt_blocks, decoder.stats().recovered),
            (1, 0)
        );
        assert_eq!(decoder.blocks(), 0, "the block has ended");
        assert_eq!(
            decoder.handle(data(0, 1), b"cd"),
            Ok(Arrival::Data),
            "it may come yet"
        );
    }
}

#[test]
fn what_is_not_fetched_is_lost_with_the_next_packet_and_counted() {
    let mut encoder = BlockEncoder::new(encoder(3, 3)).unwrap();
    let mut decoder = decoder();
    let (sent, repair) = block(&mut encoder, 3, &mut Draw::new(0));
    for packet in &repair {
        take(&mut decoder, packet).unwrap();
    }
    assert_eq!(decoder.poll_recovered().unwrap().1, sent[0].payload);
    decoder.handle(data(1, 0), b"x").unwrap();
    assert_eq!(recovered(&mut decoder), []);
    assert_eq!(
        (decoder.stats().recovered, decoder.stats().recovered_dropped),
        (3, 2)
    );
}

/// Sends `blocks` blocks, each with a loss that its repair packets correct, and returns the number
/// of packets passed on.
fn honest(encoder: &mut BlockEncoder, decoder: &mut BlockDecoder, blocks: usize) -> usize {
    let mut passed_on = 0;
    for _ in 0..blocks {
        let (data, repair) = block(encoder, 10, &mut Draw::new(0));
        for packet in data[1..].iter().chain(&repair) {
            let arrival = take(decoder, packet).unwrap();
            passed_on += usize::from(matches!(arrival, Arrival::Data | Arrival::Late));
            passed_on += recovered(decoder).len();
        }
    }
    passed_on
}

#[test]
fn a_stray_number_costs_nothing() {
    let mut encoder = BlockEncoder::new(encoder(10, 2)).unwrap();
    let mut decoder = decoder();
    honest(&mut encoder, &mut decoder, 1);
    for i in 1..200u32 {
        let (data, repairs) = block(&mut encoder, 10, &mut Draw::new(7));
        for packet in data.iter().skip(2).chain(&repairs) {
            // Several in a row, anywhere, at the same place, near and far.
            for j in 0..7 {
                let block = [i.wrapping_mul(77_777_777) + j, 1 << 30, i + 500][j as usize % 3];
                let header = if j % 2 == 0 {
                    self::data(block, 3)
                } else {
                    repair(block, 3, 9)
                };
                // Packets at the same place contradict each other.
                let _ = decoder.handle(header, &[3; 70]);
                assert_eq!(recovered(&mut decoder), []);
            }
            take(&mut decoder, packet).unwrap();
        }
        assert_eq!(recovered(&mut decoder), data[..2], "block {i}");
    }
    assert_eq!(decoder.stats().resyncs, 0);
}

#[test]
fn a_stream_that_jumps_is_followed_after_a_few_packets() {
    let behind = |by: u32| (by.wrapping_neg(), 7);
    for (jump, late) in [
        (513, 2),
        (1 << 20, 2),
        behind(1 << 31),
        behind(1 << 20),
        behind(513),
    ] {
        let mut decoder = decoder();
        let mut before = BlockEncoder::new(encoder(10, 2)).unwrap();
        assert_eq!(honest(&mut before, &mut decoder, 5), 50);
        let first_block = 4u32.wrapping_add(jump);
        let config = EncoderConfig {
            first_block,
            ..encoder(10, 2)
        };
        let mut after = BlockEncoder::new(config).unwrap();
        // Nine data packets of the first block arrive. The late ones are not stored: the lost one
        // cannot be restored.
        assert_eq!(honest(&mut after, &mut decoder, 1), 9, "jump {jump}");
        assert_eq!((decoder.stats().late, decoder.stats().resyncs), (late, 1));
        assert_eq!(honest(&mut after, &mut decoder, 20), 200, "jump {jump}");
        assert_eq!((decoder.stats().late, decoder.stats().resyncs), (late, 1));
    }
}

#[test]
fn a_jump_ahead_within_reach_costs_nothing() {
    let mut decoder = decoder();
    for first_block in [0, 512, 1000, 1024] {
        let config = EncoderConfig {
            first_block,
            ..encoder(10, 2)
        };
        let mut encoder = BlockEncoder::new(config).unwrap();
        assert_eq!(honest(&mut encoder, &mut decoder, 5), 50);
    }
    assert_eq!((decoder.stats().late, decoder.stats().resyncs), (0, 0));
}

#[test]
fn a_restarted_encoder_is_noticed_by_its_first_packet() {
    let mut decoder = decoder();
    for life in 0..3 {
        let mut encoder = BlockEncoder::new(encoder(10, 2)).unwrap();
        let mut draw = Draw::new(life);
        for _ in 0..100 {
            let (data, repair) = block(&mut encoder, 10, &mut draw);
            for packet in data.iter().chain(&repair) {
                let arrival = take(&mut decoder, packet).unwrap();
                assert!(matches!(arrival, Arrival::Data | Arrival::Repair));
            }
        }
    }
    assert_eq!((decoder.stats().restarted, decoder.stats().data), (2, 3000));
}

/// In each block but the first, the packet that would show the restart is lost.
#[test]
fn a_restarted_encoder_is_known_for_all_its_blocks() {
    let mut decoder = decoder();
    for life in 0..3 {
        let mut encoder = BlockEncoder::new(encoder(10, 2)).unwrap();
        let mut draw = Draw::new(life);
        for number in 0..100 {
            let (data, repair) = block(&mut encoder, 10, &mut draw);
            let lost = usize::from(life > 0 && number > 0);
            let mut passed_on = 0;
            for packet in data[lost..].iter().chain(&repair) {
                let arrival = take(&mut decoder, packet).unwrap();
                passed_on += usize::from(arrival == Arrival::Data);
                passed_on += recovered(&mut decoder).len();
            }
            assert_eq!(passed_on, 10, "block {number} of life {life}");
        }
    }
    assert_eq!(decoder.stats().restarted, 2);
}

#[test]
fn blocks_that_never_end_give_way() {
    let mut decoder = decoder();
    let mut draw = Draw::new(0);
    for block in 0..10_000 {
        decoder
            .handle(data(block, draw.below(255) as u8), &[1; 100])
            .unwrap();
        assert!(decoder.blocks() <= 64 && decoder.packets() <= 2048);
    }
    assert_eq!(decoder.stats().evicted, 10_000 - 64);
    // Many packets each.
    for block in 10_000..11_000 {
        for index in 0..200 {
            decoder.handle(data(block, index), &[1; 100]).unwrap();
            assert!(decoder.blocks() <= 64 && decoder.packets() <= 2048);
        }
    }
    assert!(decoder.memory() <= (2048 + 255) * 102 + 1024 * 64);
    let mut encoder = BlockEncoder::new(EncoderConfig {
        first_block: 11_000,
        ..encoder(10, 2)
    })
    .unwrap();
    assert_eq!(honest(&mut encoder, &mut decoder, 20), 200);
}

#[test]
fn a_block_whose_memory_another_takes_gives_way_to_it() {
    let config = DecoderConfig {
        payload_max: 100,
        memory: 4,
        ..DecoderConfig::default()
    };
    let mut decoder = BlockDecoder::new(&config).unwrap();
    decoder.handle(data(0, 1), b"x").unwrap();
    for block in 1..4 {
        decoder.handle(data(block, 0), b"x").unwrap();
        decoder.handle(repair(block, 0, 1), b"\0\x01x").unwrap();
    }
    assert_eq!((decoder.blocks(), decoder.stats().evicted), (1, 0));
    decoder.handle(data(4, 0), b"x").unwrap();
    assert_eq!((decoder.blocks(), decoder.packets()), (1, 1));
    assert_eq!((decoder.stats().evicted, decoder.stats().lost), (1, 1));
}

#[test]
fn a_block_that_wants_room_does_not_give_way_to_itself() {
    let mut decoder = BlockDecoder::new(&DecoderConfig {
        payload_max: 100,
        packets: 256,
        ..DecoderConfig::default()
    })
    .unwrap();
    decoder.handle(data(0, 0), b"x").unwrap();
    for index in 0..200 {
        decoder.handle(data(1, index), b"x").unwrap();
    }
    for index in 1..=55 {
        decoder.handle(data(0, index), b"x").unwrap();
    }
    assert_eq!((decoder.blocks(), decoder.packets()), (2, 256));
    decoder.handle(data(0, 56), b"x").unwrap();
    assert_eq!((decoder.blocks(), decoder.packets()), (1, 57));
}

#[test]
fn noise_neither_panics_nor_takes_memory_and_the_stream_goes_on_after_it() {
    for_seeds(60, |draw| {
        let mut decoder = decoder();
        let mut encoder = BlockEncoder::new(encoder(10, 2)).unwrap();
        honest(&mut encoder, &mut decoder, 5);
        let (blocks, width) = (draw.next() as u32, 1 << draw.below(12));
        for _ in 0..3000 {
            let block = blocks.wrapping_add(draw.below(width) as u32);
            let (k, row) = (draw.between(1, 12) as u8, draw.below(6) as u8);
            let header = if draw.chance(0.5) {
                data(block, row)
            } else {
                repair(block, row, k)
            };
            let mut payload = vec![0; [10, draw.between(0, 110)][draw.below(2)]];
            draw.fill(&mut payload);
            let _ = decoder.handle(header, &payload);
            recovered(&mut decoder);
            assert!(decoder.blocks() <= 64 && decoder.packets() <= 2048);
        }
        // The jump back may cost the first block, and blocks whose numbers the noise has used
        // contradict it.
        honest(&mut encoder, &mut decoder, 1);
        if blocks > 1 << 16 {
            assert_eq!(honest(&mut encoder, &mut decoder, 20), 200);
        }
    });
}
