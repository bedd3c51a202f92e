use super::*;
use crate::scheme::TooLong;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn windows(repairs: &[Packet]) -> Vec<(u32, u16)> {
    let window = |(header, _): &Packet| match header {
        Header::WindowRepair { first, count, .. } => (*first, *count),
        header => panic!("{header:?}"),
    };
    repairs.iter().map(window).collect()
}

/// Pattern of the packets sent, data and repair.
fn pattern(sent: &[Packet]) -> String {
    let mark = |(header, _): &Packet| if header.is_data() { 'd' } else { 'R' };
    sent.iter().map(mark).collect()
}

#[test]
fn repair_packets_come_evenly() {
    let mut five = encoder(&windows_of(8), Overhead::of_block(5, 1));
    assert_eq!(pattern(&send(&mut five, 0, 15)), "dddddRdddddRdddddR");
    let mut half_more = encoder(&windows_of(128), Overhead::of_block(2, 3));
    assert_eq!(pattern(&send(&mut half_more, 0, 6)), "dRdRRdRdRRdRdRR");
    let mut odd = encoder(&windows_of(128), Overhead::of_block(100, 7));
    let sent = pattern(&send(&mut odd, 0, 10_000));
    assert_eq!(sent.matches('R').count(), 700);
    assert!(sent.split('R').all(|data| data.len() <= 15));
}

#[test]
fn one_repair_packet_a_message_over_the_last_three() {
    let mut encoder = encoder(&windows_of(3), Overhead::of_block(1, 1));
    let sent = send(&mut encoder, 0, 5);
    let repairs: Vec<Packet> = sent
        .into_iter()
        .filter(|(header, _)| !header.is_data())
        .collect();
    assert_eq!(windows(&repairs), [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]);
    encoder.handle_drained(ms(0));
    assert_eq!(encoder.poll_repair(), None, "every message has had its own");
}

#[test]
fn a_repair_symbol_is_as_long_as_the_longest_packet_of_its_window() {
    let mut encoder = encoder(
        &EncoderConfig {
            payload_max: 100,
            ..windows_of(2)
        },
        Overhead::of_block(1, 1),
    );
    for (length, symbol) in [(10, 12), (0, 12), (0, 2), (100, 102), (3, 102), (4, 6)] {
        encoder.handle_data(&vec![1; length], ms(0)).unwrap();
        assert_eq!(encoder.poll_repair().unwrap().1.len(), symbol);
    }
    let refused = TooLong { len: 101, max: 100 };
    assert_eq!(encoder.handle_data(&[1; 101], ms(0)), Err(refused));
    assert_eq!(encoder.poll_repair(), None);
}

#[test]
fn the_tail_gets_what_it_lacks_once() {
    // As theory requires: proportionally more for few.
    let overhead = || Overhead::from_fn(|k| [1, 2, 3][usize::from(k > 2) + usize::from(k > 10)]);
    let mut encoder = encoder(&windows_of(128), overhead());
    assert_eq!(
        send(&mut encoder, 0, 7).len(),
        7,
        "3 for 100 have not come together yet"
    );
    encoder.handle_drained(ms(0));
    assert_eq!(windows(&repairs(&mut encoder)), [(0, 7), (0, 7)]);
    encoder.handle_drained(ms(0));
    assert_eq!(repairs(&mut encoder), [], "once");
    // The last alone lacks one; the last three, and all, have had two and get one more.
    send(&mut encoder, 7, 1);
    encoder.handle_drained(ms(1));
    assert_eq!(windows(&repairs(&mut encoder)), [(0, 8)]);
    assert_eq!(encoder.stats().repairs_tail, 3);
}

#[test]
fn the_tail_in_proportion_is_one_packet_at_most() {
    for count in 1..60 {
        let mut encoder = encoder(&windows_of(50), Overhead::of_block(20, 6));
        let before = send(&mut encoder, 0, count).len() - count as usize;
        encoder.handle_drained(ms(0));
        let tail = repairs(&mut encoder).len();
        assert!(tail <= 1);
        // 20 of the 6 are 0.3: all packets have it.
        assert!(
            (before + tail) * 10 >= 3 * count as usize,
            "{count}: {before} + {tail}"
        );
    }
}

#[test]
fn no_packet_stays_bare_for_long() {
    let config = EncoderConfig {
        hold: ms(20),
        ..windows_of(50)
    };
    let mut encoder = encoder(&config, Overhead::of_block(50, 1));
    assert_eq!(encoder.poll_timeout(), None);
    encoder.handle_data(b"one", ms(5)).unwrap();
    encoder.handle_data(b"two", ms(15)).unwrap();
    assert_eq!(encoder.poll_timeout(), Some(ms(25)));
    encoder.handle_timeout(ms(24));
    assert_eq!(encoder.poll_repair(), None, "not yet");
    encoder.handle_timeout(ms(25));
    assert_eq!(windows(&repairs(&mut encoder)), [(0, 2)]);
    assert_eq!(encoder.poll_timeout(), None);
    // An extra one, so the next interval starts here.
    let later = (0..49)
        .map(|i| encoder.handle_data(&[i], ms(26)).unwrap())
        .count();
    assert_eq!((later, encoder.poll_repair()), (49, None));
    encoder.handle_data(b"last", ms(26)).unwrap();
    assert_eq!(windows(&repairs(&mut encoder)), [(2, 50)]);
}

#[test]
fn delayed_repair_packets_are_over_the_window_of_their_turn() {
    let config = EncoderConfig {
        delay: ms(25),
        ..windows_of(3)
    };
    let mut encoder = encoder(&config, Overhead::of_block(1, 1));
    for i in 0..3 {
        encoder
            .handle_data(&packet_of(i), ms(10 * u64::from(i)))
            .unwrap();
        assert_eq!(encoder.poll_repair(), None);
    }
    assert_eq!(encoder.poll_timeout(), Some(ms(25)));
    encoder.handle_timeout(ms(25));
    assert_eq!(windows(&repairs(&mut encoder)), [(0, 1)]);
    encoder.handle_data(&packet_of(3), ms(36)).unwrap();
    assert_eq!(windows(&repairs(&mut encoder)), [(0, 2)]);
    encoder.handle_timeout(ms(100));
    let late = repairs(&mut encoder);
    assert_eq!(windows(&late), [(0, 3), (1, 3)]);
    let mut decoder = decoder(3);
    assert_eq!(receive(&mut decoder, &late[0]).1, []);
    let data = |id| (Header::WindowData { id }, packet_of(id));
    receive(&mut decoder, &data(0));
    assert_eq!(receive(&mut decoder, &data(1)).1, [2]);
    assert_eq!(receive(&mut decoder, &late[1]).1, [3]);
}

#[test]
fn when_too_many_wait_the_first_go_sooner() {
    let config = EncoderConfig {
        delay: ms(1000),
        ..windows_of(8)
    };
    let mut encoder = encoder(&config, Overhead::of_block(1, 1));
    let sent = send(&mut encoder, 0, 40);
    assert_eq!(sent.len() - 40, 40 - 16);
    encoder.handle_timeout(ms(1000));
    assert_eq!(repairs(&mut encoder).len(), 16);
    assert_eq!(encoder.stats().repairs_early, 24);
}

#[test]
fn repair_can_be_switched_on_at_any_time() {
    let mut encoder = encoder(&windows_of(10), Overhead::none());
    assert_eq!(send(&mut encoder, 0, 100).len(), 100);
    assert_eq!(encoder.poll_timeout(), None);
    encoder.handle_drained(ms(0));
    assert_eq!(encoder.poll_repair(), None);
    encoder.set_overhead(Overhead::of_block(7, 1));
    encoder.handle_drained(ms(0));
    assert_eq!(windows(&repairs(&mut encoder)), [(90, 10), (90, 10)]);
    encoder.set_overhead(Overhead::none());
    assert_eq!(send(&mut encoder, 100, 100).len(), 100);
}

/// Data is sent at once: its header is returned by the call, even with repair packets owed or
/// waiting.
#[test]
fn repair_packets_of_one_data_packet_may_be_apart() {
    let config = EncoderConfig {
        delay: ms(20),
        apart: ms(20),
        ..windows_of(3)
    };
    let mut encoder = encoder(&config, Overhead::of_block(1, 2));
    let mut seen = Vec::new();
    for now in 0..100 {
        if now == 0 || now == 13 {
            encoder.handle_data(b"message", ms(now)).unwrap();
        }
        encoder.handle_timeout(ms(now));
        while let Some((header, _)) = encoder.poll_repair() {
            let Header::WindowRepair { count, .. } = header else {
                panic!("no repair packet");
            };
            seen.push((now, count));
        }
    }
    // Those of the second one go in between those of the first.
    assert_eq!(seen, [(20, 1), (33, 2), (40, 1), (53, 2)]);
}

#[test]
fn data_is_never_delayed() {
    let config = EncoderConfig {
        delay: ms(30),
        ..windows_of(20)
    };
    let mut encoder = encoder(&config, Overhead::of_block(1, 1));
    for id in 0..1000u32 {
        let now = ms(id.into());
        let header = encoder.handle_data(&packet_of(id), now).unwrap();
        assert_eq!(header, Header::WindowData { id });
        if id % 7 == 0 {
            repairs(&mut encoder);
        }
    }
}

#[test]
fn repair_packets_computed_together_are_those_computed_alone() {
    let run = |at_once: bool| {
        let mut encoder = encoder(&windows_of(20), Overhead::none());
        send(&mut encoder, 0, 30);
        let mut all = Vec::new();
        for h in if at_once { 11..12 } else { 1..12 } {
            encoder.set_overhead(Overhead::from_fn(|k| h * usize::from(k >= 20)));
            encoder.handle_drained(ms(0));
            all.extend(repairs(&mut encoder));
        }
        all
    };
    let together = run(true);
    assert_eq!(together.len(), 11);
    assert_eq!(together, run(false));
}

/// The accumulated part of the next repair packet stays a share of one, whatever follows.
#[test]
fn a_new_overhead_never_brings_more_than_one_repair_packet_at_once() {
    let mut encoder = encoder(&windows_of(10), Overhead::of_block(255, 1));
    assert_eq!(send(&mut encoder, 0, 254).len(), 254);
    encoder.set_overhead(Overhead::of_block(3, 1));
    assert_eq!(pattern(&send(&mut encoder, 254, 6)), "dRdddRdd");
}

#[test]
fn times_without_end_are_no_trouble() {
    for (hold, delay, now) in [
        (Duration::MAX, ms(0), ms(1)),
        (ms(20), Duration::MAX, ms(1)),
        (ms(20), ms(30), Duration::MAX),
    ] {
        let config = EncoderConfig {
            hold,
            delay,
            ..windows_of(10)
        };
        let mut encoder = encoder(&config, Overhead::of_block(5, 1));
        for _ in 0..12 {
            encoder.handle_data(&[1], now).unwrap();
            encoder.poll_repair();
            encoder.handle_timeout(now);
            assert!(encoder.poll_timeout().is_none_or(|time| time >= now));
        }
    }
}

#[test]
fn unfetched_repair_packets_are_bounded() {
    let mut encoder = encoder(&windows_of(3), Overhead::of_block(1, 2));
    for id in 0..10_000 {
        encoder.handle_data(&packet_of(id), Duration::ZERO).unwrap();
    }
    let fetched = repairs(&mut encoder).len();
    assert!(fetched < 600, "{fetched}");
    assert_eq!(encoder.stats().repairs_dropped + fetched as u64, 20_000);
}
