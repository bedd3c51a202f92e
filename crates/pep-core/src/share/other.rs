//! Rate of the traffic that leaves by the link's interface besides the flows that share it.

use std::time::Duration;

use super::{INTERVAL, Usage, bytes_in};

/// Time constant of the mean rate: traffic that pauses for less still counts.
const MEAN_TIME: Duration = Duration::from_millis(800);

/// Bytes by which a rise may be by chance: packets that one counter has seen and the other not yet.
const CHANCE_BYTES: u64 = 4 * 1500;
/// As [`CHANCE_BYTES`] on fast links, as a part of what the link carries meanwhile.
const CHANCE_PARTS: u64 = 32;

/// Maximum of packets that flows have sent and the interface is still to count.
const LATE_PACKETS_MAX: u64 = 64;

/// Time of the link's rate for which flows may have sent more than the interface. More than that is
/// not queued in the kernel, but was dropped there.
const BEHIND_TIME: Duration = Duration::from_secs(1);

/// Packets that an interface has transmitted since some time, and their bytes from the IP header
/// on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Transmitted {
    /// Number of packets. A driver may count one for several that the device splits.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Traffic that leaves by the link's interface and is not of sharing flows: UDP, bypassed
/// connections, tunnels, acknowledgements of downloads, other programs.
///
/// It is the difference of two counters, that of the interface and those of the flows' sockets.
/// Packets between the two appear as a deficit in one interval and as a surplus in the next, so
/// the mean is one of signed differences. A rise beyond chance counts at once, as the link's queue
/// would have to absorb it.
#[derive(Debug, Clone)]
pub struct OtherTraffic {
    /// The link's rate in bytes per second.
    rate: u64,
    /// Counters of the interface at the last comparison.
    seen: Option<Transmitted>,
    /// Sent by the flows since then, with headers that the interface is still to count.
    own: Own,
    /// Time since then.
    waited: Duration,
    /// Mean rate in bytes per second.
    mean: i64,
    /// Difference that is not in `total` yet; negative while packets of flows are on their way to
    /// the interface.
    balance: i64,
    total: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Own {
    packets: u64,
    headers: u64,
    payload: u64,
}

impl OtherTraffic {
    /// Returns the traffic of an interface that leads to a link of `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        Self {
            rate,
            seen: None,
            own: Own::default(),
            waited: Duration::ZERO,
            mean: 0,
            balance: 0,
            total: 0,
        }
    }

    /// Current rate in bytes per second.
    pub fn rate(&self) -> u64 {
        u64::try_from(self.mean).unwrap_or(0)
    }

    /// Bytes since the start.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Compares the interface's counters, if it exists, with what the flows have sent in the time
    /// `elapsed` since the last call.
    ///
    /// Some drivers update their counters only once per second. While flows send and the counters
    /// do not change, the rate stays. It also stays until half of [`INTERVAL`] has passed, as a
    /// few packets in no time would be a high rate.
    pub fn handle_interval(
        &mut self,
        elapsed: Duration,
        now: Option<Transmitted>,
        flows: impl Iterator<Item = Usage>,
    ) {
        self.waited += elapsed;
        for usage in flows {
            self.own.packets += usage.packets;
            self.own.headers += usage.headers;
            self.own.payload += usage.sent.saturating_sub(usage.headers);
        }
        let Some(now) = now else {
            self.restart(None);
            self.mean = 0;
            return;
        };
        // Counters of a new interface with the name of the old one begin with 0.
        let Some(last) = self.seen.filter(|last| last.bytes <= now.bytes) else {
            return self.restart(Some(now));
        };
        if self.waited < INTERVAL / 2 || self.own.payload > 0 && now == last {
            return;
        }
        let (bytes, late) = self.own.subtract_from(Transmitted {
            packets: now.packets.saturating_sub(last.packets),
            bytes: now.bytes - last.bytes,
        });
        self.note_rate(bytes);
        self.note_total(bytes);
        self.restart(Some(now));
        self.own = late;
    }

    fn restart(&mut self, now: Option<Transmitted>) {
        self.seen = now;
        self.own = Own::default();
        self.waited = Duration::ZERO;
    }

    fn note_rate(&mut self, bytes: i64) {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX);
        let (waited, whole) = (nanos(self.waited).max(1), nanos(MEAN_TIME));
        let now = i128::from(bytes) * 1_000_000_000 / waited;
        let mean = i128::from(self.mean);
        let chance = CHANCE_BYTES.max(bytes_in(self.rate, self.waited) / CHANCE_PARTS);
        let expected = mean.max(0) * waited / 1_000_000_000;
        let next = if i128::from(bytes) > expected + i128::from(chance) {
            now
        } else {
            mean + (now - mean) * waited.min(whole) / whole
        };
        self.mean = i64::try_from(next).unwrap_or(i64::MAX);
    }

    fn note_total(&mut self, bytes: i64) {
        let behind = bytes_in(self.rate, BEHIND_TIME);
        let behind = i64::try_from(behind).unwrap_or(i64::MAX);
        self.balance = self.balance.saturating_add(bytes).max(-behind);
        let surplus = u64::try_from(self.balance).unwrap_or(0);
        self.total += surplus;
        self.balance = self.balance.min(0);
    }
}

impl Own {
    /// Returns the bytes that are not of the flows, and the flows' packets that the interface has
    /// not counted yet.
    ///
    /// If a driver counts packets before the device splits them, the interface has counted fewer
    /// packets than the flows alone have sent, and as many headers.
    fn subtract_from(self, all: Transmitted) -> (i64, Self) {
        let counted = self.packets.min(all.packets);
        let of = |packets| {
            let headers = u128::from(self.headers) * u128::from(packets);
            u64::try_from(headers / u128::from(self.packets.max(1))).unwrap_or(u64::MAX)
        };
        let others = i128::from(all.bytes) - i128::from(self.payload) - i128::from(of(counted));
        let late = (self.packets - counted).min(LATE_PACKETS_MAX);
        let late = Self {
            packets: late,
            headers: of(late),
            payload: 0,
        };
        (i64::try_from(others).unwrap_or(i64::MIN), late)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes per second.
    const RATE: u64 = 1_250_000;
    const STEP: Duration = Duration::from_millis(100);

    fn usage(packets: u64) -> Usage {
        Usage {
            sent: packets * 1500,
            packets,
            headers: packets * 52,
            ..Usage::default()
        }
    }

    /// Interface of the link, and the estimate.
    struct Model {
        interface: Transmitted,
        other: OtherTraffic,
    }

    impl Model {
        fn new() -> Self {
            let mut model = Self {
                interface: Transmitted {
                    packets: 77,
                    bytes: 12_345,
                },
                other: OtherTraffic::new(RATE),
            };
            model.step(0, 0);
            model
        }

        /// Sends this many full packets of flows, and bytes of others in one packet per 200 bytes.
        fn step(&mut self, own: u64, other: u64) -> u64 {
            self.interface.packets += own + other / 200;
            self.interface.bytes += own * 1500 + other;
            let now = Some(self.interface);
            self.other
                .handle_interval(STEP, now, [usage(own)].into_iter());
            self.other.rate()
        }
    }

    #[test]
    fn it_is_what_flows_have_not_sent() {
        let mut model = Model::new();
        for _ in 0..50 {
            model.step(40, 50_000);
        }
        assert_eq!(model.other.rate(), 500_000);
        assert_eq!(model.other.total(), 50 * 50_000);
    }

    #[test]
    fn a_rise_counts_at_once_and_a_fall_later() {
        let mut model = Model::new();
        assert_eq!(model.step(40, 50_000), 500_000);
        let after = model.step(40, 0);
        assert!((400_000..500_000).contains(&after), "{after}");
        for _ in 0..100 {
            model.step(40, 0);
        }
        assert!(model.other.rate() < 10, "{}", model.other.rate());
    }

    #[test]
    fn a_few_packets_do_not_count_at_once() {
        let mut model = Model::new();
        let rate = model.step(40, 1500);
        assert!(rate < 2000, "{rate}");
    }

    #[test]
    fn a_burst_in_no_time_does_not_count_as_a_rate() {
        let mut model = Model::new();
        model.interface.packets += 8;
        model.interface.bytes += 12_000;
        let now = Some(model.interface);
        let soon = Duration::from_micros(10);
        model.other.handle_interval(soon, now, [].into_iter());
        assert_eq!(model.other.rate(), 0);
        assert_eq!(model.step(0, 0), 119_988);
    }

    #[test]
    fn packets_on_their_way_to_the_interface_do_not_count() {
        let mut model = Model::new();
        model.step(40, 0);
        for _ in 0..100 {
            for late in [4, 0] {
                let now = Transmitted {
                    packets: model.interface.packets + 40 - late,
                    bytes: model.interface.bytes + (40 - late) * 1500,
                };
                let sent = [usage(40)].into_iter();
                model.other.handle_interval(STEP, Some(now), sent);
                model.interface.packets += 40;
                model.interface.bytes += 40 * 1500;
                assert!(model.other.rate() <= 8_000, "{}", model.other.rate());
            }
        }
        assert_eq!(model.other.total(), 0);
    }

    #[test]
    fn packets_that_the_device_splits_are_counted_with_one_header() {
        let mut other = OtherTraffic::new(RATE);
        let mut interface = Transmitted::default();
        for _ in 0..20 {
            other.handle_interval(STEP, Some(interface), [usage(40)].into_iter());
            assert_eq!(other.rate(), 0);
            interface.packets += 10;
            interface.bytes += 40 * 1448 + 10 * 52;
        }
        assert_eq!(other.total(), 0);
        assert!(other.mean >= 0, "no deficit that would hide other traffic");
        interface.bytes += 100_000;
        interface.packets += 100;
        other.handle_interval(STEP, Some(interface), [usage(40)].into_iter());
        assert!((950_000..=1_000_000).contains(&other.rate()), "{other:?}");
        for _ in 0..100 {
            other.handle_interval(STEP, Some(interface), [].into_iter());
        }
        assert!(other.rate() < 10, "{other:?}");
    }

    #[test]
    fn a_counter_that_changes_once_per_second_is_enough() {
        let mut other = OtherTraffic::new(RATE);
        other.handle_interval(STEP, Some(Transmitted::default()), [].into_iter());
        for second in 1..20 {
            for tenth in 1..=10 {
                let seconds = if tenth == 10 { second } else { second - 1 };
                let now = Transmitted {
                    packets: seconds * 800,
                    bytes: seconds * (400 * 1500 + 400_000),
                };
                other.handle_interval(STEP, Some(now), [usage(40)].into_iter());
                let before = second == 1 && tenth < 10;
                assert_eq!(other.rate(), if before { 0 } else { 400_000 });
            }
        }
    }

    #[test]
    fn an_interface_that_is_gone_or_new_has_no_other_traffic_yet() {
        let mut model = Model::new();
        model.step(0, 50_000);
        model.other.handle_interval(STEP, None, [].into_iter());
        assert_eq!(model.other.rate(), 0);
        model.interface = Transmitted::default();
        assert_eq!(model.step(0, 50_000), 0, "first sight");
        assert_eq!(model.step(0, 50_000), 500_000);
        model.interface = Transmitted::default();
        assert_eq!(model.step(0, 40_000), 500_000, "counters begin again");
        assert_eq!(model.other.total(), 100_000);
    }

    proptest! {
        #[test]
        fn the_total_is_that_of_all_differences(
            steps in prop::collection::vec((0..80u64, 0..100_000u64), 1..100),
        ) {
            let mut model = Model::new();
            let mut sent = 0;
            for (own, other) in steps {
                // One packet per 200 bytes.
                let other = other / 200 * 200;
                model.step(own, other);
                sent += other;
                prop_assert!(model.other.total() <= sent);
            }
            prop_assert_eq!(model.other.total(), sent);
        }
    }
}
