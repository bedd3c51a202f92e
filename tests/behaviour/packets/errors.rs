//! ICMP errors about packets from the peer return to it through the tunnel.

use std::{io::ErrorKind, net::UdpSocket, time::Duration};

use pepd_tests::{
    tunnel::TunnelBed,
    wait::{wait_for, wait_until},
};

use super::{BOTH, BothEnds, path_mtu, plain, stream::Stream};
use crate::tunnel::{LINK, PORT};

/// The MTU of the far LAN, below the tunnel's.
const NARROW: usize = 1290;

#[test]
fn hosts_learn_through_the_tunnel_what_fits_behind_it() {
    let bed = TunnelBed::new(LINK);
    let hub = bed.host("hub");
    hub.ip(&format!("link set server mtu {NARROW}"));
    // Packets that cross the link unencapsulated.
    hub.nft(
        "table inet seen {
            chain out { type filter hook postrouting priority 400; oifname \"boat\" jump errors; }
            chain errors {
                icmp type { destination-unreachable, time-exceeded } counter
                icmpv6 type { destination-unreachable, packet-too-big, time-exceeded } counter
            }
        }",
    );
    let ends = plain(&bed);
    for family in BOTH {
        let mut stream = Stream::new(&bed, family, PORT);
        let mtu = wait_for("the path MTU to reach the host", || {
            stream.run(1, NARROW - 10, Duration::from_millis(20));
            path_mtu(&bed, family)
        });
        assert_eq!(mtu, NARROW);
        stream.until_one_comes("what fits", NARROW - 48);
        stream.until_one_comes("what does not", NARROW + 48);
        assert_eq!(stream.wrong, 0);
    }
    let seen = hub.run("nft", &["list", "chain", "inet", "seen", "errors"]);
    assert_eq!(seen.matches("packets 0 ").count(), 2, "{seen}");
    assert_eq!(ends.boat.counter("packets_unmatched"), 0);
    ends.stop();
}

#[test]
fn errors_about_uncarried_packets_follow_them_though_a_site_takes_icmp() {
    let bed = TunnelBed::new(LINK);
    let icmp = |peer: &str| {
        format!(
            "[[site]]\nname = \"ping\"\nmode = \"packet\"\npeer = \"{peer}\"\nmatch = {{ protocol = [\"icmp\", \"icmpv6\"] }}\n"
        )
    };
    let ends = BothEnds::start(&bed, &[(PORT, icmp("hub"))], &[(PORT, icmp("boat"))]);
    for family in BOTH {
        let (from, to) = (
            bed.server_at(family, PORT + 7),
            (bed.address("client", family), PORT + 8),
        );
        let socket = bed.host("server").enter(|| UdpSocket::bind(from));
        let socket = socket.expect("a socket");
        socket.connect(to).expect("a destination");
        let patience = Some(Duration::from_millis(200));
        socket.set_read_timeout(patience).expect("a time");
        wait_until("the ICMP error to reach the server", || {
            let _ = socket.send(b"to a closed port");
            let heard = socket.recv(&mut [0; 9]);
            heard.is_err_and(|err| err.kind() == ErrorKind::ConnectionRefused)
        });
    }
    assert_eq!(ends.boat.counter("packets_taken"), 0);
    assert_eq!(ends.hub.counter("packets_unmatched"), 0);
    ends.stop();
}
