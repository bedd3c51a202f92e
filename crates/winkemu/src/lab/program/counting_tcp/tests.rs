use super::*;
use crate::lab::{Topology, topology::LinkEdge};

fn link(options: &str) -> Topology {
    let options: crate::link::LinkOptions = options.parse().unwrap();
    let edge = LinkEdge::new("link", options.resolve_without_files().unwrap());
    let lab = Topology::builder().veth("client", "router");
    lab.link("router", "server", edge).build().unwrap()
}

fn run(lab: &Topology, transfer: Transfer) -> CountingTcpResult {
    let flow = CountingTcp {
        transfer,
        bytes: 100_000,
        port: 9000,
        timeout: Duration::from_secs(20),
    };
    flow.run(lab.node("client"), lab.node("server")).unwrap()
}

#[test]
fn the_kernel_gets_it_all_in_both_directions() {
    let lab = link("rate=10mbit,delay=50ms");
    for transfer in [Transfer::Upload, Transfer::Download] {
        let result = run(&lab, transfer);
        // 70 segments: the handshake, then windows of 2, 3, 4, 6 and so on where the kernel delays
        // ACKs.
        assert!(result.seconds > 0.5 && result.seconds < 2.0, "{result:?}");
        assert!(result.first_byte_s >= 0.1, "{result:?}");
        assert_eq!(result.sender.retransmitted_bytes, 0, "{result:?}");
        assert!(result.sender.acks < 75, "{result:?}");
        let interval = CountingTcp::INTERVAL.as_secs_f64();
        let bits: f64 = result.series.iter().map(|point| point.bps * interval).sum();
        assert!((bits - 800_000.0).abs() < 1.0, "{result:?}");
        let end = result.series.last().unwrap().t_s;
        assert!(
            (0.0..=interval).contains(&(end - result.seconds)),
            "{result:?}"
        );
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    let result = run(&link("delay=5ms,loss=10%"), Transfer::Download);
    assert!(result.sender.retransmitted_bytes > 0, "{result:?}");
}

#[test]
fn who_gets_nothing_gives_up() {
    let lab = link("delay=5ms,loss=100%");
    let flow = CountingTcp {
        transfer: Transfer::Upload,
        bytes: 100_000,
        port: 9000,
        timeout: Duration::from_millis(300),
    };
    let failed = flow.run(lab.node("client"), lab.node("server"));
    assert!(
        matches!(failed, Err(ProgramError::Timeout { .. })),
        "{failed:?}"
    );
}
