use super::*;
use crate::code::{ErasureCode, ReedSolomon};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn number(packet: &Packet) -> (u32, u8) {
    match packet.header {
        Header::BlockData { block, index } => (block, index),
        Header::BlockRepair { block, row, .. } => (block, row),
        header => panic!("{header:?} of another scheme"),
    }
}

#[test]
fn a_block_closes_when_it_is_full() {
    let mut encoder = BlockEncoder::new(encoder(3, 2)).unwrap();
    for index in 0..3 {
        assert_eq!(encoder.poll_repair(), None, "not yet full");
        let packet = send(&mut encoder, b"x", T0);
        assert_eq!(number(&packet), (0, index));
    }
    assert_eq!(encoder.poll_timeout(), None);
    let headers: Vec<_> = repairs(&mut encoder).iter().map(|p| p.header).collect();
    let repair = |row| Header::BlockRepair {
        block: 0,
        row,
        k: 3,
        h: 2,
    };
    assert_eq!(headers, [repair(0), repair(1)]);
    assert_eq!(number(&send(&mut encoder, b"x", T0)), (1, 0));
    assert_eq!(encoder.stats().closed_full, 1);
}

#[test]
fn a_block_closes_when_its_time_is_over_counted_from_its_first_packet() {
    let mut encoder = BlockEncoder::new(encoder(20, 6)).unwrap();
    assert_eq!(encoder.poll_timeout(), None);
    send(&mut encoder, b"x", ms(5));
    send(&mut encoder, b"y", ms(15));
    assert_eq!(encoder.poll_timeout(), Some(ms(25)));
    encoder.handle_timeout(ms(24));
    assert_eq!(encoder.poll_repair(), None);
    encoder.handle_timeout(ms(25));
    assert_eq!(encoder.poll_timeout(), None);
    let repair = repairs(&mut encoder);
    let header = Header::BlockRepair {
        block: 0,
        row: 0,
        k: 2,
        h: 1,
    };
    assert_eq!(
        repair[0].header, header,
        "two of twenty packets want one of six"
    );
    assert_eq!((repair.len(), encoder.stats().closed_time), (1, 1));
    encoder.handle_timeout(ms(1000));
    assert_eq!(encoder.stats().closed_time, 1, "nothing is open");
}

#[test]
fn a_block_closes_when_nothing_more_waits() {
    let mut encoder = BlockEncoder::new(encoder(20, 6)).unwrap();
    encoder.handle_drained(T0);
    assert_eq!(encoder.stats(), EncoderStats::default(), "nothing was open");
    send(&mut encoder, b"x", T0);
    encoder.handle_drained(T0);
    assert_eq!(repairs(&mut encoder).len(), 1);
    assert_eq!(encoder.stats().closed_drained, 1);
    assert_eq!(encoder.poll_timeout(), None);
}

/// A short block has fewer packets, and shorter packets are padded with zeros.
#[test]
fn repair_symbols_are_rows_over_length_packet_and_zeros() {
    let mut encoder = BlockEncoder::new(encoder(20, 10)).unwrap();
    // Packets of an earlier block must not show through the padding.
    for _ in 0..60 {
        send(&mut encoder, &[0xff; 100], T0);
    }
    repairs(&mut encoder);
    for packet in [&b"abc"[..], b"", b"defgh"] {
        send(&mut encoder, packet, T0);
    }
    encoder.handle_drained(T0);
    let symbols = [b"\0\x03abc\0\0", b"\0\0\0\0\0\0\0", b"\0\x05defgh"];
    let sources = symbols.map(|symbol| &symbol[..]);
    let mut rows = [[0; 7]; 2];
    let mut outputs = rows.each_mut().map(|row| &mut row[..]);
    ReedSolomon::new()
        .encode(&sources, 0, &mut outputs)
        .unwrap();
    let payloads: Vec<_> = repairs(&mut encoder)
        .into_iter()
        .map(|p| p.payload)
        .collect();
    assert_eq!(payloads, rows);
}

#[test]
fn interleaved_blocks_fill_in_turn_and_close_together_row_by_row() {
    let config = EncoderConfig {
        depth: 3,
        ..encoder(4, 2)
    };
    let mut encoder = BlockEncoder::new(config).unwrap();
    let data: Vec<_> = (0..12)
        .map(|_| number(&send(&mut encoder, b"x", T0)))
        .collect();
    let turns = (0..4).flat_map(|index| (0..3).map(move |block| (block, index)));
    assert_eq!(data, turns.collect::<Vec<_>>());
    let rows: Vec<_> = repairs(&mut encoder).iter().map(number).collect();
    assert_eq!(rows, [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);

    // Fewer packets than that: five are two, two and one; two are one each, in two blocks.
    for (packets, sent) in [(5, vec![(3, 0), (4, 0), (5, 0)]), (2, vec![(6, 0), (7, 0)])] {
        for _ in 0..packets {
            send(&mut encoder, b"x", T0);
        }
        encoder.handle_drained(T0);
        assert_eq!(
            repairs(&mut encoder).iter().map(number).collect::<Vec<_>>(),
            sent
        );
    }
    assert_eq!(number(&send(&mut encoder, b"x", T0)), (8, 0));
}

#[test]
fn overhead_changes_with_the_next_block_that_closes() {
    let mut encoder = BlockEncoder::new(encoder(4, 2)).unwrap();
    send(&mut encoder, b"x", T0);
    encoder.set_overhead(Overhead::of_block(4, 4));
    encoder.handle_drained(T0);
    assert_eq!(repairs(&mut encoder).len(), 1);
    let mut draw = Draw::new(0);
    assert_eq!(block(&mut encoder, 4, &mut draw).1.len(), 4);
    encoder.set_overhead(Overhead::none());
    assert_eq!(block(&mut encoder, 4, &mut draw).1.len(), 0);
}

#[test]
fn more_rows_of_a_kept_block_are_the_next_rows() {
    let many = EncoderConfig {
        kept: 4,
        ..encoder(4, 9)
    };
    let all = block(&mut BlockEncoder::new(many).unwrap(), 4, &mut Draw::new(1)).1;
    let mut encoder = BlockEncoder::new(EncoderConfig {
        kept: 4,
        ..encoder(4, 2)
    })
    .unwrap();
    let first = block(&mut encoder, 4, &mut Draw::new(1)).1;
    assert_eq!(encoder.more(0, 3), Ok(3));
    assert_eq!(encoder.more(0, 4), Ok(4));
    let more = repairs(&mut encoder);
    let payloads = |packets: &[Packet]| {
        packets
            .iter()
            .map(|p| p.payload.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!([payloads(&first), payloads(&more)].concat(), payloads(&all));
    assert_eq!(number(&more[0]), (0, 2));
    assert_eq!(encoder.stats().repairs_more, 7);
    assert_eq!(
        encoder.more(0, 1000),
        Ok(256 - 4 - 9),
        "all that the code has"
    );
    assert_eq!(encoder.more(0, 1), Ok(0));
    assert_eq!(repairs(&mut encoder).len(), 256 - 4 - 9);
}

#[test]
fn more_rows_can_be_had_of_kept_blocks_only() {
    let config = EncoderConfig {
        kept: 3,
        first_block: u32::MAX,
        ..encoder(2, 1)
    };
    let mut encoder = BlockEncoder::new(config).unwrap();
    let mut draw = Draw::new(0);
    assert_eq!(
        encoder.more(u32::MAX, 1),
        Err(NotKept(u32::MAX)),
        "not begun"
    );
    send(&mut encoder, b"x", T0);
    assert_eq!(encoder.more(u32::MAX, 1), Err(NotKept(u32::MAX)), "open");
    assert_eq!(
        encoder.more(u32::MAX - 1, 1),
        Err(NotKept(u32::MAX - 1)),
        "before the first"
    );
    send(&mut encoder, b"x", T0);
    assert_eq!(encoder.more(u32::MAX, 1), Ok(1));
    for last in [0, 1, 2] {
        block(&mut encoder, 2, &mut draw);
        assert_eq!(encoder.more(last, 1), Ok(1));
    }
    // A fourth block is stored until the next one starts.
    assert_eq!(encoder.more(u32::MAX, 1), Ok(1));
    send(&mut encoder, b"x", T0);
    assert_eq!(encoder.more(u32::MAX, 1), Err(NotKept(u32::MAX)));
    assert_eq!(encoder.more(0, 1), Ok(1));
}

#[test]
fn unfetched_repair_packets_are_dropped_and_counted() {
    let mut encoder = BlockEncoder::new(encoder(2, 2)).unwrap();
    for _ in 0..2 * 100 {
        send(&mut encoder, b"x", T0);
    }
    let left: Vec<_> = repairs(&mut encoder).iter().map(number).collect();
    assert_eq!(
        left,
        [(98, 0), (98, 1), (99, 0), (99, 1)],
        "those of the blocks still there"
    );
    assert_eq!(encoder.stats().repairs_dropped, 2 * 98);
}

#[test]
fn memory_does_not_grow_once_each_block_was_used() {
    let mut encoder = BlockEncoder::new(EncoderConfig {
        depth: 4,
        kept: 9,
        ..encoder(20, 6)
    })
    .unwrap();
    let mut run = |packets: usize| {
        for _ in 0..packets {
            send(&mut encoder, &[1; 100], T0);
            repairs(&mut encoder);
        }
        encoder.memory()
    };
    let full = run(20 * 4 * 8);
    assert!(
        full <= 13 * 26 * 102,
        "{full} bytes are more than the documentation says"
    );
    assert_eq!(run(20 * 4 * 8), full);
}

#[test]
fn a_packet_that_is_too_long_is_refused_and_leaves_no_trace() {
    let mut encoder = BlockEncoder::new(encoder(2, 1)).unwrap();
    let error = encoder.handle_data(&[0; 101], T0).unwrap_err();
    assert_eq!((error.len, error.max), (101, 100));
    assert_eq!(encoder.poll_timeout(), None);
    assert_eq!(number(&send(&mut encoder, &[0; 100], T0)), (0, 0));
}

#[test]
fn configurations_out_of_range_are_refused() {
    let refused = |config: EncoderConfig| BlockEncoder::new(config).unwrap_err();
    let error = refused(EncoderConfig {
        k: 0,
        ..encoder(1, 1)
    });
    assert_eq!(error.to_string(), "k is 0; accepted: 1 to 255");
    assert_eq!(
        refused(EncoderConfig {
            depth: 0,
            ..encoder(1, 1)
        })
        .field,
        "depth"
    );
    assert_eq!(
        refused(EncoderConfig {
            payload_max: 65_536,
            ..encoder(1, 1)
        })
        .field,
        "payload_max"
    );
    assert_eq!(
        refused(EncoderConfig {
            kept: 65_537,
            ..encoder(1, 1)
        })
        .field,
        "kept"
    );
    let refused = |config: DecoderConfig| BlockDecoder::new(&config).unwrap_err();
    let config = DecoderConfig::default();
    assert_eq!(
        refused(DecoderConfig {
            blocks: 0,
            ..config.clone()
        })
        .field,
        "blocks"
    );
    assert_eq!(
        refused(DecoderConfig {
            packets: 255,
            ..config.clone()
        })
        .field,
        "packets"
    );
    assert_eq!(
        refused(DecoderConfig {
            memory: 1,
            ..config
        })
        .field,
        "memory"
    );
}

#[test]
fn the_block_time_follows_the_round_trip_time() {
    assert_eq!(block_time(ms(80)), ms(10));
    assert_eq!(block_time(ms(600)), ms(20));
}
