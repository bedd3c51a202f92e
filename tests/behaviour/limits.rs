//! Caps on flows, held SYNs, descriptors and memory.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::{matrix, matrix_pepd_only, shared},
    measure::ping_pong,
    objects::{self, ObjectServer},
    outcome::Connected,
    payload::{Payload, receive},
    pep::Pep,
    programs::program,
    wait::{PATIENCE, wait_until},
};

use crate::support::{PORT, connect, counter, echo_once};

fn echo_server(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

/// Opens connections that have each had an echo.
fn open_flows(bed: &Bed, flows: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = connect(bed);
        echo_once(&mut stream, b"x");
        stream
    };
    (0..flows).map(open).collect()
}

/// The control: on the plain network all fourteen connections work.
#[test]
fn beyond_the_flow_cap_flows_pass_unaccelerated_and_are_counted() {
    matrix(|bed| {
        let echo = echo_server(bed);
        let pep = bed.start_with("[limits]\nflows = 8");
        let mut first = open_flows(bed, 8);
        if let Some(pep) = &pep {
            // Until the gate is closed, further flows are accelerated.
            pep.log().expect("the gate is closed");
            assert_eq!(pep.counter("gate_closed"), 1);
        }
        let mut second = open_flows(bed, 6);
        for stream in first.iter_mut().chain(&mut second) {
            echo_once(stream, b"all at once");
        }
        assert_eq!(echo.open(), 14);
        if let Some(mut pep) = pep {
            assert_eq!(pep.counter("flows_accepted"), 8);
            assert_eq!(pep.counter("syns_passed_gate"), 6);
            drop(first);
            accelerated_again(bed, &pep);
            // Flows that passed stay unaccelerated.
            for stream in &mut second {
                echo_once(stream, b"still unaccelerated");
            }
            pep.assert_healthy();
        }
    });
}

/// Waits until new flows are accelerated again.
fn accelerated_again(bed: &Bed, pep: &Pep) {
    let before = pep.counter("flows_accepted");
    wait_until("new flows to be accelerated", || {
        echo_once(&mut connect(bed), b"accelerated?");
        pep.counter("flows_accepted") > before
    });
}

/// Runs a closure on another thread while this one keeps the flows echoing.
fn while_healthy<T: Send>(healthy: &mut [TcpStream], run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let running = scope.spawn(run);
        while !running.is_finished() {
            for stream in &mut *healthy {
                ping_pong(stream, 64, 5).expect("a healthy flow");
            }
        }
        running.join().expect("reported")
    })
}

/// Waits for each connection to be answered, whether accelerated, passed or waiting.
fn all_answered(waiting: Vec<TcpStream>) {
    for mut stream in waiting {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
            .read_exact(&mut [0])
            .expect("it is answered in the end");
    }
}

#[test]
fn out_of_descriptors_the_daemon_lives_and_healthy_flows_go_on() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = bed.start().expect("not direct");
        let mut healthy = open_flows(bed, 5);
        // pepd's answer means that its reserve of descriptors is open.
        pep.counters();
        pep.set_descriptor_limit(pep.descriptors() as u64 + 2);
        let waiting = while_healthy(&mut healthy, || begin_flows(bed, 20));
        let cpu_before = pep.cpu_time();
        let quiet = Duration::from_secs(1);
        // The time over which it must not spin.
        thread::sleep(quiet);
        let spent = pep.cpu_time() - cpu_before;
        assert!(
            spent < quiet / 2,
            "it used {spent:?} of CPU in {quiet:?} without traffic"
        );
        for stream in &mut healthy {
            echo_once(stream, b"short of descriptors");
        }
        assert!(
            pep.counter("descriptors_short") > 0,
            "the limit was not met"
        );
        pep.set_descriptor_limit(20_000);
        all_answered(waiting);
        accelerated_again(bed, &pep);
        let status = pep.wait_at_most(Duration::ZERO);
        assert_eq!(status, None);
    });
}

/// Begins connections, each with a byte sent as soon as possible.
fn begin_flows(bed: &Bed, flows: usize) -> Vec<TcpStream> {
    let begin = |_| {
        let dial = Dial::to(bed.at(Place::Server, PORT));
        let mut stream = bed.client.dial(&dial).expect("passed or answered");
        stream.write_all(b"x").expect("connected");
        stream
    };
    (0..flows).map(begin).collect()
}

/// Wraps the command of the daemon into another program's.
pub fn wrapped(host: &Host, by: &str, arguments: &[&str], command: &Command) -> Command {
    let mut outer = host.command(&program(by));
    outer.args(arguments).arg(command.get_program());
    outer.args(command.get_args());
    outer
}

/// Containers have /proc/sys read-only.
#[test]
fn without_the_right_to_set_sysctls_connections_are_accelerated() {
    const SCRIPT: &str = "mount --bind /proc/sys /proc/sys && \
                          mount -o remount,bind,ro /proc/sys && exec \"$@\"";
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let config = bed.config("").expect("not direct");
        let pep = Pep::start_by(&bed.gateway, &config, |command| {
            let arguments = ["--mount", "sh", "-c", SCRIPT, "sh"];
            wrapped(&bed.gateway, "unshare", &arguments, &command)
        });
        echo_once(&mut connect(bed), b"by pepd");
        pep.wait_counter("flows_accepted", |flows| flows == 1);
    });
}

/// The kernel drops new connections when its table of them is full.
#[test]
fn a_nearly_full_conntrack_is_logged_until_it_has_room() {
    const SCRIPT: &str = "for name in count max; do
                              mount --bind \"$0/$name\" \"/proc/sys/net/netfilter/nf_conntrack_$name\"
                          done && exec \"$@\"";
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let figures = tempfile::tempdir().expect("a temporary directory");
        let set = |name: &str, figure: u32| {
            let file = figures.path().join(name);
            fs::write(file, format!("{figure}\n")).expect("writable");
        };
        set("count", 100);
        set("max", 1000);
        let directory = figures.path().to_str().expect("a path");
        let config = bed.config("").expect("not direct");
        let pep = Pep::start_by(&bed.gateway, &config, |command| {
            let arguments = ["--mount", "sh", "-ec", SCRIPT, directory];
            wrapped(&bed.gateway, "unshare", &arguments, &command)
        });
        set("count", 950);
        let logged = pep.log().expect("conntrack is nearly full");
        assert_eq!((logged.level(), logged.number("count")), ("ERROR", 950));
        set("count", 850);
        set("count", 100);
        pep.log().expect("conntrack has room again");
        pep.stop();
    });
}

/// Starts pepd with a limit of a hundred descriptors, enough for some thirty flows.
fn start_with_few_descriptors(bed: &Bed) -> Pep {
    let config = bed.config("").expect("not direct");
    Pep::start_by(&bed.gateway, &config, |command| {
        wrapped(&bed.gateway, "prlimit", &["--nofile=100:100"], &command)
    })
}

#[test]
fn with_few_descriptors_from_the_start_further_flows_pass() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = start_with_few_descriptors(bed);
        let mut flows = Vec::new();
        while pep.counter("gate_closed") == 0 {
            flows.extend(open_flows(bed, 1));
            assert!(flows.len() < 50, "the cap is not met");
        }
        pep.log().expect("not enough file descriptors: only ");
        pep.log().expect("the gate is closed");
        let accepted = pep.counter("flows_accepted");
        flows.extend(open_flows(bed, 60));
        for stream in &mut flows {
            echo_once(stream, b"all at once");
        }
        assert_eq!(pep.counter("flows_accepted"), accepted);
        drop(flows);
        accelerated_again(bed, &pep);
        pep.assert_healthy();
    });
}

/// Each site has listeners, and each worker copies of them and reserved legs: their descriptors are
/// not available to flows.
#[test]
fn the_flow_cap_leaves_all_others_their_descriptors() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let sites =
            (1..=8).map(|n| format!("[[site]]\nname = \"s{n}\"\nmatch = {{ dport = [{n}] }}\n"));
        let limits = "[limits]\nheld = 16\nheld_per_source = 16\ndescriptors = 16\n";
        let config = bed.config(&(limits.to_owned() + &sites.collect::<String>()));
        let config = config.expect("not direct");
        let mut pep = Pep::start_by(&bed.gateway, &config, |command| {
            wrapped(&bed.gateway, "prlimit", &["--nofile=300:300"], &command)
        });
        let mut flows = Vec::new();
        while pep.counter("gate_closed") == 0 {
            flows.extend(open_flows(bed, 1));
            assert!(flows.len() < 150, "the cap is not met");
        }
        pep.log().expect("the gate is closed");
        assert_eq!(pep.counter("descriptors_short"), 0);
        assert_eq!(pep.counter("flows_open"), flows.len() as u64);
        for stream in &mut flows {
            echo_once(stream, b"all at once");
        }
        pep.assert_healthy();
    });
}

/// A burst is faster than the gate: the kernel answers flows for which pepd has no descriptor. They
/// wait for one, and all other flows pass.
#[test]
fn a_burst_that_takes_the_last_descriptor_closes_the_gate() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let mut pep = start_with_few_descriptors(bed);
        let burst = begin_flows(bed, 60);
        pep.log().expect("the gate is closed");
        for mut stream in open_flows(bed, 5) {
            echo_once(&mut stream, b"passing by");
        }
        answered_one_after_the_other(burst);
        accelerated_again(bed, &pep);
        assert_eq!(pep.wait_at_most(Duration::ZERO), None);
    });
}

/// Ends each flow when it has been answered, so that waiting ones get a descriptor.
fn answered_one_after_the_other(waiting: Vec<TcpStream>) {
    thread::scope(|scope| {
        for mut stream in waiting {
            scope.spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
                stream
                    .read_exact(&mut [0])
                    .expect("it is answered in the end");
            });
        }
    });
}

#[test]
fn without_cap_sys_resource_it_starts() {
    matrix_pepd_only(|bed| {
        let _echo = echo_server(bed);
        let config = bed.config("").expect("not direct");
        let mut pep = Pep::start_by(&bed.gateway, &config, |command| {
            let lacking = ["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"];
            wrapped(&bed.gateway, "setpriv", &lacking, &command)
        });
        let status = fs::read_to_string(format!("/proc/{}/status", pep.id()));
        let status = status.expect("it runs");
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        // Bit 24 is CAP_SYS_RESOURCE (capability.h).
        assert_eq!(
            effective.expect("a mask") >> 24 & 1,
            0,
            "it has the capability"
        );
        open_flows(bed, 3);
        assert_eq!(pep.counter("flows_accepted"), 3);
        pep.assert_healthy();
    });
}

/// Runs eight downloads at once with initial rings of 64 KiB, which try to grow to a MiB each.
fn download_within(bed: &Bed, memory: u64, pep: Option<&Pep>) {
    const SIZE: u64 = 10_000_000;
    let download = |seed| {
        let mut stream = connect(bed);
        objects::get(&mut stream, seed, SIZE).expect("connected");
        let received = receive(&mut stream).expect("the download");
        assert_eq!(received, (SIZE, Payload::new(seed, SIZE).sum()));
    };
    thread::scope(|scope| {
        let downloads: Vec<_> = (0..8)
            .map(|seed| scope.spawn(move || download(seed)))
            .collect();
        while downloads.iter().any(|download| !download.is_finished()) {
            let Some(pep) = pep else { return };
            let bytes = pep.counter("ring_bytes");
            assert!(bytes <= memory, "{bytes} bytes of rings");
        }
    });
}

#[test]
fn memory_stays_within_its_limit_and_every_byte_arrives() {
    const MEMORY: u64 = 2 << 20;
    matrix(|bed| {
        let _objects = ObjectServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start_with(&format!("[limits]\nflows = 8\nmemory = {MEMORY}"));
        download_within(bed, MEMORY, pep.as_ref());
        let Some(pep) = pep else { return };
        // Rings grow only while hosts are faster than pepd, which is not always so.
        wait_until("the limit to be met", || {
            download_within(bed, MEMORY, Some(&pep));
            pep.counter("ring_growth_denied") > 0
        });
        pep.wait_idle();
        // Each thread reserves the memory of its next flow.
        let reserved = 2 * 65_536 * pep.threads();
        pep.wait_counter("ring_bytes", |bytes| bytes <= reserved);
    });
}

/// Begins connections from an address of the client that will not be answered.
fn begin_unanswered(bed: &Bed, from_other: bool, number: usize) -> Vec<socket2::Socket> {
    let from = match from_other {
        true => bed.other_client_at(0),
        false => bed.client_at(0),
    };
    let dial = Dial::to(bed.at(Place::BlackHole, PORT)).from(from);
    let begin = |_| dial.begin_here().expect("it begins");
    bed.client.enter(|| (0..number).map(begin).collect())
}

/// Counts the SYNs that reach the black hole from the client's own first address.
fn watch_black_hole(bed: &Bed) {
    let (nft, hole) = (bed.family.nft(), Place::BlackHole.address(bed.family));
    bed.server.nft(&format!(
        "table inet watch {{
            counter syns {{ }}
            chain prerouting {{
                type filter hook prerouting priority -350;
                {nft} daddr {hole} tcp flags & (syn | ack) == syn counter name syns
            }}
        }}"
    ));
}

/// The two addresses of the client are two sources in IPv4, but one in IPv6, where a host can
/// choose any address of its /64.
#[test]
fn held_syns_are_capped_per_source() {
    let limits = "held = 100\nheld_per_source = 4\nheld_per_destination = 100";
    held_caps(limits, |family| match family {
        Family::V4 => 8,
        Family::V6 => 4,
    });
}

#[test]
fn held_syns_are_capped_per_destination() {
    let limits = "held = 100\nheld_per_source = 100\nheld_per_destination = 4";
    held_caps(limits, |_| 4);
}

#[test]
fn held_syns_are_capped_in_all() {
    let limits = "held = 4\nheld_per_source = 4\nheld_per_destination = 4";
    held_caps(limits, |_| 4);
}

/// Ten unanswered SYNs from each of two addresses to one black hole: `held` of them are held, the
/// others pass; a good server stays reachable.
fn held_caps(limits: &str, held: fn(Family) -> u64) {
    matrix_pepd_only(|bed| {
        if bed.path == Path::Spoof {
            return;
        }
        let held = held(bed.family);
        let _echo = echo_server(bed);
        watch_black_hole(bed);
        let mut pep = bed
            .start_with(&format!("[limits]\n{limits}"))
            .expect("not direct");
        let first = begin_unanswered(bed, false, 10);
        pep.wait_counter("syns_held", |now| now == 4);
        let second = begin_unanswered(bed, true, 10);
        pep.wait_counter("syns_held", |now| now == held);
        pep.wait_counter("syns_passed_held", |passed| passed >= 20 - held);
        assert!(pep.counter("syns_held") <= held);
        // Hosts retransmit unanswered SYNs.
        pep.wait_counter("syns_repeated", |repeated| repeated >= held);
        wait_until("every SYN to arrive, sent by a host or by pepd", || {
            counter(&bed.server, "watch", "syns") >= 20
        });
        let mut good = bed.client.connect(bed.at(Place::Server, PORT));
        assert_eq!(Connected::from_result(&good), Connected::Yes);
        echo_once(good.as_mut().expect("just checked"), b"reached");
        drop((first, second));
        pep.assert_healthy();
    });
}
