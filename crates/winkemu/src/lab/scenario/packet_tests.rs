//! Tests of workloads that build their packets themselves.

use std::time::Duration;

use super::{Program, Start, Workload, tests};
use crate::lab::program::{Carrier, CountingTcp, Datagrams, Transfer};

fn with(workload: &str) -> String {
    let head = "path = [\"client\", \"link\", \"server\"]\n[link]\ndelay = \"1ms\"\n[[workload]]\nname = \"w\"\n";
    format!("{head}{workload}")
}

fn read(workload: &str) -> Workload {
    tests::parse(&with(workload)).groups[0].workloads[0].clone()
}

fn datagrams(keys: &str) -> Datagrams {
    match read(&format!("program = \"udp\"\n{keys}")).program {
        Program::Datagrams(flow) => flow,
        other => panic!("{other:?}"),
    }
}

#[test]
fn datagrams_have_an_interval_or_a_rate() {
    let audio = datagrams("size = \"160B\"\ninterval = \"20ms\"\nduration = \"40s\"\ndscp = 46");
    assert_eq!(audio.carrier, Carrier::Udp);
    assert_eq!(audio.transfer, Transfer::Upload);
    assert_eq!((audio.bytes, audio.dscp, audio.port), (160, Some(46), 9000));
    assert_eq!(audio.warmup, Duration::from_secs(10));
    let video = "size = \"1250B\"\nrate = \"4Mbit/s\"\nduration = \"40s\"\nprotocol = \"esp\"\ndirection = \"download\"";
    let video = datagrams(video);
    assert_eq!(video.interval, Duration::from_micros(2500));
    assert_eq!(
        (video.carrier, video.transfer),
        (Carrier::Esp, Transfer::Download)
    );
}

#[test]
fn mistakes_of_datagrams_are_reported() {
    for (keys, expected) in [
        ("size = \"160B\"\nduration = \"9s\"", "interval: is missing"),
        ("interval = \"1ms\"\nduration = \"9s\"", "size: is missing"),
        (
            "size = \"63B\"\ninterval = \"1ms\"\nduration = \"9s\"",
            "must be 64 to 8972 bytes",
        ),
        (
            "size = \"9kB\"\ninterval = \"1ms\"\nduration = \"9s\"",
            "must be 64 to 8972 bytes",
        ),
        (
            "size = \"64B\"\ninterval = \"9s\"\nduration = \"9s\"",
            "too few or too many",
        ),
        (
            "size = \"64B\"\ninterval = \"0s\"\nduration = \"9s\"",
            "too few or too many",
        ),
        (
            "size = \"64B\"\nrate = \"1Gbit/s\"\nduration = \"9s\"",
            "too few or too many",
        ),
        (
            "size = \"64B\"\ninterval = \"1ms\"\nrate = \"1Mbit/s\"\nduration = \"9s\"",
            "use one of them",
        ),
        (
            "size = \"64B\"\ninterval = \"1ms\"\nduration = \"9s\"\ndscp = 64",
            "must be 0 to 63",
        ),
        (
            "size = \"64B\"\ninterval = \"1ms\"\nduration = \"9s\"\nflows = 2",
            "only for the programs iperf3",
        ),
        (
            "size = \"64B\"\ninterval = \"1ms\"\nduration = \"9s\"\nprotocol = \"esp\"\nfamily = \"ipv6\"",
            "IPv4 only",
        ),
    ] {
        let said = tests::mistakes(&with(&format!("program = \"udp\"\n{keys}")));
        assert!(said.contains(expected), "{keys}: {said}");
    }
}

#[test]
fn a_transfer_by_counted_acks_has_a_size() {
    let read = read("program = \"counting_tcp\"\nsize = \"990kB\"\ntimeout = \"20s\"");
    let expected = CountingTcp {
        transfer: Transfer::Upload,
        bytes: 990_000,
        port: 9000,
        timeout: Duration::from_secs(20),
    };
    assert_eq!(read.program, Program::CountingTcp(expected));
    let said = tests::mistakes(&with("program = \"counting_tcp\""));
    assert!(said.contains("size: is missing"), "{said}");
    let said = "program = \"counting_tcp\"\nsize = \"1kB\"\nfamily = \"ipv6\"";
    let said = tests::mistakes(&with(said));
    assert!(said.contains("must be \"ipv4\""), "{said}");
}

#[test]
fn a_workload_starts_when_all_is_ready_or_by_the_links_clock() {
    let fetch = "program = \"curl\"\nsize = \"990kB\"\n";
    assert_eq!(read(fetch).start, Start::Ready(Duration::ZERO));
    let start = |key: &str| read(&format!("{fetch}{key}")).start;
    assert_eq!(
        start("start = \"2s\""),
        Start::Ready(Duration::from_secs(2))
    );
    assert_eq!(
        start("link_time = \"5s\""),
        Start::LinkTime(Duration::from_secs(5))
    );
    let said = tests::mistakes(&with(&format!("{fetch}start = \"2s\"\nlink_time = \"5s\"")));
    assert!(said.contains("use one of them"), "{said}");
    let without = with(&format!("{fetch}link_time = \"5s\"")).replace("\"link\", ", "");
    let without = without.replace("[link]\ndelay = \"1ms\"\n", "");
    let said = tests::mistakes(&without);
    assert!(said.contains("needs a link"), "{said}");
}
