//! Sessions without traffic for longer than a minute, whose beacons are rare.

use std::time::Duration;

use tunnel::{class::Class, session::Outages};
use tunnel_sim::rig::{Rig, config};

const RATE: u64 = 10_000_000;
const RTT: Duration = Duration::from_millis(600);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rig(link: &str) -> Rig {
    let link = format!("rate={RATE}bit,delay=300ms,queue=100%bdp,{link}");
    let ends = [true, false].map(|initiator| {
        let mut config = config(initiator, RATE, RTT);
        config.outages = Outages::AtOnce;
        config
    });
    Rig::new(&link, 1, ends)
}

/// Runs until `until`, and returns the packets that each end has sent in that time.
fn packets(rig: &mut Rig, until: Duration) -> [u64; 2] {
    let sent = |rig: &Rig| [0, 1].map(|end: usize| rig.sessions[end].stats().packets_sent);
    let before = sent(rig);
    rig.run(until, |_| false);
    let after = sent(rig);
    [0, 1].map(|end| after[end] - before[end])
}

#[test]
fn after_a_minute_each_end_sends_a_beacon_in_five_seconds() {
    let mut rig = rig("loss=0%");
    rig.upload(Class::Normal, 100_000);
    let first = packets(&mut rig, s(60));
    assert!(first.iter().all(|sent| *sent > 55), "{first:?}");
    rig.run(s(70), |_| false);
    assert_eq!(packets(&mut rig, s(670)), [120; 2]);
    assert!(rig.links_up.is_empty(), "no outage");
}

/// Three lost in a row are an outage: one in 8,000 for each beacon.
#[test]
fn a_lost_beacon_is_no_outage() {
    let mut rig = rig("loss=5%");
    rig.upload(Class::Normal, 100_000);
    rig.run(s(3600), |_| false);
    assert!(rig.links_up.is_empty(), "{:?}", rig.links_up);
}

#[test]
fn messages_outside_streams_end_the_rest_of_both_ends() {
    let mut rig = rig("loss=0%");
    rig.run(s(100), |_| false);
    rig.send_packets(Class::Normal, 100);
    rig.run(s(101), |_| false);
    rig.stop_packets();
    let first = packets(&mut rig, s(150));
    assert!(first.iter().all(|sent| *sent > 40), "{first:?}");
    rig.run(s(170), |_| false);
    assert_eq!(packets(&mut rig, s(270)), [20; 2]);
    assert!(rig.links_up.is_empty(), "{:?}", rig.links_up);
}

/// The link fails for two seconds when a stream is opened. The end that opens it hears nothing and
/// stops. The other does not know of the stream, but answers beacons that ask for a report.
#[test]
fn an_opening_that_is_lost_does_not_wait_for_a_rare_beacon() {
    // At different times between two beacons.
    for after in (0..5000).step_by(700) {
        let at = Duration::from_millis(300_000 + after);
        let mut rig = rig(&format!("outages={}ms+2s", at.as_millis()));
        rig.run(at + Duration::from_millis(10), |_| false);
        let stream = rig.upload(Class::Normal, 100);
        rig.run(at + s(60), |rig| rig.finished(stream).is_some());
        let took = rig.now - at - s(2);
        assert!(took < RTT * 3, "after {after} ms: {took:?}");
    }
}

#[test]
fn an_outage_at_rest_is_noticed_in_eighteen_seconds_and_its_end_in_five() {
    let mut rig = rig("outages=300s+100s");
    rig.run(s(405), |rig| !rig.links_up.is_empty());
    assert_eq!(rig.links_down.len(), 2, "both ends");
    let noticed = |at: &Duration| (s(312)..s(319)).contains(at);
    assert!(rig.links_down.iter().all(noticed), "{:?}", rig.links_down);
    let up = rig.links_up.first().expect("the link is up again");
    assert!(*up > s(400), "{up:?}");
}

/// The receiver of messages knows of them, and does not rest.
#[test]
fn an_outage_under_messages_of_one_direction_is_noticed_in_three_seconds() {
    let mut rig = rig("outages=300s+100s");
    rig.send_packets(Class::Normal, 1000);
    rig.run(s(310), |_| false);
    assert_eq!(rig.links_down.len(), 2, "both ends");
    let noticed = |at: &Duration| (s(300)..s(305)).contains(at);
    assert!(rig.links_down.iter().all(noticed), "{:?}", rig.links_down);
}

/// The peer does not know of a stream that begins in an outage.
#[test]
fn a_stream_that_begins_in_an_outage_does_not_wait_for_a_rare_beacon() {
    for after in (0..5000).step_by(700) {
        let end = Duration::from_millis(400_000 + after);
        let mut rig = rig(&format!("outages=300s+{}ms", 100_000 + after));
        rig.run(end - s(2), |_| false);
        let stream = rig.upload(Class::Normal, 100);
        rig.run(end + s(60), |rig| rig.finished(stream).is_some());
        let took = rig.now - end;
        assert!(took < RTT * 3, "after {after} ms: {took:?}");
    }
}
