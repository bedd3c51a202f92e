//! Performance of the sender's policy over emulated links in virtual time, with a margin. The
//! examples print all figures.

use std::time::Duration;

use tunnel::{
    class::Class,
    session::{Outages, Rate},
    wire::StreamId,
};
use tunnel_sim::rig::{Rig, config};

const RTT: Duration = Duration::from_millis(600);
const ONE_WAY: Duration = Duration::from_millis(300);
const RATE: u64 = 10_000_000;
const GEO: &str = "rate=10mbit,delay=300ms,queue=100%bdp";

fn rig(link: &str, seed: u64, rate: u64) -> Rig {
    Rig::new(link, seed, [true, false].map(|i| config(i, rate, RTT)))
}

/// Returns the bits per second that become readable within that time.
fn goodput(rig: &mut Rig, stream: StreamId, time: Duration) -> f64 {
    let before = rig.readable(stream);
    rig.run(rig.now + time, |_| false);
    (rig.readable(stream) - before) as f64 * 8.0 / time.as_secs_f64()
}

/// Writes `rate` bits per second to a new stream for that time. Returns the share that came, and
/// the 95th percentile of the in-order delay beyond the one-way delay.
fn offer(rig: &mut Rig, class: Class, rate: f64, time: Duration) -> (f64, Duration) {
    let every = Duration::from_millis(2);
    let stream = rig.sessions[0]
        .open(class, 0, b"")
        .expect("below the limit");
    let (begin, mut written) = (rig.now, Vec::new());
    let mut delays = Vec::new();
    let mut seen = 0;
    while rig.now < begin + time {
        let until = (rate / 8.0 * (rig.now + every - begin).as_secs_f64()) as u64;
        rig.run(rig.now + every, |_| false);
        written.push((until, rig.now));
        rig.sessions[0].written(stream, until);
        let readable = rig.readable(stream);
        while let Some((_, at)) = written.get(seen).filter(|(end, _)| *end <= readable) {
            delays.push((rig.now - *at).saturating_sub(ONE_WAY));
            seen += 1;
        }
    }
    delays.sort();
    let share = rig.readable(stream) as f64 * 8.0 / (rate * (time - ONE_WAY).as_secs_f64());
    (share, delays[delays.len() * 95 / 100])
}

#[test]
fn a_normal_stream_that_fills_the_link_has_what_a_bulk_stream_has() {
    for (link, rate, loss, wanted) in [
        (format!("{GEO},loss=2%"), RATE, 0.02, 0.93),
        (format!("{GEO},loss=8%"), RATE, 0.08, 0.93),
        (
            "rate=500kbit,delay=264ms,queue=100%bdp,loss=10%".to_owned(),
            500_000,
            0.1,
            0.9,
        ),
    ] {
        let mut rig = rig(&link, 1, rate);
        let stream = rig.upload(Class::Normal, 1 << 40);
        rig.run(Duration::from_secs(5), |_| false);
        let share = goodput(&mut rig, stream, Duration::from_secs(40)) / rate as f64 / (1.0 - loss);
        assert!(share > wanted, "{link}: {share}");
    }
}

#[test]
fn a_normal_stream_that_leaves_room_waits_for_no_retransmission() {
    // Beside bulk its share is half of the link, FEC overhead included.
    for (bulk, rate) in [(false, 5e6), (true, 3.5e6)] {
        let mut rig = rig(&format!("{GEO},loss=2%"), 1, RATE);
        if bulk {
            rig.upload(Class::Bulk, 1 << 40);
        }
        // The sender learns the loss first.
        offer(&mut rig, Class::Normal, 1e6, Duration::from_secs(10));
        let (share, late) = offer(&mut rig, Class::Normal, rate, Duration::from_secs(20));
        assert!(share > 0.97, "bulk {bulk}: {share}");
        assert!(late < Duration::from_millis(50), "bulk {bulk}: {late:?}");
    }
}

#[test]
fn whatever_a_normal_stream_wants_it_has_as_far_as_the_link_goes() {
    for tenths in [7, 8, 9, 10, 12] {
        let mut rig = rig(&format!("{GEO},loss=2%"), tenths, RATE);
        rig.run(Duration::from_secs(1), |_| false);
        let wanted = 1e6 * tenths as f64;
        let (share, _) = offer(&mut rig, Class::Normal, wanted, Duration::from_secs(60));
        let minimum = (0.98 * 0.9 * RATE as f64 / wanted).min(0.97);
        assert!(share > minimum, "{tenths} Mbit/s: {share}");
    }
}

#[test]
fn after_an_outage_what_it_took_goes_first() {
    // With a configured rate above the link's, the outage begins with a full queue.
    for (rate, begin) in [
        (RATE, 10_000),
        (RATE, 10_411),
        (11_000_000, 10_000),
        (11_000_000, 10_137),
    ] {
        let mut rig = rig(&format!("{GEO},outages={begin}ms+2s"), 1, rate);
        let stream = rig.feed(Class::Bulk, 4 << 20);
        let up = Duration::from_millis(begin) + Duration::from_secs(2);
        rig.run(up, |_| false);
        let before = rig.readable(stream);
        rig.run(up + 5 * RTT, |rig| rig.readable(stream) > before);
        let first = rig.now - up;
        assert!(
            first <= RTT + Duration::from_millis(100),
            "{rate}, {begin}: {first:?}"
        );
        rig.run(up + 2 * RTT, |_| false);
        let share = goodput(&mut rig, stream, 2 * RTT) / RATE as f64;
        assert!(share > 0.9 * 0.957, "{rate}, {begin}: {share}");
    }
}

#[test]
fn after_a_long_outage_of_a_link_of_ones_own_the_first_bytes_come_first() {
    // The whole ring has been sent once after 11.4 s; then retransmission restarts from the first
    // byte.
    for length in (11_000..12_000).step_by(100) {
        let link = format!("{GEO},outages=10s+{length}ms");
        let sides = [true, false].map(|initiator| {
            let mut config = config(initiator, RATE, RTT);
            config.outages = Outages::Never;
            config
        });
        let mut rig = Rig::new(&link, 1, sides);
        let stream = rig.feed(Class::Bulk, 16 << 20);
        let up = Duration::from_secs(10) + Duration::from_millis(length);
        rig.run(up, |_| false);
        let before = rig.readable(stream);
        rig.run(up + 5 * RTT, |rig| rig.readable(stream) > before);
        let first = rig.now - up;
        assert!(
            first <= RTT + Duration::from_millis(100),
            "{length} ms: {first:?}"
        );
    }
}

#[test]
fn messages_outside_streams_fill_a_link_of_unknown_rate() {
    for len in [300, 1400] {
        let sides = [true, false].map(|initiator| {
            let mut config = config(initiator, RATE, Duration::from_millis(100));
            config.rate = Rate::Auto;
            config
        });
        let link = "rate=10mbit,delay=50ms,queue=100%bdp,loss=1%";
        let mut rig = Rig::new(link, 1, sides);
        rig.send_packets(Class::Normal, len);
        rig.run(Duration::from_secs(5), |_| false);
        let before = rig.messages();
        rig.run(Duration::from_secs(25), |_| false);
        let path = rig.sessions[0].path();
        let share = path.link_rate as f64 / RATE as f64;
        assert!((0.9..1.1).contains(&share), "{len}: {path:?}");
        let bytes = (rig.messages() - before) * (len as u64 + 60);
        let goodput = bytes as f64 * 8.0 / 20.0 / RATE as f64;
        assert!(goodput > 0.9, "{len}: {goodput}");
        assert!(path.rtt < Duration::from_millis(160), "{len}: {path:?}");
    }
}
