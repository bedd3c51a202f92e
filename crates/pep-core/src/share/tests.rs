use proptest::prelude::*;

use super::*;

const RATE: u64 = 62_500;
/// Rate that several flows share.
const SHARED: u64 = RATE - RATE / 256;

/// Definition of the level: raised in small steps for all flows, until the link is full.
fn by_small_steps(rate: u64, demands: &[u64]) -> u64 {
    let filled = |level: u64| demands.iter().map(|demand| level.min(*demand)).sum::<u64>();
    (0..=rate)
        .rev()
        .find(|level| filled(*level) <= rate)
        .unwrap_or(0)
}

fn shares(level: u64, demands: &[u64]) -> Vec<u64> {
    demands.iter().map(|demand| level.min(*demand)).collect()
}

fn demand() -> impl Strategy<Value = u64> {
    prop_oneof![0..2000u64, 0..20u64, Just(UNBOUNDED)]
}

proptest! {
    #[test]
    fn it_is_as_high_as_the_link_allows(
        rate in 1..2000u64,
        demands in prop::collection::vec(demand(), 0..12),
    ) {
        let level = water_level(rate, &mut demands.clone());
        let expected = by_small_steps(rate, &demands);
        // Where all flows are satisfied, any higher level would be as good.
        prop_assert_eq!(shares(level, &demands), shares(expected, &demands));
    }

    #[test]
    fn hundreds_of_flows_fill_the_link_and_no_more(
        rate in 1_000_000..10_000_000_000u64,
        demands in prop::collection::vec(prop_oneof![0..100_000_000u64, Just(UNBOUNDED)], 1..800),
    ) {
        let level = water_level(rate, &mut demands.clone());
        let used: u64 = shares(level, &demands).iter().sum();
        let wanted = demands.iter().fold(0u64, |sum, demand| sum.saturating_add(*demand));
        prop_assert!(used <= rate);
        // Rounding loses less than a byte per second and flow.
        prop_assert!(used + demands.len() as u64 >= rate.min(wanted));
    }

    #[test]
    fn who_wants_more_takes_from_the_level(
        rate in 1..1_000_000u64,
        demands in prop::collection::vec(0..100_000u64, 1..50),
        which in any::<prop::sample::Index>(),
        more in 1..100_000u64,
    ) {
        let mut greedier = demands.clone();
        greedier[which.index(demands.len())] += more;
        let before = water_level(rate, &mut demands.clone());
        prop_assert!(water_level(rate, &mut greedier) <= before);
    }
}

#[test]
fn equal_wishes_get_equal_shares_and_small_ones_what_they_want() {
    assert_eq!(water_level(100, &mut [UNBOUNDED]), 100);
    assert_eq!(water_level(100, &mut [UNBOUNDED; 4]), 25);
    assert_eq!(water_level(100, &mut [10, UNBOUNDED, UNBOUNDED]), 45);
    assert_eq!(water_level(100, &mut [10, 20, UNBOUNDED]), 70);
    assert_eq!(water_level(100, &mut [10, 20]), 100);
    assert_eq!(water_level(100, &mut []), 100);
}

#[test]
fn newcomers_begin_with_an_equal_share_or_the_level() {
    assert_eq!(newcomer_level(RATE, RATE, 1), RATE);
    assert_eq!(newcomer_level(RATE, RATE, 5), RATE / 5);
    assert_eq!(newcomer_level(RATE, RATE / 10, 5), RATE / 10);
    assert_eq!(newcomer_level(RATE, RATE, 1_000_000), RATE / 1024);
    assert_eq!(newcomer_level(3, 3, 1_000_000), 1);
}

fn flow(sent: u64, backlogged: bool) -> Sharer {
    let mut flow = Sharer::default();
    flow.handle_usage(Usage {
        sent,
        new: false,
        fresh: sent > 0,
        backlogged,
    });
    flow
}

/// Level after one interval of 1 s with the recorded usage.
fn level_after(flows: &mut [Sharer]) -> u64 {
    Level::new(RATE).handle_interval(Duration::from_secs(1), flows)
}

#[test]
fn newly_seen_flows_want_everything_if_bytes_of_them_wait() {
    let newcomer = |backlogged| {
        let mut flow = Sharer::default();
        flow.handle_usage(Usage {
            sent: 0,
            new: true,
            fresh: false,
            backlogged,
        });
        flow
    };
    let bulk = flow(RATE, true);
    assert_eq!(level_after(&mut [bulk, newcomer(true)]), SHARED / 2);
    assert_eq!(level_after(&mut [bulk, newcomer(false)]), SHARED);
}

#[test]
fn what_a_flow_cannot_use_others_may_have() {
    let others = |share: u64| flow(RATE - share, true);
    let stuck = flow(0, true);
    assert_eq!(level_after(&mut [others(0), stuck]), SHARED);
    let growing = flow(RATE / 8, true);
    let level = level_after(&mut [others(RATE / 8), growing]);
    assert_eq!(level, SHARED - 2 * (RATE / 8));
    let slow_source = flow(RATE / 4, false);
    let level = level_after(&mut [others(RATE / 4), slow_source]);
    assert_eq!(level, SHARED - RATE / 4 - RATE / 16);
}

/// Two flows send as fast as they may, after an unpaced burst. Returns the queue after each
/// interval, and the level at the end.
fn after_burst(burst: u64) -> (Vec<u64>, u64) {
    let mut level = Level::new(RATE);
    let (mut queue, mut sent) = (0, burst);
    let mut queues = Vec::new();
    for _ in 0..100 {
        let had = queue + sent;
        assert!(had + ALL / 256 + 4 >= ALL, "the link is idle: {queues:?}");
        queue = had.saturating_sub(ALL);
        queues.push(queue);
        level.handle_interval(INTERVAL, &mut [flow(sent / 2, true); 2]);
        sent = 2 * level.get() / 10;
    }
    (queues, level.get())
}

#[test]
fn a_burst_leaves_the_queue_again_and_the_link_is_full_meanwhile() {
    for burst in [2 * ALL, 10 * ALL, 20 * ALL] {
        let (queues, level) = after_burst(burst);
        // In seconds, without the spare part: q' = -q^2, hence q = q0 / (1 + t q0).
        assert!(queues[99] <= ALL, "{queues:?}");
        assert!(queues.is_sorted_by(|a, b| a >= b), "{queues:?}");
        assert!(level > SHARED / 2 - SHARED / 100, "{level}");
    }
}

#[test]
fn what_no_queue_can_hold_is_forgotten() {
    let (_, level) = after_burst(1000 * ALL);
    assert!(level > SHARED / 2 - SHARED / 100, "{level}");
}

#[test]
fn nothing_changes_while_the_link_is_down() {
    let mut level = Level::new(RATE);
    let second = Duration::from_secs(1);
    let mut flows = [flow(RATE / 2, true), flow(RATE / 2, true), flow(100, false)];
    let before = level.handle_interval(second, &mut flows);
    assert!(before < RATE);
    for _ in 0..100 {
        for flow in &mut flows {
            // They retransmit now and then.
            flow.handle_usage(Usage {
                sent: 1500,
                new: false,
                fresh: false,
                backlogged: true,
            });
        }
        assert_eq!(level.handle_interval(second, &mut flows), before);
    }
    // But not while they merely want nothing.
    for flow in &mut flows {
        flow.handle_usage(Usage {
            sent: 0,
            new: false,
            fresh: false,
            backlogged: false,
        });
    }
    for _ in 0..100 {
        level.handle_interval(second, &mut flows);
    }
    assert_eq!(level.get(), SHARED);
}

#[test]
fn the_level_has_a_floor() {
    let mut level = Level::new(RATE);
    let mut flows = vec![flow(RATE, true); 3000];
    assert_eq!(level.handle_interval(INTERVAL, &mut flows), RATE / 1024);
}

/// A flow in a model of the link: its source, its window, and the bytes it has sent.
#[derive(Debug, Clone)]
struct Model {
    sharer: Sharer,
    /// Bytes per interval from its source.
    source: u64,
    /// Bytes from its source that are not sent yet.
    waiting: u64,
    /// Bytes per interval that its window allows; grows by 50 % each time it is full.
    window: u64,
    /// Bytes sent in the last interval.
    sent: u64,
}

impl AsMut<Sharer> for Model {
    fn as_mut(&mut self) -> &mut Sharer {
        &mut self.sharer
    }
}

impl Model {
    fn new(source: u64) -> Self {
        Self {
            sharer: Sharer::default(),
            source,
            waiting: 0,
            window: 200,
            sent: 0,
        }
    }

    fn run(&mut self, level: u64) {
        // Waiting bytes are bounded by the ring and the buffers.
        self.waiting = (self.waiting + self.source).min(1 << 20);
        self.sent = self.waiting.min(self.window).min(level / 10);
        self.waiting -= self.sent;
        if self.sent == self.window {
            self.window += self.window / 2;
        }
        self.sharer.handle_usage(Usage {
            sent: self.sent,
            new: false,
            fresh: self.sent > 0,
            backlogged: self.waiting > 0,
        });
    }
}

/// Lets flows send for this many intervals. Returns the sum that they sent in each.
fn run(level: &mut Level, flows: &mut [Model], intervals: usize) -> Vec<u64> {
    let mut sums = Vec::new();
    for _ in 0..intervals {
        for flow in &mut *flows {
            flow.run(level.get());
        }
        sums.push(flows.iter().map(|flow| flow.sent).sum());
        level.handle_interval(INTERVAL, flows);
    }
    sums
}

const ALL: u64 = RATE / 10;

#[test]
fn a_lone_flow_has_the_whole_link() {
    let mut level = Level::new(RATE);
    run(&mut level, &mut [Model::new(RATE)], 50);
    assert_eq!(level.get(), RATE);
}

#[test]
fn flows_come_and_go() {
    let mut level = Level::new(RATE);
    let mut flows = vec![Model::new(RATE)];
    run(&mut level, &mut flows, 50);
    flows.push(Model::new(RATE));
    let sums = run(&mut level, &mut flows, 100);
    // The level follows a new flow before that puts more than a few intervals' worth into the
    // queue.
    let surplus: u64 = sums.iter().map(|sum| sum.saturating_sub(ALL)).sum();
    assert!(surplus < 3 * ALL, "{sums:?}");
    assert_eq!(level.get(), SHARED / 2);
    flows.remove(0);
    run(&mut level, &mut flows, 100);
    assert_eq!((level.get(), flows[0].sent), (RATE, ALL));
}

#[test]
fn when_most_flows_leave_the_others_do_not_overshoot() {
    let mut level = Level::new(RATE);
    let mut flows = vec![Model::new(RATE); 10];
    run(&mut level, &mut flows, 100);
    assert_eq!(level.get(), SHARED / 10);
    flows.truncate(2);
    let sums = run(&mut level, &mut flows, 100);
    assert!(sums.iter().all(|sum| *sum <= ALL), "{sums:?}");
    assert_eq!(level.get(), SHARED / 2);
}

proptest! {
    #[test]
    fn shares_settle_whatever_the_sources_deliver(
        sources in prop::collection::vec(prop_oneof![1..ALL, Just(RATE)], 2..20),
    ) {
        let mut level = Level::new(RATE);
        let mut flows: Vec<_> = sources.iter().map(|source| Model::new(*source)).collect();
        run(&mut level, &mut flows, 400);
        let fair = water_level(SHARED / 10, &mut sources.clone());
        let allowed: u64 = sources.iter().map(|source| fair.min(*source)).sum();
        let sums = run(&mut level, &mut flows, 100);
        for sum in &sums {
            // Only the quarters reserved for sources that deliver less than they might are lost.
            prop_assert!(*sum * 5 + 100 >= allowed * 4, "{sum} of {allowed}: {flows:?}");
            prop_assert!(*sum <= ALL + flows.len() as u64);
        }
        let full = flows.iter().filter(|flow| flow.source > fair + 1).map(|flow| flow.sent);
        let (minimum, most) = full.fold((u64::MAX, 0), |(a, b), sent| (a.min(sent), b.max(sent)));
        prop_assert!(minimum == u64::MAX || minimum + 1 >= most, "{flows:?}");
    }
}
