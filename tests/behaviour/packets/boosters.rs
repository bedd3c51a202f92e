//! Boosters on packets that cross a real link: their effect, and that they change nothing else.

use std::{
    net::{Shutdown, SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    payload::{Payload, receive},
    pep::Pep,
    tunnel::TunnelBed,
    wait::PATIENCE,
};
use serde_json::Value;

use super::{BOTH, BothEnds, Stream};
use crate::tunnel::PORT;

/// The number of sent datagrams, and of warm-up datagrams for the link estimate.
const SENT: usize = 4500;
const KNOWN: usize = 1500;
const SPACING: Duration = Duration::from_millis(3);

/// Returns a counter of a booster of a site.
pub(super) fn count(pep: &Pep, site: &str, name: &str) -> u64 {
    let status: Value = serde_json::from_str(&pep.ask(&["status", "--json"])).expect("JSON");
    let of = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let peers = of(&status, "peers").into_iter();
    let packets = peers.flat_map(|peer| of(&peer, "packets"));
    let mut packets = packets.chain(of(&status, "boosted"));
    let site = packets.find(|packets| packets["site"] == site);
    let site = site.unwrap_or_else(|| panic!("no such site in {status}"));
    let (booster, name) = name.split_once('.').expect("booster and count");
    let found = site["boosters"][booster][name].as_u64();
    found.unwrap_or_else(|| panic!("no such count in {site}"))
}

#[test]
fn repair_packets_restore_losses_and_are_absent_without_losses() {
    for (loss, is_lossy) in [("0%", false), ("3%", true)] {
        let bed = TunnelBed::new(&format!("rate=20Mbit/s,delay=20ms,queue=200kB,loss={loss}"));
        let there = [(PORT, "boost = { fec = true }"), (PORT + 1, "")];
        let ends = BothEnds::start(&bed, &there, &[(PORT, ""), (PORT + 1, "")]);
        let mut streams = [PORT, PORT + 1].map(|port| Stream::new(&bed, Family::V4, port));
        for _ in 0..SENT {
            for stream in &mut streams {
                stream.send(200);
                stream.take();
            }
            thread::sleep(SPACING);
        }
        for stream in &mut streams {
            stream.until_one_comes("after the others", 8);
        }
        let [protected, bare] = streams.map(|stream| (stream.missing(KNOWN..SENT), stream.wrong));
        let repairs = count(&ends.boat, "site-7000", "fec.repairs");
        if is_lossy {
            assert!(bare.0 > 45, "{bare:?}: the link loses 90 of 3,000");
            assert!(protected.0 <= 3, "{protected:?}");
            assert!(repairs > 150, "{repairs}");
        } else {
            assert_eq!((protected, bare, repairs), ((0, 0), (0, 0), 0));
        }
        ends.stop();
    }
}

/// Returns the packets of the peer that FEC has restored.
fn restored(pep: &Pep) -> u64 {
    let status: Value = serde_json::from_str(&pep.ask(&["status", "--json"])).expect("JSON");
    let chain = &status["peers"][0]["packets_received"][0];
    let restored = chain["boosters"]["fec"]["restored"].as_u64();
    restored.unwrap_or_else(|| panic!("no such count in {status}"))
}

#[test]
fn ends_with_unlike_block_codes_restore_each_others_packets() {
    const NATIVE: &str = "native";
    const OTHER: &str = "reed-solomon-erasure";
    for (near, far) in [(NATIVE, OTHER), (OTHER, NATIVE)] {
        let bed = TunnelBed::new("rate=20Mbit/s,delay=20ms,queue=200kB,loss=5%");
        let site = |code: &str| {
            let fec =
                format!("scheme = \"block\", code = \"{code}\", overhead_max = 1.0, target = 1e-9");
            [(PORT, format!("boost = {{ fec = {{ {fec} }} }}"))]
        };
        let ends = BothEnds::start(&bed, &site(near), &site(far));
        for (end, code) in [(&ends.boat, near), (&ends.hub, far)] {
            let line = end
                .log()
                .text()
                .contains("block codes are computed by reed-solomon-erasure");
            assert_eq!(line, code == OTHER, "{near}, {far}");
        }
        // The first packets show the loss to the control. On a busy machine it may take delays for
        // congestion, and then sends less redundancy.
        let mut stream = Stream::new(&bed, Family::V4, PORT);
        let nearly_all_come = (0..15).any(|_| {
            let sent = stream.run(SENT, 200, SPACING);
            stream.until_one_comes("after the others", 8);
            stream.missing(sent.start + KNOWN..sent.end) <= 3
        });
        assert!(nearly_all_come, "{near}, {far}");
        assert_eq!(stream.wrong, 0, "{near}, {far}");
        let restored = restored(&ends.hub);
        assert!(restored > 100, "{restored} of about 150 lost");
        ends.stop();
    }
}

/// Boosters at the near end, for clients' packets, and at the far end.
type Boost = (&'static str, &'static str);

/// Each booster at its proper end, and many at once.
const BOOSTS: [Boost; 11] = [
    ("fec = true", ""),
    ("arq = true", ""),
    ("arq = { order = true, tries = 2 }", ""),
    ("compress = true", "compress = true"),
    ("jitter = { delay = \"20ms\" }", ""),
    ("data_filter = true", "ack_filter = true"),
    ("snoop = true", ""),
    ("", "ack_reconstruction = { when = \"always\" }"),
    ("", "divacks = true"),
    ("congestion = true", "congestion = true"),
    (
        "fec = true, arq = true, compress = true, data_filter = true, snoop = true, congestion = true, checksum = true",
        "fec = true, arq = true, compress = true, ack_filter = true, ack_reconstruction = true, congestion = true",
    ),
];

/// Transfers bytes in both directions at once, and checks that all arrive.
fn both_ways(bed: &TunnelBed, at: SocketAddr, boost: &Boost) {
    const LEN: u64 = 400_000;
    let exchange = |stream: &TcpStream, ours: u64, theirs: u64| {
        stream
            .set_read_timeout(Some(PATIENCE * 2))
            .expect("a socket");
        thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let sent = Payload::new(ours, LEN).send(&mut &*stream);
                sent.and_then(|()| stream.shutdown(Shutdown::Write))
            });
            let found = receive(&mut &*stream).expect("a payload");
            assert_eq!(found, (LEN, Payload::new(theirs, LEN).sum()), "{boost:?}");
            sending.join().expect("does not panic").expect("connected");
        });
    };
    thread::scope(|scope| {
        let listener = bed.host("server").listen(at);
        let server = scope.spawn(move || exchange(&listener.accept().expect("a client").0, 1, 2));
        let client = bed.host("client").connect(at);
        exchange(&client.expect("the server answers"), 2, 1);
        server.join().expect("does not panic");
    });
}

#[test]
fn connections_are_whole_whatever_boosts_them() {
    let bed = TunnelBed::new("rate=20Mbit/s,delay=20ms,queue=200kB,loss=1%");
    let boosts = |of: fn(&Boost) -> &str| -> Vec<(u16, String)> {
        let boosts = BOOSTS.iter().zip(PORT..);
        let boosts = boosts.map(|(boost, port)| (port, format!("boost = {{ {} }}", of(boost))));
        boosts.collect()
    };
    let ends = BothEnds::start(&bed, &boosts(|boost| boost.0), &boosts(|boost| boost.1));
    thread::scope(|scope| {
        for (boost, port) in BOOSTS.iter().zip(PORT..) {
            for family in BOTH {
                let bed = &bed;
                scope.spawn(move || both_ways(bed, bed.server_at(family, port), boost));
            }
        }
    });
    for pep in [&ends.boat, &ends.hub] {
        assert_eq!(pep.counter("packets_passed"), 0);
        assert_eq!(pep.counter("packets_undeliverable"), 0);
    }
    ends.stop();
}
