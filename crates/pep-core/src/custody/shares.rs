//! Tests of hosts against each other, and of the whole against a model.

use proptest::{collection::vec, option, prelude::*};

use super::*;

const MIB: u64 = 1 << 20;

fn bounds(memory: u64, disk: u64) -> Bounds {
    Bounds { memory, disk }
}

fn host(number: u8) -> Host {
    Host::from_address([10, 0, 0, number].into())
}

/// Flows of a host.
fn flows_of(ledger: &mut Ledger, site: SiteKey, number: u8, count: usize) -> Vec<FlowKey> {
    let open = |_| {
        let flow = ledger.open(site, 0, Bounds::NONE);
        ledger.belong(flow, host(number));
        flow
    };
    (0..count).map(open).collect()
}

/// Flows take a chunk each in turn, until none gets any more. Returns the bytes they hold.
fn contend(ledger: &mut Ledger, flows: &[FlowKey], place: Place) -> u64 {
    const CHUNK: u64 = 64 << 10;
    let mut progress = true;
    while progress {
        progress = false;
        for flow in flows {
            progress |= ledger.try_take(*flow, place, CHUNK);
        }
    }
    flows.iter().map(|flow| ledger.held(*flow, place)).sum()
}

#[test]
fn a_host_alone_gets_nearly_all_by_one_flow_or_by_many() {
    for (count, expected) in [(1, 64.0 / 73.0), (2, 128.0 / 145.0), (200, 8.0 / 9.0)] {
        let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
        let site = ledger.add_site(Bounds::NONE);
        let flows = flows_of(&mut ledger, site, 1, count);
        let held = contend(&mut ledger, &flows, Place::Disk) as f64 / (1024 * MIB) as f64;
        assert!((held - expected).abs() < 0.015, "{count}: {held}");
    }
}

/// MiB held by each host.
fn held_by(ledger: &Ledger, hosts: &[Vec<FlowKey>]) -> Vec<u64> {
    let held = |flows: &Vec<FlowKey>| -> u64 {
        let held = flows.iter().map(|flow| ledger.held(*flow, Place::Disk));
        held.sum()
    };
    hosts.iter().map(|flows| held(flows) / MIB).collect()
}

#[test]
fn hosts_that_take_at_the_same_pace_get_the_same_however_many_flows_they_have() {
    let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let hosts = [(1, 2), (2, 10), (3, 100)];
    let hosts = hosts.map(|(number, count)| flows_of(&mut ledger, site, number, count));
    for round in 0..20_000 {
        for flows in &hosts {
            let flow = flows[round % flows.len()];
            let _ = ledger.try_take(flow, Place::Disk, 64 << 10);
        }
    }
    let held = held_by(&ledger, &hosts);
    // 2/7 each are 292 MiB; few flows have somewhat less than their host's maximum.
    assert!(
        held.iter().all(|held| (265..330).contains(held)),
        "{held:?}"
    );
}

#[test]
fn a_host_that_is_faster_by_many_flows_gets_two_thirds_at_most() {
    let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let hosts = [(1, 1), (2, 1000)];
    let hosts = hosts.map(|(number, count)| flows_of(&mut ledger, site, number, count));
    contend(&mut ledger, &hosts.concat(), Place::Disk);
    let held = held_by(&ledger, &hosts);
    assert!(held[1] <= 1024 * 2 / 3 && held[0] > 100, "{held:?}");
}

#[test]
fn who_comes_when_a_host_has_taken_all_it_could_gets_something() {
    const ALL: u64 = 1024 * MIB;
    for (of_all, of_site) in [(ALL, u64::MAX), (u64::MAX, ALL)] {
        let mut ledger = Ledger::new(bounds(0, of_all));
        let site = ledger.add_site(bounds(0, of_site));
        let hoarder = flows_of(&mut ledger, site, 1, 500);
        contend(&mut ledger, &hoarder, Place::Disk);
        for (number, minimum) in [(2, 70), (3, 20), (4, 6)] {
            let late = flows_of(&mut ledger, site, number, 1);
            let held = contend(&mut ledger, &late, Place::Disk) / MIB;
            assert!(held >= minimum, "host {number}: {held} MiB");
        }
    }
}

#[test]
fn a_greedy_host_moves_its_surplus_until_it_has_its_share_of_memory() {
    let mut ledger = Ledger::new(bounds(64 * MIB, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let hoarder = flows_of(&mut ledger, site, 1, 100);
    contend(&mut ledger, &hoarder, Place::Memory);
    let late = flows_of(&mut ledger, site, 2, 1);
    let all = [&hoarder[..], &late[..]].concat();
    for _ in 0..100 {
        contend(&mut ledger, &all, Place::Memory);
        for flow in &hoarder {
            let surplus = ledger.surplus(*flow, Place::Memory).min(64 << 10);
            ledger.take(*flow, Place::Disk, surplus);
            ledger.give_back(*flow, Place::Memory, surplus);
        }
    }
    let held = ledger.held(late[0], Place::Memory) / MIB;
    // 2/5 each are 25.6 MiB; one flow has somewhat less than its host's maximum.
    assert!((18..=27).contains(&held), "{held} MiB");
}

/// Flows of hosts that a peer names.
fn flows_by(ledger: &mut Ledger, site: SiteKey, peer: usize, hosts: u8) -> Vec<FlowKey> {
    let open = |number| {
        let flow = ledger.open(site, peer, Bounds::NONE);
        ledger.belong(flow, Host::from_address([10, peer as u8, 0, number].into()));
        flow
    };
    (0..hosts).map(open).collect()
}

#[test]
fn a_peer_leaves_a_third_to_others_however_many_hosts_it_names() {
    let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let [rogue, honest] =
        [(1, 200), (2, 1)].map(|(peer, hosts)| flows_by(&mut ledger, site, peer, hosts));
    let held = contend(&mut ledger, &rogue, Place::Disk) / MIB;
    assert!((650..=1024 * 2 / 3).contains(&held), "{held}");
    let held = contend(&mut ledger, &honest, Place::Disk) / MIB;
    // The only host of a peer gets 4/7 of what is left to that.
    assert!(held >= 170, "{held}");
    // A host more of the first still gets something.
    let more = ledger.open(site, 1, Bounds::NONE);
    ledger.belong(more, host(9));
    for flow in &honest {
        ledger.close(*flow);
    }
    assert!(contend(&mut ledger, &[more], Place::Disk) > 0);
}

#[test]
fn a_peer_that_comes_when_another_has_taken_all_it_could_gets_something() {
    let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let hoarder = flows_by(&mut ledger, site, 1, 1);
    assert!(contend(&mut ledger, &hoarder, Place::Disk) > 890 * MIB);
    let late = flows_by(&mut ledger, site, 2, 1);
    let held = contend(&mut ledger, &late, Place::Disk) / MIB;
    assert!(held >= 60, "{held} MiB");
}

#[test]
fn a_host_without_flows_does_not_count() {
    let mut ledger = Ledger::new(bounds(0, 1024 * MIB));
    let site = ledger.add_site(Bounds::NONE);
    let [one, other] = [1, 2].map(|number| flows_of(&mut ledger, site, number, 1)[0]);
    let beside = contend(&mut ledger, &[one], Place::Disk);
    assert!(beside < 700 * MIB, "{beside}");
    ledger.close(other);
    assert!(contend(&mut ledger, &[one], Place::Disk) > 880 * MIB);
}

#[derive(Debug, Clone)]
enum Op {
    Open(usize, usize, u64, Option<u8>),
    Close(usize),
    Take(usize, Place, u64),
    GiveBack(usize, Place, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let place = prop_oneof![Just(Place::Memory), Just(Place::Disk)];
    let open = (0..3usize, 0..3usize, 0..2000u64, option::of(0..3u8));
    prop_oneof![
        1 => open.prop_map(|(site, peer, most, host)| Op::Open(site, peer, most, host)),
        1 => (0..8usize).prop_map(Op::Close),
        6 => (0..8usize, place.clone(), 0..400u64).prop_map(|(f, p, n)| Op::Take(f, p, n)),
        4 => (0..8usize, place, 0..400u64).prop_map(|(f, p, n)| Op::GiveBack(f, p, n)),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Flow {
    key: FlowKey,
    site: usize,
    peer: usize,
    most: u64,
    host: Option<u8>,
}

/// Reference: every held byte, one by one.
#[derive(Default)]
struct Model {
    flows: Vec<Flow>,
    bytes: Vec<(Flow, Place)>,
}

impl Model {
    fn count(&self, place: Place, of: impl Fn(&Flow) -> bool) -> u64 {
        let held = |(flow, at): &&(Flow, Place)| *at == place && of(flow);
        self.bytes.iter().filter(held).count() as u64
    }

    /// Reports whether a flow may have `bytes` more where the flows `within` may have `most`.
    fn fits(
        &self,
        flow: Flow,
        (place, more): (Place, u64),
        most: u64,
        within: impl Fn(&Flow) -> bool,
    ) -> bool {
        let of_flow = self.count(place, |it| it.key == flow.key) + more;
        let all = self.count(place, &within) + more;
        let Some(mut left) = most.checked_sub(all) else {
            return false;
        };
        let mut peers = self.flows.iter().filter(|it| within(it));
        if peers.any(|it| it.peer != flow.peer) {
            let of_peer = self.count(place, |it| within(it) && it.peer == flow.peer) + more;
            let Some(to_peer) = (PEER_SHARE * left).checked_sub(of_peer) else {
                return false;
            };
            left = to_peer;
        }
        if flow.host.is_none() {
            return of_flow <= SHARE * left;
        }
        let of_host = self.count(place, |it| within(it) && it.host == flow.host) + more;
        let mut others = self
            .flows
            .iter()
            .filter(|it| within(it) && it.host.is_some());
        let crowded = others.any(|it| it.host != flow.host);
        let part = left * if crowded { HOST_SHARE } else { SHARE };
        of_host <= part && of_flow <= SHARE * (part - of_host)
    }

    fn take_back(&mut self, flow: Flow, place: Place, mut count: u64) {
        self.bytes.retain(|(of, at)| {
            let gone = count > 0 && of.key == flow.key && *at == place;
            count -= u64::from(gone);
            !gone
        });
    }
}

const ALL: [u64; 2] = [1000, 3000];
const SITES: [[u64; 2]; 3] = [[600, 3000], [1000, 700], [5000, 5000]];

/// Checks that the ledger's sums are those of single bytes, and that none exceeds its bound.
fn check(ledger: &Ledger, keys: &[SiteKey], model: &Model) -> Result<(), TestCaseError> {
    for place in Place::ALL {
        let index = place as usize;
        prop_assert_eq!(ledger.held_by_all(place), model.count(place, |_| true));
        prop_assert!(ledger.held_by_all(place) <= ALL[index]);
        for (site, key) in keys.iter().enumerate() {
            let held = model.count(place, |it| it.site == site);
            prop_assert_eq!(ledger.held_by_site(*key, place), held);
            prop_assert!(held <= SITES[site][index]);
        }
        for flow in &model.flows {
            let held = model.count(place, |it| it.key == flow.key);
            prop_assert_eq!(ledger.held(flow.key, place), held);
            prop_assert!(held <= flow.most);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn sums_are_those_of_single_bytes_and_no_bound_is_exceeded(ops in vec(op(), 1..120)) {
        let mut ledger = Ledger::new(bounds(ALL[0], ALL[1]));
        let keys = SITES.map(|[memory, disk]| ledger.add_site(bounds(memory, disk)));
        let mut model = Model::default();
        for op in ops {
            match op {
                Op::Open(site, peer, most, number) => {
                    let key = ledger.open(keys[site], peer, bounds(most, most));
                    if let Some(number) = number {
                        ledger.belong(key, host(number));
                    }
                    prop_assert!(model.flows.iter().all(|other| other.key != key));
                    model.flows.push(Flow { key, site, peer, most, host: number });
                }
                Op::Close(at) if at < model.flows.len() => {
                    let flow = model.flows.remove(at);
                    ledger.close(flow.key);
                    model.bytes.retain(|(of, _)| of.key != flow.key);
                }
                Op::Take(at, place, count) if at < model.flows.len() => {
                    let flow = model.flows[at];
                    let (of_site, of_all) = (SITES[flow.site][place as usize], ALL[place as usize]);
                    let may = model.count(place, |it| it.key == flow.key) + count <= flow.most
                        && model.fits(flow, (place, count), of_site, |it| it.site == flow.site)
                        && model.fits(flow, (place, count), of_all, |_| true);
                    let waited = ledger.waits(flow.key, place);
                    let taken = ledger.try_take(flow.key, place, count);
                    prop_assert!(may || !taken);
                    prop_assert!(taken || waited || !may);
                    if taken {
                        model.bytes.extend((0..count).map(|_| (flow, place)));
                    }
                }
                Op::GiveBack(at, place, count) if at < model.flows.len() => {
                    let flow = model.flows[at];
                    let count = count.min(ledger.held(flow.key, place));
                    ledger.give_back(flow.key, place, count);
                    model.take_back(flow, place, count);
                }
                Op::Close(_) | Op::Take(..) | Op::GiveBack(..) => {}
            }
            check(&ledger, &keys, &model)?;
        }
    }

    /// Whatever a host does with however many flows, its disk share leaves room for a flow of
    /// another host. Its reported surplus in memory is sufficient.
    #[test]
    fn no_host_keeps_another_from_everything(
        takes in vec((0..50usize, 1..200u64), 0..400),
        alone in any::<bool>(),
    ) {
        const MOST: u64 = 10_000;
        let mut ledger = Ledger::new(bounds(MOST, MOST));
        let site = ledger.add_site(Bounds::NONE);
        let other = (!alone).then(|| flows_of(&mut ledger, site, 2, 1)[0]);
        let flows = flows_of(&mut ledger, site, 1, 50);
        for (at, bytes) in takes {
            for place in Place::ALL {
                let _ = ledger.try_take(flows[at], place, bytes);
            }
        }
        let other = other.unwrap_or_else(|| flows_of(&mut ledger, site, 2, 1)[0]);
        while ledger.try_take(other, Place::Disk, 10) {}
        let minimum = if alone { MOST / 15 } else { MOST / 5 };
        let held = ledger.held(other, Place::Disk);
        prop_assert!(held >= minimum, "{}", held);
        for flow in &flows {
            let surplus = ledger.surplus(*flow, Place::Memory);
            ledger.give_back(*flow, Place::Memory, surplus);
            let has = ledger.held(*flow, Place::Memory);
            prop_assert!(has == 0 || ledger.surplus(*flow, Place::Memory) == 0);
        }
        let of_host: u64 = flows.iter().map(|flow| ledger.held(*flow, Place::Memory)).sum();
        prop_assert!(of_host <= HOST_SHARE * (MOST - of_host), "{}", of_host);
    }
}
