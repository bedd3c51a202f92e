use super::*;
use crate::lab::{Topology, topology::LinkEdge};

const MS: Duration = Duration::from_millis(1);

/// Audio flow of one second, half of which counts.
pub(super) fn flow() -> Datagrams {
    Datagrams {
        transfer: Transfer::Upload,
        carrier: Carrier::Udp,
        bytes: 160,
        interval: 50 * MS,
        duration: 1000 * MS,
        warmup: 500 * MS,
        within: 60 * MS,
        dscp: Some(46),
        family: Family::Ipv4,
        port: 9001,
    }
}

fn link(options: &str) -> Topology {
    let options: crate::link::LinkOptions = options.parse().unwrap();
    let edge = LinkEdge::new("link", options.resolve_without_files().unwrap());
    let lab = Topology::builder().link("client", "server", edge);
    lab.build().unwrap()
}

fn run(lab: &Topology, flow: &Datagrams) -> DatagramsResult {
    let (client, server) = (lab.node("client"), lab.node("server"));
    flow.run(client, server, 20 * MS).unwrap()
}

#[test]
fn all_kinds_arrive_in_both_directions() {
    let lab = link("delay=20ms");
    for transfer in [Transfer::Upload, Transfer::Download] {
        let cases = [
            (Carrier::Udp, Family::Ipv4),
            (Carrier::Udp, Family::Ipv6),
            (Carrier::Esp, Family::Ipv4),
        ];
        for (carrier, family) in cases {
            let flow = Datagrams {
                transfer,
                carrier,
                family,
                interval: 5 * MS,
                duration: 200 * MS,
                warmup: 100 * MS,
                ..flow()
            };
            let result = run(&lab, &flow);
            assert_eq!((result.sent, result.arrived), (20, 20), "{result:?}");
            let delays = result.delays.unwrap();
            assert!(delays.p50_s > -0.001 && delays.p50_s < 0.1, "{result:?}");
            assert_eq!((result.corrupt, result.refused), (0.0, 0));
        }
    }
}

#[test]
fn long_ones_cross_in_fragments() {
    let lab = link("delay=1ms");
    for carrier in [Carrier::Udp, Carrier::Esp] {
        let flow = Datagrams {
            carrier,
            bytes: 8972,
            duration: 400 * MS,
            warmup: Duration::ZERO,
            ..flow()
        };
        let result = run(&lab, &flow);
        assert_eq!((result.sent, result.arrived), (8, 8), "{result:?}");
    }
}

#[test]
fn what_the_link_takes_or_doubles_is_counted() {
    let flow = Datagrams {
        interval: MS,
        duration: 1000 * MS,
        warmup: Duration::ZERO,
        ..flow()
    };
    let result = run(&link("delay=1ms,loss=20%,duplicate=30%"), &flow);
    assert!((result.loss - 0.2).abs() < 0.06, "{result:?}");
    assert!((result.duplicates - 0.24).abs() < 0.06, "{result:?}");
    // UDP has a checksum; ESP without a key has none.
    let esp = Datagrams {
        carrier: Carrier::Esp,
        ..flow
    };
    let result = run(&link("delay=1ms,corrupt=30%"), &esp);
    assert!(result.corrupt > 0.1 && result.loss > 0.1, "{result:?}");
}
