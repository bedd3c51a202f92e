use super::*;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn route(family: i32, length: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut body = vec![0; ROUTE_BYTES];
    body[0] = family as u8;
    body[1] = length;
    body[7] = libc::RTN_UNICAST;
    body.extend(attributes.concat());
    body
}

/// A next hop with a gateway behind it, as the kernel lists it.
fn hop(interface: u32, weight: u8, flags: u8) -> Vec<u8> {
    let gateway = attribute(libc::RTA_GATEWAY, &[192, 0, 2, 1]);
    let length = (HOP_BYTES + gateway.len()) as u16;
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend([flags, weight - 1]);
    bytes.extend(interface.to_ne_bytes());
    bytes.extend(gateway);
    bytes
}

fn pairs(hops: &[Hop]) -> Vec<(u32, u32)> {
    hops.iter().map(|hop| (hop.interface, hop.weight)).collect()
}

#[test]
fn next_hops_of_a_route_are_read_with_their_weights() {
    let hops = [hop(3, 1, 0), hop(4, 200, 0), hop(5, 2, DEAD)].concat();
    let body = route(libc::AF_INET, 0, &[attribute(libc::RTA_MULTIPATH, &hops)]);
    let Hops::Several(found) = hops_of(&body) else {
        panic!("several");
    };
    assert_eq!(found.to.to_string(), "0.0.0.0/0");
    assert_eq!(pairs(&found.hops), [(3, 1), (4, 200)], "the third is down");
    for length in 0..body.len() {
        // No panic, and no hop that is not whole.
        if let Hops::Several(cut) = hops_of(&body[..length]) {
            assert!(found.hops.starts_with(&cut.hops), "{length}");
        }
    }
}

#[test]
fn a_route_with_one_hop_is_none_and_one_of_an_object_names_it() {
    let to = attribute(libc::RTA_DST, &[0x20; 16]);
    let object = attribute(ROUTE_OBJECT, &7_u32.to_ne_bytes());
    let by = attribute(libc::RTA_OIF, &3_u32.to_ne_bytes());
    let v6 = |attributes: &[Vec<u8>]| hops_of(&route(libc::AF_INET6, 128, attributes));
    assert_eq!(v6(&[to.clone(), by.clone()]), Hops::One);
    assert_eq!(v6(&[to.clone(), by, object.clone()]), Hops::One);
    let network = "2020:2020:2020:2020:2020:2020:2020:2020/128";
    let network = network.parse().expect("a network");
    assert_eq!(v6(&[to, object]), Hops::Object(network, 7));
}

#[test]
fn groups_of_objects_have_the_hops_that_are_up() {
    let mut objects = Objects::default();
    let body = |flags: u8, attributes: &[Vec<u8>]| {
        let header = vec![0, 0, 0, 0, flags, 0, 0, 0];
        [header, attributes.concat()].concat()
    };
    let id = |id: u32| attribute(OBJECT_ID, &id.to_ne_bytes());
    let by = |index: u32| attribute(OBJECT_INTERFACE, &index.to_ne_bytes());
    objects.take(&body(0, &[id(1), by(3)]));
    objects.take(&body(0, &[id(2), by(4)]));
    objects.take(&body(DEAD, &[id(3), by(5)]));
    let members = [(1_u32, 0), (2, 2), (3, 0), (9, 0)];
    let members = members.map(|(id, weight)| {
        let mut member = id.to_ne_bytes().to_vec();
        member.extend([weight, 0, 0, 0]);
        member
    });
    objects.take(&body(
        0,
        &[id(10), attribute(OBJECT_GROUP, &members.concat())],
    ));
    assert_eq!(pairs(&objects.hops(10)), [(3, 1), (4, 3)]);
    assert!(objects.hops(1).is_empty() && objects.hops(11).is_empty());
}

#[test]
fn answers_last_for_a_look_and_while_it_rests() {
    let known = || BTreeMap::from([("wan0".to_owned(), BTreeSet::from(["wan1".to_owned()]))]);
    let mut cache = Cache {
        known: known(),
        ..Cache::default()
    };
    assert!(cache.with("wan0").expect("known").contains("wan1"));
    cache.begin();
    assert!(cache.known.is_empty() && !cache.is_late());
    cache.known = known();
    cache.rests = Some(Instant::now() + std::time::Duration::from_secs(3600));
    cache.begin();
    assert!(cache.is_late() && cache.known == known(), "it rests");
}

#[test]
fn only_routes_of_the_link_and_another_interface_are_shared() {
    let mut shared = Shared::default();
    let route = |interfaces: &[u32]| SharedRoute {
        to: "0.0.0.0/0".parse().expect("a network"),
        hops: interfaces
            .iter()
            .map(|&interface| Hop {
                interface,
                weight: 1,
            })
            .collect(),
    };
    for hops in [&[3][..], &[3, 3], &[4, 5], &[]] {
        shared.add(3, route(hops));
    }
    assert_eq!(shared, Shared::default());
    shared.add(3, route(&[4, 3]));
    shared.add(3, route(&[3, 6, 3]));
    assert_eq!(shared.interfaces, BTreeSet::from([3, 4, 6]));
    assert_eq!((shared.number, shared.routes.len()), (2, 2));
}
