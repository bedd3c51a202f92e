use proptest::prelude::*;

use super::*;
use crate::scheme::Refused;

fn repair(first: u32, count: u16, key: u16, symbol: &[u8]) -> Packet {
    (Header::WindowRepair { first, count, key }, symbol.to_vec())
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut decoder = decoder(20);
    let mut refused = |(header, payload): Packet| decoder.handle(header, &payload).unwrap_err();
    let too_many = |value| Refused::TooMany {
        field: "count",
        value,
        max: 20,
    };
    assert_eq!(refused(repair(0, 21, 0, &[0; 10])), too_many(21));
    assert_eq!(refused(repair(0, u16::MAX, 0, &[0; 10])), too_many(65_535));
    assert_eq!(refused(repair(0, 0, 0, &[0; 10])), too_many(0));
    assert_eq!(refused(repair(0, 1, 0, &[0])), Refused::Length(1));
    assert_eq!(
        refused(repair(0, 1, 0, &[0; PACKET_MAX + 3])),
        Refused::Length(PACKET_MAX + 3)
    );
    let long = (Header::WindowData { id: 0 }, vec![0; PACKET_MAX + 1]);
    assert_eq!(refused(long), Refused::Length(PACKET_MAX + 1));
    let block = (Header::BlockData { block: 0, index: 0 }, vec![]);
    assert_eq!(refused(block), Refused::Scheme);
    assert_eq!(decoder.stats().refused(), 7);
    assert_eq!(
        decoder.handle(Header::WindowData { id: 9 }, &[]),
        Ok(Arrival::Data)
    );
}

/// A forged repair packet is not detected; the result is checked for its length and padding, and on
/// failure all equations are dropped.
#[test]
fn an_outcome_that_is_no_packet_spoils_what_is_pending_and_no_more() {
    let mut encoder = encoder(&windows_of(20), Overhead::of_block(5, 1));
    let sent = send(&mut encoder, 0, 100);
    let mut decoder = decoder(20);
    let mut restored = Vec::new();
    for packet in &sent {
        if matches!(packet.0, Header::WindowData { id: 30 | 60 }) {
            let forged = repair(packet_id(packet) - 5, 10, 9, &[0xff; 40]);
            restored.extend(receive(&mut decoder, &forged).1);
        } else {
            restored.extend(receive(&mut decoder, packet).1);
        }
    }
    let stats = decoder.stats();
    assert!(stats.corrupt > 0, "{stats:?}");
    assert!(
        restored.iter().all(|id| [30, 60].contains(id)),
        "{restored:?}"
    );
}

fn packet_id((header, _): &Packet) -> u32 {
    match header {
        Header::WindowData { id } => *id,
        header => panic!("{header:?}"),
    }
}

#[test]
fn a_repair_symbol_shorter_than_a_packet_of_its_window_spoils_itself_only() {
    let mut decoder = decoder(8);
    decoder
        .handle(Header::WindowData { id: 1 }, &[1; 30])
        .unwrap();
    decoder.handle(repair(0, 3, 5, &[]).0, &[0; 20]).unwrap();
    assert_eq!(decoder.pending(), 1);
    decoder
        .handle(Header::WindowData { id: 2 }, &[1; 30])
        .unwrap();
    assert_eq!((decoder.pending(), decoder.stats().corrupt), (0, 1));
    assert!(decoder.poll_recovered().is_none());
    assert_eq!(
        decoder.handle(Header::WindowData { id: 0 }, &[]),
        Ok(Arrival::Data)
    );
}

#[test]
fn what_is_not_fetched_goes_with_its_place() {
    let mut encoder = encoder(&windows_of(4), Overhead::of_block(1, 1));
    let mut decoder = decoder(4);
    for packet in send(&mut encoder, 0, 1000) {
        if packet.0.is_data() && packet_id(&packet) % 3 == 1 {
            continue;
        }
        decoder.handle(packet.0, &packet.1).unwrap();
    }
    let ids = restored(&mut decoder);
    assert!(
        ids.len() <= 64 / 3 + 1 && ids.iter().all(|id| *id > 1000 - 65),
        "{ids:?}"
    );
    assert_eq!(decoder.stats().recovered, 333);
}

#[derive(Clone, Debug)]
enum Step {
    Data(u32, usize),
    Repair(u32, u16, u16, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let near = || prop_oneof![8 => 0u32..200, 2 => 4_294_967_200u32.., 1 => any::<u32>()];
    let data = (near(), 0..=PACKET_MAX + 1).prop_map(|(id, len)| Step::Data(id, len));
    let repair = (near(), 0u16..14, 0u16..4, 0..=PACKET_MAX + 3)
        .prop_map(|(first, count, key, len)| Step::Repair(first, count, key, len));
    prop::collection::vec(prop_oneof![data, repair], 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Arbitrary input: no panic, no packet twice, never more than the configured limits.
    #[test]
    fn nothing_breaks_it(steps in steps(), repairs in 1usize..12) {
        let config = DecoderConfig { repairs, ..spans_of(12) };
        let mut decoder = WindowDecoder::new(&config).unwrap();
        for step in steps {
            let _ = match step {
                Step::Data(id, len) => decoder.handle(Header::WindowData { id }, &vec![id as u8; len]),
                Step::Repair(first, count, key, len) => {
                    decoder.handle(Header::WindowRepair { first, count, key }, &vec![key as u8; len])
                }
            };
            prop_assert!(decoder.pending() <= repairs);
            let mut restored = Vec::new();
            while let Some((header, packet)) = decoder.poll_recovered() {
                prop_assert!(packet.len() <= PACKET_MAX);
                prop_assert!(!restored.contains(&header));
                restored.push(header);
            }
        }
    }
}
