//! Tests of links between real namespaces.

use std::{
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use super::*;
use crate::{
    link::{Direction, Fate, LinkOptions},
    netns::Netns,
};

const PATIENCE: Duration = Duration::from_secs(10);

/// Two namespaces with a TUN each, with addresses of both families.
struct Place {
    a: Netns,
    b: Netns,
}

impl Place {
    fn new() -> Self {
        let (a, b) = (Netns::new().unwrap(), Netns::new().unwrap());
        Self { a, b }
    }

    fn spec(&self, options: &str) -> LinkSpec {
        let options: LinkOptions = options.parse().unwrap();
        let tun = |netns: &Netns, host: u8| {
            let addresses = [format!("10.0.0.{host}/24"), format!("fd00::{host}/64")];
            let addresses = addresses.map(|address| address.parse().unwrap());
            Tun::create(netns, "link0", &addresses, MTU).unwrap()
        };
        let config = options.resolve_without_files().unwrap();
        let mut spec = LinkSpec::new(tun(&self.a, 1), tun(&self.b, 2), config, 1);
        // A busy machine must not fail the test.
        spec.limit.late_after = PATIENCE;
        spec
    }

    fn socket(netns: &Netns, address: &str) -> UdpSocket {
        let socket = netns.enter(|| UdpSocket::bind(address)).unwrap().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

/// Sends numbered packets with `bytes` of payload.
fn send(socket: &UdpSocket, to: &str, count: u16, bytes: usize) {
    let to: SocketAddr = to.parse().unwrap();
    let mut payload = vec![0; bytes];
    for number in 0..count {
        payload[..2].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, to).unwrap();
    }
}

fn receive(socket: &UdpSocket) -> u16 {
    let mut payload = [0; 2000];
    socket.recv_from(&mut payload).unwrap();
    u16::from_be_bytes([payload[0], payload[1]])
}

#[test]
fn packets_cross_both_ways_in_both_families_and_never_early() {
    let place = Place::new();
    let link = LinkHandle::spawn(place.spec("delay=30ms")).unwrap();
    for (a, b) in [("10.0.0.1:7", "10.0.0.2:7"), ("[fd00::1]:7", "[fd00::2]:7")] {
        let (near, far) = (Place::socket(&place.a, a), Place::socket(&place.b, b));
        let begin = Instant::now();
        send(&near, b, 1, 100);
        assert_eq!(receive(&far), 0);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        send(&far, a, 1, 100);
        assert_eq!(receive(&near), 0);
        assert!(begin.elapsed() >= Duration::from_millis(60));
    }
    let report = link.stop();
    for direction in [&report.ab, &report.ba] {
        assert_eq!(
            direction.packets.offered, 2,
            "housekeeping was forwarded: {report:?}"
        );
        assert_eq!(direction.packets.delivered, 2);
    }
    assert_eq!(report.lateness.packets, 4);
    assert!(
        report.accuracy.counts && report.failure.is_none(),
        "{report:?}"
    );
}

#[test]
fn a_slow_link_sends_at_its_rate_and_counts_what_it_drops() {
    let place = Place::new();
    // 1000 B packets take 8 ms; 10 wait, one is in transmission, the others are dropped.
    let link = LinkHandle::spawn(place.spec("rate=1mbit,queue=10p")).unwrap();
    let (near, far) = (
        Place::socket(&place.a, "10.0.0.1:7"),
        Place::socket(&place.b, "10.0.0.2:7"),
    );
    let begin = Instant::now();
    send(&near, "10.0.0.2:7", 30, 972);
    let received: Vec<_> = (0..11).map(|_| receive(&far)).collect();
    assert!(begin.elapsed() >= Duration::from_millis(88));
    assert!(received.is_sorted(), "{received:?}");
    let report = link.stop();
    // A late loop may already have sent one when it reads the first packets.
    assert!(
        (17..=19).contains(&report.ab.packets.dropped.queue_full),
        "{report:?}"
    );
}

#[test]
fn a_recording_decides_the_same_again_under_another_seed() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lost = |seed: u64, record: bool| {
        let place = Place::new();
        let mut spec = place.spec("loss=30%,duplicate=10%,delay=1ms");
        spec.seed = seed;
        if record {
            spec.record = Some(file.path().to_owned());
        } else {
            spec.replay = read_recording(file.path()).unwrap();
        }
        let link = LinkHandle::spawn(spec).unwrap();
        let (near, far) = (
            Place::socket(&place.a, "10.0.0.1:7"),
            Place::socket(&place.b, "10.0.0.2:7"),
        );
        send(&near, "10.0.0.2:7", 200, 100);
        // The other direction has its own losses; a few packets are enough to see one arrive.
        let mut numbers = Vec::new();
        far.set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let mut payload = [0; 200];
        while far.recv_from(&mut payload).is_ok() {
            numbers.push(u16::from_be_bytes([payload[0], payload[1]]));
        }
        assert_eq!(link.stop().ab.packets.offered, 200);
        numbers
    };
    let first = lost(1, true);
    assert!((100..190).contains(&first.len()), "{}", first.len());
    let recorded = read_recording(file.path()).unwrap();
    assert_eq!(recorded.len(), 200);
    assert!(
        recorded
            .iter()
            .all(|d| d.direction == Direction::AtoB && d.bytes == 128)
    );
    assert!(
        recorded
            .iter()
            .any(|d| matches!(d.fate, Fate::Dropped { .. }))
    );
    assert_eq!(lost(2, false), first);
}

#[test]
fn a_recording_that_is_none_is_refused_by_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "{}\n").unwrap();
    let error = read_recording(file.path()).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn interfaces_are_gone_when_the_link_stops() {
    let place = Place::new();
    let link = LinkHandle::spawn(place.spec("")).unwrap();
    assert!(place.a.interfaces().unwrap().contains(&"link0".to_owned()));
    drop(link);
    assert!(!place.a.interfaces().unwrap().contains(&"link0".to_owned()));
}

#[test]
fn a_name_that_is_taken_is_an_error_that_says_so() {
    let netns = Netns::new().unwrap();
    let _first = Tun::create(&netns, "link0", &[], MTU).unwrap();
    let error = Tun::create(&netns, "link0", &[], MTU)
        .unwrap_err()
        .to_string();
    assert!(error.contains("name already in use"), "{error}");
}

#[test]
fn a_link_whose_interface_is_removed_ends_and_says_so() {
    let place = Place::new();
    let link = LinkHandle::spawn(place.spec("")).unwrap();
    place.a.remove_interface("link0").unwrap();
    let begin = Instant::now();
    while !link.has_ended() && begin.elapsed() < PATIENCE {
        thread::yield_now();
    }
    assert!(link.has_ended());
    assert!(link.stop().failure.is_some());
}
