//! A sender in virtual time.

use std::collections::BTreeMap;

use super::*;

/// Time to send a repair packet.
const REPAIR_TIME: Duration = Duration::from_micros(100);

/// Sends data as soon as it comes, and repair packets when there is none.
struct Sender {
    encoder: BlockEncoder,
    now: Duration,
    /// Packets sent, with their times.
    left: Vec<(Duration, Packet)>,
}

impl Sender {
    /// Advances the time: timers fire when due, and repair packets leave one after the other.
    fn run_until(&mut self, until: Duration) {
        while self.now < until {
            if let Some((header, symbol)) = self.encoder.poll_repair() {
                let payload = symbol.to_vec();
                self.left.push((self.now, Packet { header, payload }));
                self.now += REPAIR_TIME;
            } else {
                let due = self.encoder.poll_timeout().filter(|due| *due < until);
                self.now = self.now.max(due.unwrap_or(until));
                self.encoder.handle_timeout(self.now);
            }
        }
    }

    fn data(&mut self, payload: &[u8], came: Duration) {
        let packet = send(&mut self.encoder, payload, came);
        self.left.push((came, packet));
    }
}

/// Packets with their arrival times: bursts, gaps, and some while repair packets leave.
fn arrivals(draw: &mut Draw) -> Vec<(Duration, Vec<u8>)> {
    let mut now = T0;
    let arrivals = (0..1000u32).map(|i| {
        if draw.chance(0.7) {
            now += Duration::from_micros(draw.between(0, 5000) as u64);
        }
        (now, i.to_be_bytes().repeat(draw.between(1, 25)))
    });
    arrivals.collect()
}

fn run(draw: &mut Draw) -> (Vec<(Duration, Vec<u8>)>, Sender) {
    let (k, h) = (draw.between(1, 60) as u8, draw.between(0, 60) as u8);
    let depth = [1, 1, 2, 5, 16][draw.below(5)];
    let config = EncoderConfig {
        depth,
        ..encoder(k, h)
    };
    let mut sender = Sender {
        encoder: BlockEncoder::new(config).unwrap(),
        now: T0,
        left: Vec::new(),
    };
    let arrivals = arrivals(draw);
    for (came, payload) in &arrivals {
        sender.run_until(*came);
        sender.data(payload, *came);
        if draw.chance(0.1) {
            sender.encoder.handle_drained(*came);
        }
        if draw.chance(0.1) {
            let h = draw.between(0, 60) as u8;
            sender.encoder.set_overhead(Overhead::of_block(k, h));
        }
    }
    sender.run_until(sender.now + Duration::from_secs(10));
    (arrivals, sender)
}

#[test]
fn data_leaves_unchanged_at_once_at_any_overhead() {
    for_seeds(60, |draw| {
        let (came, sender) = run(draw);
        let data = sender
            .left
            .into_iter()
            .filter(|(_, packet)| packet.header.is_data());
        let left: Vec<_> = data.map(|(time, packet)| (time, packet.payload)).collect();
        assert_eq!(left, came);
    });
}

#[test]
fn repair_packets_leave_after_all_data_of_their_block_and_soon() {
    for_seeds(60, |draw| {
        let (_, sender) = run(draw);
        // For each block the time of its first packet, and the number sent.
        let mut blocks: BTreeMap<u32, (Duration, u8)> = BTreeMap::new();
        let mut seen = 0;
        for (time, packet) in &sender.left {
            match packet.header {
                Header::BlockData { block, .. } => {
                    blocks.entry(block).or_insert((*time, 0)).1 += 1;
                }
                Header::BlockRepair { block, k, .. } => {
                    let (first, data) = blocks[&block];
                    assert_eq!(
                        data, k,
                        "data of block {block} that left before its repair packets"
                    );
                    // Its own block time, and other repair packets that may be in front.
                    let ahead = 16 * 2 * 60 * REPAIR_TIME;
                    assert!(
                        *time <= first + BLOCK_TIME_MAX + ahead,
                        "block {block} at {time:?}"
                    );
                    seen += 1;
                }
                header => panic!("{header:?} of another scheme"),
            }
        }
        let stats = sender.encoder.stats();
        assert_eq!((stats.data, stats.repairs), (1000, seen));
        assert_eq!(sender.encoder.poll_timeout(), None);
    });
}
