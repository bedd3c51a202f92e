use proptest::prelude::*;

use super::*;

/// Unix time at the start of the steady clock.
const WALL: Duration = Duration::from_secs(1_000_000);
const ECHO: Duration = Duration::from_millis(600);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn now(steady: Duration) -> Now {
    Now {
        steady,
        wall: WALL + steady,
    }
}

/// Spans in seconds of the steady clock.
fn contacts(spans: &[(u64, u64)]) -> Contacts {
    // 1,000,000 s of Unix time.
    let mut text = "@ 1970/01/12-13:46:40\n".to_owned();
    for (from, to) in spans {
        text += &format!("{from},{to}\n");
    }
    Contacts::new(&Plan::parse(&text).expect("valid")).expect("it has a reference")
}

use units::contacts::Plan;

fn monitor(spans: &[(u64, u64)]) -> LinkMonitor {
    let plan = (!spans.is_empty()).then(|| contacts(spans));
    LinkMonitor::new(now(s(0)), plan, ECHO)
}

fn after(monitor: &mut LinkMonitor, at: Duration) -> (bool, Source) {
    monitor.poll(now(at));
    (monitor.state().up, monitor.state().by)
}

#[test]
fn who_knows_best_is_believed() {
    let mut link = monitor(&[(0, 100), (200, 300)]);
    assert_eq!(after(&mut link, s(1)), (true, Source::Plan));
    link.testify(Detector::Probe, false, s(2));
    link.testify(Detector::Tunnel, false, s(2));
    assert_eq!(after(&mut link, s(2)), (false, Source::Probe));
    assert!(link.is_down() && link.tunnel_link() == TunnelLink::Up);
    link.testify(Detector::Tunnel, true, s(3));
    assert_eq!(after(&mut link, s(3)), (true, Source::Tunnel));
    link.carrier(now(s(4)), false);
    assert_eq!(after(&mut link, s(4)), (false, Source::Carrier));
    assert_eq!(link.tunnel_link(), TunnelLink::Down);
    link.order(now(s(5)), Some(false), None);
    assert_eq!(link.tunnel_link(), TunnelLink::Off);
    link.order(now(s(5)), Some(true), Some(s(10)));
    assert_eq!(link.tunnel_link(), TunnelLink::Up);
    assert_eq!(after(&mut link, s(5)), (true, Source::Operator));
    assert_eq!(after(&mut link, s(15)), (false, Source::Carrier));
    link.carrier(now(s(16)), true);
    assert_eq!(
        after(&mut link, s(16)),
        (true, Source::Plan),
        "earlier reports of detectors no longer count"
    );
    assert_eq!(link.tunnel_link(), TunnelLink::Up);
}

#[test]
fn tunnels_that_have_ended_say_nothing_and_silent_ones_that_the_link_is_down() {
    let mut link = monitor(&[]);
    link.testify(Detector::Tunnel, true, s(1));
    assert_eq!(after(&mut link, s(1)), (true, Source::Tunnel));
    link.withdraw(Detector::Tunnel);
    assert_eq!(after(&mut link, s(2)), (true, Source::Assumed));
    link.testify(Detector::Tunnel, false, s(3));
    link.withdraw(Detector::Tunnel);
    assert_eq!(after(&mut link, s(4)), (false, Source::Tunnel));
}

#[test]
fn what_is_heard_just_after_a_contact_was_on_its_way() {
    let mut link = monitor(&[(0, 100), (200, 300)]);
    assert_eq!(after(&mut link, s(100)), (false, Source::Plan));
    link.testify(Detector::Tunnel, true, s(100) + ECHO / 2);
    assert_eq!(after(&mut link, s(101)), (false, Source::Plan));
    link.testify(Detector::Tunnel, true, s(102));
    assert_eq!(
        after(&mut link, s(102)),
        (true, Source::Tunnel),
        "the detector overrules the plan"
    );
    assert_eq!(link.tunnel_link(), TunnelLink::Down);
}

#[test]
fn a_plan_that_has_run_out_says_nothing() {
    let mut link = monitor(&[(10, 20)]);
    assert_eq!(after(&mut link, s(0)), (false, Source::Plan));
    assert_eq!(link.next_planned(now(s(0))), Some(WALL + s(10)));
    assert_eq!(after(&mut link, s(19)), (true, Source::Plan));
    assert_eq!(after(&mut link, s(20)), (true, Source::Assumed));
    assert_eq!(link.deadline(now(s(20))), None);
}

#[test]
fn a_clock_that_jumps_moves_the_plan_only() {
    let mut link = monitor(&[(0, 100), (200, 300)]);
    let jumped = Now {
        steady: s(50),
        wall: WALL + s(150),
    };
    assert_eq!(link.poll(jumped).map(|state| state.up), Some(false));
    assert_eq!(link.deadline(jumped), Some(s(100)));
    let back = Now {
        steady: s(60),
        wall: WALL + s(10),
    };
    assert_eq!(link.poll(back).map(|state| state.up), Some(true));
    assert_eq!(link.totals(back), (1, s(10)));
}

#[test]
fn outages_are_remembered_up_to_a_number() {
    let mut link = monitor(&[]);
    for n in 0..40 {
        link.order(now(s(10 * n)), Some(false), Some(s(3)));
        link.poll(now(s(10 * n)));
        link.poll(now(s(10 * n + 3)));
    }
    assert_eq!(link.outages().len(), LinkMonitor::REMEMBERED);
    assert!(
        link.outages()
            .all(|outage| outage.lasted == Some(s(3)) && outage.by == Source::Operator)
    );
    assert_eq!(link.totals(now(s(1000))), (40, s(120)));
}

proptest! {
    #[test]
    fn an_order_is_a_word_and_back(up in any::<bool>(), ms in prop::option::of(1..u64::from(u32::MAX))) {
        let order = Order { up, until: ms.map(Duration::from_millis) };
        prop_assert_ne!(order.to_word(), 0);
        prop_assert_eq!(Order::from_word(order.to_word()), Some(order));
    }

    #[test]
    fn any_word_is_an_order_or_none(word in any::<u64>()) {
        if let Some(order) = Order::from_word(word) {
            prop_assert_eq!(order.to_word(), word);
        }
    }
}

#[test]
fn no_order_is_lost_in_a_word_for_being_long_or_short() {
    let word = |until| {
        Order {
            up: true,
            until: Some(until),
        }
        .to_word()
    };
    assert!(
        Order::from_word(word(Duration::ZERO))
            .unwrap()
            .until
            .is_some()
    );
    assert!(
        Order::from_word(word(Duration::MAX))
            .unwrap()
            .until
            .is_some()
    );
    assert_eq!(Order::from_word(0), None);
}

/// An event of the monitor.
#[derive(Debug, Clone)]
enum Event {
    Order(Option<bool>, Option<u64>),
    Carrier(bool),
    Testify(Detector, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let lasting = prop::option::of(0..20_000u64);
    prop_oneof![
        2 => (prop::option::of(any::<bool>()), lasting).prop_map(|(up, lasting)| Event::Order(up, lasting)),
        1 => any::<bool>().prop_map(Event::Carrier),
        4 => (prop::sample::select(&Detector::ALL[..]), any::<bool>()).prop_map(|(who, up)| Event::Testify(who, up)),
    ]
}

/// Events in order, each with its time in ms; no two at once, nor at the edge of a plan or the end
/// of an order.
fn history() -> impl Strategy<Value = Vec<(u64, Event)>> {
    prop::collection::vec((1..8000u64, event()), 0..30).prop_map(|events| {
        let mut at = 0;
        let times = events.into_iter().map(|(step, event)| {
            at += step;
            (10 * at + 3, event)
        });
        times.collect()
    })
}

fn plan() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((1..30u64, 1..30u64), 0..5).prop_map(|steps| {
        let mut at = 0;
        let spans = steps.into_iter().map(|(gap, length)| {
            let from = at + gap;
            at = from + length;
            (from, at)
        });
        spans.collect()
    })
}

fn apply(link: &mut LinkMonitor, at: u64, event: &Event) {
    match *event {
        Event::Order(up, lasting) => link.order(now(ms(at)), up, lasting.map(|ten| ms(10 * ten))),
        Event::Carrier(up) => link.carrier(now(ms(at)), up),
        Event::Testify(detector, up) => link.testify(detector, up, ms(at)),
    }
}

/// Reference: the state from all past events, without any memory.
fn naive(spans: &[(u64, u64)], past: &[(u64, Event)], at: u64) -> (bool, Source) {
    let edges = spans.iter().flat_map(|span| [1000 * span.0, 1000 * span.1]);
    let edges: Vec<u64> = edges.filter(|edge| *edge <= at).collect();
    let planned = spans
        .iter()
        .find(|span| at < 1000 * span.1)
        .map(|span| at >= 1000 * span.0);
    let mut reported: Vec<u64> = edges;
    let (mut order, mut carrier, mut said) = (None, None, [None; 3]);
    for (index, (when, event)) in past.iter().enumerate() {
        match *event {
            Event::Order(up, lasting) => {
                let next = past[index + 1..]
                    .iter()
                    .find(|(_, event)| matches!(event, Event::Order(..)));
                let until = lasting.map(|ten| when + 10 * ten).filter(|_| up.is_some());
                let ended =
                    until.filter(|until| *until <= at && next.is_none_or(|next| *until <= next.0));
                reported.push(*when);
                reported.extend(ended);
                order = up.filter(|_| ended.is_none());
            }
            Event::Carrier(up) => {
                if carrier != Some(up) && (carrier.is_some() || !up) {
                    reported.push(*when);
                }
                carrier = Some(up);
            }
            Event::Testify(detector, up) => said[detector as usize] = Some((up, *when)),
        }
    }
    let reported = reported.into_iter().max().unwrap_or(0);
    let says = |up: bool| {
        let echo = if up && planned == Some(false) { 600 } else { 0 };
        let valid = |said: &Option<(bool, u64)>| {
            said.is_some_and(|(says, when)| says == up && when >= reported + echo)
        };
        said.iter()
            .position(valid)
            .map(|index| [Source::Probe, Source::Tunnel, Source::Flows][index])
    };
    match (order, carrier, says(true), planned, says(false)) {
        (Some(up), ..) => (up, Source::Operator),
        (None, Some(false), ..) => (false, Source::Carrier),
        (_, _, Some(who), ..) => (true, who),
        (_, _, _, Some(false), _) => (false, Source::Plan),
        (_, _, _, _, Some(who)) => (false, who),
        (_, _, _, Some(true), _) => (true, Source::Plan),
        (_, Some(true), ..) => (true, Source::Carrier),
        _ => (true, Source::Assumed),
    }
}

proptest! {
    /// Polled at deadlines and with events only, the state always is the one that follows from all
    /// past events.
    #[test]
    fn it_is_what_follows_from_all_that_has_happened(spans in plan(), events in history()) {
        let mut link = monitor(&spans);
        let mut ups = vec![];
        for (index, (at, event)) in events.iter().enumerate() {
            apply(&mut link, *at, event);
            ups.extend(link.poll(now(ms(*at))));
            let end = events.get(index + 1).map_or(at + 400_000, |next| next.0);
            let mut time = ms(*at);
            loop {
                let found = (link.state().up, link.state().by);
                let probed = time.as_millis() as u64;
                prop_assert_eq!(found, naive(&spans, &events[..=index], probed), "at {} ms", probed);
                match link.deadline(now(time)) {
                    Some(next) if next < ms(end) => {
                        // Until then nothing changes.
                        let before = next.as_millis() as u64 - 1;
                        if before > probed {
                            prop_assert_eq!(found, naive(&spans, &events[..=index], before), "before {} ms", before);
                        }
                        prop_assert!(next > time || link.ordered_until().is_none());
                        time = next;
                        ups.extend(link.poll(now(time)));
                    }
                    _ => break,
                }
            }
        }
        prop_assert!(ups.windows(2).all(|pair| pair[0].up != pair[1].up), "each change is reported once");
    }

    /// Whenever a process ends, the next one knows the same outages, and the one that lasts.
    #[test]
    fn outages_are_known_to_the_next_process(events in history(), pause in 0..9000u64) {
        struct Memory(std::cell::RefCell<Vec<u64>>);
        impl crate::arena::Words for Memory {
            fn load(&self, offset: usize) -> u64 {
                self.0.borrow()[offset / 8]
            }
            fn store(&self, offset: usize, value: u64) {
                self.0.borrow_mut()[offset / 8] = value;
            }
        }
        let memory = Memory(vec![0; crate::arena::PAGE / 8].into());
        let kept = crate::arena::Layout::known(&memory);
        // The machine was up for a day before the first one.
        let boot = |at: Duration| s(86_400) + at;
        let mut link = monitor(&[]);
        let mut at = 0;
        for (time, event) in &events {
            at = *time;
            apply(&mut link, at, event);
            link.poll(now(ms(at)));
            if let Some(latest) = link.latest(now(ms(at))) {
                kept.write(&latest, boot(ms(at)));
            }
        }
        let at = ms(at + pause);
        let mut next = monitor(&[]);
        next.resume(now(at), kept.read(boot(at)), None, None);
        prop_assert_eq!(next.outages().collect::<Vec<_>>(), link.outages().collect::<Vec<_>>());
        prop_assert_eq!(next.totals(now(at)), link.totals(now(at)));
        prop_assert_eq!(next.state().up, link.state().up);
        if link.state().up && link.outages().len() > 0 {
            prop_assert_eq!(next.state().since, link.state().since);
        }
        if !link.state().up {
            prop_assert_eq!(next.state().since, link.state().since);
            let by = link.outages().last().map(|outage| outage.by);
            prop_assert_eq!(Some(next.state().by), by);
            next.poll(now(at));
            let last = *next.outages().last().expect("one");
            prop_assert_eq!(last.lasted, Some(at - link.state().since), "no source reports it any more");
        }
    }

    /// However often or late the monitor is polled, once polled the result is the same.
    #[test]
    fn polling_late_or_often_comes_to_the_same(spans in plan(), events in history(), steps in prop::collection::vec(1..9000u64, 1..40)) {
        let (mut lazy, mut eager) = (monitor(&spans), monitor(&spans));
        for (at, event) in &events {
            apply(&mut lazy, *at, event);
            apply(&mut eager, *at, event);
        }
        let mut at = events.last().map_or(0, |last| last.0);
        for step in steps {
            at += step;
            eager.poll(now(ms(at)));
        }
        lazy.poll(now(ms(at)));
        prop_assert_eq!((lazy.state().up, lazy.state().by), (eager.state().up, eager.state().by));
        prop_assert_eq!(lazy.tunnel_link(), eager.tunnel_link());
    }
}
