//! Tests of ledgers that share their bounds.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::Barrier,
    thread,
};

use proptest::{collection::vec, option, prelude::*};

use super::*;

const SITES: [u64; 2] = [3000, u64::MAX];
const ALL: u64 = 5000;

fn both(most: u64) -> Bounds {
    Bounds {
        memory: most,
        disk: most,
    }
}

/// Returns ledgers with the same bounds.
fn ledgers(count: usize) -> Vec<Ledger> {
    let mut first = Ledger::new(both(ALL));
    for most in SITES {
        first.add_site(both(most));
    }
    let mut ledgers: Vec<_> = (1..count).map(|_| Ledger::sharing(&first)).collect();
    ledgers.push(first);
    ledgers
}

fn host(number: u8) -> Host {
    Host::from_address([10, 0, 0, number].into())
}

fn open(ledger: &mut Ledger, site: usize, of: Option<u8>) -> FlowKey {
    let flow = ledger.open(ledger.site(site), 0, Bounds::NONE);
    if let Some(number) = of {
        ledger.belong(flow, host(number));
    }
    flow
}

/// Takes single bytes until the flow is refused. Returns the bytes it then holds.
fn fill(ledger: &mut Ledger, flow: FlowKey) -> u64 {
    while ledger.try_take(flow, Place::Disk, 1) {}
    ledger.held(flow, Place::Disk)
}

proptest! {
    #[test]
    fn bounds_hold_for_all_ledgers_together(
        hosts in vec((0..3usize, 0..2usize, option::of(0..3u8)), 1..12),
        steps in vec((0..12usize, any::<bool>(), any::<bool>(), 0..400u64), 1..300),
    ) {
        let mut ledgers = ledgers(3);
        let mut flows = Vec::new();
        for (at, site, of) in hosts {
            flows.push((at, site, open(&mut ledgers[at], site, of)));
        }
        for (flow, on_disk, takes, bytes) in steps {
            let (at, _, flow) = flows[flow % flows.len()];
            let place = Place::ALL[usize::from(on_disk)];
            if takes {
                let _ = ledgers[at].try_take(flow, place, bytes);
            } else {
                let bytes = bytes.min(ledgers[at].held(flow, place));
                ledgers[at].give_back(flow, place, bytes);
            }
            for ledger in &ledgers {
                let mut all = 0;
                for (site, most) in SITES.into_iter().enumerate() {
                    let of_site = flows.iter().filter(|(_, of, _)| *of == site);
                    let held = of_site.map(|(at, _, flow)| ledgers[*at].held(*flow, place));
                    let held: u64 = held.sum();
                    prop_assert_eq!(ledger.held_by_site(ledger.site(site), place), held);
                    prop_assert!(held <= most);
                    all += held;
                }
                prop_assert_eq!(ledger.held_by_all(place), all);
                prop_assert!(all <= ALL);
            }
        }
        for (at, _, flow) in flows {
            ledgers[at].close(flow);
        }
        prop_assert_eq!(Place::ALL.map(|place| ledgers[0].held_by_all(place)), [0; 2]);
        // No host is left behind, so that a new one is alone.
        let flow = open(&mut ledgers[0], 1, Some(9));
        prop_assert!(fill(&mut ledgers[0], flow) > ALL * 6 / 7);
    }
}

#[test]
fn hosts_of_all_ledgers_are_counted() {
    let mut ledgers = ledgers(2);
    let one = open(&mut ledgers[0], 1, Some(1));
    let other = open(&mut ledgers[1], 1, Some(2));
    let held = fill(&mut ledgers[0], one);
    assert!(held <= ALL * 2 / 3, "{held}");
    let late = fill(&mut ledgers[1], other);
    assert!(late >= ALL / 6, "{late}");
    // A host in two ledgers counts as two.
    ledgers[1].close(other);
    let again = open(&mut ledgers[1], 1, Some(1));
    let held = held + fill(&mut ledgers[1], again);
    assert!(held <= ALL * 8 / 9, "{held}");
    // And as one when its flows in the other ledger have ended.
    ledgers[1].close(again);
    assert!(fill(&mut ledgers[0], one) > ALL * 6 / 7);
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the code has none, the test does"
)]
fn threads_at_the_same_time_exceed_no_bound() {
    const SEED: u64 = 20_261_127;
    let start = &Barrier::new(2);
    let hammer = |number: u64, mut ledger: Ledger| {
        let site = ledger.site(0);
        let (mut flows, mut refused) = (Vec::new(), 0);
        start.wait();
        for step in 0..400_000_u64 {
            let draw = BuildHasherDefault::<DefaultHasher>::default();
            let draw = draw.hash_one((SEED, number, step)) as usize;
            // New flows with few bytes: neither shares nor earlier refusals limit them. With
            // 11 each, one too many exceeds the bound, and does not just reach it.
            let flow = open(&mut ledger, 0, None);
            if ledger.try_take(flow, Place::Disk, 11) {
                flows.push(flow);
            } else {
                refused += 1;
                ledger.close(flow);
            }
            let held = ledger.held_by_site(site, Place::Disk);
            assert!(held <= SITES[0], "seed {SEED}, step {step}: {held}");
            if draw.is_multiple_of(2) && !flows.is_empty() {
                ledger.close(flows.swap_remove(draw / 2 % flows.len()));
            }
        }
        assert!(refused > 0, "seed {SEED}: the bound was not reached");
        for flow in flows {
            ledger.close(flow);
        }
        ledger
    };
    let mut ledgers = ledgers(2);
    let [one, other] = [ledgers.remove(0), ledgers.remove(0)];
    let ended = thread::scope(|scope| {
        let one = scope.spawn(move || hammer(1, one));
        let other = scope.spawn(move || hammer(2, other));
        [one.join().unwrap(), other.join().unwrap()]
    });
    assert_eq!(ended[0].held_by_all(Place::Disk), 0);
    assert_eq!(ended[0].held_by_site(ended[0].site(0), Place::Disk), 0);
}
