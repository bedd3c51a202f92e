use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// Sends packets of the selected streams until `bytes` are sent; returns the bytes of each stream.
fn send(
    scheduler: &mut Scheduler,
    bytes: usize,
    len: impl Fn(StreamId) -> usize,
) -> BTreeMap<StreamId, usize> {
    let (mut sent, mut sum) = (BTreeMap::new(), 0);
    while sum < bytes {
        let stream = scheduler.next().unwrap();
        assert_eq!(scheduler.next(), Some(stream), "the same until it has sent");
        scheduler.sent(stream, len(stream));
        *sent.entry(stream).or_default() += len(stream);
        sum += len(stream);
    }
    sent
}

fn with(streams: &[(StreamId, Class, SiteId)]) -> Scheduler {
    let mut scheduler = Scheduler::new();
    for (stream, class, site) in streams {
        scheduler.insert(*stream, *class, *site);
        scheduler.ready(*stream);
    }
    scheduler
}

/// R. Jain, D. Chiu, W. Hawe: A Quantitative Measure of Fairness, 1984.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (squares * shares.len() as f64)
}

#[test]
fn interactive_goes_first_and_delay_tolerant_last() {
    let mut scheduler = with(&[
        (1, Class::DelayTolerant, 0),
        (2, Class::Bulk, 0),
        (3, Class::Normal, 1),
        (4, Class::Interactive, 2),
    ]);
    assert_eq!(send(&mut scheduler, 10_000, |_| 1000)[&4], 10_000);
    scheduler.idle(4);
    let sent = send(&mut scheduler, 100_000, |_| 1000);
    assert_eq!(sent.keys().collect::<Vec<_>>(), [&2, &3]);
    scheduler.idle(2);
    scheduler.idle(3);
    assert_eq!(scheduler.next(), Some(1));
    scheduler.ready(3);
    assert_eq!(scheduler.next(), Some(3), "delay tolerant yields at once");
    scheduler.set_class(1, Class::Interactive);
    assert_eq!(scheduler.next(), Some(1));
    scheduler.remove(1);
    scheduler.remove(3);
    assert_eq!(scheduler.next(), None);
}

#[test]
fn sites_share_by_weight_however_many_streams_they_have() {
    let streams: Vec<_> = (0..30)
        .map(|stream| (stream, Class::Bulk, u32::from(stream > 0)))
        .collect();
    let mut scheduler = with(&streams);
    let sent = send(&mut scheduler, 10_000_000, |_| 1400);
    assert!(sent[&0].abs_diff(5_000_000) <= 10_000, "{}", sent[&0]);
    scheduler.set_weight(0, 3);
    let sent = send(&mut scheduler, 10_000_000, |_| 1400);
    assert!(sent[&0].abs_diff(7_500_000) <= 20_000, "{}", sent[&0]);
}

#[test]
fn hosts_share_alike_however_many_streams_they_have() {
    let streams: Vec<_> = (0..30).map(|stream| (stream, Class::Bulk, 0)).collect();
    let mut scheduler = with(&streams);
    for stream in 0..30 {
        scheduler.set_host(stream, u64::from(stream > 0));
    }
    let sent = send(&mut scheduler, 10_000_000, |_| 1400);
    assert!(sent[&0].abs_diff(5_000_000) <= 5000, "{}", sent[&0]);
    let others: Vec<_> = (1..30).map(|stream| sent[&stream] as f64).collect();
    assert!(jain(&others) > 0.999, "{others:?}");
    // No stream accumulates credit while others use the link.
    scheduler.idle(0);
    send(&mut scheduler, 1_000_000, |_| 1400);
    scheduler.ready(0);
    let sent = send(&mut scheduler, 1_000_000, |_| 1400);
    assert!(sent[&0].abs_diff(500_000) <= 5000, "{}", sent[&0]);
}

#[test]
fn what_is_sent_in_any_mix_is_fair() {
    for streams in [2, 3, 10, 100] {
        for small in [40, 100, 700, 1399] {
            let all: Vec<_> = (0..streams).map(|i| (i, Class::Normal, 0)).collect();
            let len = |stream| if stream % 2 == 0 { 1400 } else { small };
            let sent = send(&mut with(&all), 20_000 * streams as usize, len);
            let shares: Vec<_> = sent.values().map(|bytes| *bytes as f64).collect();
            assert_eq!(shares.len(), all.len());
            let index = jain(&shares);
            assert!(index > 0.99, "{streams} streams, {small} B: {index}");
        }
    }
}

#[test]
fn those_that_are_queued_go_one_after_the_other_within_what_their_site_has() {
    let all = [(1, 0), (2, 0), (3, 0), (4, 1)];
    let mut scheduler = with(&all.map(|(stream, site)| (stream, Class::DelayTolerant, site)));
    scheduler.queue(3, 10);
    scheduler.queue(2, 20);
    let sent = send(&mut scheduler, 1_000_000, |_| 1400);
    assert_eq!(sent.keys().collect::<Vec<_>>(), [&3, &4]);
    assert!(sent[&4].abs_diff(500_000) <= 4500, "{sent:?}");
    // Its turn is kept while it may not send.
    scheduler.idle(3);
    assert!(!send(&mut scheduler, 100_000, |_| 1400).contains_key(&1));
    scheduler.ready(3);
    let sent = send(&mut scheduler, 100_000, |_| 1400);
    assert_eq!(sent.keys().collect::<Vec<_>>(), [&3, &4]);
    scheduler.unqueue(3);
    scheduler.remove(2);
    // No stream is penalised for having gone first.
    let sent = send(&mut scheduler, 1_000_000, |_| 1400);
    assert!(
        sent[&1].abs_diff(250_000) <= 4500 && sent[&3].abs_diff(250_000) <= 4500,
        "{sent:?}"
    );
}

proptest! {
    /// At any time, no stream overtakes a ready queued one of its site and class with a lower
    /// place.
    #[test]
    fn queued_streams_are_not_overtaken(steps in prop::collection::vec((0_u8..6, 0_u64..8, 0_u64..4), 1..300)) {
        let mut scheduler = Scheduler::new();
        let mut model: BTreeMap<StreamId, (Class, SiteId, bool, Option<u64>)> = BTreeMap::new();
        for (step, stream, value) in steps {
            let known = model.get_mut(&stream);
            match (step, known) {
                (0, None) => {
                    let class = Class::ALL[value as usize % Class::ALL.len()];
                    let site = (stream % 2) as SiteId;
                    scheduler.insert(stream, class, site);
                    model.insert(stream, (class, site, false, None));
                }
                (0, Some(_)) if value == 0 => {
                    scheduler.remove(stream);
                    model.remove(&stream);
                }
                (1, Some(known)) => {
                    scheduler.ready(stream);
                    known.2 = true;
                }
                (2, Some(known)) => {
                    scheduler.idle(stream);
                    known.2 = false;
                }
                (3, Some(known)) => {
                    scheduler.queue(stream, value);
                    known.3.get_or_insert(value);
                }
                (4, Some(known)) => {
                    scheduler.unqueue(stream);
                    known.3 = None;
                }
                _ => {}
            }
            let next = scheduler.next();
            prop_assert_eq!(next.is_some(), model.values().any(|known| known.2));
            if let Some(next) = next {
                let (class, site, ready, queued) = model[&next];
                prop_assert!(ready);
                let first = model.iter().filter(|(_, known)| {
                    level(known.0) == level(class) && known.1 == site && known.2
                });
                let first = first.filter_map(|(stream, known)| Some((known.3?, *stream))).min();
                prop_assert!(first.is_none() || first == queued.map(|place| (place, next)));
                scheduler.sent(next, 1400);
            }
        }
    }
}

/// A stream that is temporarily idle gets its share while ready, and no more.
#[test]
fn nothing_is_saved_up() {
    let mut scheduler = with(&[(1, Class::Bulk, 0), (2, Class::Bulk, 0)]);
    scheduler.idle(2);
    send(&mut scheduler, 1_000_000, |_| 1400);
    scheduler.ready(2);
    let sent = send(&mut scheduler, 100_000, |_| 1400);
    assert!(sent[&2].abs_diff(50_000) <= 4500, "{sent:?}");
}

/// A stream that becomes idle after each packet does not get more than one that never does.
#[test]
fn leaving_and_coming_back_gains_nothing() {
    let mut scheduler = with(&[(1, Class::Bulk, 0), (2, Class::Bulk, 0)]);
    let mut sent = [0; 2];
    for _ in 0..10_000 {
        let stream = scheduler.next().unwrap();
        // Much in one go, so that the turn is overdrawn.
        let len = if stream == 1 { 1400 } else { 1499 + 1400 };
        scheduler.sent(stream, len);
        sent[stream as usize - 1] += len;
        if stream == 2 {
            scheduler.idle(2);
            scheduler.ready(2);
        }
    }
    let shares = sent.map(|bytes| bytes as f64);
    assert!(jain(&shares) > 0.999, "{sent:?}");
}

#[test]
fn absurd_amounts_do_no_harm() {
    let mut scheduler = with(&[(1, Class::Bulk, 0), (2, Class::Bulk, 1)]);
    scheduler.set_weight(1, u32::MAX);
    scheduler.sent(1, usize::MAX);
    scheduler.sent(1, usize::MAX);
    scheduler.sent(2, usize::MAX);
    // As much as the other site may send while this one repays its debt.
    let sent = send(&mut scheduler, 20_000_000, |_| 1000);
    assert!(sent[&1] > 0 && sent[&2] > 0);
    scheduler.idle(2);
    assert_eq!(scheduler.next(), Some(1));
    scheduler.sent(3, 1000);
    scheduler.ready(3);
    scheduler.remove(3);
    assert_eq!(scheduler.next(), Some(1));
}

#[test]
fn what_is_over_is_forgotten() {
    let mut scheduler = Scheduler::new();
    for stream in 0..1000 {
        scheduler.insert(stream, Class::DelayTolerant, stream as u32);
        scheduler.ready(stream);
        scheduler.set_class(stream, Class::Bulk);
        scheduler.set_site(stream, 7);
        scheduler.set_host(stream, stream / 3);
        if stream % 2 == 0 {
            scheduler.next();
            scheduler.sent(stream, 1000);
        }
        scheduler.remove(stream);
    }
    assert!(scheduler.streams.is_empty());
    assert!(
        scheduler
            .levels
            .iter()
            .all(|level| level.sites.is_empty() && level.turns.is_empty())
    );
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert(StreamId, Class, SiteId),
    Remove(StreamId),
    Ready(StreamId),
    Idle(StreamId),
    Class(StreamId, Class),
    Site(StreamId, SiteId),
    Host(StreamId, HostId),
    Weight(SiteId, u32),
    Send(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..8u64;
    let site = || 0..3u32;
    let class = || prop::sample::select(Class::ALL.to_vec());
    prop_oneof![
        2 => (stream(), class(), site()).prop_map(|(id, class, site)| Step::Insert(id, class, site)),
        1 => stream().prop_map(Step::Remove),
        4 => stream().prop_map(Step::Ready),
        2 => stream().prop_map(Step::Idle),
        1 => (stream(), class()).prop_map(|(id, class)| Step::Class(id, class)),
        1 => (stream(), site()).prop_map(|(id, site)| Step::Site(id, site)),
        2 => (stream(), 0..3u64).prop_map(|(id, host)| Step::Host(id, host)),
        1 => (site(), 0..5u32).prop_map(|(site, weight)| Step::Weight(site, weight)),
        8 => (1..3000usize).prop_map(Step::Send),
    ]
}

/// Streams that exist and are ready; nothing about turns.
#[derive(Debug, Default)]
struct Model {
    streams: BTreeMap<StreamId, (Class, SiteId, bool, HostId)>,
}

impl Model {
    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert(id, class, site) => {
                self.streams.entry(id).or_insert((class, site, false, 0));
            }
            Step::Remove(id) => {
                self.streams.remove(&id);
            }
            Step::Ready(id) => self.change(id, |stream| stream.2 = true),
            Step::Idle(id) => self.change(id, |stream| stream.2 = false),
            Step::Class(id, class) => self.change(id, |stream| stream.0 = class),
            Step::Site(id, site) => self.change(id, |stream| stream.1 = site),
            Step::Host(id, host) => self.change(id, |stream| stream.3 = host),
            Step::Weight(..) | Step::Send(_) => {}
        }
    }

    fn change(&mut self, id: StreamId, change: impl FnOnce(&mut (Class, SiteId, bool, HostId))) {
        if let Some(stream) = self.streams.get_mut(&id) {
            change(stream);
        }
    }

    /// Returns the highest level with a ready stream.
    fn level(&self) -> Option<usize> {
        let ready = self.streams.values().filter(|stream| stream.2);
        ready.map(|stream| level(stream.0)).min()
    }
}

fn apply(scheduler: &mut Scheduler, step: Step) {
    match step {
        Step::Insert(id, class, site) => scheduler.insert(id, class, site),
        Step::Remove(id) => scheduler.remove(id),
        Step::Ready(id) => scheduler.ready(id),
        Step::Idle(id) => scheduler.idle(id),
        Step::Class(id, class) => scheduler.set_class(id, class),
        Step::Site(id, site) => scheduler.set_site(id, site),
        Step::Host(id, host) => scheduler.set_host(id, host),
        Step::Weight(site, weight) => scheduler.set_weight(site, weight),
        Step::Send(bytes) => {
            if let Some(stream) = scheduler.next() {
                scheduler.sent(stream, bytes);
            }
        }
    }
}

proptest! {
    #[test]
    fn the_next_one_is_ready_and_of_the_highest_level(steps in prop::collection::vec(step(), 1..200)) {
        let (mut scheduler, mut model) = (Scheduler::new(), Model::default());
        for step in steps {
            apply(&mut scheduler, step);
            model.apply(step);
            let next = scheduler.next();
            prop_assert_eq!(scheduler.next(), next);
            let found = next.map(|id| model.streams[&id]);
            prop_assert!(found.is_none_or(|stream| stream.2));
            prop_assert_eq!(found.map(|stream| level(stream.0)), model.level());
        }
    }

    /// From any state, all ready streams get their shares, within a few packets.
    #[test]
    fn shares_are_those_of_a_fluid(steps in prop::collection::vec(step(), 1..200), lens in prop::array::uniform8(40..1500usize)) {
        let (mut scheduler, mut model) = (Scheduler::new(), Model::default());
        for step in steps {
            apply(&mut scheduler, step);
            model.apply(step);
        }
        let Some(level) = model.level() else { return Ok(()) };
        let mut sites: BTreeMap<SiteId, BTreeMap<HostId, Vec<StreamId>>> = BTreeMap::new();
        for (id, (class, site, ready, host)) in model.streams {
            if ready && super::level(class) == level {
                sites.entry(site).or_default().entry(host).or_default().push(id);
            }
        }
        let weight = |site: &SiteId| f64::from(scheduler.weights.get(site).copied().unwrap_or(1));
        let weights: f64 = sites.keys().map(weight).sum();
        let fluid: BTreeMap<StreamId, f64> = sites.iter().flat_map(|(site, hosts)| {
            let share = weight(site) / weights / hosts.len() as f64;
            hosts.values().flat_map(move |ids| {
                ids.iter().map(move |id| (*id, share / ids.len() as f64))
            })
        }).collect();
        // Earlier debts are repaid first.
        send(&mut scheduler, 200_000, |id| lens[id as usize]);
        let total = 400_000;
        let sent = send(&mut scheduler, total, |id| lens[id as usize]);
        prop_assert_eq!(sent.len(), fluid.len());
        for (id, share) in fluid {
            let off = sent[&id] as f64 - share * total as f64;
            prop_assert!(off.abs() <= 15_000.0, "{id}: {share} {off}");
        }
    }
}
