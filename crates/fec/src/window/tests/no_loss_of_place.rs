use super::*;

fn data(id: u32) -> Packet {
    (Header::WindowData { id }, packet_of(id))
}

fn sent_by(window: u8, first: u32, count: u32) -> Vec<Packet> {
    let config = EncoderConfig {
        first_id: first,
        ..windows_of(window)
    };
    send(
        &mut encoder(&config, Overhead::of_block(5, 1)),
        first,
        count,
    )
}

/// All packets except the data packets `lost`.
fn without(sent: Vec<Packet>, lost: &[u32]) -> Vec<Packet> {
    let arrives = |(header, _): &Packet| match header {
        Header::WindowData { id } => !lost.contains(id),
        _ => true,
    };
    sent.into_iter().filter(arrives).collect()
}

#[test]
fn one_packet_out_of_place_harms_nothing() {
    for absurd in [
        3000,
        60_000,
        1 << 31,
        u32::MAX - 200,
        5000u32.wrapping_sub(300),
    ] {
        let mut decoder = decoder(20);
        let mut all = Vec::new();
        for (i, packet) in without(sent_by(20, 5000, 60), &[5049, 5047])
            .iter()
            .enumerate()
        {
            all.extend(receive(&mut decoder, packet).1);
            if i % 2 == 0 {
                let (arrival, ids) = receive(&mut decoder, &data(absurd));
                assert_eq!((arrival, ids), (Arrival::Late, vec![]));
            }
        }
        assert_eq!(all, [5047, 5049], "{absurd}");
        assert_eq!(decoder.stats().resyncs, 0);
    }
}

#[test]
fn repair_packets_alone_move_nothing() {
    let mut decoder = decoder(20);
    receive(&mut decoder, &data(7));
    for first in [1000, 1005, 1010, 1015, 1020, 1025, 1030, 1035, 1040] {
        let header = Header::WindowRepair {
            first,
            count: 20,
            key: 1,
        };
        receive(&mut decoder, &(header, vec![0; 20]));
    }
    assert_eq!(receive(&mut decoder, &data(7)).0, Arrival::Duplicate);
    assert_eq!(decoder.stats().repairs_far, 9);
}

/// After an outage the encoder is far ahead. Three packets in a row, and decoding continues,
/// including them.
#[test]
fn an_outage_of_any_length_is_leapt_over() {
    for gap in [50, 1000, 1 << 20, (1 << 31) - 1] {
        let mut decoder = decoder(20);
        for packet in sent_by(20, 0, 30) {
            receive(&mut decoder, &packet);
        }
        let sent = sent_by(20, gap, 20);
        let mut restored = Vec::new();
        for packet in without(sent, &[gap + 1, gap + 9]) {
            let (arrival, ids) = receive(&mut decoder, &packet);
            assert!(arrival != Arrival::Duplicate);
            restored.extend(ids);
        }
        // 30 to 49 are within reach, so that the first gap is none.
        let moved = u64::from(gap > 50);
        assert_eq!(decoder.stats().resyncs, moved, "{gap}");
        assert!(
            restored.contains(&(gap + 9)) && restored.contains(&(gap + 1)),
            "{gap}: {restored:?}"
        );
        assert_eq!(
            receive(&mut decoder, &data(gap)).0,
            Arrival::Duplicate,
            "{gap}"
        );
    }
}

#[test]
fn a_restarted_encoder_is_followed() {
    for old in [1000, 5_000_000, 1 << 31, (1 << 31) + 5, u32::MAX] {
        let mut decoder = decoder(20);
        for packet in sent_by(20, old.wrapping_sub(30), 30) {
            receive(&mut decoder, &packet);
        }
        let mut restored = Vec::new();
        let mut late = 0;
        for packet in without(sent_by(20, 0, 40), &[5, 21, 33]) {
            let (arrival, ids) = receive(&mut decoder, &packet);
            assert!(arrival != Arrival::Duplicate, "{old}");
            late += usize::from(arrival == Arrival::Late);
            restored.extend(ids);
        }
        let near = old == u32::MAX; // goes on over the wrap
        assert!(late <= if near { 0 } else { 8 }, "{old}: {late}");
        assert!(
            restored.contains(&21) && restored.contains(&33),
            "{old}: {restored:?}"
        );
        assert!(!near || restored.contains(&5), "{old}: {restored:?}");
        assert_eq!(
            receive(&mut decoder, &data(39)).0,
            Arrival::Duplicate,
            "{old}"
        );
        assert_eq!(
            receive(&mut decoder, &data(0)).0,
            Arrival::Duplicate,
            "{old}"
        );
    }
}

#[test]
fn a_decoder_that_begins_in_the_middle_needs_one_window() {
    let mut decoder = decoder(20);
    let sent = sent_by(20, 0, 100);
    let mut restored = Vec::new();
    for packet in without(sent, &[77, 78]).into_iter().skip(50) {
        restored.extend(receive(&mut decoder, &packet).1);
    }
    assert_eq!(restored, [77, 78]);
    assert_eq!(
        decoder.stats().lost,
        0,
        "what was before its time is not lost"
    );
}

#[test]
fn stragglers_are_late_and_pull_nothing_back() {
    let mut decoder = decoder(20);
    for id in 200..300 {
        receive(&mut decoder, &data(id));
        let (arrival, _) = receive(&mut decoder, &data(id - 150));
        assert_eq!(arrival, Arrival::Late);
    }
    assert_eq!(decoder.stats().resyncs, 0);
}

#[test]
fn a_packet_that_comes_after_it_was_restored_is_a_duplicate() {
    let mut decoder = decoder(20);
    let sent = sent_by(20, 0, 20);
    let mut restored = Vec::new();
    for packet in without(sent, &[3]) {
        restored.extend(receive(&mut decoder, &packet).1);
    }
    assert_eq!(restored, [3]);
    assert_eq!(receive(&mut decoder, &data(3)).0, Arrival::Duplicate);
}

/// A repair packet completed by a late one is used before a repair packet is dropped for another.
#[test]
fn where_there_is_room_for_few_repair_packets_the_newest_is_used_first() {
    let config = EncoderConfig {
        first_id: 100,
        ..windows_of(3)
    };
    let mut encoder = encoder(&config, Overhead::of_block(3, 1));
    let sent = without(send(&mut encoder, 100, 9), &[101, 104, 105, 107, 108]);
    let (late, rest): (Vec<_>, Vec<_>) = sent
        .into_iter()
        .partition(|(header, _)| matches!(header, Header::WindowRepair { first: 100, .. }));
    assert_eq!(late.len(), 1);
    let config = DecoderConfig {
        repairs: 2,
        ..spans_of(3)
    };
    let mut decoder = WindowDecoder::new(&config).unwrap();
    for (header, payload) in rest.iter().chain(&late) {
        decoder.handle(*header, payload).unwrap();
    }
    assert_eq!(decoder.pending(), 2);
    let (header, packet) = decoder.poll_recovered().expect("packet 101");
    assert_eq!(header, Header::WindowData { id: 101 });
    assert_eq!(packet, packet_of(101));
    assert_eq!(decoder.stats().repairs_evicted, 0);
}

/// By their numbers its packets are duplicates, but the contents differ.
#[test]
fn an_encoder_restarted_with_the_same_numbers_loses_nothing() {
    for count in [9, 40, 300] {
        let mut decoder = decoder(20);
        for packet in sent_by(20, 0, count) {
            receive(&mut decoder, &packet);
        }
        for id in 0..count {
            let packet = [b"anew", &id.to_be_bytes()[..]].concat();
            let header = Header::WindowData { id };
            let arrival = decoder.handle(header, &packet).unwrap();
            assert_ne!(arrival, Arrival::Duplicate, "{id} of {count}");
            let late = arrival == Arrival::Late;
            assert!(!late || id < 8, "{id} of {count}");
            let again = decoder.handle(header, &packet).unwrap();
            assert_eq!(again, Arrival::Duplicate, "{id} of {count}");
        }
        assert_eq!(decoder.stats().resyncs, 1);
    }
}

#[test]
fn stragglers_of_a_restarted_encoder_pull_nothing_back() {
    let mut decoder = decoder(20);
    for id in 0..100 {
        let header = Header::WindowData { id };
        receive(&mut decoder, &data(id));
        let old = decoder.handle(header, b"old").unwrap();
        assert_eq!(old, Arrival::Late);
        assert_eq!(receive(&mut decoder, &data(id)).0, Arrival::Duplicate);
    }
    assert_eq!(decoder.stats().resyncs, 0);
}
