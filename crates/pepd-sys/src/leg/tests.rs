use std::{
    iter,
    net::{Ipv4Addr, TcpListener, TcpStream},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pep_core::site::Buffers;

use super::{
    testing::{options, site},
    *,
};
use crate::socket::{self, has_rto_max};

fn wait_writable(fd: &OwnedFd) {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    assert_eq!(poll(&mut fds, PollTimeout::from(5000u16)).unwrap(), 1);
}

#[test]
fn a_server_leg_connects_with_its_options() {
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(address).unwrap();
        let server = listener.local_addr().unwrap();
        let leg = server_leg(&site(), server, server, FromSyn::default()).unwrap();
        wait_writable(&leg);
        assert!(so_error(leg.as_fd()).unwrap().is_none());
        let socket = SockRef::from(&leg);
        assert!(socket.tcp_nodelay().unwrap() && !socket.keepalive().unwrap());
        site().server.set_keepalive_or_warn(leg.as_fd());
        assert!(socket.keepalive().unwrap(), "once a flow lasts");
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 1 << 17);
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(900))
        );
    }
}

#[test]
fn a_refusal_is_the_pending_error() {
    let server = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let leg = server_leg(&site(), server, server, FromSyn::default()).unwrap();
    wait_writable(&leg);
    let err = so_error(leg.as_fd()).unwrap().expect("refused");
    assert_eq!(err.kind(), io::ErrorKind::ConnectionRefused);
    assert!(so_error(leg.as_fd()).unwrap().is_none(), "taken once");
}

#[test]
fn syns_last_as_long_as_the_connect_timeout() {
    let retries = |connect, rto_max| {
        let options = LegOptions {
            connect: Duration::from_secs(connect),
            ..options()
        };
        options.syn_retries(Duration::from_secs(rto_max))
    };
    assert_eq!(retries(130, 2), 65);
    assert_eq!(retries(10, 120), 6);
    assert_eq!(retries(3600, 1), 127);
    assert_eq!(retries(130, 16), 11);
}

#[test]
fn syns_back_off_and_retransmissions_do_not() {
    if !has_rto_max() {
        return;
    }
    let (listener, mut site) = (TcpListener::bind("127.0.0.1:0").unwrap(), site());
    let server = listener.local_addr().unwrap();
    site.server.user_timeout = Some(Duration::from_secs(600));
    site.server.rto_max = Some(Duration::from_secs(2));
    let rto_max = |leg: &OwnedFd| socket::rto_max(leg.as_fd()).unwrap().as_secs();
    let leg = server_leg(&site, server, server, FromSyn::default()).unwrap();
    site.server.back_off_syns(leg.as_fd());
    assert_eq!(rto_max(&leg), 16);
    on_connected(leg.as_fd(), &site, Family::V4).unwrap();
    assert_eq!(rto_max(&leg), 2);
}

#[test]
fn the_minimum_of_the_retransmission_timer_is_set_before_a_leg_connects() {
    if !has_rto_max() {
        return;
    }
    let (listener, mut site) = (TcpListener::bind("127.0.0.1:0").unwrap(), site());
    let server = listener.local_addr().unwrap();
    site.server.user_timeout = None;
    site.server.rto_min = Some(Duration::from_millis(60));
    let leg = server_leg(&site, server, server, FromSyn::default()).unwrap();
    let set = socket::rto_min(leg.as_fd()).unwrap();
    // The kernel rounds up to its clock.
    assert!((60..=70).contains(&set.as_millis()), "{set:?}");
}

#[test]
fn only_single_machines_elsewhere_may_be_hosts() {
    for address in [
        "192.0.2.1",
        "10.0.0.255",
        "2001:db8::1",
        "fe80::1",
        "::ffff:192.0.2.1",
    ] {
        assert!(may_be_host(address.parse().unwrap()), "{address}");
    }
    let others = [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "224.0.0.1",
        "239.1.2.3",
        "255.255.255.255",
    ];
    for address in others {
        assert!(!may_be_host(address.parse().unwrap()), "{address}");
        let mapped = format!("::ffff:{address}");
        assert!(!may_be_host(mapped.parse().unwrap()), "{mapped}");
    }
    for address in ["::", "::1", "ff02::1", "ff0e::1"] {
        assert!(!may_be_host(address.parse().unwrap()), "{address}");
    }
}

#[test]
fn listeners_share_a_port_among_themselves_only() {
    let site = |port| SiteRuntime {
        port,
        backlog: 64,
        ..site()
    };
    let listen = |port, count| listeners(&site(port), Family::V4, count, Vec::new());
    let first = listen(0, 1).unwrap();
    let port = first[0].local_addr().unwrap().as_socket().unwrap().port();
    let err = listen(port, 1).unwrap_err();
    assert_eq!(err.source.kind(), io::ErrorKind::AddrInUse);
    drop(first);

    let sockets = listen(port, 2).unwrap();
    let address = (Ipv4Addr::LOCALHOST, port);
    let _clients = [(); 64].map(|()| TcpStream::connect(address).unwrap());
    let count = |socket: &Socket| iter::from_fn(|| socket.accept().ok()).count();
    let accepted: Vec<_> = sockets.iter().map(count).collect();
    assert_eq!(accepted.iter().sum::<usize>(), 64);
    assert!(accepted.iter().all(|count| *count > 0), "{accepted:?}");
}

#[test]
fn a_leg_that_does_not_leave_by_the_link_gets_other_options() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let rate = "1Mbit/s".parse().unwrap();
    let mut site = site();
    let reno = || Congestion::Named("reno".parse().unwrap());
    site.server = LegOptions {
        congestion: reno(),
        pacing: Some(PayloadRate { v4: rate, v6: rate }),
        buffers: Buffers {
            send: Some(1 << 18),
            ..Buffers::default()
        },
        ..options()
    };
    let link = server_leg(&site, server, server, FromSyn::default()).unwrap();
    let beside = LegOptions {
        notsent_lowat: None,
        user_timeout: None,
        rto_max: None,
        nodelay: false,
        ..options()
    };
    assert!(leave_link(link.as_fd(), &site, Family::V4).is_none());
    site.beside = Some(Arc::new(SiteRuntime {
        server: beside,
        is_beside: true,
        ..site.clone()
    }));
    let leg = server_leg(&site, server, server, FromSyn::default()).unwrap();
    let found = leave_link(leg.as_fd(), &site, Family::V4).expect("other options");
    assert!(found.is_beside);
    let socket = SockRef::from(&leg);
    let control = socket.tcp_congestion().unwrap();
    let control = String::from_utf8(control).unwrap();
    let system = crate::sysctl("net/ipv4/tcp_congestion_control").unwrap();
    assert_eq!(control.trim_end_matches('\0'), system);
    assert_eq!(socket.tcp_user_timeout().unwrap(), None);
    assert!(!socket.tcp_nodelay().unwrap());
    // As a socket without these options.
    let plain = TcpStream::connect(server).unwrap();
    let plain = SockRef::from(&plain);
    assert_eq!(
        socket.tcp_notsent_lowat().unwrap(),
        plain.tcp_notsent_lowat().unwrap()
    );
    let tuned = |leg: &OwnedFd| !socket::is_send_buffer_set(leg.as_fd()).unwrap();
    assert_eq!((tuned(&link), tuned(&leg)), (false, true));
    let rate = |leg: &OwnedFd| socket::max_pacing_rate(leg.as_fd()).unwrap();
    assert_eq!(rate(&link), 125_000);
    assert!(rate(&leg) > u64::from(u32::MAX) - 1);
}
