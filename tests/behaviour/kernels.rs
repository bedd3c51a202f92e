//! Behaviour that depends on the running kernel. `scripts/kernels` runs these tests, and some of
//! other modules, on Debian's kernels.

use std::{fs, thread};

use pepd_tests::{
    bed::{Bed, Family, LAN, Path, Place, WAN},
    echo::EchoServer,
    matrix::shared,
    pep::Pep,
    tunnel::TunnelBed,
};

use crate::{
    custody::{
        self, Directory, HOLD, MB, MIB, assert_done, assert_nothing_held, sink, upload, wait_down,
    },
    support::{PORT, assert_socket_has, connect, echo_once},
    survive::crash,
    tunnel::{self, Running, SITE, exchange, exchange_server},
};

const README: &str = include_str!("../../README.md");

/// The first control of the README's list, and the fallback on older kernels.
const FIRST: &str = "hybla_sat";
const FALLBACK: &str = "bbr";

/// The first Linux that loads pepd's controls.
const LOADS: (u32, u32) = (6, 1);

/// The running kernel's version.
fn version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("every Linux has it");
    let mut numbers = release.split(['.', '-']).map(str::parse);
    let mut number = || numbers.next().and_then(Result::ok).expect("a number");
    (number(), number())
}

/// The README's first configuration, with the interfaces of a bed.
fn first_configuration() -> String {
    let (_, rest) = README.split_once("```toml\n").expect("it has one");
    let (config, _) = rest.split_once("```").expect("a block ends");
    assert!(config.contains(FIRST), "{config}");
    let config = config.replace("eth0", LAN).replace("sat0", WAN);
    format!("{config}\n[log]\nformat = \"json\"\n[admin]\nsocket = \"admin.sock\"\n")
}

#[test]
fn the_first_configuration_of_the_readme_has_its_first_control_from_linux_6_1_on() {
    shared(|| {
        for family in [Family::V4, Family::V6] {
            let bed = Bed::new(Path::Spoof, family);
            let server = bed.at(Place::Server, PORT);
            let _echo = EchoServer::start(bed.server.listen(server));
            let mut pep = Pep::start(&bed.gateway, &first_configuration());

            let mut stream = connect(&bed);
            echo_once(&mut stream, &[7; 300_000]);
            let events = pep.log().events_since(0);
            let loaded = events
                .iter()
                .find(|event| event.message() == "congestion control loaded");
            if version() >= LOADS {
                let loaded = loaded.expect("pepd loads its own");
                assert_eq!(loaded.text("control"), FIRST);
                assert_socket_has(&bed, server, &loaded.text("registered_as"));
            } else {
                assert!(loaded.is_none(), "{loaded:?}");
                assert_socket_has(&bed, server, FALLBACK);
                // The log gives the reason, and the control that pepd uses instead.
                let log = pep.log().text();
                assert!(log.contains(FIRST) && log.contains(FALLBACK), "{log}");
            }

            drop(stream);
            pep.wait_idle();
            pep.assert_healthy();
            pep.stop();
        }
    });
}

/// Few bytes, because the emulated CPU encrypts slowly; other tests carry more.
#[test]
fn a_tunnel_carries_bytes_both_ways() {
    let bed = TunnelBed::new(tunnel::LINK);
    let running = Running::start(&bed, "", SITE);
    for (flow, family) in [Family::V4, Family::V6].into_iter().enumerate() {
        let _server = exchange_server(&bed, family, MB / 10);
        exchange(&bed, family, MB / 10);
        running.assert_in_tunnel(flow as u64 + 1);
    }
    running.stop();
}

#[test]
fn custody_on_disk_outlives_kill_9() {
    const LEN: u64 = 4 * MB;
    const KEYS: &str = "memory = \"1MiB\"\ndisk = \"16MiB\"";
    let bed = TunnelBed::new(custody::LINK);
    let directory = Directory::new(&bed, None);
    let running = Running::start(&bed, HOLD, &directory.keys(KEYS));
    let _server = sink(&bed, LEN);
    bed.cut_link();
    wait_down(&running);
    let mut stream = tunnel::connect(&bed, Family::V4);
    let boat = &running.boat;
    thread::scope(|scope| {
        let mut sender = stream.try_clone().expect("a descriptor");
        let sending = scope.spawn(move || upload(&mut sender, LEN));
        boat.wait_counter("custody_disk_bytes", |bytes| bytes >= 2 * MIB);
        crash(boat);
        sending.join().expect("sent");
    });
    bed.restore_link();
    assert_done(&mut stream);
    drop(stream);
    assert_nothing_held(&running, &directory);
    assert_eq!(boat.counter("flows_lost_at_restart"), 0);
    running.stop_after_errors();
}
