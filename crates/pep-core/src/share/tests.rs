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
fn newcomers_begin_with_an_equal_share_of_their_host_and_priority() {
    let mut active = Active::default();
    assert_eq!(active.admit(RATE, RATE, place(0, 1)), RATE);
    assert_eq!(active.admit(RATE, RATE, place(0, 1)), RATE / 2);
    assert_eq!(active.admit(RATE, RATE, place(0, 2)), RATE / 2);
    assert_eq!(active.admit(RATE, RATE / 10, place(0, 2)), RATE / 40);
    assert_eq!(active.admit(RATE, RATE, of_class(Class::Interactive)), RATE);
    for _ in 0..2000 {
        active.admit(RATE, RATE, place(0, 3));
    }
    assert_eq!(active.admit(RATE, RATE, place(0, 3)), RATE / 1024);
    assert_eq!(active.admit(3, 3, place(0, 3)), 1);
    assert_eq!(active.admit(RATE, RATE, place(1, 3)), RATE / 4);
}

#[test]
fn a_newcomer_does_not_share_with_flows_that_stand_still() {
    let mut flows = vec![Sharer::new(place(0, 1)); 900];
    flows.push(Sharer::new(place(0, 2)));
    let mut shares = Shares::new(RATE);
    for interval in 0..60 {
        for flow in &mut flows[..900] {
            flow.handle_usage(Usage {
                // The server's buffer is full after a moment.
                sent: if interval < 3 { RATE / 10_000 } else { 0 },
                fresh: interval < 3,
                backlogged: true,
                ..Usage::default()
            });
        }
        flows[900].handle_usage(Usage {
            sent: RATE / 20,
            fresh: true,
            ..Usage::default()
        });
        shares.handle_interval(INTERVAL, 0, &mut flows);
    }
    let mut active = Active::new(RATE, &flows);
    assert_eq!(active.admit(RATE, RATE, place(0, 3)), RATE / 2);
    assert_eq!(active.admit(RATE, RATE, place(0, 1)), RATE / 3);
}

/// Class normal, in the site and host of these numbers.
fn place(site: u16, host: u64) -> Place {
    Place {
        priority: Priority::Middle,
        site: SiteId(site),
        host,
    }
}

fn of_class(class: Class) -> Place {
    Place {
        priority: Priority::of(class),
        ..place(0, 0)
    }
}

fn flow_at(place: Place, sent: u64, backlogged: bool) -> Sharer {
    let mut flow = alone(place);
    flow.handle_usage(Usage {
        sent,
        fresh: sent > 0,
        backlogged,
        ..Usage::default()
    });
    flow
}

/// A flow that has had the link for itself.
fn alone(place: Place) -> Sharer {
    Sharer {
        limit: RATE,
        ..Sharer::new(place)
    }
}

fn flow(sent: u64, backlogged: bool) -> Sharer {
    flow_at(place(0, 0), sent, backlogged)
}

/// A flow that takes all it can get.
fn greedy(place: Place) -> Sharer {
    Sharer {
        limit: 1,
        ..flow_at(place, 1, true)
    }
}

/// Limits after one interval of 1 s with the recorded usage, in the order of the flows' places.
fn limits_after(other: u64, flows: &mut [Sharer]) -> Vec<u64> {
    Shares::new(RATE).handle_interval(Duration::from_secs(1), other, flows);
    flows.iter().map(Sharer::limit).collect()
}

/// Common limit of flows of one host.
fn level_after(flows: &mut [Sharer]) -> u64 {
    let limits = limits_after(0, flows);
    assert!(limits.iter().all(|limit| *limit == limits[0]), "{limits:?}");
    limits[0]
}

/// Definition of the shares: those who still want something get a byte each in turns, until
/// nothing is left. Groups pass their turns on to their own members.
fn by_turns(rate: u64, flows: &[(Place, u64)]) -> Vec<u64> {
    let mut got = vec![0; flows.len()];
    // Turns so far of each group: site, host within the site, flow.
    let mut turns = HashMap::<(u16, Option<u64>, Option<usize>), u64>::new();
    for _ in 0..rate {
        let waiting = (0..flows.len()).filter(|flow| got[*flow] < flows[*flow].1);
        let next = waiting.min_by_key(|flow| {
            let Place { site, host, .. } = flows[*flow].0;
            [
                turns.get(&(site.0, None, None)).copied().unwrap_or(0),
                turns.get(&(site.0, Some(host), None)).copied().unwrap_or(0),
                got[*flow],
            ]
        });
        let Some(next) = next else { break };
        got[next] += 1;
        let Place { site, host, .. } = flows[next].0;
        *turns.entry((site.0, None, None)).or_default() += 1;
        *turns.entry((site.0, Some(host), None)).or_default() += 1;
    }
    got
}

/// A flow of one priority, with its demand.
fn member() -> impl Strategy<Value = (Place, u64)> {
    let place = (0..3u16, 0..3u64).prop_map(|(site, host)| place(site, host));
    (place, prop_oneof![0..3000u64, 0..50u64, Just(UNBOUNDED)])
}

proptest! {
    #[test]
    fn a_priority_is_divided_by_sites_then_hosts_then_flows(
        rate in 1..3000u64,
        members in prop::collection::vec(member(), 1..16),
    ) {
        let mut members = members;
        members.sort_by_key(|(place, _)| *place);
        let mut flows: Vec<_> = members.iter().map(|(place, demand)| {
            let mut flow = Sharer::new(*place);
            flow.demand = *demand;
            flow
        }).collect();
        // So small that no limit is below the minimum.
        Shares::new(1).divide_among_sites(rate, &mut flows);
        let expected = by_turns(rate, &members);
        for (flow, expected) in flows.iter().zip(&expected) {
            let got = flow.limit().min(flow.demand);
            // Each of the three divisions rounds down, by less than a byte per member.
            let few = members.len() as u64 + 2;
            prop_assert!(got.abs_diff(*expected) <= few, "{got}, {expected}: {flows:?}");
        }
    }

    #[test]
    fn priorities_in_their_order_fill_the_link_and_no_more(
        rate in 100_000..1_000_000_000u64,
        demands in prop::collection::vec(
            (0..3usize, 0..4u16, 0..4u64, prop_oneof![0..10_000_000u64, Just(UNBOUNDED)]),
            1..60,
        ),
    ) {
        let mut flows: Vec<_> = demands.iter().map(|(priority, site, host, demand)| {
            let priority = Priority::ALL[*priority];
            let mut flow = Sharer::new(Place { priority, ..place(*site, *host) });
            (flow.demand, flow.claim) = (*demand, *demand);
            flow
        }).collect();
        flows.sort_by_key(Sharer::place);
        let of = |flows: &[Sharer], priority, value: fn(&Sharer) -> u64| {
            let flows = flows.iter().filter(|flow| flow.place().priority == priority);
            flows.map(value).fold(0, u64::saturating_add)
        };
        let wanted = Priority::ALL.map(|priority| of(&flows, priority, |flow| flow.demand));
        Shares::new(rate).divide(rate, &mut flows);
        let used = Priority::ALL.map(|priority| {
            of(&flows, priority, |flow| flow.demand.min(flow.limit))
        });
        // The minimum of a flow may exceed its share.
        let slack = (flows.len() as u64 + 1) * (rate / 1024 + 1);
        let all: u64 = used.iter().sum();
        let everything = wanted.iter().fold(0, |sum: u64, wanted| sum.saturating_add(*wanted));
        prop_assert!(all <= rate + slack);
        prop_assert!(all + slack >= rate.min(everything), "{used:?} of {wanted:?}");
        // No priority has more than its higher ones leave, except what it keeps.
        let mut left = rate;
        for (used, wanted) in used.iter().zip(wanted) {
            prop_assert!(*used <= left.max(rate / 64) + slack);
            prop_assert!(*used + slack >= wanted.min(rate / 64));
            left = left.saturating_sub(wanted);
        }
    }
}

#[test]
fn hosts_get_halves_whatever_their_numbers_of_flows() {
    let mut flows = vec![greedy(place(0, 1)); 8];
    flows.push(greedy(place(0, 2)));
    let limits = limits_after(0, &mut flows);
    let half = SHARED / 2;
    assert_eq!(limits, [[half / 8; 8].as_slice(), &[half]].concat());
}

#[test]
fn sites_get_halves_whatever_their_numbers_of_hosts() {
    let mut flows: Vec<_> = (0..4).map(|host| greedy(place(0, host))).collect();
    flows.push(greedy(place(1, 0)));
    let limits = limits_after(0, &mut flows);
    let half = SHARED / 2;
    assert_eq!(limits, [[half / 4; 4].as_slice(), &[half]].concat());
}

#[test]
fn normal_and_bulk_are_alike() {
    let [normal, bulk] = [Class::Normal, Class::Bulk].map(of_class);
    assert_eq!(normal, bulk);
}

#[test]
fn interactive_flows_get_what_they_use_and_the_others_the_rest() {
    for backlogged in [false, true] {
        let interactive = flow_at(of_class(Class::Interactive), RATE / 5, backlogged);
        let mut flows = [greedy(place(0, 0)), interactive];
        let limits = limits_after(0, &mut flows);
        assert_eq!(flows[0].place().priority, Priority::First, "sorted");
        assert_eq!(limits, [SHARED - RATE / 64, SHARED - RATE / 4]);
    }
}

#[test]
fn a_lower_priority_keeps_a_64th() {
    for [high, low] in [
        [Class::Interactive, Class::Normal],
        [Class::Normal, Class::DelayTolerant],
        [Class::Interactive, Class::DelayTolerant],
    ] {
        let mut flows = [high, low].map(|class| greedy(of_class(class)));
        let limits = limits_after(0, &mut flows);
        assert_eq!(limits, [SHARED - RATE / 64, RATE / 64], "{high}, {low}");
    }
}

#[test]
fn a_short_interactive_message_does_not_stop_the_others() {
    let mut message = Sharer::new(of_class(Class::Interactive));
    let sent = RATE / 100;
    message.handle_usage(Usage {
        sent,
        new: true,
        fresh: true,
        backlogged: true,
        ..Usage::default()
    });
    let limits = limits_after(0, &mut [message, greedy(place(0, 0))]);
    assert_eq!(limits[1], SHARED - sent - sent / 4);
}

#[test]
fn other_traffic_reduces_the_limits_by_up_to_half() {
    let mut lone = [flow(RATE / 4, true)];
    let spare = RATE - SHARED;
    assert_eq!(limits_after(spare, &mut lone), [RATE], "by chance");
    assert_eq!(limits_after(RATE / 4, &mut lone), [SHARED - RATE / 4]);
    let half = RATE / 2;
    for much in [half, RATE, 10 * RATE] {
        assert_eq!(limits_after(much, &mut lone), [half - spare]);
    }
    let mut two = [greedy(place(0, 0)); 2];
    assert_eq!(limits_after(RATE / 4, &mut two)[0], (SHARED - RATE / 4) / 2);
}

#[test]
fn newly_seen_flows_want_everything_if_bytes_of_them_wait() {
    let newcomer = |backlogged| {
        let mut flow = Sharer::new(place(0, 0));
        flow.handle_usage(Usage {
            new: true,
            backlogged,
            ..Usage::default()
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
    let (mut shares, mut level) = (Shares::new(RATE), RATE);
    let (mut queue, mut sent) = (0, burst);
    let mut queues = Vec::new();
    for _ in 0..100 {
        let had = queue + sent;
        assert!(had + ALL / 256 + 4 >= ALL, "the link is idle: {queues:?}");
        queue = had.saturating_sub(ALL);
        queues.push(queue);
        let mut flows = [flow(sent / 2, true); 2].map(|flow| Sharer {
            limit: level,
            ..flow
        });
        shares.handle_interval(INTERVAL, 0, &mut flows);
        level = flows[0].limit();
        sent = 2 * level / 10;
    }
    (queues, level)
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
    let mut shares = Shares::new(RATE);
    let second = Duration::from_secs(1);
    let mut flows = [flow(RATE / 2, true), flow(RATE / 2, true), flow(100, false)];
    shares.handle_interval(second, 0, &mut flows);
    let before = flows.map(|flow| flow.limit());
    assert!(before.iter().all(|limit| *limit < RATE));
    for _ in 0..100 {
        for flow in &mut flows {
            // They retransmit now and then.
            flow.handle_usage(Usage {
                sent: 1500,
                backlogged: true,
                ..Usage::default()
            });
        }
        shares.handle_interval(second, 0, &mut flows);
        assert_eq!(flows.map(|flow| flow.limit()), before);
    }
    // But not while they merely want nothing.
    for flow in &mut flows {
        flow.handle_usage(Usage::default());
    }
    for _ in 0..100 {
        shares.handle_interval(second, 0, &mut flows);
    }
    assert_eq!(flows.map(|flow| flow.limit()), [SHARED; 3]);
}

#[test]
fn limits_have_a_floor() {
    assert_eq!(
        level_after(&mut vec![greedy(place(0, 0)); 3000]),
        SHARED / 3000
    );
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

impl AsRef<Sharer> for Model {
    fn as_ref(&self) -> &Sharer {
        &self.sharer
    }
}

impl AsMut<Sharer> for Model {
    fn as_mut(&mut self) -> &mut Sharer {
        &mut self.sharer
    }
}

impl Model {
    fn new(source: u64) -> Self {
        Self {
            sharer: alone(place(0, 0)),
            source,
            waiting: 0,
            window: 200,
            sent: 0,
        }
    }

    fn run(&mut self) {
        // Waiting bytes are bounded by the ring and the buffers.
        self.waiting = (self.waiting + self.source).min(1 << 20);
        self.sent = self.waiting.min(self.window).min(self.sharer.limit / 10);
        self.waiting -= self.sent;
        if self.sent == self.window {
            self.window += self.window / 2;
        }
        self.sharer.handle_usage(Usage {
            sent: self.sent,
            fresh: self.sent > 0,
            backlogged: self.waiting > 0,
            ..Usage::default()
        });
    }
}

/// Lets flows send for this many intervals. Returns the sum that they sent in each.
fn run(shares: &mut Shares, flows: &mut [Model], intervals: usize) -> Vec<u64> {
    let mut sums = Vec::new();
    for _ in 0..intervals {
        for flow in &mut *flows {
            flow.run();
        }
        sums.push(flows.iter().map(|flow| flow.sent).sum());
        shares.handle_interval(INTERVAL, 0, flows);
    }
    sums
}

const ALL: u64 = RATE / 10;

fn limits(flows: &[Model]) -> Vec<u64> {
    flows.iter().map(|flow| flow.sharer.limit()).collect()
}

#[test]
fn a_lone_flow_has_the_whole_link() {
    let mut shares = Shares::new(RATE);
    let mut flows = [Model::new(RATE)];
    run(&mut shares, &mut flows, 50);
    assert_eq!(limits(&flows), [RATE]);
}

#[test]
fn flows_come_and_go() {
    let mut shares = Shares::new(RATE);
    let mut flows = vec![Model::new(RATE)];
    run(&mut shares, &mut flows, 50);
    flows.push(Model::new(RATE));
    let sums = run(&mut shares, &mut flows, 100);
    // The level follows a new flow before that puts more than a few intervals' worth into the
    // queue.
    let surplus: u64 = sums.iter().map(|sum| sum.saturating_sub(ALL)).sum();
    assert!(surplus < 3 * ALL, "{sums:?}");
    assert_eq!(limits(&flows), [SHARED / 2; 2]);
    flows.remove(0);
    run(&mut shares, &mut flows, 100);
    assert_eq!((limits(&flows), flows[0].sent), (vec![RATE], ALL));
}

#[test]
fn when_most_flows_leave_the_others_do_not_overshoot() {
    let mut shares = Shares::new(RATE);
    let mut flows = vec![Model::new(RATE); 10];
    run(&mut shares, &mut flows, 100);
    assert_eq!(limits(&flows), [SHARED / 10; 10]);
    flows.truncate(2);
    let sums = run(&mut shares, &mut flows, 100);
    assert!(sums.iter().all(|sum| *sum <= ALL), "{sums:?}");
    assert_eq!(limits(&flows), [SHARED / 2; 2]);
}

proptest! {
    #[test]
    fn shares_settle_whatever_the_sources_deliver(
        sources in prop::collection::vec(prop_oneof![1..ALL, Just(RATE)], 2..20),
    ) {
        let mut shares = Shares::new(RATE);
        let mut flows: Vec<_> = sources.iter().map(|source| Model::new(*source)).collect();
        run(&mut shares, &mut flows, 400);
        let fair = water_level(SHARED / 10, &mut sources.clone());
        let allowed: u64 = sources.iter().map(|source| fair.min(*source)).sum();
        let sums = run(&mut shares, &mut flows, 100);
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
