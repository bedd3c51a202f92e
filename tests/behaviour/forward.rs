//! Rules of other programs in the forward hook, which hold for accelerated connections too.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    thread,
    time::Duration,
};

use nix::{errno::Errno, sys::signal::Signal};
use pepd_tests::{
    bed::{Bed, Family, Path, Place},
    echo::EchoServer,
    host::Dial,
    matrix::matrix_pepd_only,
    outcome::Connected,
    pep::Pep,
    wait::{PATIENCE, wait_until},
};

use crate::{
    support::{PORT, counter, echo_once},
    survive::{send_signal, wait_ready},
};

/// Ports that the firewall closes, and refuses.
const CLOSED: u16 = 7001;
const REFUSED: u16 = 7002;
/// Port that it opens to connections over the link only.
const PORTAL: u16 = 80;

const FIREWALL: &str = "table inet guard {
    chain forward {
        type filter hook forward priority 0; policy drop;
        ct state established,related accept
        iifname \"lan0\" oifname \"wan0\" tcp dport 7000 accept
        iifname \"lan0\" tcp dport 7002 reject with tcp reset
    }
}";

/// A captive portal: strangers reach nothing but it.
const STRANGERS: &str = "table inet portal {
    chain strangers {
        type nat hook prerouting priority -100;
        iifname \"lan0\" tcp dport 80 redirect to :8080
    }
    chain forward {
        type filter hook forward priority 0;
        iifname \"lan0\" ct state new drop
    }
}";

/// Runs a test in both families. Held SYNs do not pass these rules.
fn spoofed(test: impl Fn(&Bed) + Sync) {
    matrix_pepd_only(|bed| {
        if bed.path == Path::Spoof {
            test(bed);
        }
    });
}

fn start(bed: &Bed) -> Pep {
    start_with(bed, "auto")
}

fn start_with(bed: &Bed, forward: &str) -> Pep {
    let config = bed.config("").expect("not direct");
    let begin = format!("[intercept]\nforward = \"{forward}\"\n");
    Pep::start(&bed.gateway, &config.replace("[intercept]\n", &begin))
}

/// Connects within a time in which a host repeats its SYN once.
fn connect(bed: &Bed, to: SocketAddr) -> io::Result<TcpStream> {
    bed.client
        .dial(&Dial::to(to).limit(Duration::from_millis(1500)))
}

/// Waits for a line from a position on.
fn await_log(pep: &Pep, position: usize, words: &str) {
    let found = pep
        .log()
        .find(position, PATIENCE, |event| event.message().contains(words));
    assert!(
        found.is_some(),
        "never logged: {words}\n{}",
        pep.log().text()
    );
}

#[test]
fn what_the_firewall_drops_stays_dropped_and_the_rest_is_accelerated() {
    spoofed(|bed| {
        let at = |port| bed.at(Place::Server, port);
        let _servers =
            [PORT, CLOSED, REFUSED].map(|port| EchoServer::start(bed.server.listen(at(port))));
        bed.gateway.nft(FIREWALL);
        let mut pep = start(bed);
        for port in [CLOSED, REFUSED] {
            let expected = match port {
                CLOSED => Connected::Hung,
                _ => Connected::No(Errno::ECONNREFUSED),
            };
            let tried = connect(bed, at(port));
            assert_eq!(Connected::from_result(&tried), expected, "port {port}");
        }
        let mut stream = connect(bed, at(PORT)).expect("the firewall permits it");
        echo_once(&mut stream, b"accelerated");
        pep.wait_counter("flows_open", |open| open == 1);
        assert_eq!(pep.counter("flows_accepted"), 1);
        assert_eq!(counter(&bed.gateway, "pepd", "permitted"), 1);
        // A rule that changes counts at once.
        bed.gateway.nft("flush chain inet guard forward");
        let refused = connect(bed, at(PORT));
        assert_eq!(Connected::from_result(&refused), Connected::Hung);
        echo_once(&mut stream, b"it goes on");
        bed.gateway.nft("delete table inet guard");
        let mut other = connect(bed, at(CLOSED)).expect("all is permitted");
        echo_once(&mut other, b"accelerated");
        pep.wait_counter("flows_open", |open| open == 2);
        drop((stream, other));
        pep.assert_healthy();
    });
}

#[test]
fn a_captive_portal_keeps_strangers_in() {
    spoofed(|bed| {
        let at = |port| bed.at(Place::Server, port);
        let _server = EchoServer::start(bed.server.listen(at(PORT)));
        bed.gateway.nft(STRANGERS);
        let lan = SocketAddr::new(bed.family.address(1, 1), 8080);
        let portal = EchoServer::start(bed.gateway.listen(lan));
        let mut pep = start(bed);
        let tried = connect(bed, at(PORT));
        assert_eq!(Connected::from_result(&tried), Connected::Hung);
        let mut page = connect(bed, at(PORTAL)).expect("the portal answers");
        echo_once(&mut page, b"log in");
        assert_eq!((portal.accepted(), pep.counter("flows_accepted")), (1, 0));
        drop(page);
        pep.assert_healthy();
    });
}

/// Hosts repeat what they sent meanwhile. Nothing leaves unaccelerated, or past the firewall.
#[test]
fn connections_that_begin_while_pepd_is_replaced_wait_for_it() {
    spoofed(|bed| {
        let at = |port| bed.at(Place::Server, port);
        let _servers = [PORT, CLOSED].map(|port| EchoServer::start(bed.server.listen(at(port))));
        bed.gateway.nft(FIREWALL);
        bed.client.sysctl("net.ipv4.tcp_syn_retries", "6");
        let pep = start(bed);
        let (position, worker) = (pep.log().position(), pep.id());
        send_signal(pep.supervisor(), Signal::SIGSTOP);
        send_signal(worker, Signal::SIGKILL);
        let tun = || bed.gateway.output("ip", &["link", "show", "pepd0"]);
        wait_until("the TUN to be gone", || !tun().status.success());
        let closed = connect(bed, at(CLOSED));
        assert_eq!(Connected::from_result(&closed), Connected::Hung);
        let before = counter(&bed.gateway, "pepd", "syns");
        let client = bed.client.clone();
        let between = thread::spawn({
            let to = at(PORT);
            move || client.connect(to)
        });
        let syns = || counter(&bed.gateway, "pepd", "syns");
        wait_until("the host's SYN", || syns() > before);
        send_signal(pep.supervisor(), Signal::SIGCONT);
        wait_ready(&pep, position);
        let mut stream = between.join().expect("it returns").expect("connected");
        echo_once(&mut stream, b"accelerated");
        assert_eq!(pep.counter("flows_accepted"), 1);
        drop(stream);
        pep.stop();
    });
}

/// Accepts packets of hosts by their interface only, and none on their way to servers.
const BY_INTERFACE: &str = "table inet guard {
    chain input {
        type filter hook input priority 0; policy drop;
        iifname { \"lan0\", \"wan0\", \"lo\" } accept
    }
    chain forward {
        type filter hook forward priority 0; policy drop;
    }
}";

/// Rules that drop SYNs out of pepd's TUN are in the way of obedience, not of acceleration.
#[test]
fn where_syns_do_not_come_back_connections_are_accelerated_past_the_firewall() {
    spoofed(|bed| {
        let at = bed.at(Place::Server, PORT);
        let _server = EchoServer::start(bed.server.listen(at));
        bed.gateway.nft(BY_INTERFACE);
        let pep = start(bed);
        let mut stream = connect(bed, at).expect("accelerated");
        echo_once(&mut stream, b"past the firewall");
        let found = pep.log().expect("SYNs that come from pepd0");
        let accepts = "meta mark and 0xff000000 == 0x53000000 accept";
        assert!(found.message().contains(accepts), "{}", found.message());
        let position = pep.log().position();
        bed.gateway
            .nft(&format!("insert rule inet guard input {accepts}"));
        await_log(&pep, position, "hold for their connections again");
        let closed = connect(bed, at);
        assert_eq!(Connected::from_result(&closed), Connected::Hung);
        echo_once(&mut stream, b"it goes on");
        drop(stream);
        bed.gateway.nft("delete table inet guard");
        bed.gateway.nft(BY_INTERFACE);
        pep.stop();
        // Who insists on obedience gets no connection past the firewall.
        let strict = start_with(bed, "obey");
        let closed = connect(bed, at);
        assert_eq!(Connected::from_result(&closed), Connected::Hung);
        strict.stop();
    });
}

/// Without forwarding the hook is never reached, and pepd is the only way.
#[test]
fn a_gateway_that_does_not_forward_accelerates_until_it_does() {
    spoofed(|bed| {
        let at = bed.at(Place::Server, PORT);
        let _server = EchoServer::start(bed.server.listen(at));
        let forwarding = match bed.family {
            Family::V4 => "net.ipv4.conf.lan0.forwarding",
            Family::V6 => "net.ipv6.conf.all.forwarding",
        };
        bed.gateway.nft(FIREWALL);
        bed.gateway.nft("flush chain inet guard forward");
        bed.gateway.sysctl(forwarding, "0");
        let mut pep = start(bed);
        let mut stream = connect(bed, at).expect("accelerated");
        echo_once(&mut stream, b"no way but this");
        let position = pep.log().position();
        bed.gateway.sysctl(forwarding, "1");
        await_log(&pep, position, "hold for their connections again");
        let closed = connect(bed, at);
        assert_eq!(Connected::from_result(&closed), Connected::Hung);
        let position = pep.log().position();
        bed.gateway.sysctl(forwarding, "0");
        await_log(&pep, position, "do not hold for accelerated connections");
        let mut other = connect(bed, at).expect("accelerated again");
        echo_once(&mut other, b"again");
        drop((stream, other));
        pep.assert_healthy();
    });
}
