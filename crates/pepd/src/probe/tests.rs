//! Figures and suggestions for simulated paths.

use std::time::Duration;

use pep_core::config::Config;
use pepd_api::probe::{Phase, Report};
use pepd_tunnel::probe::Sample;

use super::*;

/// A path, observed without errors.
#[derive(Debug, Clone, Copy)]
struct Path {
    /// Rate on the link, in bit/s.
    rate: f64,
    /// Round trip in seconds.
    rtt: f64,
    /// Queueing delay under load.
    queue: f64,
    /// Loss of one packet in so many, in bursts of so many.
    loss: Option<(u64, u64)>,
    congestion: bool,
    /// Fraction of the time for which each half second runs at half the rate.
    uneven: bool,
    outages: u64,
    by_tcp: bool,
    stated: Option<u64>,
    /// Fraction of hosts' packets: one in so many.
    hosts: Option<u64>,
}

const CLEAN: Path = Path {
    rate: 10e6,
    rtt: 0.04,
    queue: 0.0,
    loss: None,
    congestion: false,
    uneven: false,
    outages: 0,
    by_tcp: false,
    stated: None,
    hosts: None,
};

/// Bytes of a packet on the link, and bytes of its payload.
const PACKET: (u64, u64) = (1500, 1400);

/// Returns samples of a tenth of a second each: 2 s idle, 10 s up, 10 s down. The rate is reached
/// after a second.
fn samples(path: &Path) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut counts = [[0_u64; 3]; 2];
    let mut on_link = 0;
    for (phase, from, steps) in [
        (Phase::Idle, 0, 20_u64),
        (Phase::Up, 20, 100),
        (Phase::Down, 120, 100),
    ] {
        let mut bytes = 0;
        for step in 0..=steps {
            let slow = step < 10 || (path.uneven && step % 10 < 5);
            let rate = if slow { path.rate / 2.0 } else { path.rate };
            let packets = (rate / 80.0 / PACKET.0 as f64) as u64;
            if phase != Phase::Idle && step > 0 {
                let direction = usize::from(phase == Phase::Down);
                let before = counts[direction][0];
                counts[direction][0] += packets;
                if let Some((one_of, burst)) = path.loss {
                    counts[direction][1] = counts[direction][0] / one_of;
                    counts[direction][2] = counts[direction][1] / burst;
                }
                let lost = path.loss.map_or(0, |(one_of, _)| {
                    counts[direction][0] / one_of - before / one_of
                });
                let of_hosts = path.hosts.map_or(0, |one_of| packets / one_of);
                bytes += (packets - lost - of_hosts) * PACKET.1;
                on_link += if direction == 0 {
                    packets * PACKET.0
                } else {
                    0
                };
            }
            let loaded = phase != Phase::Idle && step >= 10;
            let lost = counts[0][1];
            samples.push(Sample {
                at: Duration::from_millis(100 * (from + step)),
                phase,
                bytes,
                rtt: Duration::from_secs_f64(path.rtt + if loaded { path.queue } else { 0.0 }),
                packets: counts,
                causes: if path.congestion {
                    [0, lost, 0]
                } else {
                    [lost, 0, 0]
                },
                retransmitted: lost,
                on_link,
                link_rate: path.stated.unwrap_or(rate as u64),
                fec_overhead: 0.05,
                datagram: 1472,
                outages: if phase == Phase::Down {
                    path.outages
                } else {
                    0
                },
                by_tcp: path.by_tcp,
            });
        }
    }
    samples
}

fn report(path: &Path) -> Report {
    let known = Known {
        peer: "hub".to_owned(),
        stated: path.stated,
    };
    judge(&known, &samples(path))
}

/// Returns the suggestion within an otherwise complete configuration.
fn config(report: &Report) -> Config {
    const KEY: &str = "public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\nendpoint = \"192.0.2.1:1\"\n";
    let text = format!(
        "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n{}{KEY}",
        report.suggestion.toml
    );
    pep_core::config::parse(&text).unwrap_or_else(|err| panic!("{err:?}: {text}"))
}

fn remarks(report: &Report) -> String {
    report.suggestion.remarks.join("\n")
}

fn near(value: Option<f64>, expected: f64) -> bool {
    value.is_some_and(|value| (value / expected - 1.0).abs() < 0.02)
}

#[test]
fn a_steady_link_is_measured_and_its_rate_suggested() {
    let report = report(&CLEAN);
    let goodput = CLEAN.rate * PACKET.1 as f64 / PACKET.0 as f64;
    for direction in [report.up, report.down] {
        assert!(near(direction.rate, goodput), "{direction:?}");
        assert!(near(direction.rate_median, goodput), "{direction:?}");
        assert_eq!(direction.loss, Some(0.0));
        assert_eq!((direction.burst, direction.queue_s), (None, Some(0.0)));
    }
    assert_eq!((report.link_rate, report.steady), (Some(10_000_000), true));
    let peer = &config(&report).peers[0];
    let rate = peer.rate.map(units::Rate::bits_per_second);
    assert_eq!(rate, Some(10_000_000));
    assert_eq!(peer.rtt, Some(Duration::from_millis(40)));
    assert!(!remarks(&report).contains("loss:"), "{report:?}");
}

#[test]
fn a_rate_that_moves_is_left_to_be_measured() {
    let report = report(&Path {
        uneven: true,
        ..CLEAN
    });
    assert!(!report.steady);
    assert!(report.up.rate_p95 > report.up.rate);
    assert_eq!(config(&report).peers[0].rate, None);
}

#[test]
fn losses_of_the_link_are_reported_with_their_bursts() {
    let single = report(&Path {
        loss: Some((50, 1)),
        ..CLEAN
    });
    assert!(near(single.up.loss, 0.02), "{single:?}");
    assert!(near(single.up.burst, 1.0), "{single:?}");
    assert!(remarks(&single).contains("by itself, one by one"));
    let bursty = report(&Path {
        loss: Some((50, 4)),
        ..CLEAN
    });
    assert!(bursty.up.burst > Some(3.5), "{bursty:?}");
    assert!(remarks(&bursty).contains("in bursts"));
}

#[test]
fn a_full_queue_is_no_rate_to_be_stated() {
    let report = report(&Path {
        loss: Some((50, 1)),
        congestion: true,
        queue: 0.1,
        ..CLEAN
    });
    assert_eq!(config(&report).peers[0].rate, None);
    let remarks = remarks(&report);
    assert!(remarks.contains("dropped at a full queue"), "{remarks}");
    assert!(remarks.contains("grew by 100 ms"), "{remarks}");
}

#[test]
fn a_stated_rate_stays_where_it_arrives_and_goes_where_it_does_not() {
    let right = report(&Path {
        stated: Some(10_000_000),
        ..CLEAN
    });
    let rate = |report: &Report| config(report).peers[0].rate;
    assert_eq!(
        rate(&right).map(units::Rate::bits_per_second),
        Some(10_000_000)
    );
    let wrong = report(&Path {
        stated: Some(20_000_000),
        ..CLEAN
    });
    assert_eq!(rate(&wrong), None);
    assert!(
        remarks(&wrong).contains("20Mbit/s are configured"),
        "{wrong:?}"
    );
}

#[test]
fn traffic_of_hosts_is_reported_and_does_not_count_against_the_rate() {
    let busy = Path {
        hosts: Some(2),
        stated: Some(10_000_000),
        ..CLEAN
    };
    let quiet = report(&CLEAN);
    let report = report(&busy);
    assert!(near(report.on_link, busy.rate), "{report:?}");
    let reported = remarks(&report);
    assert!(
        reported.contains("hosts: of 9.9Mbit/s sent during the probe about 4."),
        "{reported}"
    );
    assert!(
        reported.contains("the configured 10Mbit/s arrive"),
        "{reported}"
    );
    assert!(config(&report).peers[0].rate.is_some());
    assert!(!remarks(&quiet).contains("hosts:"));
}

#[test]
fn kinds_of_links_have_remarks_of_their_own() {
    let geo = report(&Path { rtt: 0.6, ..CLEAN });
    assert!(remarks(&geo).contains("geostationary"));
    assert_eq!(config(&geo).peers[0].rtt, Some(Duration::from_millis(600)));
    let narrow = report(&Path {
        rate: 64e3,
        ..CLEAN
    });
    assert!(remarks(&narrow).contains("narrow band"), "{narrow:?}");
    let winking = report(&Path {
        outages: 3,
        ..CLEAN
    });
    assert!(remarks(&winking).contains("dedicated = true"));
    let by_tcp = report(&Path {
        by_tcp: true,
        loss: Some((50, 1)),
        ..CLEAN
    });
    assert!(remarks(&by_tcp).contains("UDP: blocked"));
    assert_eq!(
        (by_tcp.up.loss, config(&by_tcp).peers[0].rate),
        (None, None)
    );
}

#[test]
fn what_was_cut_short_claims_nothing() {
    let known = Known {
        peer: "hub".to_owned(),
        stated: None,
    };
    for count in [0, 1, 20, 22, 23] {
        let mut samples = samples(&CLEAN);
        samples.truncate(count);
        let report = judge(&known, &samples);
        assert_eq!((report.up.rate, report.down.rate), (None, None), "{count}");
        assert!(!report.steady);
        assert!(!report.suggestion.toml.contains("rate ="), "{count}");
        assert!(remarks(&report).contains("too little was sent"), "{count}");
    }
}

#[test]
fn a_report_fits_100_columns_and_survives_json() {
    let report = report(&Path {
        loss: Some((50, 4)),
        queue: 0.2,
        outages: 1,
        ..CLEAN
    });
    let text = report.to_string();
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let json = serde_json::to_string(&report).expect("JSON");
    let read: Report = serde_json::from_str(&json).expect("a report");
    // The last digit of a number may differ.
    assert_eq!(read.to_string(), text);
}
