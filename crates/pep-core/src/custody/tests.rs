use proptest::{collection::vec, prelude::*};

use super::*;

const MIB: u64 = 1 << 20;

fn bounds(memory: u64, disk: u64) -> Bounds {
    Bounds { memory, disk }
}

/// Takes chunks until it is refused. Returns what the flow holds then.
fn fill(ledger: &mut Ledger, flow: FlowKey, place: Place, chunk: u64) -> u64 {
    while ledger.try_take(flow, place, chunk) {}
    ledger.held(flow, place)
}

#[test]
fn one_flow_alone_gets_nearly_all_and_leaves_something() {
    let mut ledger = Ledger::new(bounds(64 * MIB, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let flow = ledger.open(site, Bounds::NONE);
    let memory = fill(&mut ledger, flow, Place::Memory, 64 << 10);
    assert!(memory > 56 * MIB && memory < 57 * MIB, "{memory}");
    let disk = fill(&mut ledger, flow, Place::Disk, 64 << 10);
    assert!(disk > 909 * MIB && disk < 911 * MIB, "{disk}");
    let late = ledger.open(site, Bounds::NONE);
    assert!(fill(&mut ledger, late, Place::Memory, 64 << 10) > 5 * MIB);
}

#[test]
fn flows_that_want_all_at_the_same_time_get_the_same() {
    for count in [2, 5, 20] {
        let mut ledger = Ledger::new(bounds(64 * MIB, 0));
        let site = ledger.add_site(Bounds::NONE);
        let flows: Vec<_> = (0..count)
            .map(|_| ledger.open(site, Bounds::NONE))
            .collect();
        for _ in 0..2000 {
            for flow in &flows {
                let _ = ledger.try_take(*flow, Place::Memory, 64 << 10);
            }
        }
        let held = flows.iter().map(|flow| ledger.held(*flow, Place::Memory));
        let (least, most) = held.fold((u64::MAX, 0), |(least, most), held| {
            (least.min(held), most.max(held))
        });
        assert!(most - least <= 64 << 10, "{least} to {most}");
        let part = 64 * MIB * SHARE / (SHARE * count + 1);
        assert!(least + REOPEN + (64 << 10) > part, "{least} of {part}");
    }
}

#[test]
fn who_came_first_moves_his_surplus_away_and_then_all_have_the_same() {
    let mut ledger = Ledger::new(bounds(64 * MIB, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let flows = [0; 4].map(|_| ledger.open(site, Bounds::NONE));
    fill(&mut ledger, flows[0], Place::Memory, 64 << 10);
    for _ in 0..4000 {
        for flow in flows {
            let _ = ledger.try_take(flow, Place::Memory, 64 << 10);
            let surplus = ledger.surplus(flow, Place::Memory).min(64 << 10);
            ledger.take(flow, Place::Disk, surplus);
            ledger.give_back(flow, Place::Memory, surplus);
        }
    }
    let held = flows.map(|flow| ledger.held(flow, Place::Memory));
    let least = held.iter().min().unwrap();
    assert!(held.iter().all(|held| held - least < MIB), "{held:?}");
}

#[test]
fn a_window_opens_again_only_for_what_is_worth_it() {
    let mut ledger = Ledger::new(bounds(16 * MIB, 0));
    let site = ledger.add_site(Bounds::NONE);
    let flow = ledger.open(site, Bounds::NONE);
    fill(&mut ledger, flow, Place::Memory, 4096);
    assert!(ledger.waits(flow, Place::Memory));
    let mut freed = 0;
    while !ledger.try_take(flow, Place::Memory, 4096) {
        ledger.give_back(flow, Place::Memory, 4096);
        freed += 4096;
    }
    assert!((REOPEN - 4096..=REOPEN).contains(&freed), "{freed}");
    assert!(!ledger.waits(flow, Place::Memory));
    let more = std::iter::repeat(()).take_while(|()| ledger.try_take(flow, Place::Memory, 4096));
    assert!(more.count() as u64 * 4096 >= REOPEN - 3 * 4096);
}

#[test]
fn without_a_disk_nothing_goes_there() {
    let mut ledger = Ledger::new(bounds(16 * MIB, 0));
    let site = ledger.add_site(Bounds::NONE);
    let flow = ledger.open(site, Bounds::NONE);
    assert!(!ledger.try_take(flow, Place::Disk, 1));
}

#[derive(Debug, Clone)]
enum Op {
    Open(usize, u64),
    Close(usize),
    Take(usize, Place, u64),
    GiveBack(usize, Place, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let place = prop_oneof![Just(Place::Memory), Just(Place::Disk)];
    prop_oneof![
        1 => (0..3usize, 0..2000u64).prop_map(|(site, most)| Op::Open(site, most)),
        1 => (0..8usize).prop_map(Op::Close),
        6 => (0..8usize, place.clone(), 0..400u64).prop_map(|(f, p, n)| Op::Take(f, p, n)),
        4 => (0..8usize, place, 0..400u64).prop_map(|(f, p, n)| Op::GiveBack(f, p, n)),
    ]
}

/// Every byte that is held, one by one, and nothing else.
#[derive(Default)]
struct Model {
    flows: Vec<(FlowKey, usize, u64)>,
    bytes: Vec<(FlowKey, usize, Place)>,
}

impl Model {
    fn count(&self, of: impl Fn(&(FlowKey, usize, Place)) -> bool) -> u64 {
        self.bytes.iter().filter(|byte| of(byte)).count() as u64
    }
}

proptest! {
    #[test]
    fn sums_are_those_of_single_bytes_and_no_bound_is_exceeded(ops in vec(op(), 1..120)) {
        let (all, sites) = ([1000, 3000], [[600, 3000], [1000, 700], [5000, 5000]]);
        let mut ledger = Ledger::new(bounds(all[0], all[1]));
        let keys = sites.map(|[memory, disk]| ledger.add_site(bounds(memory, disk)));
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Open(site, most) => {
                    let flow = ledger.open(keys[site], bounds(most, most));
                    prop_assert!(model.flows.iter().all(|(other, ..)| *other != flow));
                    model.flows.push((flow, site, most));
                }
                Op::Close(at) if at < model.flows.len() => {
                    let (flow, ..) = model.flows.remove(at);
                    ledger.close(flow);
                    model.bytes.retain(|(of, ..)| *of != flow);
                }
                Op::Take(at, place, count) if at < model.flows.len() => {
                    let (flow, site, most) = model.flows[at];
                    let index = place as usize;
                    let of_flow = model.count(|(of, _, at)| *of == flow && *at == place);
                    let of_site = model.count(|(_, of, at)| *of == site && *at == place);
                    let of_all = model.count(|(_, _, at)| *at == place);
                    let fits = |held: u64, sum: u64, bound: u64| {
                        sum + count <= bound && held + count <= SHARE * (bound - sum - count)
                    };
                    let may = of_flow + count <= most
                        && fits(of_flow, of_site, sites[site][index])
                        && fits(of_flow, of_all, all[index]);
                    let waited = ledger.waits(flow, place);
                    let taken = ledger.try_take(flow, place, count);
                    prop_assert!(may || !taken);
                    prop_assert!(taken || waited || !may);
                    if taken {
                        model.bytes.extend((0..count).map(|_| (flow, site, place)));
                    }
                }
                Op::GiveBack(at, place, count) if at < model.flows.len() => {
                    let (flow, ..) = model.flows[at];
                    let held = ledger.held(flow, place);
                    let mut count = count.min(held);
                    ledger.give_back(flow, place, count);
                    model.bytes.retain(|(of, _, at)| {
                        let gone = count > 0 && *of == flow && *at == place;
                        count -= u64::from(gone);
                        !gone
                    });
                }
                Op::Close(_) | Op::Take(..) | Op::GiveBack(..) => {}
            }
            for place in Place::ALL {
                let index = place as usize;
                prop_assert_eq!(ledger.held_by_all(place), model.count(|(_, _, at)| *at == place));
                prop_assert!(ledger.held_by_all(place) <= all[index]);
                for (site, key) in keys.iter().enumerate() {
                    let held = model.count(|(_, of, at)| *of == site && *at == place);
                    prop_assert_eq!(ledger.held_by_site(*key, place), held);
                    prop_assert!(held <= sites[site][index]);
                }
                for (flow, _, most) in &model.flows {
                    let held = model.count(|(of, _, at)| of == flow && *at == place);
                    prop_assert_eq!(ledger.held(*flow, place), held);
                    prop_assert!(held <= *most);
                }
            }
        }
    }
}
