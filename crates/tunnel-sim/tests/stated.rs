//! Configured rates of sessions over emulated links in virtual time: true ones, others, and short
//! wave, configured and measured.

use std::time::Duration;

use tunnel::{class::Class, session::Rate};
use tunnel_sim::rig::{Rig, config};
use winkemu_link::Direction;

/// Link with a bulk stream from end to end.
struct Cell<'a> {
    link: &'a str,
    stated: u64,
    /// Makes both ends measure in any case.
    measured: bool,
    rtt: Duration,
    /// Rate of the link less its loss, in bit/s.
    passes: f64,
}

/// Returns the goodput as a share of `passes`, and the share of packets dropped by the queue, for
/// `time` after `warm`.
fn run(cell: &Cell<'_>, warm: Duration, time: Duration) -> (f64, f64) {
    let sides = [true, false].map(|initiator| {
        let mut config = config(initiator, cell.stated, cell.rtt);
        if cell.measured {
            config.rate = Rate::Auto;
        }
        config
    });
    let mut rig = Rig::new(cell.link, 1, sides);
    rig.upload(Class::Bulk, 1 << 40);
    rig.run(warm, |_| false);
    let (before, stats) = (rig.arrived(), rig.link.stats(Direction::AtoB));
    let counts = (stats.offered, stats.dropped.queue_full);
    rig.run(warm + time, |_| false);
    let bits = (rig.arrived() - before) as f64 * 8.0 / time.as_secs_f64();
    let stats = rig.link.stats(Direction::AtoB);
    let dropped = stats.dropped.queue_full - counts.1;
    (
        bits / cell.passes,
        dropped as f64 / (stats.offered - counts.0) as f64,
    )
}

#[test]
fn a_rate_that_is_true_is_used_whatever_is_lost() {
    for (link, stated, rtt, loss) in [
        (
            "rate=500kbit,delay=264ms,queue=100%bdp,loss=2%",
            500_000,
            528,
            0.02,
        ),
        (
            "rate=10mbit,delay=300ms,queue=100%bdp",
            10_000_000,
            600,
            0.0,
        ),
        (
            "rate=10mbit,delay=300ms,queue=100%bdp,loss=8%",
            10_000_000,
            600,
            0.08,
        ),
        (
            "rate=10mbit,delay=20ms,queue=100%bdp,loss=2%",
            10_000_000,
            40,
            0.02,
        ),
    ] {
        let cell = Cell {
            link,
            stated,
            measured: false,
            rtt: Duration::from_millis(rtt),
            passes: stated as f64 * (1.0 - loss),
        };
        let (share, dropped) = run(&cell, 5 * cell.rtt, Duration::from_secs(40));
        assert!((0.94..0.97).contains(&share), "{link}: {share}");
        assert!(dropped < 0.01, "{link}: {dropped}");
    }
}

#[test]
fn a_rate_that_is_not_true_costs_neither_goodput_nor_others() {
    for (stated, rtt, loss) in [(10, 40, 0), (10, 600, 2), (6, 300, 2), (6, 40, 0)] {
        let link = format!("rate=5mbit,delay={}ms,queue=100%bdp,loss={loss}%", rtt / 2);
        let cell = Cell {
            link: &link,
            stated: stated * 1_000_000,
            measured: false,
            rtt: Duration::from_millis(rtt),
            passes: 5e6 * (1.0 - loss as f64 / 100.0),
        };
        let (share, dropped) = run(&cell, 3 * cell.rtt, 100 * cell.rtt);
        assert!(share > 0.93, "{stated}, {link}: {share}");
        assert!(dropped < 0.01, "{stated}, {link}: {dropped}");
    }
}

#[test]
fn a_stated_rate_of_a_few_kbit_that_is_not_true_fills_no_queue() {
    let cell = Cell {
        link: "rate=4800bit,delay=300ms,queue=6kB",
        stated: 9600,
        measured: false,
        rtt: Duration::from_millis(600),
        passes: 4800.0,
    };
    let (share, dropped) = run(&cell, Duration::from_secs(120), Duration::from_secs(600));
    assert!(share > 0.85, "{share}");
    // A probing burst of one packet is a quarter of this queue.
    assert!(dropped < 0.08, "{dropped}");
}

#[test]
fn short_wave_is_used_as_other_links_are() {
    // 687 bytes per packet, 60 of them headers; one in 18 has a bit error at 1e-5.
    for (ber, passes) in [("", 1.0), (",ber=1e-5", 0.945)] {
        for measured in [false, true] {
            let link = format!("rate=2400bit,delay=4800ms,queue=6kB{ber}");
            let cell = Cell {
                link: &link,
                stated: 2400,
                measured,
                rtt: Duration::from_secs(10),
                passes: 2400.0 * passes,
            };
            let (share, dropped) = run(&cell, Duration::from_secs(60), Duration::from_secs(1200));
            assert!(share > 0.85, "{link}, measured {measured}: {share}");
            let most = if measured { 0.05 } else { 0.01 };
            assert!(dropped < most, "{link}, measured {measured}: {dropped}");
        }
    }
}

#[test]
fn the_first_byte_over_short_wave_comes_before_a_tcps() {
    let sides = [true, false].map(|initiator| config(initiator, 2400, Duration::from_secs(10)));
    let mut rig = Rig::new("rate=2400bit,delay=4800ms,queue=6kB", 1, sides);
    let stream = rig.upload(Class::Normal, 1 << 20);
    rig.run(Duration::from_secs(60), |rig| rig.readable(stream) > 0);
    // A SYN and its answer take 10 s, and a first segment of 1500 bytes 9.8 s. A session's
    // handshake takes 10.8 s.
    assert!(rig.now < Duration::from_millis(7_500), "{:?}", rig.now);
}

#[test]
fn an_outage_leaves_the_rate_as_it_was() {
    let link = "rate=10mbit,delay=300ms,queue=100%bdp,outages=10s+20s";
    let sides = [true, false].map(|i| config(i, 10_000_000, Duration::from_millis(600)));
    assert_eq!(sides[0].rate, Rate::Stated(10_000_000));
    let mut rig = Rig::new(link, 1, sides);
    rig.feed(Class::Bulk, 4 << 20);
    rig.run(Duration::from_secs(30), |_| false);
    rig.run(Duration::from_millis(31_300), |_| false);
    let before = rig.arrived();
    rig.run(Duration::from_millis(34_300), |_| false);
    let bits = (rig.arrived() - before) as f64 * 8.0 / 3.0;
    assert!(bits > 9.4e6, "{bits}");
}

#[test]
fn a_machine_that_is_late_is_no_queue() {
    // Wi-Fi at the edge of its range: a twentieth is lost in bursts.
    let link = "rate=20mbit,delay=5ms,jitter=2ms,queue=128p,gilbert=p=0.0087,q=0.1491";
    let rtt = Duration::from_millis(10);
    let share = |rate| {
        let sides = [true, false].map(|initiator| {
            let mut config = config(initiator, 20_000_000, rtt);
            config.rate = rate;
            config
        });
        let mut rig = Rig::new(link, 1, sides);
        rig.keep_busy(1, Duration::from_millis(8), Duration::from_millis(60));
        rig.upload(Class::Bulk, 1 << 40);
        rig.run(Duration::from_secs(20), |_| false);
        rig.arrived() as f64 * 8.0 / 20.0 / 20e6
    };
    let [stated, dedicated] = [Rate::Stated(20_000_000), Rate::Dedicated(20_000_000)].map(share);
    assert!(stated > 0.985 * dedicated, "{stated}, {dedicated}");
}

#[test]
fn a_flow_that_waits_is_no_outage_whichever_end_states_a_rate() {
    for rtt in [1, 40, 600] {
        let link = format!("rate=10mbit,delay={}us,queue=100%bdp", rtt * 500);
        for stated in [[true, true], [true, false], [false, true], [false, false]] {
            let sides = [0, 1].map(|side| {
                let mut config = config(side == 0, 10_000_000, Duration::from_millis(rtt));
                let rates = [config.rate, Rate::Auto];
                config.rate = rates[usize::from(!stated[side])];
                // As announced in the handshake.
                config.return_rate = stated[1 - side].then_some(10_000_000);
                config
            });
            let mut rig = Rig::new(&link, 1, sides);
            // The far end is never sent more than this, and sends nothing: it measures a low rate.
            let stream = rig.sessions[0]
                .open(Class::Bulk, 0, b"")
                .expect("below the limit");
            rig.sessions[0].written(stream, 1 << 20);
            rig.run(Duration::from_secs(60), |_| false);
            assert_eq!(rig.readable(stream), 1 << 20);
            let outages = [0, 1].map(|side: usize| rig.sessions[side].stats().outages);
            assert_eq!(outages, [0, 0], "{rtt} ms, rates stated: {stated:?}");
        }
    }
}
