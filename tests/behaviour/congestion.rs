//! Congestion controls of pepd's own. Their names are global to the machine and shared by the pepds
//! of all tests, so any of them may get a suffix.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
};

use pepd_tests::{
    bed::{Bed, Family, Path, Place, add_route},
    echo::EchoServer,
    host::Host,
    matrix::{matrix_pepd_only, shared},
    pep::Pep,
};
use winkemu::{
    link::LinkOptions,
    shell::{LinkHandle, LinkSpec, MTU, Tun},
};

use crate::support::{PORT, assert_socket_has, connect, echo_once, socket_toward};

/// Returns the name under which pepd has loaded a control.
fn registered(pep: &Pep, control: &str) -> String {
    let events = pep.log().events_since(0);
    let loaded = events.iter().find(|event| {
        event.message() == "congestion control loaded" && event.text("control") == control
    });
    loaded.expect("a log line").text("registered_as")
}

fn site(more: &str) -> String {
    format!("[[site]]\nname = \"all\"\n{more}\n")
}

fn echo(bed: &Bed) -> EchoServer {
    EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)))
}

fn connected(bed: &Bed) -> TcpStream {
    let mut stream = connect(bed);
    echo_once(&mut stream, &[7; 20_000]);
    stream
}

#[test]
fn the_leg_over_the_link_has_the_control_of_the_site() {
    matrix_pepd_only(|bed| {
        let _echo = echo(bed);
        for (leg, control) in [("server", "hybla_sat"), ("client", "hybla")] {
            let site = site(&format!(
                "congestion = [\"{control}\", \"bbr\"]\ncongestion_lan = \"reno\"\nlink_leg = \"{leg}\"\n\
                 rtt0 = \"5ms\""
            ));
            let mut pep = bed.start_with(&site).expect("a path with pepd");
            let name = registered(&pep, control);
            let stream = connected(bed);
            let client = stream.local_addr().expect("connected");
            let server = bed.at(Place::Server, PORT);
            let (over_link, other) = match leg {
                "server" => (server, client),
                _ => (client, server),
            };
            assert_socket_has(bed, over_link, &name);
            assert_socket_has(bed, other, "reno");
            drop(stream);
            pep.wait_idle();
            pep.assert_healthy();
            pep.stop();
        }
    });
}

#[test]
fn steady_carries_bytes_at_the_stated_rate_of_a_dedicated_link() {
    matrix_pepd_only(|bed| {
        let _echo = echo(bed);
        let site = site("congestion = \"steady\"\ndedicated = true\npacing = \"100Mbit/s\"");
        let mut pep = bed.start_with(&site).expect("a path with pepd");
        let mut stream = connected(bed);
        assert_socket_has(
            bed,
            bed.at(Place::Server, PORT),
            &registered(&pep, "steady"),
        );
        for _ in 0..20 {
            echo_once(&mut stream, &[3; 50_000]);
        }
        pep.assert_healthy();
    });
}

#[test]
fn a_second_pepd_gets_names_of_its_own_and_outlives_the_first() {
    shared(|| {
        let beds = [Path::Spoof, Path::Defer].map(|path| Bed::new(path, Family::V4));
        let _echoes = beds.each_ref().map(echo);
        let site = site("congestion = [\"hybla\"]");
        let [mut first, mut second] = beds
            .each_ref()
            .map(|bed| bed.start_with(&site).expect("a path with pepd"));
        let names = [&first, &second].map(|pep| registered(pep, "hybla"));
        assert_ne!(names[0], names[1]);
        let mut streams = beds.each_ref().map(connected);
        first.assert_healthy();
        first.kill();

        let server = beds[1].at(Place::Server, PORT);
        for _ in 0..5 {
            echo_once(&mut streams[1], &[5; 50_000]);
        }
        assert_socket_has(&beds[1], server, &names[1]);
        drop(streams);
        second.wait_idle();
        let _new = connected(&beds[1]);
        assert_socket_has(&beds[1], server, &names[1]);
        second.assert_healthy();
    });
}

/// Returns a machine that the gateway reaches by `sat0`, over a link with a round trip of 100 ms.
fn far_away(bed: &Bed) -> (Host, LinkHandle) {
    let far = Host::new();
    let [near_end, far_end] = [(&bed.gateway, 1), (&far, 2)].map(|(host, number)| {
        let address = format!("10.6.0.{number}/24").parse().expect("an address");
        Tun::create(host.netns(), "sat0", &[address], MTU).expect("there are TUN devices")
    });
    let options: LinkOptions = "delay=50ms".parse().expect("valid");
    let config = options.resolve_without_files().expect("no files are named");
    let link = LinkHandle::spawn(LinkSpec::new(near_end, far_end, config, 1));
    add_route(&far, "0.0.0.0/0", Family::V4.address(6, 1));
    (far, link.expect("a thread"))
}

/// Returns the congestion window of the gateway's socket toward this remote end, in segments.
fn window(bed: &Bed, remote: SocketAddr) -> u32 {
    let socket = socket_toward(bed, remote);
    let mut words = socket.split_whitespace();
    let window = words.find_map(|word| word.strip_prefix("cwnd:")?.parse().ok());
    window.unwrap_or_else(|| panic!("no window in {socket}"))
}

/// Hybla's initial window is RTT / RTT0: 20 segments here, 4 without a stated RTT0.
#[test]
fn the_rtt0_of_a_site_is_that_of_its_sockets_on_whichever_leg() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let (far, _link) = far_away(&bed);
        let far_server = SocketAddr::new(Family::V4.address(6, 2), PORT);
        let near_server = bed.at(Place::Server, PORT);
        let _echoes = [
            EchoServer::start(far.listen(far_server)),
            EchoServer::start(bed.server.listen(near_server)),
        ];
        for (leg, client, server) in [
            ("server", &bed.client, far_server),
            ("client", &far, near_server),
        ] {
            let site = site(&format!(
                "congestion = \"hybla\"\nlink_leg = \"{leg}\"\nrtt0 = \"5ms\""
            ));
            let config = bed.config(&site).expect("a path with pepd");
            let config = config.replace("lan = [\"lan0\"]", "lan = [\"lan0\", \"sat0\"]");
            let pep = Pep::start(&bed.gateway, &config);
            let mut stream = client.connect(server).expect("the server listens");
            echo_once(&mut stream, b"x");
            let over_link = match leg {
                "server" => server,
                _ => stream.local_addr().expect("connected"),
            };
            let window = window(&bed, over_link);
            assert!(window >= 16, "{leg}: {window} segments");
            drop(stream);
            pep.wait_idle();
            pep.stop();
        }
    });
}

/// The bits of the capabilities for loading programs (capabilities(7)): CAP_SYS_ADMIN, CAP_PERFMON,
/// CAP_BPF.
const OF_LOADING: u64 = 1 << 21 | 1 << 38 | 1 << 39;

#[test]
fn what_only_loading_needs_is_given_up_for_good_by_all_threads() {
    shared(|| {
        let bed = Bed::new(Path::Defer, Family::V4);
        let _echo = echo(&bed);
        for list in ["[\"hybla\"]", "[]"] {
            let site = site(&format!("congestion = {list}"));
            let mut pep = bed.start_with(&site).expect("a path with pepd");
            drop(connected(&bed));
            let threads = fs::read_dir(format!("/proc/{}/task", pep.id())).expect("it runs");
            let threads: Vec<_> = threads.flatten().collect();
            assert!(threads.len() > 1);
            for thread in threads {
                let status = fs::read_to_string(thread.path().join("status"));
                assert_lacks(&status.expect("a running thread"));
            }
            pep.assert_healthy();
            pep.wait_idle();
            pep.stop();
        }
    });
}

/// Checks the capability sets of a `/proc/PID/status`.
fn assert_lacks(status: &str) {
    let sets: Vec<_> = status
        .lines()
        .filter(|line| line.starts_with("Cap"))
        .collect();
    assert_eq!(sets.len(), 5, "{status}");
    for set in sets {
        let bits = set.split_whitespace().nth(1).expect("a set");
        let bits = u64::from_str_radix(bits, 16).expect("in hexadecimal");
        assert_eq!(bits & OF_LOADING, 0, "{set}");
    }
}

/// Without such a site pepd needs neither libbpf nor the capabilities.
#[test]
fn nothing_is_loaded_where_no_site_asks() {
    shared(|| {
        let bed = Bed::new(Path::Spoof, Family::V4);
        let pep = bed.start_with(&site("congestion = [\"cubic\", \"hybla\"]"));
        let mut pep = pep.expect("a path with pepd");
        let descriptors = fs::read_dir(format!("/proc/{}/fd", pep.id())).expect("it runs");
        let links = descriptors
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok());
        let of_bpf = links.filter(|target| target.to_string_lossy().contains("bpf"));
        assert_eq!(of_bpf.count(), 0);
        pep.assert_healthy();
    });
}
