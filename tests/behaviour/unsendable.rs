//! Bytes that wait in legs over the link with none in flight, as the gateway cannot send them or
//! the receiver's window is closed.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::mpsc,
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::{Bed, Family, Path, Place, WAN},
    echo::EchoServer,
    matrix::matrix_pepd_only,
    outcome::Ended,
    serve::Server,
    wait::{PATIENCE, wait_for, wait_until},
};

use crate::support::{PORT, connect, cut_off, echo_once, reconnect, socket_toward};

/// The shortest cap: with it, the kernel has sent its 15 probes after 14 s.
const TIMEOUTS: &str = "[timeouts]\nrto_max = \"1s\"\n";

/// Waits for longer than these probes last, or the seconds of PEPD_TEST_OUTAGE.
fn wait_for_the_kernel_to_give_up() {
    let seconds = std::env::var("PEPD_TEST_OUTAGE").ok();
    let seconds = seconds.map_or(18, |text| text.parse().expect("a number of seconds"));
    thread::sleep(Duration::from_secs(seconds));
}

/// Cuts the gateway off by one function, and restores it by the other. No flow loses a byte, also
/// not that of a client that has closed.
fn assert_nothing_is_lost(cut: impl Fn(&Bed) + Sync, mend: impl Fn(&Bed) + Sync) {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed.start_with(TIMEOUTS).expect("not direct");
        let begin = || {
            let mut stream = connect(bed);
            echo_once(&mut stream, b"begun");
            stream
        };
        let (mut open, mut closed) = (begin(), begin());
        cut(bed);
        let data: Vec<_> = (0..5000).map(|byte| byte as u8).collect();
        for stream in [&mut open, &mut closed] {
            stream.write_all(&data).expect("pepd takes it");
        }
        closed.shutdown(Shutdown::Write).expect("connected");
        wait_for_the_kernel_to_give_up();
        mend(bed);
        let mut echoed = vec![0; data.len()];
        open.read_exact(&mut echoed).expect("it arrives");
        assert!(echoed == data, "other bytes");
        assert_eq!(Ended::from_stream(&closed), Ended::Closed { after: 5000 });
        echo_once(&mut open, b"it goes on");
        drop((open, closed));
        pep.assert_healthy();
    });
}

#[test]
fn without_a_route_no_flow_loses_a_byte() {
    assert_nothing_is_lost(
        |bed| {
            bed.gateway.ip(&format!("route del 10.2.0.0/24 dev {WAN}"));
            bed.gateway.ip(&format!("-6 route del fd02::/64 dev {WAN}"));
        },
        |bed| {
            bed.gateway.ip(&format!("route add 10.2.0.0/24 dev {WAN}"));
            bed.gateway.ip(&format!("-6 route add fd02::/64 dev {WAN}"));
        },
    );
}

#[test]
fn behind_a_prohibiting_route_no_flow_loses_a_byte() {
    let change = |bed: &Bed, what: &str| {
        for host in ["10.2.0.2", "fd02::2"] {
            bed.gateway.ip(&format!("route {what} prohibit {host}"));
        }
    };
    assert_nothing_is_lost(|bed| change(bed, "add"), |bed| change(bed, "del"));
}

#[test]
fn while_the_interface_is_down_no_flow_loses_a_byte() {
    assert_nothing_is_lost(
        |bed| {
            let key = format!("net.ipv6.conf.{WAN}.keep_addr_on_down");
            bed.gateway.sysctl(&key, "1");
            bed.gateway.ip(&format!("link set {WAN} down"));
        },
        |bed| {
            bed.gateway.ip(&format!("link set {WAN} up"));
        },
    );
}

#[test]
fn without_the_interfaces_address_no_flow_loses_a_byte() {
    let addresses = ["10.2.0.1/24", "fd02::1/64"];
    assert_nothing_is_lost(
        |bed| {
            for address in addresses {
                bed.gateway.ip(&format!("address del {address} dev {WAN}"));
            }
        },
        |bed| {
            for address in addresses {
                let nodad = if address.contains(':') { "nodad" } else { "" };
                let add = format!("address add {address} dev {WAN} {nodad}");
                bed.gateway.ip(&add);
            }
        },
    );
}

#[test]
fn while_the_gateways_own_firewall_drops_no_flow_loses_a_byte() {
    assert_nothing_is_lost(
        |bed| {
            bed.gateway.nft(&format!(
                "table inet kill_switch {{
                    chain output {{ type filter hook output priority 0; oifname \"{WAN}\" drop; }}
                }}"
            ));
        },
        |bed| bed.gateway.nft("delete table inet kill_switch"),
    );
}

/// The kernel tries to send again twice a second, and counts each try.
#[test]
fn while_the_interface_takes_no_packet_no_flow_loses_a_byte() {
    assert_nothing_is_lost(
        |bed| {
            bed.gateway.nft(&format!(
                "table netdev full {{
                    chain egress {{
                        type filter hook egress device \"{WAN}\" priority 0; policy drop;
                    }}
                }}"
            ));
        },
        |bed| bed.gateway.nft("delete table netdev full"),
    );
}

/// Network managers raise the interface first, and add its routes later.
#[test]
fn uploads_that_begin_without_the_link_survive_a_late_route() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Spoof {
            return;
        }
        let (arrived, arrivals) = mpsc::channel();
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            let mut all = Vec::new();
            let read = stream.read_to_end(&mut all);
            arrived.send(read.map(|_| all)).expect("the test listens");
        });
        // Without routes that the kernel adds by itself.
        let key = format!("net.ipv6.conf.{WAN}.keep_addr_on_down");
        bed.gateway.sysctl(&key, "1");
        for address in ["10.2.0.1/24", "fd02::1/64"] {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            bed.gateway.ip(&format!("address del {address} dev {WAN}"));
            let add = format!("address add {address} dev {WAN} noprefixroute {nodad}");
            bed.gateway.ip(&add);
        }
        let add_routes = || {
            bed.gateway.ip(&format!("route add 10.2.0.0/24 dev {WAN}"));
            bed.gateway.ip(&format!("-6 route add fd02::/64 dev {WAN}"));
        };
        add_routes();
        let link = format!("[link]\ninterface = \"{WAN}\"\n");
        let mut pep = bed.start_with(&link).expect("not direct");
        bed.gateway.ip(&format!("link set {WAN} down"));
        pep.log().expect("link down");
        // Until the rules follow, the kernel refuses what has no route.
        let server = bed.at(Place::Server, PORT);
        let mut stream = wait_for("pepd to take a flow", || bed.client.connect(server).ok());
        stream.write_all(b"all of it").expect("pepd takes it");
        stream.shutdown(Shutdown::Write).expect("connected");
        bed.gateway.ip(&format!("link set {WAN} up"));
        pep.log().expect("no way to the server yet");
        add_routes();
        let all = arrivals.recv_timeout(PATIENCE).expect("it arrives");
        assert_eq!(all.expect("no reset"), b"all of it");
        drop(stream);
        pep.assert_healthy();
    });
}

/// Flows that connect when the link fails are as those that begin without it.
#[test]
fn uploads_that_connect_when_the_link_fails_are_delivered() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Spoof {
            return;
        }
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let link = format!("[link]\ninterface = \"{WAN}\"\n");
        let mut pep = bed.start_with(&link).expect("not direct");
        bed.server
            .sysctl("net.ipv6.conf.eth0.keep_addr_on_down", "1");
        cut_off(&bed.server);
        let mut stream = connect(bed);
        stream.write_all(b"all of it").expect("pepd takes it");
        stream.shutdown(Shutdown::Write).expect("connected");
        pep.wait_counter("flows_open", |flows| flows == 1);
        // The gateway's interface loses its carrier.
        bed.server.ip("link set eth0 down");
        pep.log().expect("its next hop does not answer");
        reconnect(&bed.server);
        bed.server.ip("link set eth0 up");
        match bed.family {
            Family::V4 => bed.server.ip("route add default via 10.2.0.1"),
            Family::V6 => bed.server.ip("-6 route add default via fd02::1"),
        };
        assert_eq!(Ended::from_stream(&stream), Ended::Closed { after: 9 });
        drop(stream);
        pep.assert_healthy();
    });
}

/// The kernel reports a neighbour that is deleted like one that does not answer.
#[test]
fn flows_that_connect_outlast_a_deleted_neighbour() {
    matrix_pepd_only(|bed| {
        if bed.path != Path::Spoof {
            return;
        }
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let mut pep = bed.start().expect("not direct");
        cut_off(&bed.server);
        let mut stream = connect(bed);
        stream.write_all(b"all of it").expect("pepd takes it");
        pep.wait_counter("flows_open", |flows| flows == 1);
        let family = if bed.family == Family::V4 { "" } else { "-6" };
        bed.gateway.ip(&format!("{family} neigh flush dev {WAN}"));
        pep.log().expect("neighbours do not answer");
        // The look at them comes later than the line.
        thread::sleep(Duration::from_secs(1));
        reconnect(&bed.server);
        let mut echoed = [0; 9];
        stream.read_exact(&mut echoed).expect("it is delivered");
        assert_eq!(&echoed, b"all of it");
        drop(stream);
        pep.assert_healthy();
    });
}

/// Sends until the kernels of gateway and server take no more. Returns the number of bytes.
fn fill(stream: &mut TcpStream) -> u64 {
    stream.set_nonblocking(true).expect("a socket");
    let (mut sent, mut idle) = (0, 0);
    while idle < 20 {
        match stream.write(&[7; 65_536]) {
            Ok(count) => (sent, idle) = (sent + count as u64, 0),
            Err(err) if err.kind() == ErrorKind::WouldBlock => {
                idle += 1;
                thread::sleep(Duration::from_millis(20));
            }
            Err(err) => panic!("{err}"),
        }
    }
    stream.set_nonblocking(false).expect("a socket");
    sent
}

#[test]
fn a_receiver_that_pauses_while_the_link_fails_gets_every_byte() {
    matrix_pepd_only(|bed| {
        let (read, wait) = mpsc::channel::<()>();
        let (results, counts) = mpsc::channel();
        let wait = parking_lot::Mutex::new(wait);
        let listener = bed.server.listen(bed.at(Place::Server, PORT));
        let _server = Server::start(listener, move |mut stream, _| {
            let _ = wait.lock().recv();
            let mut all = Vec::new();
            let count = stream.read_to_end(&mut all);
            results.send(count.ok()).expect("the test listens");
        });
        let mut pep = bed.start_with(TIMEOUTS).expect("not direct");
        let mut stream = connect(bed);
        let sent = fill(&mut stream);
        wait_until("the server's window to be closed", || {
            let to = bed.at(Place::Server, PORT);
            socket_toward(bed, to).contains("timer:(persist")
        });
        cut_off(&bed.server);
        wait_for_the_kernel_to_give_up();
        reconnect(&bed.server);
        read.send(()).expect("the server waits");
        stream.shutdown(Shutdown::Write).expect("connected");
        let count = counts.recv_timeout(PATIENCE).expect("it arrives");
        assert_eq!(count, Some(sent as usize));
        drop(stream);
        pep.assert_healthy();
    });
}
