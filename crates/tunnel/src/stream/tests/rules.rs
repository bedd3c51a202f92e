//! Individual tests of each rule.

use proptest::prelude::*;

use super::*;
use crate::{class::Class, wire::Data};

proptest! {
    #[test]
    fn acknowledged_are_the_bytes_before_the_first_that_is_not(
        pieces in prop::collection::vec((0..200u64, 0..40usize), 1..40),
    ) {
        let mut direction = SendState::new(1000);
        direction.written(240);
        direction.finish();
        direction.on_sent(240, true);
        let mut model = [false; 240];
        for (from, len) in pieces {
            let before = model.iter().take_while(|acked| **acked).count();
            model[from as usize..from as usize + len].fill(true);
            let acked = model.iter().take_while(|acked| **acked).count();
            let news = (acked > before).then_some(acked as u64);
            prop_assert_eq!(direction.on_acked(Data::new(1, from, len, false)), news);
            prop_assert!(!direction.is_over());
        }
        direction.on_acked(Data::new(1, 240, 0, true));
        prop_assert_eq!(direction.is_over(), model.iter().all(|acked| *acked));
    }

    /// Any input, with numbers of any size, causes errors, but no panic, and nothing beyond the
    /// credit.
    #[test]
    fn what_makes_no_sense_is_an_error(
        messages in prop::collection::vec((0..6u8, large(), large(), large(), any::<bool>()), 1..100),
    ) {
        let mut streams = Streams::new(true, STREAM_CREDIT, STREAMS_MAX, SESSION_CREDIT);
        streams.open(Class::Bulk);
        for (kind, stream, from, len, fin) in messages {
            let data = Data::new(stream, from, len as usize, fin);
            match kind {
                0 => drop(streams.open_by_peer(stream, Class::Bulk)),
                1 => drop(streams.on_data(data)),
                2 => drop(streams.on_reset(stream, from)),
                3 => streams.on_credit(stream, from),
                4 => streams.on_session_credit(from),
                _ => drop(streams.reset(stream)),
            }
            prop_assert!(streams.session.received <= SESSION_CREDIT);
            prop_assert!(streams.len() <= (STREAMS_MAX + streams.peers_max()) as usize);
            prop_assert!(streams.resetting.len() <= streams.peers_max() as usize + 1);
        }
    }
}

fn large() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 0..200u64, (u64::MAX - 100)..=u64::MAX]
}

fn streams() -> Streams {
    let mut streams = Streams::new(false, STREAM_CREDIT, STREAMS_MAX, SESSION_CREDIT);
    assert_eq!(streams.open_by_peer(0, Class::Bulk), Ok(Opening::New));
    streams
}

fn data(from: u64, len: usize, fin: bool) -> Data {
    Data::new(0, from, len, fin)
}

#[test]
fn a_stream_ends_once_and_where_it_was_said_to() {
    let mut streams = streams();
    let differ = |one, other| StreamError::FinalSize {
        stream: 0,
        one,
        other,
    };
    assert!(streams.on_data(data(10, 10, true)).is_ok());
    assert_eq!(streams.on_data(data(10, 11, false)), Err(differ(20, 21)));
    assert_eq!(streams.on_data(data(0, 10, true)), Err(differ(20, 10)));
    assert_eq!(streams.on_reset(0, 19), Err(differ(20, 19)));
    let finished = streams.on_data(data(0, 10, false)).unwrap().unwrap();
    assert!(finished.finished);
    let again = streams.on_data(data(0, 20, true)).unwrap();
    let known = 20;
    assert_eq!(
        again,
        Some(News {
            known,
            ..News::default()
        })
    );
}

#[test]
fn an_end_below_what_has_come_is_none() {
    let mut streams = streams();
    assert!(streams.on_data(data(10, 10, false)).is_ok());
    let error = StreamError::FinalSize {
        stream: 0,
        one: 20,
        other: 15,
    };
    assert_eq!(streams.on_data(data(15, 0, true)), Err(error));
    assert_eq!(streams.on_reset(0, 15), Err(error));
    assert_eq!(streams.on_reset(0, 30), Ok(Some(0)));
    assert_eq!(streams.session.received, 30);
    assert_eq!(
        streams.on_reset(0, 30),
        Ok(None),
        "the stream no longer exists"
    );
    assert_eq!(streams.on_data(data(0, 99, true)), Ok(None));
}

#[test]
fn credit_is_kept_to() {
    let mut streams = streams();
    let beyond = |end, allowed| {
        Err(StreamError::Credit {
            stream: 0,
            end,
            allowed,
        })
    };
    assert_eq!(streams.on_data(data(50, 51, false)), beyond(101, 100));
    assert!(!streams.allow(0, 110), "too little for an announcement");
    assert!(streams.on_data(data(50, 51, false)).is_ok());
    assert_eq!(
        streams.on_data(data(u64::MAX, 51, false)),
        beyond(u64::MAX, 110)
    );
    for stream in [2, 4] {
        streams.open_by_peer(stream, Class::Bulk).unwrap();
        let data = Data::new(stream, 0, 100, false);
        let fits = streams.on_data(data);
        let error = StreamError::SessionCredit {
            sum: 301,
            allowed: 300,
        };
        assert_eq!(fits.err(), (stream == 4).then_some(error));
    }
}

#[test]
fn credit_is_announced_in_quarters_or_when_the_peer_has_none() {
    let mut direction = ReceiveState::new(100);
    let take =
        |direction: &mut ReceiveState, from, len| direction.on_data(data(from, len, false)).tell;
    assert!(!direction.allow(100), "nothing new");
    assert!(!take(&mut direction, 0, 60));
    assert!(!direction.allow(124));
    assert!(direction.allow(125));
    assert!(!direction.allow(125), "it knows");
    assert!(!direction.allow(130));
    assert!(
        take(&mut direction, 60, 65),
        "the peer has used up its credit"
    );
    assert!(!direction.allow(130));
    assert!(!take(&mut direction, 125, 5), "nothing to announce");
    assert!(direction.allow(131), "a byte is better than none");
    direction.on_data(data(130, 0, true));
    assert!(!direction.allow(1000), "nothing more will come");
}

#[test]
fn so_many_streams_and_no_more() {
    let mut streams = Streams::new(true, STREAM_CREDIT, 2, SESSION_CREDIT);
    assert_eq!(streams.open(Class::Bulk), Some(0));
    assert_eq!(streams.open(Class::Bulk), Some(2));
    assert_eq!(streams.open(Class::Bulk), None);
    assert_eq!(streams.reset(2), Some(0));
    assert_eq!(streams.open(Class::Bulk), None, "the peer has not answered");
    assert_eq!(streams.on_reset(2, 30), Ok(None));
    assert_eq!(
        streams.session.received, 30,
        "bytes sent before the reset count"
    );
    assert_eq!(streams.open(Class::Bulk), Some(4));
    assert_eq!(streams.may_be_opened(4), Ok(false));
    assert_eq!(streams.may_be_opened(6), Err(StreamError::NeverOpened(6)));
    assert_eq!(
        streams.open_by_peer(2, Class::Bulk),
        Err(StreamError::NotYours(2))
    );
}

#[test]
fn the_peer_may_have_so_many_streams_and_no_more() {
    let mut streams = Streams::new(true, STREAM_CREDIT, 2, SESSION_CREDIT);
    let mut open = |index: u64| streams.open_by_peer(2 * index + 1, Class::Bulk);
    for index in (0..34).rev() {
        assert_eq!(open(index), Ok(Opening::New));
        assert_eq!(open(index), Ok(Opening::Known));
    }
    for index in 34..72 {
        assert_eq!(open(index), Ok(Opening::TooMany));
    }
    assert_eq!(open(72), Err(StreamError::TooMany(145)));
    assert_eq!(open(1 << 40), Err(StreamError::NeverOpened((2 << 40) + 1)));
    assert_eq!(streams.len(), 34);
    assert_eq!(streams.may_be_opened(145), Ok(true));
    assert_eq!(streams.may_be_opened(143), Ok(false));
}

/// 300 MB in packets of 1,400 bytes, of which 10 % are lost and come last.
#[test]
fn a_long_window_with_many_losses_has_room() {
    let (credit, len) = (300_000_000, 1400);
    let mut streams = Streams::new(false, credit, STREAMS_MAX, credit);
    streams.open_by_peer(0, Class::Bulk).unwrap();
    let packets = credit / len;
    let piece = |i: u64| data(i * len, len as usize, false);
    let (lost, arrived): (Vec<_>, Vec<_>) = (0..packets).partition(|i| i % 10 == 3);
    let (mut most, max) = (0, streams.runs_max());
    for i in arrived.into_iter().chain(lost) {
        assert!(!streams.is_scattered());
        streams.on_data(piece(i)).unwrap();
        most = most.max(streams.pieces());
    }
    assert_eq!((streams.pieces(), streams.beyond), (0, 0));
    assert!(most > 20_000 && most * 10 < max, "{most}");
}

#[test]
fn separate_pieces_are_bounded_by_credit_and_others_always_fit() {
    let credit = 64 << 20;
    let mut streams = Streams::new(false, credit, STREAMS_MAX, credit);
    streams.open_by_peer(0, Class::Bulk).unwrap();
    streams.open_by_peer(2, Class::Bulk).unwrap();
    let piece = |i: u64| Data::new(2 * (i % 2), i | 1, 1, false);
    let mut pieces = 0;
    while !streams.is_scattered() {
        assert!(streams.adds_piece(piece(pieces)));
        streams.on_data(piece(pieces)).unwrap();
        pieces += 1;
    }
    assert_eq!(pieces, 4096 + 65_536);
    assert_eq!(streams.pieces, pieces as usize);
    for fits in [data(0, 1, false), data(2, 1, false), data(1, 5, false)] {
        assert!(!streams.adds_piece(fits), "{fits:?}");
    }
    // The first missing byte of a stream joins pieces, and a stream that ends takes its own along.
    streams.on_data(data(0, 2, false)).unwrap();
    assert_eq!(streams.pieces, pieces as usize - 1);
    streams.reset(0);
    streams.reset(2);
    assert_eq!((streams.pieces, streams.beyond), (0, 0));
}
