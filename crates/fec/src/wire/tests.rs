use proptest::prelude::*;

use super::*;

fn header() -> impl Strategy<Value = Header> {
    prop_oneof![
        (any::<u32>(), 0..255u8).prop_map(|(block, index)| Header::BlockData { block, index }),
        (any::<u32>(), 1u8.., any::<u8>(), any::<u8>()).prop_map(|(block, k, row, h)| {
            // From 0 to 255 - k.
            let row = (u16::from(row) % (256 - u16::from(k))) as u8;
            Header::BlockRepair { block, row, k, h }
        }),
        any::<u32>().prop_map(|id| Header::WindowData { id }),
        (any::<u32>(), 1u16.., any::<u16>()).prop_map(|(first, count, key)| Header::WindowRepair {
            first,
            count,
            key
        }),
    ]
}

fn emitted(header: Header) -> Vec<u8> {
    let mut packet = Vec::new();
    header.emit(&mut packet);
    packet
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed(header in header(), payload: Vec<u8>) {
        let mut packet = emitted(header);
        prop_assert_eq!(packet.len(), header.len());
        prop_assert!(packet.len() <= Header::LEN_MAX);
        packet.extend_from_slice(&payload);
        prop_assert_eq!(Header::parse(&packet), Ok((header, &payload[..])));
    }

    #[test]
    fn what_is_parsed_is_emitted(
        kind in prop_oneof![Just(0x10), Just(0x11), Just(0x20), Just(0x21), any::<u8>()],
        rest in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let packet = [&[kind], &rest[..]].concat();
        if let Ok((header, payload)) = Header::parse(&packet) {
            prop_assert_eq!(header.len() + payload.len(), packet.len());
            prop_assert_eq!([&emitted(header), payload].concat(), packet);
        }
    }

    #[test]
    fn what_ends_within_its_header_is_no_packet(header in header()) {
        let packet = emitted(header);
        for end in 0..packet.len() {
            prop_assert_eq!(Header::parse(&packet[..end]), Err(HeaderError::Short(end)));
        }
    }
}

/// Drawings in the module's documentation, byte by byte.
#[test]
fn headers_are_as_they_are_drawn() {
    let drawn: [(Header, &[u8]); 4] = [
        (
            Header::BlockData {
                block: 0x0102_0304,
                index: 254,
            },
            &[0x10, 254, 1, 2, 3, 4],
        ),
        (
            Header::BlockRepair {
                block: 0x0102_0304,
                row: 5,
                k: 250,
                h: 6,
            },
            &[0x11, 5, 1, 2, 3, 4, 250, 6],
        ),
        (Header::WindowData { id: 0x0102_0304 }, &[0x20, 1, 2, 3, 4]),
        (
            Header::WindowRepair {
                first: 0x0102_0304,
                count: 0x0506,
                key: 0x0708,
            },
            &[0x21, 1, 2, 3, 4, 5, 6, 7, 8],
        ),
    ];
    for (header, bytes) in drawn {
        assert_eq!(emitted(header), bytes);
        assert_eq!(Header::parse(bytes), Ok((header, &[][..])));
    }
}

#[test]
fn fields_that_no_encoder_writes_are_refused() {
    let range = |field, value| Err(HeaderError::Range { field, value });
    assert_eq!(Header::parse(&[0x10, 255, 0, 0, 0, 0]), range("index", 255));
    assert_eq!(Header::parse(&[0x11, 0, 0, 0, 0, 0, 0, 9]), range("k", 0));
    assert_eq!(
        Header::parse(&[0x11, 56, 0, 0, 0, 0, 200, 9]),
        range("row", 56)
    );
    assert!(Header::parse(&[0x11, 55, 0, 0, 0, 0, 200, 9]).is_ok());
    assert_eq!(
        Header::parse(&[0x21, 0, 0, 0, 0, 0, 0, 0, 0]),
        range("count", 0)
    );
}

#[test]
fn other_schemes_and_kinds_are_unknown() {
    let known = [0x10, 0x11, 0x20, 0x21];
    for kind in (0..=255).filter(|kind| !known.contains(kind)) {
        assert_eq!(Header::parse(&[kind; 20]), Err(HeaderError::Unknown(kind)));
    }
    assert_eq!(Header::parse(&[]), Err(HeaderError::Short(0)));
}

#[test]
fn only_data_packets_are_data() {
    assert!(Header::BlockData { block: 0, index: 0 }.is_data());
    assert!(Header::WindowData { id: 0 }.is_data());
    assert!(
        !Header::BlockRepair {
            block: 0,
            row: 0,
            k: 1,
            h: 0
        }
        .is_data()
    );
    assert!(
        !Header::WindowRepair {
            first: 0,
            count: 1,
            key: 0
        }
        .is_data()
    );
}
