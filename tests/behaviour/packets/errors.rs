//! ICMP errors about packets that came from the peer go back to it through the tunnel.

use std::time::Duration;

use pepd_tests::{tunnel::TunnelBed, wait::wait_for};

use super::{BOTH, plain, stream::Stream, told};
use crate::tunnel::{LINK, PORT};

/// What the far LAN takes, which is less than the tunnel does.
const NARROW: usize = 1290;

#[test]
fn hosts_learn_through_the_tunnel_what_fits_behind_it() {
    let bed = TunnelBed::new(LINK);
    let hub = bed.host("hub");
    hub.ip(&format!("link set server mtu {NARROW}"));
    // What crosses the link as it is.
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
        let mtu = wait_for("the host to be told what fits", || {
            stream.run(1, NARROW - 10, Duration::from_millis(20));
            told(&bed, family)
        });
        assert_eq!(mtu, NARROW);
        stream.until_one_comes("what fits", NARROW - 48);
        stream.until_one_comes("what does not", NARROW + 48);
        assert_eq!(stream.wrong, 0);
    }
    let seen = hub.run("nft", &["list", "chain", "inet", "seen", "errors"]);
    assert_eq!(seen.matches("packets 0 ").count(), 2, "{seen}");
    assert_eq!(ends.boat.counter("packets_foreign"), 0);
    ends.stop();
}
