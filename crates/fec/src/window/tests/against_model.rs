use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{model::Model, *};

#[derive(Debug)]
struct Link {
    loss: f64,
    /// Maximum places by which packets are delayed.
    jitter: usize,
    duplicates: f64,
}

impl Link {
    fn carry(&self, sent: Vec<Packet>, draw: &mut Draw) -> Vec<Packet> {
        let mut arriving = Vec::new();
        for (i, packet) in sent.into_iter().enumerate() {
            let copies = 1 + u32::from(draw.chance(self.duplicates));
            for _ in 0..copies {
                if !draw.chance(self.loss) {
                    arriving.push((i + draw.below(self.jitter + 1), packet.clone()));
                }
            }
        }
        arriving.sort_by_key(|(at, _)| *at);
        arriving.into_iter().map(|(_, packet)| packet).collect()
    }
}

/// After every packet the decoder has restored exactly the packets that a solution of all equations
/// from scratch gives, each once, and with the right content.
fn check(config: &DecoderConfig, share: (u8, u8), link: &Link, first: u32, count: u32, seed: u64) {
    let mut draw = Draw::new(seed);
    let sender = EncoderConfig {
        first_id: first,
        ..windows_of(config.window)
    };
    let mut encoder = encoder(&sender, Overhead::of_block(share.1, share.0));
    let mut sent = send(&mut encoder, first, count);
    encoder.handle_drained(Duration::ZERO);
    sent.extend(repairs(&mut encoder));
    let config = DecoderConfig {
        repairs: 255,
        ..config.clone()
    };
    let mut decoder = WindowDecoder::new(&config).unwrap();
    let mut model = Model::new(config.span.next_power_of_two() as u32);
    let mut passed = BTreeSet::new();
    for packet in link.carry(sent, &mut draw) {
        let (arrival, ids) = receive(&mut decoder, &packet);
        let expected = match packet.0 {
            Header::WindowData { id } => {
                let new = if passed.insert(id) {
                    Arrival::Data
                } else {
                    Arrival::Duplicate
                };
                assert_eq!(arrival, new, "{id}");
                model.data(id)
            }
            Header::WindowRepair { first, count, key } => model.repair(first, count, key),
            header => panic!("{header:?}"),
        };
        assert_eq!(ids, expected, "after {:?}", packet.0);
        assert!(ids.iter().all(|id| passed.insert(*id)), "{ids:?} again");
    }
    let stats = decoder.stats();
    assert_eq!(stats.repairs_evicted + stats.corrupt + stats.late, 0);
    assert_eq!(stats.data + stats.recovered, passed.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn small_windows(
        window in 1u8..=8,
        rows in 1u8..=16,
        loss in 0.0..0.5f64,
        jitter in 0usize..16,
        duplicates in 0.0..0.2f64,
        before_wrap in 0u32..300,
        seed in any::<u64>(),
    ) {
        let link = Link { loss, jitter, duplicates };
        check(&spans_of(window), (rows, 8), &link, 0u32.wrapping_sub(before_wrap), 300, seed);
    }

    #[test]
    fn middling_windows(
        window in 9u8..=40,
        rows in 1u8..=8,
        loss in 0.0..0.3f64,
        jitter in 0usize..24,
        before_wrap in 0u32..300,
        seed in any::<u64>(),
    ) {
        let link = Link { loss, jitter, duplicates: 0.02 };
        check(&spans_of(window), (rows, 16), &link, 0u32.wrapping_sub(before_wrap), 300, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn long_windows(window in 64u8.., rows in 1u8..=10, loss in 0.0..0.12f64, seed in any::<u64>()) {
        let link = Link { loss, jitter: 5, duplicates: 0.01 };
        check(&spans_of(window), (rows, 50), &link, 0u32.wrapping_sub(400), 800, seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// About as many repair packets as losses, so that equations wait until they leave the span.
    /// The choice of the redundant ones that are kept matters here.
    #[test]
    fn spans_of_two_windows_at_the_limit(
        window in 12u8..=32,
        rows in 3u8..=8,
        excess in 0.9..1.2f64,
        seed in any::<u64>(),
    ) {
        let config = DecoderConfig { span: 2 * usize::from(window), ..spans_of(window) };
        let link = Link { loss: excess * f64::from(rows) / 32.0, jitter: 1, duplicates: 0.0 };
        check(&config, (rows, 32), &link, 0, 1000, seed);
    }
}

/// With too few places for repair packets fewer are restored, but none wrongly, and none twice.
#[test]
fn too_many_equations_give_way() {
    for seed in 0..20 {
        let link = Link {
            loss: 0.3,
            jitter: 3,
            duplicates: 0.0,
        };
        let overhead = Overhead::of_block(10, 4);
        let mut encoder = encoder(&windows_of(60), overhead);
        let sent = send(&mut encoder, 0, 1000);
        let config = DecoderConfig {
            repairs: 5,
            ..spans_of(60)
        };
        let mut decoder = WindowDecoder::new(&config).unwrap();
        let mut passed = BTreeSet::new();
        for packet in link.carry(sent, &mut Draw::new(seed)) {
            let (_, ids) = receive(&mut decoder, &packet);
            let id = match packet.0 {
                Header::WindowData { id } => Some(id),
                _ => None,
            };
            passed.extend(id);
            assert!(
                ids.iter().all(|id| passed.insert(*id)),
                "seed {seed}: {ids:?} again"
            );
            assert!(decoder.pending() <= 5, "seed {seed}");
        }
        let stats = decoder.stats();
        assert!(stats.repairs_evicted > 0, "seed {seed}: {stats:?}");
        assert_eq!(stats.corrupt, 0, "seed {seed}: {stats:?}");
    }
}

/// A long run in a steady state: every packet is accounted for.
#[test]
fn what_is_not_restored_is_given_up() {
    let first = 0u32.wrapping_sub(30_000);
    let mut encoder = encoder(
        &EncoderConfig {
            first_id: first,
            ..windows_of(50)
        },
        Overhead::of_block(100, 8),
    );
    let sent = send(&mut encoder, first, 60_000);
    let mut decoder = decoder(50);
    let link = Link {
        loss: 0.05,
        jitter: 2,
        duplicates: 0.001,
    };
    for packet in link.carry(sent, &mut Draw::new(1)) {
        receive(&mut decoder, &packet);
    }
    let stats = decoder.stats();
    assert!(stats.recovered > 2_000 && stats.lost > 0, "{stats:?}");
    let all = stats.data + stats.recovered + stats.lost;
    // Missing packets among the last 128 do not count as lost yet.
    assert!((59_940..=60_000).contains(&all), "{all}: {stats:?}");
    let kept = stats.repairs - stats.repairs_spare - stats.repairs_far;
    assert!(stats.repairs_expired + stats.recovered <= kept, "{stats:?}");
}
