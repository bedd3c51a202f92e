use super::*;

const MIB: u64 = 1 << 20;

fn bounds(memory: u64, disk: u64) -> Bounds {
    Bounds { memory, disk }
}

/// Takes chunks until the flow is refused. Returns the bytes it then holds.
fn fill(ledger: &mut Ledger, flow: FlowKey, place: Place, chunk: u64) -> u64 {
    while ledger.try_take(flow, place, chunk) {}
    ledger.held(flow, place)
}

#[test]
fn one_flow_alone_gets_nearly_all_and_leaves_something() {
    let mut ledger = Ledger::new(bounds(64 * MIB, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let flow = ledger.open(site, 0, Bounds::NONE);
    let memory = fill(&mut ledger, flow, Place::Memory, 64 << 10);
    assert!(memory > 56 * MIB && memory < 57 * MIB, "{memory}");
    let disk = fill(&mut ledger, flow, Place::Disk, 64 << 10);
    assert!(disk > 909 * MIB && disk < 911 * MIB, "{disk}");
    let late = ledger.open(site, 0, Bounds::NONE);
    assert!(fill(&mut ledger, late, Place::Memory, 64 << 10) > 5 * MIB);
}

#[test]
fn flows_that_want_all_at_the_same_time_get_the_same() {
    for count in [2, 5, 20] {
        let mut ledger = Ledger::new(bounds(64 * MIB, 0));
        let site = ledger.add_site(Bounds::NONE);
        let flows: Vec<_> = (0..count)
            .map(|_| ledger.open(site, 0, Bounds::NONE))
            .collect();
        for _ in 0..2000 {
            for flow in &flows {
                let _ = ledger.try_take(*flow, Place::Memory, 64 << 10);
            }
        }
        let held = flows.iter().map(|flow| ledger.held(*flow, Place::Memory));
        let (minimum, most) = held.fold((u64::MAX, 0), |(minimum, most), held| {
            (minimum.min(held), most.max(held))
        });
        assert!(most - minimum <= 64 << 10, "{minimum} to {most}");
        let part = 64 * MIB * SHARE / (SHARE * count + 1);
        assert!(minimum + REOPEN + (64 << 10) > part, "{minimum} of {part}");
    }
}

#[test]
fn the_first_flow_moves_its_surplus_and_then_all_hold_the_same() {
    let mut ledger = Ledger::new(bounds(64 * MIB, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let flows = [0; 4].map(|_| ledger.open(site, 0, Bounds::NONE));
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
    let minimum = held.iter().min().unwrap();
    assert!(held.iter().all(|held| held - minimum < MIB), "{held:?}");
}

#[test]
fn a_window_opens_again_only_for_what_is_worth_it() {
    let mut ledger = Ledger::new(bounds(16 * MIB, 0));
    let site = ledger.add_site(Bounds::NONE);
    let flow = ledger.open(site, 0, Bounds::NONE);
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
    let flow = ledger.open(site, 0, Bounds::NONE);
    assert!(!ledger.try_take(flow, Place::Disk, 1));
}
